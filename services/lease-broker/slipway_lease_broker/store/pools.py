"""Lease pools: their terms, their locks, and when each is due for a decision."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
from sqlalchemy import Boolean, Column, Text, any_, bindparam, case, func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert

from slipway_common.base.errors import Transient
from slipway_common.database.postgres import Connection, Database
from slipway_common.database.sql import Statement, array, given, names, one_of, seconds
from slipway_common.database.tables import PLANS_KEPT, TIME
from slipway_common.messaging.incarnation import TRUSTED
from slipway_lease_broker.domain.adaptive import Adaptive
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.declaration import Declared
from slipway_lease_broker.domain.drift import COUNTERS, Counted
from slipway_lease_broker.domain.eta import eta_seconds
from slipway_lease_broker.domain.ledger import LeasePool
from slipway_lease_broker.domain.paces import expected_wait
from slipway_lease_broker.domain.pacing import Pace
from slipway_lease_broker.store.rows import structs
from slipway_lease_broker.store.tables import COUNTED, WAITING, WAITING_BY_ARRIVAL, condition, lease_pool

TERMS: Final = lease_pool.c[LeasePool.__struct_fields__]
DECLARED: Final = lease_pool.c[Declared.__struct_fields__]
# Written by declarations, operators and controllers, never by a decision.
FIXED: Final = lease_pool.c[
    *Declared.__struct_fields__,
    "pinned_reason",
    "drained_reason",
    "derived_units",
    "derived_until",
    "incomplete_until",
]
STATE: Final = [field for field in TERMS if field.name not in FIXED]
ONE: Final = lease_pool.c.id == bindparam("id")
ANY: Final = lease_pool.c.id == any_(array("ids", lease_pool.c.id))
# Read once in a statement, not for each pool.
AT: Final = select(func.slipway_clock()).scalar_subquery()
IS_DUE: Final = or_(lease_pool.c.dirty, lease_pool.c.wake_at <= AT)

NOW: Final = "slipway_clock()"
CLOCK: Final = f"SELECT {NOW}"
# The later statements of an admission are executed by kept plans: to plan them anew takes as long as to execute them.
TRUSTED_CLOCK: Final = f"SELECT {NOW} AS now, ({TRUSTED}) AS trusted, {PLANS_KEPT}"
NAMED: Final = Statement(select(*TERMS).where(ANY))
LOCK: Final = Statement(select(*TERMS).where(ANY).order_by(lease_pool.c.id).with_for_update())
LATE_SECONDS: Final = 10
DUE: Final = Statement(
    select(
        lease_pool.c.id,
        lease_pool.c.dirty,
        func.coalesce(lease_pool.c.wake_at < AT - text(f"interval '{LATE_SECONDS} s'"), text("false")).label("late"),
    ).where(IS_DUE)
)
# The pool decided longest ago comes first, so that a busy pool cannot keep others waiting. The condition is checked
# again once the row is locked, because another replica may have decided meanwhile.
CLAIM: Final = Statement(
    select(*TERMS)
    .where(ANY, IS_DUE)
    .order_by(lease_pool.c.decided_at.nulls_first(), lease_pool.c.id)
    .limit(1)
    .with_for_update(skip_locked=True)
)
MARKED: Final = (lease_pool.c.id, *STATE, Column("due", Boolean), Column("deadline", TIME))
CHANGED: Final = given(*MARKED)
MARK: Final = Statement(
    update(lease_pool)
    .where(*one_of(CHANGED, lease_pool.c.id))
    .values(
        {
            **{field.name: CHANGED.c[field.name] for field in STATE},
            "dirty": or_(lease_pool.c.dirty, CHANGED.c.due),
            "wake_at": func.least(lease_pool.c.wake_at, CHANGED.c.deadline),
        }
    )
)
DECIDED: Final = given(*MARKED, Column("summary", Text))
SETTLE: Final = Statement(
    update(lease_pool)
    .where(*one_of(DECIDED, lease_pool.c.id))
    .values(
        {
            **{field.name: DECIDED.c[field.name] for field in STATE},
            "dirty": DECIDED.c.due,
            "wake_at": DECIDED.c.deadline,
            "decided_at": bindparam("now", type_=TIME),
            "reason": func.coalesce(DECIDED.c.summary, lease_pool.c.reason),
        }
    )
)

# Both are served by indexes, so that the cost does not grow with the number of leases or requests.
COMING: Final = f"""
SELECT pool, (SELECT min(deadline) FROM leases
        WHERE lease_pool_id = pool AND {condition(COUNTED)} AND deadline > coalesce($2, '-infinity'::timestamptz)),
    (SELECT min(last_requested_at) FROM requests WHERE lease_pool_id = pool AND {condition(WAITING_BY_ARRIVAL)})
