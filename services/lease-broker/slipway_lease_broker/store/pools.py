"""Lease pools: their terms, their locks, and when each is due for a decision."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_common.postgres import Connection
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.declaration import Declared
from slipway_lease_broker.domain.eta import eta_seconds
from slipway_lease_broker.domain.ledger import LeasePool
from slipway_lease_broker.store.rows import columns, structs

TERMS: Final = "id, limit_units, hold_seconds, ttl_seconds, reserve_seconds, last_token"
DECLARED: Final = "id, limit_units, hold_seconds, ttl_seconds, reserve_seconds, revision, retired"

CLOCK: Final = "SELECT slipway_clock()"
LOCK: Final = f"SELECT {TERMS} FROM lease_pools WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE"
DUE: Final = "SELECT id, dirty FROM lease_pools WHERE dirty OR wake_at <= slipway_clock()"
# Those not decided for longest come first, so that a busy lease pool keeps none waiting. The condition is checked
# again once the row is locked: another replica may have decided meanwhile.
CLAIM: Final = f"""
SELECT {TERMS} FROM lease_pools WHERE id = ANY($1::text[]) AND (dirty OR wake_at <= slipway_clock())
ORDER BY decided_at NULLS FIRST, id LIMIT 1 FOR UPDATE SKIP LOCKED"""
MARK: Final = """
UPDATE lease_pools AS p SET dirty = p.dirty OR m.dirty, wake_at = least(p.wake_at, m.deadline)
FROM unnest($1::text[], $2::boolean[], $3::timestamptz[]) AS m (id, dirty, deadline) WHERE p.id = m.id"""
SETTLE: Final = """
UPDATE lease_pools SET dirty = false, wake_at = $2, last_token = $3, decided_at = $4, why = coalesce($5, why)
WHERE id = $1"""

# Two declarations at once would each compare against rows that the other is about to insert.
DECLARATION_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext(current_schema() || '/lease_pools'))"
CURRENT: Final = f"SELECT {DECLARED} FROM lease_pools ORDER BY id"
DECLARE: Final = """
INSERT INTO lease_pools AS p (id, limit_units, hold_seconds, ttl_seconds, reserve_seconds, revision, retired)
SELECT * FROM unnest($1::text[], $2::integer[], $3::float8[], $4::float8[], $5::float8[], $6::integer[], $7::boolean[])
ON CONFLICT (id) DO UPDATE SET limit_units = excluded.limit_units, hold_seconds = excluded.hold_seconds,
    ttl_seconds = excluded.ttl_seconds, reserve_seconds = excluded.reserve_seconds, revision = excluded.revision,
    retired = excluded.retired, dirty = true"""

OVERVIEW: Final = f"""
SELECT {DECLARED}, why, held, waiting, requests, oldest_wait_seconds, granted_per_minute FROM lease_pools AS p,
    LATERAL (SELECT coalesce(sum(units), 0) AS held FROM leases
             WHERE lease_pool_id = p.id AND ended_at IS NULL) AS counted,
    LATERAL (SELECT coalesce(sum(waiting_units), 0) AS waiting, count(*) AS requests,
                 extract(epoch FROM slipway_clock() - min(asked_at))::float8 AS oldest_wait_seconds FROM requests
             WHERE lease_pool_id = p.id AND waiting_units > 0) AS queue,
    LATERAL (SELECT coalesce(sum(granted_units), 0) AS granted_per_minute FROM leases
             WHERE lease_pool_id = p.id AND granted_at > slipway_clock() - interval '1 minute') AS pace
WHERE NOT retired OR held > 0 OR waiting > 0 ORDER BY id"""


class Overview(Declared, frozen=True, kw_only=True):
    """A lease pool as people look at it. `held` and `waiting` are units, `requests` those that wait."""

    why: str
    held: int
    waiting: int
    requests: int
    oldest_wait_seconds: float | None  # None while nobody waits
    granted_per_minute: int

    @property
    def eta_seconds(self) -> float | None:
        """What one unit that is asked for now would wait."""
        return eta_seconds(
            limit_units=self.limit_units, held_units=self.held, waiting_units=self.waiting,
            granted_per_minute=self.granted_per_minute, hold_seconds=self.hold_seconds,
        )  # fmt: skip


async def clock(tx: Connection) -> datetime:
    """The database's time. Read it after the lock (see the package)."""
    now: datetime = await tx.fetchval(CLOCK)
    return now


async def lock(tx: Connection, ids: Collection[str]) -> list[LeasePool]:
    """Lock those that exist, in ascending order; waits for whoever decides for one now."""
    return structs(await tx.fetch(LOCK, sorted(ids)), LeasePool)


async def due(db: Connection) -> list[tuple[str, bool]]:
    """Ids of lease pools that want a decision, and whether a fact asks for it rather than time. Locks nothing."""
    return [(row["id"], row["dirty"]) for row in await db.fetch(DUE)]


async def claim(tx: Connection, ids: Sequence[str]) -> LeasePool | None:
    """Lock one of `ids` that is still due and that nobody holds; None when there is none.

    One that is skipped is not forgotten: it stays due, and the commit that frees it rings its process's loops.
    """
    row = await tx.fetchrow(CLAIM, ids)
    return None if row is None else msgspec.convert(dict(row), LeasePool)


async def mark(tx: Connection, dirty: Collection[str], deadlines: Mapping[str, datetime]) -> None:
    """Make locked pools due: now where facts ask for a decision, else when the new deadlines pass.

    A decision cannot miss this: it reads and clears the marks under the lock that the caller holds until its commit.
    """
    if ids := sorted({*dirty, *deadlines}):
        await tx.execute(MARK, ids, [name in dirty for name in ids], [deadlines.get(name) for name in ids])


async def settle(tx: Connection, pool: LeasePool, decision: Decision, now: datetime) -> None:
    """The pool was decided for, up to everything committed before its lock."""
    why = decision.summary() if decision.events else None
    await tx.execute(SETTLE, pool.id, decision.wake_at, decision.last_token, now, why)


async def declared(db: Connection) -> list[Declared]:
    return structs(await db.fetch(CURRENT), Declared)


async def lock_declared(tx: Connection) -> list[Declared]:
    """All lease pools, as they stay until the commit: only declarations write what is read here."""
    await tx.execute(DECLARATION_LOCK)
    return await declared(tx)


async def declare(tx: Connection, pools: Sequence[Declared]) -> None:
    """In ascending order of ids; waits for decisions under way. They commit under the limit that they read."""
    names = ("id", "limit_units", "hold_seconds", "ttl_seconds", "reserve_seconds", "revision", "retired")
    await tx.execute(DECLARE, *columns(pools, *names))


async def overview(db: Connection) -> list[Overview]:
    return structs(await db.fetch(OVERVIEW), Overview)
