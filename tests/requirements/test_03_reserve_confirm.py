from tests.support.lease_broker import Broker, acquire_request, terms

LIMIT = 20
ROUNDS = 5


async def test_reserve_and_confirm(broker: Broker) -> None:
    """Fail all confirms: full capacity back within the deadline."""
    await broker.declare(terms(limit=LIMIT, reserve_seconds=60))
    for round_ in range(ROUNDS):
        await broker.send(*(acquire_request(f"r{round_}-{number}") for number in range(LIMIT)))
        assert len(await broker.grants()) == LIMIT
        await broker.set_clock(60 * (round_ + 1) - 0.001)
        await broker.decide()
        assert await broker.held() == LIMIT
        await broker.set_clock(60 * (round_ + 1))
        await broker.decide()
        assert await broker.held() == 0