FROM unnest($1::text[]) AS pool"""

PUT_OFF: Final = Statement(
    update(lease_pool)
    .where(ONE)
    .values(
        dirty=False,
        wake_at=func.slipway_clock() + seconds("delay"),
        decided_at=func.slipway_clock(),
        reason=bindparam("reason"),
    )
)

NUMBER: Final = Statement(select(func.count()).select_from(lease_pool))
CLAIM_UNVERIFIED: Final = Statement(
    select(*TERMS)
    .where(
        or_(
            lease_pool.c.verified_at.is_(None),
            lease_pool.c.verified_at < AT - seconds("not_for"),
        )
    )
    .order_by(lease_pool.c.verified_at.nulls_first(), lease_pool.c.id)
    .limit(1)
    .with_for_update(skip_locked=True)
)
COUNT: Final = f"""
WITH held AS (SELECT operation, greatest(units - uncounted_units, 0) AS units, weight
    FROM leases WHERE lease_pool_id = $1 AND {condition(COUNTED)})
SELECT coalesce((SELECT jsonb_object_agg(operation, cost) FROM (SELECT operation, sum(units * weight) AS cost
    FROM held GROUP BY operation HAVING sum(units * weight) > 0) AS costs), '{{}}') AS held,
    (SELECT coalesce(sum(units), 0) FROM held) AS held_units,
    waiting_units, waiting_requests, waiting_by
FROM (SELECT coalesce(sum(units), 0)::bigint AS waiting_units, coalesce(sum(requests), 0)::bigint AS waiting_requests,
        coalesce(jsonb_object_agg(owner, requests) FILTER (WHERE NOT over_kafka), '{{}}') AS waiting_by
    FROM (SELECT owner, over_kafka, sum(waiting_units) AS units, count(*) AS requests FROM requests
        WHERE lease_pool_id = $1 AND {condition(WAITING)} GROUP BY owner, over_kafka) AS of_owner) AS queue"""
VERIFY: Final = Statement(
    update(lease_pool)
    .where(ONE)
    .values({**{name: bindparam(name) for name in COUNTERS}, "verified_at": bindparam("now"), "dirty": True})
)

# Declarations of one owner take turns, since each is compared with all lease pools of its owner; one that prunes is
# compared with those of all owners. Decisions, changes by operators and imports take none of these locks.
PRUNE_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext(current_schema() || '/lease_pools'))"
SHARED_LOCK: Final = "SELECT pg_advisory_xact_lock_shared(hashtext(current_schema() || '/lease_pools'))"
OWNERS_LOCK: Final = """
SELECT pg_advisory_xact_lock(hashtext(current_schema() || '/lease_pools/' || owner)) FROM unnest($1::text[]) AS owner"""
CURRENT: Final = Statement(select(*DECLARED).order_by(lease_pool.c.id))
CURRENT_NAMED: Final = Statement(select(*DECLARED).where(ANY))
NEW: Final = insert(lease_pool).from_select(DECLARED.keys(), select(given(*DECLARED)))
# LeaseLimitChanged is published with the declaration, so the next decision must not publish it again. A pool that
# changes its mode starts with fresh pacing, so that requests do not wait for what it admitted under another mode. One
# that was changed after it was compared has another revision, and stays as it is.
DECLARE: Final = Statement(
    NEW.on_conflict_do_update(
        index_elements=[lease_pool.c.id],
        set_={
            **{field.name: NEW.excluded[field.name] for field in DECLARED if field.name != "id"},
            "dirty": True,
            "limit_in_force": case(
                (lease_pool.c.limit_in_force == lease_pool.c.limit_units, NEW.excluded.limit_units),
                else_=lease_pool.c.limit_in_force,
            ),
            "paces": case(
                (lease_pool.c.policy["mode"] == NEW.excluded.policy["mode"], lease_pool.c.paces),
                else_=text("'{}'::jsonb"),
            ),
        },
        where=lease_pool.c.revision == NEW.excluded.revision - 1,
    ).returning(lease_pool.c.id)
)

SHOWN: Final = lease_pool.c[
    *DECLARED.keys(),
    "reason",
    "limit_in_force",
    "limit_reason",
    "pinned_reason",
    "drained_reason",
    "derived_units",
    "derived_until",
    "blocked_until",
    "paces",
]
SHOWN_POOL: Final = "(NOT archived OR held_units > 0 OR waiting_units > 0)"
# The rate of grants is taken from the last hundred; if these span less than a minute it is extrapolated to one.
OVERVIEW: Final = f"""
SELECT {names(SHOWN)}, adaptive AS adaptive_state, held_units AS held, waiting_units AS waiting,
    waiting_requests AS requests, oldest_wait_seconds, granted_per_minute, slipway_clock() AS read_at
