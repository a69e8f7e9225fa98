"""Leases held and requests waiting in a lease pool before a measurement, written directly as rows."""

from typing import Any, Final

HELD: Final = """
INSERT INTO leases (id, lease_pool_id, request_id, fencing_token, granted_units, units, state, granted_at, expires_at,
    hold_until, tenant, operation, owner, extended_at)
SELECT $1 || '-held-' || n, $1, 'held-' || n, n, 1, 1, 'confirmed', slipway_clock(),
    slipway_clock() + interval '1 hour', slipway_clock() + interval '1 hour', 'others', 'launch', 'others',
    slipway_clock()
FROM generate_series(1, $2::integer) AS n"""
COUNT_HELD: Final = """
UPDATE lease_pools SET last_token = $2::integer, held = jsonb_build_object('launch', $2::integer),
    held_units = $2::integer, dirty = true
WHERE id = $1"""
WAITING: Final = """
INSERT INTO requests (id, lease_pool_id, tenant, operation, requested_units, waiting_units, requested_at,
    last_requested_at, since, queued_at, owner)
SELECT 'refill/waits-' || n, $1, 'bench', 'launch', 1, 1, slipway_clock(), slipway_clock() + interval '1 hour',
    slipway_clock(), slipway_clock(), '/slipway/bench' FROM generate_series(1, $2::integer) AS n"""
COUNT_WAITING: Final = """
UPDATE lease_pools SET waiting_units = $2::integer, waiting_requests = $2::integer, dirty = true,
    waiting_by = jsonb_build_object('/slipway/bench', $2::integer)
WHERE id = $1"""
ANALYZE: Final = "ANALYZE leases, requests"


async def hold(database: Any, lease_pool: str, number: int) -> None:
    """Insert `number` confirmed leases of one unit."""
    async with database.acquire() as session, session.transaction():
        await session.execute("SELECT 1 FROM lease_pools WHERE id = $1 FOR UPDATE", lease_pool)
        await session.execute(HELD, lease_pool, number)
        await session.execute(COUNT_HELD, lease_pool, number)


async def wait(database: Any, lease_pool: str, number: int) -> None:
    """Insert `number` waiting requests of one unit."""
    async with database.acquire() as session, session.transaction():
        await session.execute("SELECT 1 FROM lease_pools WHERE id = $1 FOR UPDATE", lease_pool)
        await session.execute(WAITING, lease_pool, number)
        await session.execute(COUNT_WAITING, lease_pool, number)
