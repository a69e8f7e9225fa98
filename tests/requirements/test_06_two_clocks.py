from slipway_api.events.lease import LeaseConfirmed, LeaseLost, LeaseReleased
from tests.support.lease_broker import Broker, acquire_request, after, confirm, release, renew, terms


async def test_two_clocks(broker: Broker) -> None:
    """The `hold` (about 20 min, an API-heavy window that the *broker* releases, not a `sleep 20m &`) and the `ttl`
    (liveness). A phase event may release early."""
    await broker.declare(terms(limit=3, hold_seconds=1200, ttl_seconds=300))
    await broker.send(acquire_request("renewed"), acquire_request("silent"), acquire_request("early"))
    renewed, silent, early = await broker.grants()
    await broker.send(confirm(renewed), confirm(silent), confirm(early))
    await broker.events()

    await broker.set_clock(100)
    await broker.send(release(early))
    (event,) = await broker.events()
    assert isinstance(event, LeaseReleased)
    assert (event.request_id, event.reason) == ("early", "registered")

    for seconds in range(250, 1200, 250):
        await broker.set_clock(seconds)
        await broker.send(renew(renewed))
        await broker.decide()
    lost, *prolonged = sorted(await broker.events(), key=lambda event: not isinstance(event, LeaseLost))
    assert isinstance(lost, LeaseLost)
    assert lost.request_id == "silent"
    assert all(isinstance(event, LeaseConfirmed) and event.expires_at <= after(1200) for event in prolonged)

    await broker.set_clock(1200)
    await broker.decide()
    ended = [event for event in await broker.events() if isinstance(event, LeaseReleased)]
    assert [(event.request_id, event.reason) for event in ended] == [("renewed", "hold")]
