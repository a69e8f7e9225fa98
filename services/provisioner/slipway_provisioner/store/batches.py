"""Launch batches: committed provider calls and their outcomes."""

from datetime import datetime
from typing import Any, Final

import msgspec

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import names
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
    state: str = "calling"
    outcome: str = ""
    repeats: int = 0
    started_at: datetime | None = None
    call_deadline: datetime | None = None


NAMES: Final = "id::text, " + names(launch_batch.c[name] for name in Batch.__struct_fields__ if name != "id")
INSERT: Final = """
INSERT INTO launch_batch (id, launch_config_id, account_id, lease_id, token, body, units, state, started_at,
    call_deadline)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'calling', slipway_clock(), slipway_clock() + $8 * interval '1 s')"""
LOCK: Final = f"SELECT {NAMES} FROM launch_batch WHERE id = $1 FOR UPDATE"
KNOWN: Final = "UPDATE launch_batch SET state = 'known', outcome = $2, known_at = slipway_clock() WHERE id = $1"
# Once the deadline has passed by the visibility delay, instances of the call are listed. The replica that takes a batch
# gets a new deadline for its attempt; after that any replica may take it.
OVERDUE: Final = f"""
UPDATE launch_batch SET repeats = repeats + 1, call_deadline = slipway_clock() + $2 * interval '1 s' WHERE id IN (
    SELECT id FROM launch_batch WHERE state = 'calling' AND call_deadline < slipway_clock() - $1 * interval '1 s'
    ORDER BY call_deadline LIMIT 20 FOR UPDATE SKIP LOCKED)
RETURNING {NAMES}"""


async def insert(tx: Connection, batch: Batch, *, call_timeout_seconds: float) -> None:
    await tx.execute(
        INSERT,
        batch.id,
        batch.launch_config_id,
        batch.account_id,
        batch.lease_id,
        batch.token,
        batch.body,
        batch.units,
        call_timeout_seconds,
    )


async def lock(tx: Connection, batch_id: str) -> Batch | None:
    row = await tx.fetchrow(LOCK, batch_id)
    return None if row is None else Batch(**row)


async def get(db: Connection, batch_id: str) -> Batch | None:
    row = await db.fetchrow(f"SELECT {NAMES} FROM launch_batch WHERE id = $1", batch_id)
    return None if row is None else Batch(**row)


def described(batch: Batch) -> dict[str, Any]:
    """Batch as shown to people, without the body, which holds the config's settings, and without the token."""
    return {name: value for name, value in msgspec.structs.asdict(batch).items() if name not in {"body", "token"}}


async def known(tx: Connection, batch_id: str, outcome: str) -> None:
    """Record a certain outcome. The batch is locked."""
    await tx.execute(KNOWN, batch_id, outcome)


async def take_overdue(db: Connection, *, visibility_seconds: float, attempt_seconds: float) -> list[Batch]:
    """Take up to 20 overdue batches without a recorded outcome, for this caller alone until their new deadline."""
    return [Batch(**row) for row in await db.fetch(OVERDUE, visibility_seconds, attempt_seconds)]


async def states(db: Connection, ids: list[str]) -> dict[str, str]:
    """Batch id → state; unknown ids are absent."""
    rows = await db.fetch("SELECT id::text, state FROM launch_batch WHERE id::text = ANY($1::text[])", ids)
    return {row["id"]: row["state"] for row in rows}
