"""Lease pools: their terms, their locks, and when each is due for a decision."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_common.database.postgres import Connection, Database
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.declaration import Declared
from slipway_lease_broker.domain.drift import COUNTERS, Counted
from slipway_lease_broker.domain.eta import eta_seconds
from slipway_lease_broker.domain.ledger import LeasePool
from slipway_lease_broker.store.rows import columns, structs

TERMS: Final = ", ".join(LeasePool.__struct_fields__)
DECLARED: Final = ", ".join(Declared.__struct_fields__)

CLOCK: Final = "SELECT slipway_clock()"
LOCK: Final = f"SELECT {TERMS} FROM lease_pools WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE"
NAMED: Final = f"SELECT {TERMS} FROM lease_pools WHERE id = ANY($1::text[])"
DUE: Final = "SELECT id, dirty FROM lease_pools WHERE dirty OR wake_at <= slipway_clock()"
# The pool decided longest ago comes first, so that a busy pool cannot keep others waiting. The condition is checked
# again once the row is locked, because another replica may have decided meanwhile.
CLAIM: Final = f"""
SELECT {TERMS} FROM lease_pools WHERE id = ANY($1::text[]) AND (dirty OR wake_at <= slipway_clock())
ORDER BY decided_at NULLS FIRST, id LIMIT 1 FOR UPDATE SKIP LOCKED"""
STATE: Final = (
    "last_token",
    "limit_in_force",
    "limit_reason",
    "held",
    "held_units",
    "waiting_units",
    "waiting_requests",
    "counted_at",
    "idle_unit_seconds",
    "last_granted_at",
    "paced_until",
    "paced_interval_seconds",
    "blocked_until",
    "virtual_time",
    "adaptive",
    "evidence",
    "derived_alerted",
)
STATES: Final = """
$2::bigint[], $3::integer[], $4::text[], $5::jsonb[], $6::bigint[], $7::bigint[], $8::integer[],
    $9::timestamptz[], $10::float8[], $11::timestamptz[], $12::timestamptz[], $13::float8[],
    $14::timestamptz[], $15::float8[], $16::jsonb[], $17::jsonb[], $18::boolean[]"""
MARK: Final = f"""
UPDATE lease_pools AS p SET dirty = p.dirty OR s.due, wake_at = least(p.wake_at, s.deadline),
    {", ".join(f"{name} = s.{name}" for name in STATE)}
FROM unnest($1::text[], {STATES}, $19::boolean[], $20::timestamptz[]) AS s (id, {", ".join(STATE)}, due, deadline)
WHERE p.id = s.id"""
SETTLE: Final = f"""
UPDATE lease_pools AS p SET dirty = s.due, wake_at = s.deadline, decided_at = $21, reason = coalesce($22, reason),
    {", ".join(f"{name} = s.{name}" for name in STATE)}
FROM unnest($1::text[], {STATES}, $19::boolean[], $20::timestamptz[]) AS s (id, {", ".join(STATE)}, due, deadline)
WHERE p.id = s.id"""

# Both are served by indexes, so that the cost does not grow with the number of leases or requests.
COMING: Final = """
SELECT (SELECT min(deadline) FROM leases
        WHERE lease_pool_id = $1 AND ended_at IS NULL AND deadline > coalesce($2, '-infinity'::timestamptz)),
    (SELECT min(last_requested_at) FROM requests WHERE lease_pool_id = $1 AND waiting_units > 0 AND NOT lapsed)"""

PUT_OFF: Final = """
UPDATE lease_pools SET dirty = false, wake_at = slipway_clock() + make_interval(secs => $3),
    decided_at = slipway_clock(), reason = $2 WHERE id = $1"""

CLAIM_UNVERIFIED: Final = f"""
SELECT {TERMS} FROM lease_pools
WHERE verified_at IS NULL OR verified_at < slipway_clock() - make_interval(secs => $1)
ORDER BY verified_at NULLS FIRST, id LIMIT 1 FOR UPDATE SKIP LOCKED"""
COUNTED: Final = """
SELECT coalesce((SELECT jsonb_object_agg(operation, cost) FROM (SELECT operation, sum(units * weight) AS cost
    FROM leases WHERE lease_pool_id = $1 AND ended_at IS NULL
    GROUP BY operation HAVING sum(units * weight) > 0) AS costs), '{}') AS held,
    (SELECT coalesce(sum(units), 0) FROM leases WHERE lease_pool_id = $1 AND ended_at IS NULL) AS held_units,
    waiting_units, waiting_requests
