"""Errors of workers, which they report or make in their reports: a sample each, and their number per launch config,
code and hour."""

from datetime import datetime
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from slipway_api.http.provisioner.launch_configs import FrequentError
from slipway_api.http.provisioner.workers import ErrorTotal, WorkerError
from slipway_common.database.places import LAST_NUMBER, LAST_TIME, Text
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, beyond, matches, not_before
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.store.tables import worker_error, worker_error_hour

STORED_MAX: Final = 1_000
"""Errors of one worker that are stored in an hour; the others are only counted."""
OTHER: Final = "other"
"""Code under which errors beyond that are counted: their own codes could be any number."""
RECENT_CODES: Final = 5
E: Final = worker_error.c
H: Final = worker_error_hour.c
_CLOCK: Final = sa.func.slipway_clock()
_HOUR: Final = sa.func.date_trunc("hour", _CLOCK, "UTC")
STORED: Final = Statement(
    sa.select(sa.func.count()).where(
        E.worker_id == sa.bindparam("worker_id"), E.at > _CLOCK - sa.text("interval '1 hour'")
    )
)
FIELDS: Final = ("worker_id", "pool_id", "launch_config_id", "image_revision", "code", "sample")
STORE: Final = Statement(sa.insert(worker_error).values({name: sa.bindparam(name) for name in FIELDS}))
_COUNTED: Final = insert(worker_error_hour).values(
    {name: sa.bindparam(name) for name in ("launch_config_id", "code", "pool_id")} | {"hour": _HOUR, "number": 1}
)
HAS: Final = Statement(
    sa.select(sa.exists().where(E.worker_id == sa.bindparam("worker_id"), E.code == sa.bindparam("code")))
)
COUNT: Final = Statement(
    _COUNTED.on_conflict_do_update(index_elements=[H.launch_config_id, H.code, H.hour], set_={"number": H.number + 1})
)
LISTED: Final = Statement(
    sa.select(E.id, E.at, *(E[name] for name in FIELDS))
    .where(
        matches(E.worker_id, "worker_id"),
        matches(E.pool_id, "pool_id"),
        matches(E.launch_config_id, "launch_config_id"),
        matches(E.code, "code"),
        not_before(E.at, "since"),
        beyond({"after": E.id}, descending=True),
    )
    .order_by(E.id.desc())
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
TOTALS: Final = Statement(
    sa.select(H.hour, H.pool_id, H.launch_config_id, H.code, H.number)
    .where(
        matches(H.pool_id, "pool_id"),
        matches(H.launch_config_id, "launch_config_id"),
        not_before(H.hour, "since"),
        beyond({"hour": H.hour, "config": H.launch_config_id, "code": H.code}, descending=True),
    )
    .order_by(H.hour.desc(), H.launch_config_id.desc(), H.code.desc())
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
RECENT: Final = f"""
SELECT code, sum(number)::int AS number, (
    SELECT sample FROM worker_error e WHERE e.launch_config_id = $1 AND e.code = h.code
    ORDER BY id DESC LIMIT 1) AS sample
FROM worker_error_hour h
WHERE launch_config_id = $1 AND hour > slipway_clock() - interval '25 hours'
GROUP BY code ORDER BY number DESC, code LIMIT {RECENT_CODES}"""


async def record(tx: Connection, worker: Worker, code: str, sample: str) -> bool:
    """Store and count an error of a locked worker; False if the worker has reported too many in this hour, so that it
    is only counted."""
    if await tx.fetchval(STORED.text, *STORED.arguments(worker_id=worker.id)) >= STORED_MAX:
        await _count(tx, worker, OTHER)
        return False
    await _store(tx, worker, code, sample)
    return True


async def record_once(tx: Connection, worker: Worker, code: str, sample: str) -> bool:
    """Store and count an error of a locked worker, unless one of this code is stored of it; True if it was not."""
    if await tx.fetchval(HAS.text, *HAS.arguments(worker_id=worker.id, code=code)):
        return False
    await _store(tx, worker, code, sample)
    return True


async def _store(tx: Connection, worker: Worker, code: str, sample: str) -> None:
    row = {"worker_id": worker.id, "image_revision": worker.image_revision, "code": code, "sample": sample}
    names = {"pool_id": worker.pool_id, "launch_config_id": worker.launch_config_id}
    await tx.execute(STORE.text, *STORE.arguments(**row, **names))
    await _count(tx, worker, code)


async def _count(tx: Connection, worker: Worker, code: str) -> None:
    arguments = COUNT.arguments(code=code, pool_id=worker.pool_id, launch_config_id=worker.launch_config_id)
    await tx.execute(COUNT.text, *arguments)


async def listed(
    db: Connection,
    *,
    worker_id: str | None,
    pool_id: str | None,
    launch_config_id: str | None,
    code: str | None,
    since: datetime | None,
    after: int = LAST_NUMBER,
    limit: int,
) -> list[WorkerError]:
    """Errors, newest first: all that are stored, or those that match, from the one before the row `after`."""
    filters = {"worker_id": worker_id, "pool_id": pool_id, "launch_config_id": launch_config_id, "code": code}
    arguments = LISTED.arguments(**filters, since=since, after=after, limit=limit)
    return [WorkerError(**row) for row in await db.fetch(LISTED.text, *arguments)]


class HourPlace(NamedTuple):
    """Place in the list of numbers of errors."""

    hour: datetime
    config: Text
    code: Text


LAST_HOUR: Final = HourPlace(LAST_TIME, "", "")


async def totals(
    db: Connection,
    *,
    pool_id: str | None,
    launch_config_id: str | None,
    since: datetime | None,
    after: HourPlace = LAST_HOUR,
    limit: int,
) -> list[ErrorTotal]:
    """Numbers of errors per launch config, code and hour, newest hours first, from the one after that place."""
    filters = {"pool_id": pool_id, "launch_config_id": launch_config_id}
    arguments = TOTALS.arguments(**filters, since=since, **after._asdict(), limit=limit)
    return [ErrorTotal(**row) for row in await db.fetch(TOTALS.text, *arguments)]


async def recent(db: Connection, launch_config_id: str) -> list[FrequentError]:
    """The most frequent codes of a launch config in the last day, with their numbers and newest samples."""
    return [FrequentError(**row) for row in await db.fetch(RECENT, launch_config_id)]
