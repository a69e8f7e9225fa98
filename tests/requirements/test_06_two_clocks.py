from slipway_common.events.lease import LeaseConfirmed, LeaseLost, LeaseReleased
from tests.lease_broker import Broker, after, ask, confirm, release, renew, terms


async def test_two_clocks(broker: Broker) -> None:
    """`hold` (≈20 min API-heavy window, released by the *broker*, not a `sleep 20m &`) and `ttl` (liveness). A phase
    event may release early.
    """
    await broker.declare(terms(limit=3, hold_seconds=1200, ttl_seconds=300))
    await broker.tell(ask("renewed"), ask("silent"), ask("early"))
    renewed, silent, early = await broker.grants()
    await broker.tell(confirm(renewed), confirm(silent), confirm(early))
    await broker.told()

    await broker.set_clock(100)
    await broker.tell(release(early))
    (told,) = await broker.told()
    assert isinstance(told, LeaseReleased)
    assert (told.request_id, told.reason) == ("early", "registered")

    for seconds in range(250, 1200, 250):
        await broker.set_clock(seconds)
        await broker.tell(renew(renewed))
        await broker.decide()
    lost, *prolonged = sorted(await broker.told(), key=lambda event: not isinstance(event, LeaseLost))
    assert isinstance(lost, LeaseLost)
    assert lost.request_id == "silent"
    assert all(isinstance(event, LeaseConfirmed) and event.expires_at <= after(1200) for event in prolonged)

    await broker.set_clock(1200)
    await broker.decide()
    ended = [event for event in await broker.told() if isinstance(event, LeaseReleased)]
    assert [(event.request_id, event.reason) for event in ended] == [("renewed", "hold")]