FROM (SELECT coalesce(sum(waiting_units), 0) AS waiting_units, count(*) AS waiting_requests FROM requests
    WHERE lease_pool_id = $1 AND waiting_units > 0 AND NOT lapsed) AS queue"""
VERIFY: Final = """
UPDATE lease_pools SET held = $2, held_units = $3, waiting_units = $4, waiting_requests = $5, verified_at = $6,
    dirty = true WHERE id = $1"""

# Serializes declarations: two at once would each compare against rows that the other is about to insert.
DECLARATION_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext(current_schema() || '/lease_pools'))"
CURRENT: Final = f"SELECT {DECLARED} FROM lease_pools ORDER BY id"
# LeaseLimitChanged is published with the declaration, so the next decision must not publish it again. A pool that
# changes its mode starts with fresh pacing, so that requests do not wait for what it admitted under another mode.
DECLARE: Final = """
INSERT INTO lease_pools AS p (id, limit_units, hold_seconds, ttl_seconds, reserve_seconds, policy, revision, retired)
SELECT * FROM unnest($1::text[], $2::integer[], $3::float8[], $4::float8[], $5::float8[], $6::jsonb[], $7::integer[],
    $8::boolean[])
ON CONFLICT (id) DO UPDATE SET limit_units = excluded.limit_units, hold_seconds = excluded.hold_seconds,
    ttl_seconds = excluded.ttl_seconds, reserve_seconds = excluded.reserve_seconds, policy = excluded.policy,
    revision = excluded.revision, retired = excluded.retired, dirty = true,
    limit_in_force = CASE WHEN p.limit_in_force = p.limit_units THEN excluded.limit_units ELSE p.limit_in_force END,
    paced_until = CASE WHEN p.policy -> 'mode' = excluded.policy -> 'mode' THEN p.paced_until END"""

# The rate of grants is taken from the last hundred; if these span less than a minute it is extrapolated to one.
OVERVIEW: Final = f"""
SELECT {DECLARED}, reason, limit_in_force, limit_reason, pinned_reason, drained_reason, derived_units, derived_until,
    blocked_until, held_units AS held, waiting_units AS waiting, waiting_requests AS requests,
    oldest_wait_seconds, granted_per_minute FROM lease_pools AS p,
    LATERAL (SELECT extract(epoch FROM slipway_clock() - min(requested_at))::float8 AS oldest_wait_seconds FROM requests
             WHERE lease_pool_id = p.id AND waiting_units > 0 AND NOT lapsed) AS queue,
    LATERAL (SELECT coalesce(sum(granted_units) * CASE WHEN count(*) < 100 THEN 1 ELSE
                 60 / greatest(1, extract(epoch FROM slipway_clock() - min(granted_at))) END, 0)::int
                 AS granted_per_minute
             FROM (SELECT granted_units, granted_at FROM leases WHERE lease_pool_id = p.id
                   ORDER BY fencing_token DESC LIMIT 100) AS last
             WHERE granted_at > slipway_clock() - interval '1 minute') AS pace
