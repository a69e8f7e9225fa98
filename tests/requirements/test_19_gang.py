import asyncio
from typing import Any

from tests.requirements.live import Live


async def test_gang(live: Live) -> None:
    """Gang acquire all-or-nothing, pools locked in order."""
    pools = [await live.pool(f"gang-{name}", 1) for name in ("a", "b")]
    client = live.client("alone", owner="ben")
    held = (await client.acquire(pools[1], "alone")).lease
    assert held is not None
    status, body = await gang(live, "g1", pools, 0.0)
    assert status == 202, body
    assert (await live.get(f"/leases?pool={pools[0]}"))["items"] == [], "who waits for one pool holds none of another"
    waiting = asyncio.create_task(gang(live, "g1", pools, 60.0))
    await client.send("release", pools[1], held)
    status, body = await waiting
    assert status == 200, body
    assert sorted(lease["lease_pool_id"] for lease in body["leases"]) == pools
    assert len({lease["granted_at"] for lease in body["leases"]}) == 1
    assert (await client.acquire(pools[0], "late")).answer == "waiting"

    # Gangs that name the pools in opposite orders wait for each other, but never forever.
    await release_all(live, body["leases"])
    await client.cancel(pools[0], "late")

    async def many(order: list[str], name: str) -> None:
        for number in range(5):
            while (answer := await gang(live, f"{name}-{number}", order, 10.0))[0] == 202:
                pass
            assert answer[0] == 200, answer
            await release_all(live, answer[1]["leases"])

    await asyncio.gather(many(pools, "forward"), many(pools[::-1], "backward"))
    assert [await live.peak(pool) for pool in pools] == [1, 1]


async def gang(live: Live, request_id: str, pools: list[str], wait_seconds: float) -> tuple[int, dict[str, Any]]:
    members = [{"pool": pool, "units": 1} for pool in pools]
    body = {"request_id": request_id, "tenant": "ann", "wait_seconds": wait_seconds, "members": members}
    return await live.post("/lease-gangs", {**body, "operation": "install"}, owner="ann")


async def release_all(live: Live, leases: list[dict[str, Any]]) -> None:
    for lease in leases:
        await live.post(f"/leases/{lease['lease_id']}/release", {"fencing_token": lease["fencing_token"]}, "ann")
