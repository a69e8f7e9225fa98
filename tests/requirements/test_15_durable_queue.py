import asyncio

from tests.histories.history import Call
from tests.requirements.live import Live
from tests.support.harness import until


async def test_durable_queue(live: Live) -> None:
    """Position, ETA, cancel, long poll and wake-up by event; a dead request is skipped and not waited for."""
    pool = await live.pool("queue", 1, hold_seconds=600.0, ttl_seconds=600.0, reserve_seconds=30.0)
    first, second = live.ports[:2]
    names = ["holder", "cancelled", "dead", "alive"]
    clients = {name: live.client(name) for name in names}
    held = (await clients["holder"].acquire(pool, "holder")).lease
    assert held is not None
    for name in names[1:]:
        assert (await clients[name].acquire(pool, name, port=first)).answer == "waiting"
    assert await places(live, pool) == ["cancelled 1", "dead 2", "alive 3"]
    assert (await clients["cancelled"].cancel(pool, "cancelled")).answer == "ok"
    await live.kill(live.brokers[0])
    for name in names[2:]:  # otherwise they could have lapsed by now
        assert (await clients[name].acquire(pool, name, port=second)).answer == "waiting"
    assert await places(live, pool) == ["dead 1", "alive 2"]

    async def alive() -> Call:
        while (answer := await clients["alive"].acquire(pool, "alive", wait_seconds=3.0, port=second)).lease is None:
            assert answer.answer in ("waiting", "unknown"), answer
        return answer

    waiting = asyncio.create_task(alive())
    await until(lambda: has_lapsed(live, pool, "dead"), "one of them has lapsed")
    await clients["holder"].send("release", pool, held, port=first)
    assert (await waiting).lease is not None, "it holds nobody up"
    assert (await clients["cancelled"].acquire(pool, "cancelled")).answer == "refused"
    assert await live.violations(pool) == []


async def places(live: Live, pool: str) -> list[str]:
    """Positions of waiting requests, each with an estimate."""
    listed = [item["request_id"] for item in (await live.get(f"/lease-pools/{pool}/requests"))["items"]]
    shown = [await live.get(f"/lease-pools/{pool}/requests/{name}") for name in listed]
    assert all(request["eta_seconds"] > 0 for request in shown)
    return [f"{request['request_id']} {request['position']}" for request in shown]


async def has_lapsed(live: Live, pool: str, request_id: str) -> bool:
    state: str = (await live.get(f"/lease-pools/{pool}/requests/{request_id}"))["state"]
    return state == "lapsed"
