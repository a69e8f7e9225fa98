"""Worker rows, locked in id order and written back as a whole with their events."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from slipway_common.database.postgres import Connection
from slipway_common.events.lifecycle import State
from slipway_common.messaging import outbox
from slipway_provisioner.domain.workers import Change, Worker, ended_stage
from slipway_provisioner.store import marks

# Column → its array type, for UNNEST. The struct and the table agree field by field.
COLUMNS: Final = {
    "id": "uuid",
    "pool_id": "text",
    "launch_config_id": "text",
    "account_id": "text",
    "image_revision": "text",
    "state": "text",
    "decision_id": "uuid",
    "probe_permit": "bigint",
    "request_id": "text",
    "lease_id": "text",
    "holds_unit": "boolean",
    "batch_id": "uuid",
    "instance_id": "text",
    "token_sha256": "text",
    "token_used": "boolean",
    "not_before": "timestamptz",
    "requested_at": "timestamptz",
    "launched_at": "timestamptz",
    "registered_at": "timestamptz",
    "first_claimed_at": "timestamptz",
    "idle_since": "timestamptz",
    "last_seen_at": "timestamptz",
    "stopping_at": "timestamptz",
    "ended_at": "timestamptz",
    "failed_at": "timestamptz",
    "reason": "text",
    "traceparent": "text",
}
UUIDS: Final = frozenset(name for name, kind in COLUMNS.items() if kind == "uuid")
_ROWS: Final = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(COLUMNS.values(), 1))
_NAMES: Final = ", ".join(COLUMNS)
_MUTABLE: Final = [name for name in COLUMNS if name not in {"id", "pool_id", "launch_config_id", "requested_at"}]

SELECT: Final = f"SELECT {_NAMES} FROM worker"
INSERT: Final = f"INSERT INTO worker ({_NAMES}) SELECT * FROM unnest({_ROWS})"
UPDATE: Final = (
    f"UPDATE worker w SET {', '.join(f'{name} = u.{name}' for name in _MUTABLE)} "
    f"FROM unnest({_ROWS}) AS u ({_NAMES}) WHERE w.id = u.id"
)
LOCK: Final = f"{SELECT} WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE"
COUNT_OUTCOMES: Final = """
INSERT INTO launch_config_outcomes AS o (launch_config_id, stage, failures, successes)
SELECT config, stage, count(*) FILTER (WHERE failed), count(*) FILTER (WHERE NOT failed)
FROM unnest($1::text[], $2::text[], $3::boolean[]) AS u (config, stage, failed)
GROUP BY config, stage ORDER BY config, stage
ON CONFLICT (launch_config_id, stage) DO UPDATE SET failures = o.failures + excluded.failures,
    successes = o.successes + excluded.successes,
    unfolded_since = CASE excluded.failures WHEN 0 THEN o.unfolded_since END"""
BY_INSTANCE: Final = f"{SELECT} WHERE account_id = $1 AND instance_id = $2 FOR UPDATE"
BATCH: Final = f"{SELECT} WHERE batch_id = $1 ORDER BY id FOR UPDATE"
LOCK_FREE: Final = f"{LOCK} SKIP LOCKED"
BY_LEASE: Final = f"{SELECT} WHERE lease_id = $1 AND state = 'requested' ORDER BY id FOR UPDATE"
BY_REQUEST: Final = f"""
{SELECT} WHERE request_id = $1 AND state = 'requested' AND lease_id IS NULL ORDER BY id LIMIT $2 FOR UPDATE"""

DELAYED: Final = f"""
SELECT a.lease_pool_id, {", ".join(f"w.{name}" for name in COLUMNS)} FROM worker w JOIN account a ON a.id = w.account_id
WHERE w.state = 'requested' AND w.request_id IS NULL AND (w.not_before IS NULL OR w.not_before <= slipway_clock())
ORDER BY w.id LIMIT 200 FOR UPDATE OF w SKIP LOCKED"""


def from_row(row: Any) -> Worker:
    values: dict[str, Any] = dict(row)
    for name in UUIDS:
        if values[name] is not None:
            values[name] = str(values[name])
    values["state"] = State(values["state"])
    return Worker(**values)


def _columns(workers: Sequence[Worker]) -> list[list[Any]]:
    return [[getattr(worker, name) for worker in workers] for name in COLUMNS]


async def insert(tx: Connection, changes: Sequence[Change]) -> None:
    """Store new intents with their events."""
    if changes:
        await tx.execute(INSERT, *_columns([worker for worker, _ in changes]))
        await outbox.enqueue(tx, [outbox.Traced(event, worker.traceparent) for worker, event in changes])


async def save(tx: Connection, changes: Sequence[Change], *, at: datetime | None = None) -> None:
    """Write workers back with their events, count outcomes of stages, and mark the pools dirty. The rows are locked.

    `at`: time of the events, if not now.
    """
    if not changes:
        return
    await tx.execute(UPDATE, *_columns([worker for worker, _ in changes]))
    ended = [stage for _, event in changes if (stage := ended_stage(event)) is not None]
    if ended:
        await tx.execute(COUNT_OUTCOMES, *map(list, zip(*ended, strict=True)))
    traced = [outbox.Traced(event, worker.traceparent) for worker, event in changes]
    await outbox.enqueue(tx, traced, at=at)
    await marks.dirty(tx, {worker.pool_id for worker, _ in changes}, reason="worker")


async def save_without_events(tx: Connection, workers: Sequence[Worker]) -> None:
    """Write back workers whose change has no event: a call begins, a lease is bound, a heartbeat."""
    if workers:
        await tx.execute(UPDATE, *_columns(workers))


async def lock(tx: Connection, ids: Sequence[str], *, skip_locked: bool = False) -> list[Worker]:
    """Lock workers in id order; with `skip_locked` only those that no other transaction has locked."""
    return [from_row(row) for row in await tx.fetch(LOCK_FREE if skip_locked else LOCK, ids)]


async def lock_one(tx: Connection, worker_id: str) -> Worker | None:
    return next(iter(await lock(tx, [worker_id])), None)


async def lock_batch(tx: Connection, batch_id: str) -> list[Worker]:
    """Lock all intents of a batch, including stopped ones."""
    return [from_row(row) for row in await tx.fetch(BATCH, batch_id)]


async def lock_leased(tx: Connection, lease_id: str) -> list[Worker]:
    """Lock the intents of a lease that have no call yet."""
    return [from_row(row) for row in await tx.fetch(BY_LEASE, lease_id)]


async def lock_waiting(tx: Connection, request_id: str, units: int) -> list[Worker]:
    """Lock up to `units` intents that wait under a request, lowest ids first."""
    return [from_row(row) for row in await tx.fetch(BY_REQUEST, request_id, units)]


async def lock_delayed(tx: Connection) -> list[tuple[str, Worker]]:
    """Lock delayed intents that must request admission again; returns (lease pool id, worker) pairs."""
    rows = [dict(row) for row in await tx.fetch(DELAYED)]
    return [(row.pop("lease_pool_id"), from_row(row)) for row in rows]


async def by_instance(tx: Connection, account_id: str, instance_id: str) -> Worker | None:
    """Lock the worker that an instance is bound to, stopped or not; None if there is none."""
    row = await tx.fetchrow(BY_INSTANCE, account_id, instance_id)
    return None if row is None else from_row(row)


async def get(db: Connection, worker_id: str) -> Worker | None:
    row = await db.fetchrow(f"{SELECT} WHERE id = $1", worker_id)
    return None if row is None else from_row(row)


async def listed(db: Connection, *, pool_id: str | None, state: State | None, limit: int) -> list[Worker]:
    """Workers for people, newest first."""
    # A constant condition allows the index on live workers to be used; there may be a hundred times more stopped ones.
    live = "AND state <> 'stopped'" if state not in (None, State.STOPPED) else ""
    rows = await db.fetch(
        f"{SELECT} WHERE ($1::text IS NULL OR pool_id = $1) AND ($2::text IS NULL OR state = $2) {live} "
        "ORDER BY id DESC LIMIT $3",
        pool_id,
        state,
        limit,
    )
    return [from_row(row) for row in rows]


def described(worker: Worker) -> dict[str, Any]:
    """Worker as shown to people, without the token hash and internal fields."""
    hidden = {"token_sha256", "token_used", "traceparent", "holds_unit", "not_before"}
    return {name: value for name, value in msgspec.structs.asdict(worker).items() if name not in hidden}
