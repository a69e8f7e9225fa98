"""Token buckets of provider APIs, shared by all replicas: a row per bucket, the time at which it is full again."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from slipway_common.database.postgres import Database
from slipway_common.database.sql import Statement
from slipway_provisioner.store.tables import provider_bucket

C: Final = provider_bucket.c
NOW: Final = sa.func.slipway_clock()


def _seconds(name: str) -> sa.ColumnElement[object]:
    return sa.func.make_interval(0, 0, 0, 0, 0, 0, sa.bindparam(name, type_=sa.Double))


_WAIT: Final = sa.cast(sa.func.extract("epoch", C.full_at - NOW), sa.Double).label("seconds")
# The time is read once the row is locked, here as in RETURNING. A bucket deeper in debt than any call may put it was
# used before the clock was set back: it counts as empty.
_FULL_AT: Final = sa.case(
    (C.full_at > NOW + _seconds("debt_seconds"), NOW + _seconds("burst_seconds")),
    else_=sa.func.greatest(C.full_at, NOW),
)
TAKE: Final = Statement(
    postgresql.insert(provider_bucket)
    .values(bucket=sa.bindparam("bucket"), full_at=NOW + _seconds("units_seconds"))
    .on_conflict_do_update(index_elements=[C.bucket], set_={"full_at": _FULL_AT + _seconds("units_seconds")})
    .returning(_WAIT)
)
EMPTY: Final = Statement(
    postgresql.insert(provider_bucket)
    .values(bucket=sa.bindparam("bucket"), full_at=NOW + _seconds("burst_seconds"))
    .on_conflict_do_update(
        index_elements=[C.bucket], set_={"full_at": sa.func.greatest(C.full_at, NOW + _seconds("burst_seconds"))}
    )
)


class BucketShare(Protocol):
    """Tokens that a call takes from one bucket."""

    @property
    def bucket(self) -> str: ...
    @property
    def units_seconds(self) -> float: ...
    @property
    def burst_seconds(self) -> float: ...
    @property
    def free_seconds(self) -> float: ...
    @property
    def debt_seconds(self) -> float: ...


class SharedBuckets:
    """Buckets in the database. Those of one call are locked in the order of their names."""

    def __init__(self, database: Callable[[], Database]) -> None:
        self._database = database

    async def take(self, shares: Sequence[BucketShare], *, within_seconds: float) -> float:
        """Take from every bucket; returns the seconds to wait before the call. If they exceed `within_seconds`, nothing
        is taken."""
        wait = 0.0
        async with self._database().acquire() as db:
            transaction = db.transaction()
            await transaction.start()
            try:
                for share in sorted(shares, key=lambda share: share.bucket):
                    arguments = TAKE.arguments(
                        bucket=share.bucket,
                        units_seconds=share.units_seconds,
                        burst_seconds=share.burst_seconds,
                        debt_seconds=share.debt_seconds,
                    )
                    wait = max(wait, await db.fetchval(TAKE.text, *arguments) - share.free_seconds)
            except BaseException:
                await transaction.rollback()
                raise
            await (transaction.commit() if wait <= within_seconds else transaction.rollback())
        return wait

    async def empty(self, shares: Sequence[BucketShare]) -> None:
        """Leave no token in the buckets, since the provider has just throttled a call."""
        async with self._database().acquire() as db, db.transaction():
            for share in sorted(shares, key=lambda share: share.bucket):
                arguments = EMPTY.arguments(bucket=share.bucket, burst_seconds=share.burst_seconds)
                await db.execute(EMPTY.text, *arguments)
