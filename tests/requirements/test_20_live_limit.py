from tests.histories.system import OPERATOR
from tests.requirements.live import Live


async def test_live_limit_change(live: Live) -> None:
    """Lowering the limit revokes nothing."""
    pool = await live.pool("limit", 3)
    client, operator = live.client(), live.client("operator", owner=OPERATOR)
    held = [(await client.acquire(pool, f"r{number}")).lease for number in range(3)]
    assert (await operator.limit(pool, 1)).answer == "ok"
    for lease in held:
        assert lease is not None
        assert (await client.send("renew", pool, lease)).answer == "ok"
    for lease in held:
        assert (await client.acquire(pool, "next")).answer == "waiting"
        assert lease is not None
        await client.send("release", pool, lease)
    assert await live.granted(client, pool, "next")
    assert (await operator.limit(pool, 2)).answer == "ok"
    assert await live.granted(client, pool, "more")
    assert await live.violations(pool) == []
