"""Worker rows, locked in id order and written back as a whole with their events."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
import sqlalchemy as sa

from slipway_api.events.lifecycle import ENDED, LIVE, WAITING, State
from slipway_api.events.worker import WorkerLaunched, WorkerRegistered
from slipway_api.http.provisioner import workers as wire
from slipway_common.database.places import LAST_ID
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, beyond, given, matches, names, one_of, together
from slipway_common.messaging import outbox
from slipway_provisioner.domain.workers import Change, Notice, Worker, ended_stage
from slipway_provisioner.store import marks, tables
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.functions import LIMITED_KEYS
from slipway_provisioner.store.tables import in_states

WORKER: Final = tables.worker
FIELDS: Final = tuple(WORKER.c[name] for name in Worker.__struct_fields__)
UUIDS: Final = tuple(field.name for field in FIELDS if isinstance(field.type, sa.Uuid))
FIXED: Final = frozenset({"id", "pool_id", "launch_config_id", "requested_at"})
ROWS: Final = given(*FIELDS)


def _locked(*conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(*FIELDS).where(*conditions).order_by(WORKER.c.id).with_for_update()


SELECT: Final = f"SELECT {names(FIELDS)} FROM worker"
_CONFIG: Final = tables.launch_config.c
_ACCOUNT: Final = tables.account.c
# The pool is locked, so that no other transaction changes the keys and the claim evidence meanwhile.
_COPIED: Final = {name: sa.func.coalesce(_CONFIG[name], "") for name in LIMITED_KEYS} | {
    "awaits_claim": sa.func.coalesce(_CONFIG.claim_evidence != "none", sa.false()),
    "account_unreachable": sa.func.coalesce(_ACCOUNT.unreachable | _ACCOUNT.retired, sa.false()),
}
INSERT: Final = Statement(
    sa.insert(WORKER).from_select(
        [*(field.name for field in FIELDS), *_COPIED],
        sa.select(*ROWS.c, *_COPIED.values()).select_from(
            ROWS.outerjoin(tables.launch_config, _CONFIG.id == ROWS.c.launch_config_id).outerjoin(
                tables.account, _ACCOUNT.id == ROWS.c.account_id
            )
        ),
    )
)
UPDATE: Final = Statement(
    sa.update(WORKER)
    .where(*one_of(ROWS, WORKER.c.id))
    .values({field.name: ROWS.c[field.name] for field in FIELDS if field.name not in FIXED})
)
# Of one worker, as most are: the server keeps its plan, while it plans that of an unknown number of rows each time.
UPDATE_ONE: Final = Statement(
    sa.update(WORKER)
    .where(WORKER.c.id == sa.bindparam("id"))
    .values({field.name: sa.bindparam(field.name) for field in FIELDS if field.name not in FIXED})
)
# Sets no column on which counters depend, so that their trigger costs a heartbeat nothing.
TOUCH: Final = Statement(
    sa.update(WORKER)
    .where(WORKER.c.id == sa.bindparam("worker_id"))
    .values(token_used=True, last_seen_at=sa.bindparam("at", type_=WORKER.c.last_seen_at.type))
)
GET: Final = Statement(sa.select(*FIELDS).where(WORKER.c.id == sa.bindparam("id")))
_GIVEN: Final = WORKER.c.id == sa.any_(array("ids", WORKER.c.id))
LOCK: Final = Statement(_locked(_GIVEN))
# Evaluated before the row is locked, and again once it is: who has not the token holds no lock, and waits for none.
LOCK_OWN: Final = Statement(
    _locked(WORKER.c.id == sa.bindparam("id"), WORKER.c.token_sha256 == sa.bindparam("token_sha256"))
)
LOCK_FREE: Final = Statement(_locked(_GIVEN).with_for_update(skip_locked=True))
BATCH: Final = Statement(_locked(WORKER.c.batch_id == sa.bindparam("batch_id")))
BY_INSTANCE: Final = Statement(
    _locked(WORKER.c.account_id == sa.bindparam("account_id"), WORKER.c.instance_id == sa.bindparam("instance_id"))
)
BY_LEASE: Final = Statement(_locked(WORKER.c.lease_id == sa.bindparam("lease_id"), in_states(WAITING)))
BY_REQUEST: Final = Statement(
    _locked(WORKER.c.request_id == sa.bindparam("request_id"), in_states(WAITING), WORKER.c.lease_id.is_(None)).limit(
        sa.bindparam("units", type_=sa.Integer)
    )
)
# Of several requests, in the order of all locks. No other transaction gives these intents a lease, since it would have
# to lock their request.
BY_REQUESTS: Final = f"""
SELECT {names(FIELDS)} FROM worker WHERE id = ANY(ARRAY(
        SELECT w.id FROM unnest($1::text[], $2::integer[]) AS r (id, units) CROSS JOIN LATERAL (
            SELECT id FROM worker WHERE request_id = r.id AND state IN ({states(WAITING)}) AND lease_id IS NULL
            ORDER BY id LIMIT r.units) AS w))
    AND state IN ({states(WAITING)}) AND lease_id IS NULL