FROM lease_pools AS p,
    LATERAL (SELECT extract(epoch FROM slipway_clock() - min(requested_at))::float8 AS oldest_wait_seconds FROM requests
             WHERE lease_pool_id = p.id AND {condition(WAITING)}) AS queue,
    LATERAL (SELECT coalesce(sum(granted_units) * CASE WHEN count(*) < 100 THEN 1 ELSE
                 60 / greatest(1, extract(epoch FROM slipway_clock() - min(granted_at))) END, 0)::int
                 AS granted_per_minute
             FROM (SELECT granted_units, granted_at FROM leases WHERE lease_pool_id = p.id
                   ORDER BY fencing_token DESC LIMIT 100) AS last
             WHERE granted_at > slipway_clock() - interval '1 minute') AS pace
WHERE {SHOWN_POOL} AND ($1::text[] IS NULL OR id = ANY($1)) ORDER BY id"""


class Overview(Declared, frozen=True, kw_only=True):
    """A lease pool as listed and shown. `held` and `waiting` are units, `requests` the number of waiting requests."""

    reason: str  # of the last decision that changed something
    limit_in_force: int | None  # of the last decision
    limit_reason: str
    pinned_reason: str | None
    drained_reason: str | None
    derived_units: int | None
    derived_until: datetime | None
    blocked_until: datetime | None
    adaptive_state: Adaptive | None
    paces: dict[str, Pace]
    held: int
    waiting: int
    requests: int
    oldest_wait_seconds: float | None  # None while no request waits
    granted_per_minute: int
    read_at: datetime

    @property
    def adaptive(self) -> Adaptive | None:
        return self.adaptive_state

    @property
    def limit(self) -> int:
        """The limit in force, declared before the first decision."""
        return self.limit_units if self.limit_in_force is None else self.limit_in_force

    @property
    def eta_seconds(self) -> float | None:
        """Expected wait of one unit requested now; None: forever."""
        for_units = eta_seconds(
            limit_units=self.limit,
            held_units=self.held,
            waiting_units=self.waiting,
            granted_per_minute=self.granted_per_minute,
            hold_seconds=self.hold_seconds,
        )
        paced = expected_wait(self, self.limit, self.waiting, self.read_at)
        return None if for_units is None else max(for_units, paced.total_seconds())


class Coming(NamedTuple):
    """The next changes of a pool by time."""

    deadline: datetime | None  # the earliest one of the counted leases, after a time or of all
    requested_at: datetime | None  # the earliest `last_requested_at` of the waiting requests


async def clock(tx: Connection) -> datetime:
    """The database clock. Read it after the lock (see the package)."""
    now: datetime = await tx.fetchval(CLOCK)
    return now


async def trusted_clock(tx: Connection) -> datetime:
    """The database clock, for an admission. Raises Transient until the relay has compared this database with the log:
    before that, leases may be missing."""
    row = await tx.fetchrow(TRUSTED_CLOCK)
    if not row["trusted"]:
        raise Transient("the database has not been compared with Kafka since its server started; try again")
    now: datetime = row["now"]
    return now


async def lock(tx: Connection, ids: Collection[str]) -> list[LeasePool]:
    """Lock the pools that exist, in ascending order of ids; waits for decisions under way."""
    return structs(await tx.fetch(LOCK.text, sorted(ids)), LeasePool)


async def named(db: Connection, ids: Collection[str]) -> list[LeasePool]:
    """The pools as last committed. Locks nothing."""
    return structs(await db.fetch(NAMED.text, sorted(ids)), LeasePool)


class DuePool(msgspec.Struct, frozen=True):
    """A lease pool that is due for a decision."""

    id: str
    dirty: bool  # by commands; otherwise by time alone
    late: bool  # for so long that the process that reads its requests does not decide


async def due(db: Connection) -> list[DuePool]:
    """Lease pools that are due for a decision. Locks nothing."""
    return structs(await db.fetch(DUE.text), DuePool)


async def claim(tx: Connection, ids: Sequence[str]) -> LeasePool | None:
    """Lock one of `ids` that is still due and not locked by another transaction; None when there is none.

    A skipped pool stays due, and the loops of its process are notified when it is unlocked.
    """
    row = await tx.fetchrow(CLAIM.text, ids)
    return None if row is None else msgspec.convert(dict(row), LeasePool)


async def mark(
    tx: Connection, changed: Sequence[LeasePool], dirty: Collection[str], deadlines: Mapping[str, datetime]
) -> None:
    """Write the state of locked pools and make them due: the `dirty` ones now, the others at their new deadline.

    No decision can miss this: it reads and clears the marks under the lock that the caller holds until its commit.
    """
    if changed:
        due = [pool.id in dirty for pool in changed]
        deadline = [deadlines.get(pool.id) for pool in changed]
        await tx.execute(MARK.text, *MARK.rows(changed, due=due, deadline=deadline))


async def settle(tx: Connection, decisions: Sequence[Decision], now: datetime) -> None:
    """Write the state of pools after their decisions, each of which covers everything committed before its lock."""
    decided = [decision.pool for decision in decisions]
    due = [decision.again for decision in decisions]
    deadline = [decision.wake_at for decision in decisions]
    summary = [decision.summary for decision in decisions]
    await tx.execute(SETTLE.text, *SETTLE.rows(decided, due=due, deadline=deadline, summary=summary, now=now))


async def coming(tx: Connection, ids: Sequence[str], after: datetime | None = None) -> dict[str, Coming]:
    """The next changes of pools by time."""
    return {name: Coming(*times) for name, *times in await tx.fetch(COMING, ids, after)}


async def put_off(db: Connection | Database, lease_pool_id: str, reason: str, *, seconds: float) -> None:
    """Postpone a pool for which no decision can be made: due again after `seconds`, behind the others."""
    await db.execute(PUT_OFF.text, *PUT_OFF.arguments(id=lease_pool_id, delay=seconds, reason=reason))


async def number(db: Connection) -> int:
    """Number of lease pools, archived ones included."""
    found: int = await db.fetchval(NUMBER.text)
    return found


async def claim_unverified(tx: Connection, *, not_for_seconds: float) -> LeasePool | None:
    """Lock the pool that was verified longest ago and is not locked; None when each was verified within the time."""
    row = await tx.fetchrow(CLAIM_UNVERIFIED.text, not_for_seconds)
    return None if row is None else msgspec.convert(dict(row), LeasePool)


async def counted(tx: Connection, lease_pool_id: str) -> Counted:
    """The counters of a locked pool, computed from its rows."""
    return msgspec.convert(dict(await tx.fetchrow(COUNT, lease_pool_id)), Counted)


async def verify(tx: Connection, pool: LeasePool, now: datetime) -> None:
    """Store the counters of the rows and make the pool due once more, in case a wake-up was missed."""
    counters = {name: getattr(pool, name) for name in COUNTERS}
    await tx.execute(VERIFY.text, *VERIFY.arguments(id=pool.id, **counters, now=now))


async def declared(db: Connection, ids: Collection[str] | None = None) -> list[Declared]:
    """The declared terms of these pools, by default of all, as last committed. Locks nothing."""
    if ids is None:
        return structs(await db.fetch(CURRENT.text), Declared)
    return structs(await db.fetch(CURRENT_NAMED.text, sorted(ids)), Declared)


async def take_turns(tx: Connection, owners: Collection[str], *, prune: bool) -> None:
    """Wait for other declarations of these owners, and of all owners if it prunes."""
    await tx.execute(PRUNE_LOCK if prune else SHARED_LOCK)
    await tx.execute(OWNERS_LOCK, sorted(owners))


async def declare(tx: Connection, pools: Sequence[Declared]) -> int:
    """Write changed terms, in ascending order of ids; waits for decisions under way, which commit under the old terms.

    Returns the number of pools written. The others were changed in the meantime: their revision is not the one before.
    """
    return len(await tx.fetch(DECLARE.text, *DECLARE.rows(pools)))


async def overview(db: Connection, ids: Collection[str] | None = None) -> list[Overview]:
    """The lease pools that are declared or in use, in ascending order of ids: all, or of these."""
    return structs(await db.fetch(OVERVIEW, None if ids is None else list(ids)), Overview)
