"""Planning decisions as rows, written with all that every plan writes. A decision to do nothing that equals the last
one only updates it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
import sqlalchemy as sa

from slipway_api.events.lease import LeaseRequested
from slipway_api.events.lifecycle import State
from slipway_common.base.ids import new_id
from slipway_common.database.places import LAST_ID, LAST_TIME
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, arrays, beyond, columns
from slipway_common.messaging import outbox
from slipway_provisioner.domain.planning import Plan
from slipway_provisioner.domain.pool import Observed
from slipway_provisioner.domain.workers import Change
from slipway_provisioner.store import usage
from slipway_provisioner.store.tables import decision, lease_request, worker

SELECT: Final = sa.select(sa.cast(decision.c.id, sa.Text).label("id"), *list(decision.c)[1:])
GET: Final = Statement(SELECT.where(decision.c.id == sa.bindparam("id")))
RECENT: Final = Statement(
    SELECT.where(
        decision.c.pool_id == sa.bindparam("pool_id"),
        beyond({"after_at": decision.c.at, "after_id": decision.c.id}, descending=True),
    )
    .order_by(decision.c.at.desc(), decision.c.id.desc())
    .limit(sa.bindparam("most", type_=sa.Integer))
)
INSERT: Final = Statement(
    sa.insert(decision).values(
        {name: sa.bindparam(name) for name in ("id", "pool_id", "launched", "reason", "details")}
        | dict.fromkeys(("at", "last_at"), sa.func.slipway_clock())
    )
)


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A lease request for the intents of one config."""

    id: str
    lease_pool_id: str
    launch_config_id: str
    units: int
    traceparent: str


# Parts of one statement, since each would cost a round trip. $1 is the pool, $2 the decision, $6 whether it may repeat
# the last one. Nothing is planned again later if a mark is due no later: the decision that it triggers sees to that.
_DECIDE: Final = """
WITH repeated AS (
    UPDATE decision SET last_at = slipway_clock(), times = times + 1, details = $5
    WHERE $6 AND id = (SELECT id FROM decision WHERE pool_id = $1 ORDER BY at DESC, id DESC LIMIT 1)
        AND launched = 0 AND reason = $4
    RETURNING id),
decided AS (
    INSERT INTO decision (id, pool_id, launched, reason, details, at, last_at)
    SELECT $2, $1, $3, $4, $5, slipway_clock(), slipway_clock() WHERE NOT EXISTS (SELECT FROM repeated)),
balanced AS (
    INSERT INTO pool_balance (pool_id, surplus, missing_since, short) SELECT $1, $7, $8, $9 WHERE $10
    ON CONFLICT (pool_id) DO UPDATE SET surplus = excluded.surplus, missing_since = excluded.missing_since,
        short = excluded.short),
later AS (
    INSERT INTO dirty_pool (pool_id, reason, due_at)
    SELECT $1, 'time', slipway_clock() + $11 * interval '1 s' WHERE $11::float8 IS NOT NULL AND NOT EXISTS (
        SELECT FROM dirty_pool WHERE pool_id = $1 AND due_at <= slipway_clock() + $11 * interval '1 s'))"""
DECIDE: Final = f"{_DECIDE}\nSELECT"
INTENT: Final = ("id", "launch_config_id", "probe_permit", "request_id", "requested_at", "traceparent")
# The events are part of it as well: rows that it locks are the pool's, which is locked, and new ones.
LAUNCH: Final = f"""{_DECIDE},
drawn AS (UPDATE worker_pool SET drawn = drawn + $3, attempted_at = slipway_clock() WHERE id = $1),
requested AS (
    INSERT INTO lease_request (id, lease_pool_id, pool_id, launch_config_id, units, traceparent)
    SELECT id, lease_pool_id, $1, launch_config_id, units, traceparent
    FROM unnest({arrays([lease_request.c[name] for name in LeaseRequest.__struct_fields__], 12)})
        AS r ({", ".join(LeaseRequest.__struct_fields__)})),
launched AS (
INSERT INTO worker (pool_id, decision_id, state, account_id, image_revision, task_slots, {", ".join(INTENT)},
    {", ".join(usage.COPIES)})
SELECT $1, $2, '{State.REQUESTED}', c.account_id, c.image_revision, n.task_slots, {", ".join(f"i.{f}" for f in INTENT)},
    {", ".join(usage.COPIES.values())}
FROM unnest({arrays([worker.c[name] for name in INTENT], 17)}) AS i ({", ".join(INTENT)})
JOIN launch_config c ON c.id = i.launch_config_id JOIN launch_config_name n ON n.name = c.name
JOIN account a ON a.id = c.account_id),
{outbox.insertion(17 + len(INTENT))}"""


async def write(
    tx: Connection,
    observed: Observed,
    plan: Plan,
    decision_id: str,
    requests: Sequence[LeaseRequest],
    changes: Sequence[Change],
) -> None:
    """Store a decision with its reasons, the balance that it has seen, when time alone may change it, and its new
    intents with their lease requests and events. The pool is locked."""
    pool_id, reason = observed.pool.id, plan.details["reason"]
    arguments = [
        *(pool_id, decision_id, plan.units, reason, plan.details),
        not (plan.units or plan.cancel or plan.stop or plan.drain or plan.mark or plan.unmark),
        *(msgspec.to_builtins(plan.surplus), plan.missing_since, plan.short),
        (plan.surplus, plan.missing_since, plan.short) != (observed.surplus, observed.missing_since, observed.short),
        plan.reconsider_after_seconds,
    ]
    if not changes:
        await tx.execute(DECIDE, *arguments)
        return
    intents = columns([worker for worker, _ in changes], INTENT)
    requested = columns(requests, LeaseRequest.__struct_fields__)
    events: list[Any] = [
        LeaseRequested(lease_pool_id=each.lease_pool_id, request_id=each.id, units=each.units, tenant=pool_id)
        for each in requests
    ]
    parents = [each.traceparent for each in requests] + [worker.traceparent for worker, _ in changes]
    events += [event for _, event in changes]
    traced = [outbox.Traced(*each) for each in zip(events, parents, strict=True)]
    added = await outbox.columns(tx, traced)
    await tx.execute(LAUNCH, *arguments, *requested.values(), *intents.values(), *added)


async def adopted(tx: Connection, pool_id: str, *, by: str) -> str:
    """Store the decision of a person to adopt orphan instances; returns its id."""
    decision_id = new_id()
    reason = f"orphan instances were adopted by {by}"
    values = INSERT.arguments(id=decision_id, pool_id=pool_id, launched=0, reason=reason, details={"reason": reason})
    await tx.execute(INSERT.text, *values)
    return decision_id


class DecisionPlace(NamedTuple):
    """Place in the list of the decisions of a pool."""

    at: datetime
    id: UUID


FIRST: Final = DecisionPlace(LAST_TIME, LAST_ID)


async def recent(db: Connection, pool_id: str, limit: int, *, after: DecisionPlace = FIRST) -> list[dict[str, Any]]:
    """Decisions of a pool, newest first, from the one before that place."""
    arguments = RECENT.arguments(pool_id=pool_id, after_at=after.at, after_id=after.id, most=limit)
    rows = await db.fetch(RECENT.text, *arguments)
    return [dict(row) for row in rows]


async def get(db: Connection, decision_id: str) -> dict[str, Any] | None:
    row = await db.fetchrow(GET.text, *GET.arguments(id=decision_id))
    return None if row is None else dict(row)
