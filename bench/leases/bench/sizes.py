"""Lease pools that are full already: leases that others hold, requests that others wait with. Written as rows, since
what is measured is what they cost afterwards."""

from typing import Any, Final

HELD: Final = """
INSERT INTO leases (id, lease_pool_id, request_id, fencing_token, granted_units, units, state, granted_at, expires_at,
    hold_until, tenant, operation, owner)
SELECT $1 || '-held-' || n, $1, 'held-' || n, n, 1, 1, 'confirmed', slipway_clock(),
    slipway_clock() + interval '1 hour', slipway_clock() + interval '1 hour', 'others', 'launch', 'others'
FROM generate_series(1, $2::integer) AS n"""
COUNT_HELD: Final = """
UPDATE lease_pools SET last_token = $2::integer, held = jsonb_build_object('launch', $2::integer),
    held_units = $2::integer, dirty = true
WHERE id = $1"""
WAITING: Final = """
INSERT INTO requests (id, lease_pool_id, tenant, operation, asked_units, waiting_units, asked_at, last_asked_at, since,
    queued_at, owner)
SELECT 'refill/waits-' || n, $1, 'bench', 'launch', 1, 1, slipway_clock(), slipway_clock() + interval '1 hour',
    slipway_clock(), slipway_clock(), '/slipway/bench' FROM generate_series(1, $2::integer) AS n"""
COUNT_WAITING: Final = """
UPDATE lease_pools SET waiting_units = $2::integer, waiting_requests = $2::integer, dirty = true WHERE id = $1"""
ANALYZE: Final = "ANALYZE leases, requests"


async def hold(db: Any, lease_pool: str, number: int) -> None:
    async with db.acquire() as session, session.transaction():
        await session.execute("SELECT 1 FROM lease_pools WHERE id = $1 FOR UPDATE", lease_pool)
        await session.execute(HELD, lease_pool, number)
        await session.execute(COUNT_HELD, lease_pool, number)


async def wait(db: Any, lease_pool: str, number: int) -> None:
    async with db.acquire() as session, session.transaction():
        await session.execute("SELECT 1 FROM lease_pools WHERE id = $1 FOR UPDATE", lease_pool)
        await session.execute(WAITING, lease_pool, number)
        await session.execute(COUNT_WAITING, lease_pool, number)