ORDER BY id FOR UPDATE"""
DELAYED: Final = f"""
SELECT a.lease_pool_id, {names(FIELDS, "w.")} FROM worker w JOIN account a ON a.id = w.account_id
WHERE w.state IN ({states(WAITING)}) AND w.request_id IS NULL
    AND (w.not_before IS NULL OR w.not_before <= slipway_clock())
ORDER BY w.id LIMIT 200 FOR UPDATE OF w SKIP LOCKED"""
_LISTED: Final = (
    sa.select(*FIELDS)
    .where(
        matches(WORKER.c.pool_id, "pool_id"),
        matches(WORKER.c.launch_config_id, "launch_config_id"),
        matches(WORKER.c.state, "state"),
        beyond({"after": WORKER.c.id}, descending=True),
    )
    .order_by(WORKER.c.id.desc())
    .limit(sa.bindparam("most", type_=sa.Integer))
)
LISTED: Final = Statement(_LISTED)
# A constant condition allows the index on live workers to be used; there may be a hundred times more ended ones.
LISTED_LIVE: Final = Statement(_LISTED.where(~in_states(ENDED)))
COUNT_OUTCOMES: Final = """
INSERT INTO launch_config_outcomes AS o (launch_config_id, stage, failures, successes, keys)
SELECT c.id, u.stage, u.failures, u.successes, window_keys(c, u.stage) FROM (
    SELECT config, stage, count(*) FILTER (WHERE failed) AS failures, count(*) FILTER (WHERE NOT failed) AS successes
    FROM unnest($1::text[], $2::text[], $3::boolean[]) AS g (config, stage, failed) GROUP BY config, stage) AS u