WHERE NOT retired OR held_units > 0 OR waiting_units > 0 ORDER BY id"""


class Overview(Declared, frozen=True, kw_only=True):
    """A lease pool for GET /lease-pools. `held` and `waiting` are units, `requests` the number of waiting requests."""

    reason: str  # of the last decision that changed something
    limit_in_force: int | None  # of the last decision
    limit_reason: str
    pinned_reason: str | None
    drained_reason: str | None
    derived_units: int | None
    derived_until: datetime | None
    blocked_until: datetime | None
    held: int
    waiting: int
    requests: int
    oldest_wait_seconds: float | None  # None while no request waits
    granted_per_minute: int

    @property
    def eta_seconds(self) -> float | None:
        """Expected wait of one unit requested now; None: forever."""
        return eta_seconds(
            limit_units=self.limit_units if self.limit_in_force is None else self.limit_in_force,
            held_units=self.held,
            waiting_units=self.waiting,
            granted_per_minute=self.granted_per_minute,
            hold_seconds=self.hold_seconds,
        )


async def clock(tx: Connection) -> datetime:
    """The database clock. Read it after the lock (see the package)."""
    now: datetime = await tx.fetchval(CLOCK)
    return now


async def lock(tx: Connection, ids: Collection[str]) -> list[LeasePool]:
    """Lock the pools that exist, in ascending order of ids; waits for decisions under way."""
    return structs(await tx.fetch(LOCK, sorted(ids)), LeasePool)


async def named(db: Connection, ids: Collection[str]) -> list[LeasePool]:
    """The pools as last committed. Locks nothing."""
    return structs(await db.fetch(NAMED, sorted(ids)), LeasePool)


async def due(db: Connection) -> list[tuple[str, bool]]:
    """(id, dirty) of lease pools that are due for a decision; not dirty: due by time alone. Locks nothing."""
    return [(row["id"], row["dirty"]) for row in await db.fetch(DUE)]


async def claim(tx: Connection, ids: Sequence[str]) -> LeasePool | None:
    """Lock one of `ids` that is still due and not locked by another transaction; None when there is none.

    A skipped pool stays due, and the loops of its process are notified when it is unlocked.
    """
    row = await tx.fetchrow(CLAIM, ids)
    return None if row is None else msgspec.convert(dict(row), LeasePool)


async def mark(
    tx: Connection, changed: Sequence[LeasePool], dirty: Collection[str], deadlines: Mapping[str, datetime]
) -> None:
    """Write the state of locked pools and make them due: the `dirty` ones now, the others at their new deadline.

    No decision can miss this: it reads and clears the marks under the lock that the caller holds until its commit.
    """
    if changed:
        due = [pool.id in dirty for pool in changed]
        await tx.execute(MARK, *columns(changed, "id", *STATE), due, [deadlines.get(pool.id) for pool in changed])


async def settle(tx: Connection, decision: Decision, now: datetime) -> None:
    """Write the state of a pool after a decision, which covers everything committed before its lock."""
    reason = decision.summary() if decision.events else None
    state = columns([decision.pool], "id", *STATE)
    await tx.execute(SETTLE, *state, [decision.again], [decision.wake_at], now, reason)


async def coming(tx: Connection, lease_pool_id: str, after: datetime | None) -> tuple[datetime | None, datetime | None]:
    """The next changes by time: the earliest deadline of the counted leases (after a time, or of all), and the earliest
    `last_requested_at` of the waiting requests."""
    deadline, requested_at = await tx.fetchrow(COMING, lease_pool_id, after)
    return deadline, requested_at


async def put_off(db: Connection | Database, lease_pool_id: str, reason: str, *, seconds: float) -> None:
    """Postpone a pool for which no decision can be made: due again after `seconds`, behind the others."""
    await db.execute(PUT_OFF, lease_pool_id, reason, seconds)


async def claim_unverified(tx: Connection, *, not_for_seconds: float) -> LeasePool | None:
    """Lock the pool that was verified longest ago and is not locked; None when each was verified within the time."""
    row = await tx.fetchrow(CLAIM_UNVERIFIED, not_for_seconds)
    return None if row is None else msgspec.convert(dict(row), LeasePool)


async def counted(tx: Connection, lease_pool_id: str) -> Counted:
    """The counters of a locked pool, computed from its rows."""
    return msgspec.convert(dict(await tx.fetchrow(COUNTED, lease_pool_id)), Counted)


async def verify(tx: Connection, pool: LeasePool, now: datetime) -> None:
    """Store the counters of the rows and make the pool due once more, in case a wake-up was missed."""
    await tx.execute(VERIFY, pool.id, *(getattr(pool, name) for name in COUNTERS), now)


async def declared(db: Connection) -> list[Declared]:
    return structs(await db.fetch(CURRENT), Declared)


async def lock_declared(tx: Connection) -> list[Declared]:
    """All declared terms. They stay as read until the commit, since only declarations write them."""
    await tx.execute(DECLARATION_LOCK)
    return await declared(tx)


async def declare(tx: Connection, pools: Sequence[Declared]) -> None:
    """Write the terms, in ascending order of ids; waits for decisions under way, which commit under the old terms."""
    await tx.execute(DECLARE, *columns(pools, *Declared.__struct_fields__))


async def overview(db: Connection) -> list[Overview]:
    return structs(await db.fetch(OVERVIEW), Overview)
