"""Requests to pause launch configs of one pool at the same time: two sessions for every locking statement."""

from typing import Final

import slipway_provisioner
from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.signal import SignalRaised
from slipway_provisioner.handlers.signals import record_requests
from slipway_provisioner.store.refused_pauses import settle
from tests.support.provisioner import Provisioner, after, declared, in_transaction, received, stopped_at
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)


def request(letter: str, *, at: float = 0) -> SignalRaised:
    return SignalRaised(
        source="monitor",
        target_kind="config",
        target_id=f"zone-{letter}",
        kind="pause_request",
        reason="smoke",
        observed_at=after(at),
        ttl_seconds=60,
    )


async def paused(provisioner: Provisioner) -> list[str]:
    rows = await provisioner.database.fetch("SELECT name FROM launch_config_name WHERE paused ORDER BY name")
    return [row["name"] for row in rows]


async def alerts(provisioner: Provisioner) -> list[type]:
    return [type(event) for event in await provisioner.events() if isinstance(event, AlertRaised | AlertResolved)]


async def over_its_share(provisioner: Provisioner) -> None:
    """A source that has paused one of two launch configs, and was refused the other one, each for 60 s."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    await provisioner.signals(request("a"), request("b"))
    assert await alerts(provisioner) == [AlertRaised]


@locking("store.configs.LOCK")
async def test_two_requests_for_one_pool(provisioner: Provisioner) -> None:
    """The second one, for another launch config, waits for the first and is refused: together they exceed the share."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    async with stopped_at(provisioner, "outbox", provisioner.signals(request("b"))) as first:
        second = provisioner.start(provisioner.signals(request("a")))
        await provisioner.until_waiting(first, second)
    await first
    await second
    assert await paused(provisioner) == ["zone-b"]
    assert await alerts(provisioner) == [AlertRaised]


@locking("store.refused_pauses.RECORD", "store.refused_pauses.DELETE_OVER")
async def test_a_refusal_that_waited_for_the_end_of_one(provisioner: Provisioner) -> None:
    """It raises the alert again, after it was resolved."""
    await over_its_share(provisioner)
    await provisioner.signals(request("a", at=59))
    await provisioner.set_clock(60)
    async with stopped_at(provisioner, "outbox", in_transaction(provisioner, settle)) as settling:
        refused = provisioner.start(provisioner.signals(request("b", at=60)))
        await provisioner.until_waiting(settling, refused)
    assert await settling is True
    await refused
    assert await alerts(provisioner) == [AlertResolved, AlertRaised]
    assert await paused(provisioner) == ["zone-a"]


@locking("store.refused_pauses.RECORD", "store.refused_pauses.DELETE_OVER")
async def test_a_refusal_that_is_extended_while_it_ends(provisioner: Provisioner) -> None:
    """A pass that finds it locked leaves it, and so does the next one. Two passes at once resolve an alert once."""
    await over_its_share(provisioner)
    await provisioner.signals(request("a", at=59))
    await provisioner.set_clock(60)
    async with provisioner.database.acquire() as db, db.transaction():
        assert await record_requests(db, received(request("b", at=60))) is not None
        assert await in_transaction(provisioner, settle) is False
    assert await in_transaction(provisioner, settle) is False
    await provisioner.set_clock(120)
    async with stopped_at(provisioner, "outbox", in_transaction(provisioner, settle)) as first:
        assert await in_transaction(provisioner, settle) is False
    assert await first is True
    assert await alerts(provisioner) == [AlertResolved]