JOIN launch_config c ON c.id = u.config WHERE c.id = ANY($1) ORDER BY c.id, u.stage
ON CONFLICT (launch_config_id, stage) DO UPDATE SET failures = o.failures + excluded.failures,
    successes = o.successes + excluded.successes,
    unfolded_since = CASE excluded.failures WHEN 0 THEN o.unfolded_since END"""


def from_row(row: Any) -> Worker:
    values: dict[str, Any] = dict(row)
    for name in UUIDS:
        if values[name] is not None:
            values[name] = str(values[name])
    values["state"], values["notice"] = State(values["state"]), Notice(values["notice"])
    return Worker(**values)


async def insert(tx: Connection, changes: Sequence[Change]) -> None:
    """Store new intents with their events."""
    if changes:
        await tx.execute(INSERT.text, *INSERT.rows([worker for worker, _ in changes]))
        await outbox.enqueue(tx, [outbox.Traced(event, worker.traceparent) for worker, event in changes])


async def save(tx: Connection, changes: Sequence[Change], *, at: datetime | None = None) -> None:
    """Write workers back with their events, count outcomes of stages, and mark the pools dirty whose plans may change
    by that. The rows are locked.

    `at`: time of the events, if not now.
    """
    if not changes:
        return
    saved = [worker for worker, _ in changes]
    ended = [stage for _, event in changes if (stage := ended_stage(event)) is not None]
    traced = [outbox.Traced(event, worker.traceparent) for worker, event in changes]
    registered = {worker.pool_id for worker, event in changes if isinstance(event, WorkerRegistered)}
    changed = {worker.pool_id for worker, event in changes if not isinstance(event, WorkerLaunched)} - registered
    dirty = dict.fromkeys(sorted(registered), marks.REGISTERED) | dict.fromkeys(sorted(changed), "worker")
    async with together(tx) as writes:
        await save_without_events(writes, saved)
        if ended:
            await writes.execute(COUNT_OUTCOMES, *map(list, zip(*ended, strict=True)))
        await marks.dirty_each(writes, dirty)
        await outbox.enqueue(tx, traced, at=at, writes=writes)
    launched = {worker.pool_id for worker in saved} - registered - changed
    await marks.dirty_if_short(tx, launched, reason="worker")  # a launch frees headroom, for which only such pools wait


async def touch(tx: Connection, worker: Worker) -> None:
    """Write back a worker of which nothing but its last contact has changed."""
    await tx.execute(TOUCH.text, *TOUCH.arguments(worker_id=worker.id, at=worker.last_seen_at))


async def save_without_events(tx: Connection, workers: Sequence[Worker]) -> None:
    """Write back workers whose change has no event: a call begins, a lease is bound."""
    if len(workers) == 1:
        await tx.execute(UPDATE_ONE.text, *(getattr(workers[0], name) for name in UPDATE_ONE.names))
    elif workers:
        await tx.execute(UPDATE.text, *UPDATE.rows(workers))


async def lock(tx: Connection, ids: Sequence[str], *, skip_locked: bool = False) -> list[Worker]:
    """Lock workers in id order; with `skip_locked` only those that no other transaction has locked."""
    if not ids:
        return []
    statement = LOCK_FREE if skip_locked else LOCK
    return [from_row(row) for row in await tx.fetch(statement.text, *statement.arguments(ids=ids))]


async def lock_one(tx: Connection, worker_id: str) -> Worker | None:
    return next(iter(await lock(tx, [worker_id])), None)


async def lock_own(tx: Connection, worker_id: str, token_sha256: str) -> Worker | None:
    """Lock the worker that has this token; None if it has another one, or there is no such worker."""
    row = await tx.fetchrow(LOCK_OWN.text, *LOCK_OWN.arguments(id=worker_id, token_sha256=token_sha256))
    return None if row is None else from_row(row)


async def lock_batch(tx: Connection, batch_id: str) -> list[Worker]:
    """Lock all intents of a batch, including stopped ones."""
    return [from_row(row) for row in await tx.fetch(BATCH.text, *BATCH.arguments(batch_id=batch_id))]


async def lock_leased(tx: Connection, lease_id: str) -> list[Worker]:
    """Lock the intents of a lease that have no call yet."""
    return [from_row(row) for row in await tx.fetch(BY_LEASE.text, *BY_LEASE.arguments(lease_id=lease_id))]


async def lock_waiting(tx: Connection, request_id: str, units: int) -> list[Worker]:
    """Lock up to `units` intents that wait under a request, lowest ids first."""
    arguments = BY_REQUEST.arguments(request_id=request_id, units=units)
    return [from_row(row) for row in await tx.fetch(BY_REQUEST.text, *arguments)]


async def lock_waiting_for(tx: Connection, units: Mapping[str, int]) -> list[Worker]:
    """Lock up to so many `units` of the intents that wait under each request, which is locked, lowest ids first."""
    return [from_row(row) for row in await tx.fetch(BY_REQUESTS, list(units), list(units.values()))]


async def lock_delayed(tx: Connection) -> list[tuple[str, Worker]]:
    """Lock delayed intents that must request admission again; returns (lease pool id, worker) pairs."""
    rows = [dict(row) for row in await tx.fetch(DELAYED)]
    return [(row.pop("lease_pool_id"), from_row(row)) for row in rows]


async def by_instance(tx: Connection, account_id: str, instance_id: str) -> Worker | None:
    """Lock the worker that an instance is bound to, stopped or not; None if there is none."""
    arguments = BY_INSTANCE.arguments(account_id=account_id, instance_id=instance_id)
    row = await tx.fetchrow(BY_INSTANCE.text, *arguments)
    return None if row is None else from_row(row)


async def get(db: Connection, worker_id: str) -> Worker | None:
    row = await db.fetchrow(GET.text, *GET.arguments(id=worker_id))
    return None if row is None else from_row(row)


class WorkerPlace(NamedTuple):
    """Place in the list of workers."""

    id: UUID


FIRST: Final = WorkerPlace(LAST_ID)


async def listed(
    db: Connection,
    *,
    pool_id: str | None,
    launch_config_id: str | None = None,
    state: State | None,
    after: UUID = LAST_ID,
    limit: int,
) -> list[Worker]:
    """Workers for people, newest first, from the one before the worker `after`."""
    statement = LISTED_LIVE if state in LIVE else LISTED
    filters = {"pool_id": pool_id, "launch_config_id": launch_config_id, "state": state}
    rows = await db.fetch(statement.text, *statement.arguments(**filters, after=after, most=limit))
    return [from_row(row) for row in rows]


def described(worker: Worker) -> wire.Worker:
    """Worker as shown to people, without the token hash and internal fields."""
    return msgspec.convert(worker, wire.Worker, from_attributes=True)
