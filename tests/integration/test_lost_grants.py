"""A provisioner and a lease-broker with lost events between them: no intent waits for a grant that never comes."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from slipway_api.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmRequested,
    LeaseExpired,
    LeaseGranted,
    LeaseQueued,
    LeaseReleased,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
)
from slipway_api.events.worker import WorkerDelayed
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.lease_broker import Broker, broker_on, terms
from tests.support.provisioner import Provisioner, declared, provisioner_on, report

COMMANDS = (
    LeaseRequested,
    LeaseConfirmRequested,
    LeaseRenewRequested,
    LeaseCancelRequested,
    LeaseReleaseRequested,
)
Lost = Callable[[Any], bool]


class Pair:
    """Both services on one clock. `lost` chooses the events of the broker that never arrive; `published` are those of
    the provisioner."""

    def __init__(self, provisioner: Provisioner, broker: Broker) -> None:
        self.provisioner = provisioner
        self.broker = broker
        self.lost: Lost = lambda event: False
        self.published: list[Any] = []

    async def exchange(self) -> list[Any]:
        """Pass commands and events on until there are none; returns the events that arrived."""
        arrived: list[Any] = []
        while True:
            published = await self.provisioner.events()
            self.published += published
            commands = [event for event in published if isinstance(event, COMMANDS)]
            if commands:
                await self.broker.send(*commands)
            await self.broker.decide()
            events = [event for event in await self.broker.events() if not self.lost(event)]
            if not events and not commands:
                return arrived
            arrived += events
            # The provisioner owns its leases by the source of its events, which this broker does not know.
            owned = [msgspec.structs.replace(e, owner="") if isinstance(e, LeaseGranted) else e for e in events]
            if owned:
                await self.provisioner.leases(*owned)

    async def pass_time(self, seconds: float) -> None:
        await self.provisioner.set_clock(seconds)
        await self.broker.set_clock(seconds)
        await self.provisioner.expire()
        await self.provisioner.resend_requests()
        await self.exchange()


@pytest.fixture
async def pair(postgres: EmbeddedPostgres) -> AsyncIterator[Pair]:
    """Three intents whose request is published and not read yet."""
    async with provisioner_on(postgres) as provisioner, broker_on(postgres) as broker:
        await broker.declare(terms())
        await provisioner.declare(declared())
        await provisioner.trust()
        await provisioner.demand(report(3, valid_for_seconds=80_000))
        await provisioner.plan()
        yield Pair(provisioner, broker)


def granted(event: Any) -> bool:
    return isinstance(event, LeaseGranted)


async def started(pair: Pair) -> dict[str, int]:
    """States of workers once every call that may start has been made."""
    await pair.provisioner.launch()
    return await pair.provisioner.states()


async def test_a_lost_grant_is_granted_again(pair: Pair) -> None:
    """The repeated request is answered with the live lease: no unit is granted twice, and all tasks get a machine."""
    pair.lost = granted
    await pair.exchange()
    assert await started(pair) == {"requested": 3}
    pair.lost = lambda event: False
    await pair.pass_time(31)
    assert await started(pair) == {"starting": 3}
    assert await pair.broker.held() == 3


async def test_the_end_of_a_lost_grant(pair: Pair) -> None:
    """A lease that expires before its grant was seen ends the wait of its intents, once: they request another."""
    pair.lost = granted
    await pair.exchange()
    await pair.provisioner.set_clock(181)
    await pair.broker.set_clock(181)
    arrived = await pair.exchange()
    assert [type(event) for event in arrived] == [LeaseExpired]
    await pair.provisioner.leases(*arrived)  # delivered again
    await pair.exchange()
    assert sum(isinstance(event, WorkerDelayed) for event in pair.published) == 3
    pair.lost = lambda event: False
    await pair.pass_time(182)
    assert await started(pair) == {"starting": 3}


async def test_a_lost_grant_with_its_lost_end(pair: Pair) -> None:
    """The repeated request is answered with the end."""
    pair.lost = lambda event: isinstance(event, LeaseGranted | LeaseExpired)
    await pair.exchange()
    await pair.provisioner.set_clock(181)
    await pair.broker.set_clock(181)
    await pair.exchange()
    assert await pair.broker.held() == 0
    pair.lost = lambda event: False
    await pair.pass_time(212)
    await pair.pass_time(213)
    assert await started(pair) == {"starting": 3}


async def test_a_part_that_was_granted_and_lost(pair: Pair) -> None:
    """With two units free, one lost grant of two and the last unit queued: each intent gets one unit."""
    await pair.broker.declare(terms(limit=2))
    pair.lost = granted
    await pair.exchange()
    pair.lost = lambda event: False
    await pair.pass_time(31)
    assert await started(pair) == {"starting": 2, "requested": 1}
    assert await pair.broker.held() == 2


async def test_a_request_that_the_broker_has_cancelled(pair: Pair) -> None:
    """The answer says that nothing waits: the intents request again under another id."""
    (request,) = await pair.provisioner.published(LeaseRequested)
    await pair.broker.declare(terms(limit=0))
    await pair.broker.send(request)
    cancel = LeaseCancelRequested(lease_pool_id="sim-a", request_id=request.request_id, units=3, reason="by a person")
    await pair.broker.send(cancel)
    await pair.broker.events()
    await pair.broker.declare(terms())
    await pair.pass_time(31)
    await pair.pass_time(32)
    assert await started(pair) == {"starting": 3}


async def test_a_lease_whose_end_was_lost(pair: Pair) -> None:
    """Intents that hold a unit of a lease that has ended renew it before their call, and are answered with its end."""
    await pair.exchange()
    pair.lost = lambda event: isinstance(event, LeaseReleased | LeaseExpired)
    await pair.broker.pool.execute("UPDATE leases SET hold_until = expires_at")
    await pair.provisioner.set_clock(1300)
    await pair.broker.set_clock(1300)
    await pair.exchange()
    assert await pair.broker.held() == 0
    pair.lost = lambda event: False
    await pair.provisioner.launch()
    await pair.exchange()
    await pair.pass_time(1301)
    assert await started(pair) == {"starting": 3}


async def test_a_queue_that_is_as_long_as_expected_changes_nothing(pair: Pair) -> None:
    await pair.broker.declare(terms(limit=0))
    arrived = await pair.exchange()
    assert [(event.units, event.position) for event in arrived if isinstance(event, LeaseQueued)] == [(3, 1)]
    await pair.pass_time(31)
    assert await pair.provisioner.published(WorkerDelayed) == []
    assert await pair.provisioner.states() == {"requested": 3}
