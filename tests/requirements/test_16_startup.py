import asyncio

from slipway_common.base.clock import utc_now
from tests.requirements.live import Live
from tests.support.harness import until


async def test_startup(live: Live) -> None:
    """Restart resumes from the ledger (no learning mode). In-flight work without a lease is adopted *and counted*."""
    pool = await live.pool("startup", 2, hold_seconds=600.0, ttl_seconds=600.0)
    client, waiter = live.client("holder"), live.client("waiter", owner="ben")
    held = [(await client.acquire(pool, f"r{number}")).lease for number in range(2)]
    assert (await waiter.acquire(pool, "waits")).answer == "waiting"
    await asyncio.gather(*(live.kill(name) for name in live.brokers))

    for lease in held:
        assert lease is not None
        assert (await client.send("renew", pool, lease)).answer == "ok"
    assert (await waiter.acquire(pool, "waits")).answer == "waiting", "what was held is counted from the first moment"
    start = {"request_id": "outage", "operation": "install", "units": 1, "started_at": utc_now().isoformat()}
    for _ in range(2):
        status, body = await live.post(f"/lease-pools/{pool}/unleased", {"starts": [start]}, owner="ann")
        assert status == 200, body
    assert held[0] is not None
    await client.send("release", pool, held[0])
    assert (await waiter.acquire(pool, "waits")).answer == "waiting", "what was started without a lease counts"
    assert held[1] is not None
    await client.send("release", pool, held[1])
    granted = await live.granted(waiter, pool, "waits")
    assert granted.fencing_token > max(lease.fencing_token for lease in held if lease is not None)
    await until(lambda: shown(live, pool), "two units are held")


async def shown(live: Live, pool: str) -> bool:
    (row,) = [row for row in (await live.get("/lease-pools"))["items"] if row["id"] == pool]
    return bool(row["held"] == 2)
