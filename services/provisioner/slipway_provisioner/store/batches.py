"""Launch batches: committed provider calls and their outcomes."""

from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, names, seconds
from slipway_provisioner.domain.launching import BatchState
from slipway_provisioner.store import accounts
from slipway_provisioner.store.tables import launch_batch


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One provider call: 1…n intents of one config with one body and one token. `id` is also the instance tag."""

    id: str
    launch_config_id: str
    account_id: str
    lease_id: str
    token: str
    body: dict[str, Any]
    units: int
    state: str = BatchState.CALLING
    outcome: str = ""
    repeats: int = 0
    started_at: datetime | None = None
    call_deadline: datetime | None = None


C: Final = launch_batch.c
FIELDS: Final = C[Batch.__struct_fields__]
CALL: Final = C["id", "launch_config_id", "account_id", "lease_id", "token", "body", "units"]
INSERT: Final = Statement(
    sa.insert(launch_batch).values(
        {field.name: sa.bindparam(field.name) for field in CALL}
        | {
            "state": BatchState.CALLING,
            "started_at": sa.func.slipway_clock(),
            "call_deadline": sa.func.slipway_clock() + seconds("call_timeout"),
        }
    )
)
_ONE: Final = sa.select(*FIELDS).where(C.id == sa.bindparam("id"))
GET: Final = Statement(_ONE)
LOCK: Final = Statement(_ONE.with_for_update())
KNOWN: Final = Statement(
    sa.update(launch_batch)
    .where(C.id == sa.bindparam("batch_id"))
    .values(state=BatchState.KNOWN, outcome=sa.bindparam("result"), known_at=sa.func.slipway_clock())
)
# Once the deadline has passed by the visibility delay, instances of the call are listed. The replica that takes a batch
# gets a new deadline for its attempt; after that any replica may take it. An attempt began $2 before its deadline. Its
# uptime counts, since after a jump of the clock it may still be in flight.
OVERDUE: Final = f"""
UPDATE launch_batch SET repeats = repeats + 1, call_deadline = slipway_clock() + $2 * interval '1 s' WHERE id IN (
    SELECT id FROM launch_batch
    WHERE state = '{BatchState.CALLING}' AND NOT {accounts.unreachable("launch_batch")}
        AND call_deadline < slipway_clock() - $1 * interval '1 s'
        AND uptime_since(call_deadline - $2 * interval '1 s') > $1 + $2
    ORDER BY call_deadline LIMIT 20 FOR UPDATE SKIP LOCKED)
RETURNING {names(FIELDS)}"""
# Compared as text, since a tag that an account lists can be any text.
STATES: Final = Statement(
    sa.select(C.id, C.state).where(sa.cast(C.id, sa.Text) == sa.any_(sa.bindparam("ids", type_=sa.ARRAY(sa.Text))))
)


def from_row(row: Any) -> Batch:
    return Batch(**dict(row) | {"id": str(row["id"])})


async def insert(tx: Connection, batch: Batch, *, call_timeout_seconds: float) -> None:
    call = {field.name: getattr(batch, field.name) for field in CALL}
    await tx.execute(INSERT.text, *INSERT.arguments(**call, call_timeout=call_timeout_seconds))


async def lock(tx: Connection, batch_id: str) -> Batch | None:
    row = await tx.fetchrow(LOCK.text, *LOCK.arguments(id=batch_id))
    return None if row is None else from_row(row)


async def get(db: Connection, batch_id: str) -> Batch | None:
    row = await db.fetchrow(GET.text, *GET.arguments(id=batch_id))
    return None if row is None else from_row(row)


def described(batch: Batch) -> dict[str, Any]:
    """Batch as shown to people, without the body, which holds the config's settings, and without the token."""
    return {name: value for name, value in msgspec.structs.asdict(batch).items() if name not in {"body", "token"}}


async def known(tx: Connection, batch_id: str, outcome: str) -> None:
    """Record a certain outcome. The batch is locked."""
    await tx.execute(KNOWN.text, *KNOWN.arguments(batch_id=batch_id, result=outcome))


async def take_overdue(db: Connection, *, visibility_seconds: float, attempt_seconds: float) -> list[Batch]:
    """Take up to 20 overdue batches without a recorded outcome, for this caller alone until their new deadline."""
    return [from_row(row) for row in await db.fetch(OVERDUE, visibility_seconds, attempt_seconds)]


async def states(db: Connection, ids: list[str]) -> dict[str, str]:
    """Batch id → state; unknown ids are absent."""
    rows = await db.fetch(STATES.text, *STATES.arguments(ids=ids))
    return {str(row["id"]): row["state"] for row in rows}
