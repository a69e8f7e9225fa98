import asyncio

from tests.requirements.live import Live

REQUESTS = 30


async def test_idempotent_acquire(live: Live) -> None:
    """ "drop every reply once: no extra lease." Also when the broker that did not answer is killed."""
    pool = await live.pool("idempotent", REQUESTS, hold_seconds=600.0, ttl_seconds=600.0)
    first, other = live.ports[:2]
    proxy = live.proxies[0]
    client = live.client()

    async def without_answer(number: int) -> None:
        answer = await client.acquire(pool, f"r{number}", port=live.proxy_ports[0])
        assert answer.answer == "unknown"

    async def again(number: int, port: int) -> str:
        answer = await client.acquire(pool, f"r{number}", port=port)
        assert answer.lease is not None, answer
        return answer.lease.lease_id

    proxy.share = 1.0
    try:
        await asyncio.gather(*(without_answer(number) for number in range(REQUESTS)))
    finally:
        proxy.share = 0.0
    granted = await asyncio.gather(*(again(number, first) for number in range(REQUESTS // 2)))
    await live.kill(live.brokers[0])
    granted += await asyncio.gather(*(again(number, other) for number in range(REQUESTS)))
    rows = await live.rows("SELECT id, request_id FROM leases WHERE lease_pool_id = $1", pool)
    assert sorted(row["request_id"] for row in rows) == sorted(f"r{number}" for number in range(REQUESTS))
    assert set(granted) == {row["id"] for row in rows}
    assert await live.violations(pool) == []
