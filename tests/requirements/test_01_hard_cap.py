import asyncio

from tests.requirements.live import Live

CAP = 20
ACQUIRES = 1000


async def test_hard_cap(live: Live) -> None:
    """1,000 simultaneous acquires on cap 20, 8 replicas: max 20."""
    pool = await live.pool("hard-cap", CAP, hold_seconds=600.0, ttl_seconds=600.0, reserve_seconds=60.0)

    async def once(number: int) -> int:
        client = live.client(f"client-{number}")
        while (granted := await client.acquire(pool, f"r{number}", wait_seconds=3.0)).lease is None:
            assert granted.answer in ("waiting", "unknown"), granted
        await client.send("release", pool, granted.lease)
        return granted.lease.fencing_token

    tokens = await asyncio.gather(*(once(number) for number in range(ACQUIRES)))
    assert sorted(tokens) == list(range(1, ACQUIRES + 1))
    assert await live.peak(pool) == CAP
    assert await live.violations(pool) == []
