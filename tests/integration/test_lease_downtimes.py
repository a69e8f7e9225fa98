"""Leases while the lease-broker reads no requests, after a restore, and under a clock that is set back."""

from types import SimpleNamespace
from typing import Any

import pytest

from slipway_api.events.topics import LEASE_REQUEST
from slipway_common.base.errors import Transient
from slipway_common.messaging.consume import Consumer, Owned
from slipway_common.web.runtime import Runtime
from slipway_lease_broker.domain.reception import Downtime, Receiving
from slipway_lease_broker.handlers.requests import LeaseCommandHandler
from slipway_lease_broker.progress import RequestProgress
from slipway_lease_broker.store import reception
from slipway_lease_broker.store import terms as store_terms
from tests.support.lease_broker import NOT_RECEIVING, Broker, acquire_request, after, confirm, kinds, renew


async def test_no_deadline_passes_before_the_requests_are_read(broker: Broker) -> None:
    """After a start or take-over renewals may be waiting unread; free units are granted meanwhile."""
    await broker.send(acquire_request("r1", 4))
    (lease,) = await broker.grants()
    await broker.send(confirm(lease))
    await broker.events()
    broker.receiving = NOT_RECEIVING
    await broker.set_clock(1000)
    assert await broker.decide() == 0
    await broker.send(acquire_request("r2", 2))
    assert [(grant.request_id, grant.units) for grant in await broker.grants()] == [("r2", 1)]
    await broker.send(renew(lease))
    broker.receiving = Receiving()
    await broker.decide()
    assert kinds(await broker.events()) == ["LeaseConfirmed"]
    await broker.set_clock(1180)
    await broker.decide()
    assert kinds(await broker.events()) == ["LeaseExpired", "LeaseGranted"]


async def test_leases_live_while_the_broker_does_not_read_kafka(broker: Broker) -> None:
    """A lease renewed over Kafka gets the time in which its renewals could not be read; the end of its hold passes, and
    a lease held over HTTP ends as always."""
    await broker.send(acquire_request("r1", 2))
    (lease,) = await broker.grants()
    await broker.send(confirm(lease))
    await broker.submit(acquire_request("r2", 2))
    await broker.events()
    broker.receiving = Receiving(kafka=None)
    await broker.set_clock(1000)
    await broker.decide()
    assert [(type(event).__name__, event.request_id) for event in await broker.events()] == [("LeaseExpired", "r2")]
    assert await broker.held() == 2
    assert await broker.decide() == 0, "a pool with leases that are held back is not decided again at once"
    broker.receiving = Receiving(kafka=[Downtime(after(100), after(1000))])
    await broker.decide()
    assert await broker.events() == []
    await broker.set_clock(1199)  # 299 s without the downtime
    await broker.decide()
    assert await broker.events() == []
    assert await broker.held() == 2
    broker.receiving = Receiving(kafka=None)
    await broker.set_clock(1200)
    await broker.decide()
    assert kinds(await broker.events()) == ["LeaseReleased"]


async def test_a_lease_that_is_not_renewed_ends_after_a_downtime(broker: Broker) -> None:
    """The postponed deadline passes, and one renewed after the downtime is not postponed."""
    await broker.send(acquire_request("r1", 1), acquire_request("r2", 1))
    first, second = await broker.grants()
    await broker.send(confirm(first), confirm(second))
    await broker.set_clock(200)
    broker.receiving = Receiving(kafka=[Downtime(after(100), after(200))])
    await broker.send(renew(second))
    await broker.events()
    await broker.set_clock(399)
    await broker.decide()
    assert await broker.events() == []
    await broker.set_clock(400)  # 300 s after its confirmation, without the downtime
    await broker.decide()
    assert [(type(event).__name__, event.request_id) for event in await broker.events()] == [("LeaseLost", "r1")]
    await broker.set_clock(500)
    await broker.decide()
    assert [(type(event).__name__, event.request_id) for event in await broker.events()] == [("LeaseLost", "r2")]


async def test_deadlines_of_a_pool_that_nobody_reads(broker: Broker) -> None:
    """Another process lets those pass that no command over Kafka could move, but only after the reader had its turn."""
    await broker.submit(acquire_request("r1", 1))
    await broker.events()
    broker.receiving = Receiving(kafka=None, reads=False)
    await broker.set_clock(185)
    assert await broker.decide() == 0
    await broker.set_clock(195)
    await broker.decide()
    assert kinds(await broker.events()) == ["LeaseExpired"]


async def test_a_restored_database_holds_its_leases(broker: Broker) -> None:
    """For one TTL nothing expires, however long ago the deadline was, and nothing is granted; a renewal extends its
    lease. Then the lease that nobody renewed ends, and fencing tokens are above all those of the lost time."""
    await broker.send(acquire_request("a", 3), acquire_request("b", 1))
    first, second = await broker.grants()
    await broker.send(confirm(first), confirm(second))
    await broker.decide()
    await broker.events()
    await broker.set_clock(400)
    async with broker.pool.acquire() as db, db.transaction():
        await store_terms.restored(db, 2**50)
    await broker.send(acquire_request("c"), renew(second))
    await broker.decide()
    await broker.set_clock(699)
    await broker.send(renew(second))
    await broker.decide()
    assert {"LeaseGranted", "LeaseLost", "LeaseExpired"}.isdisjoint(kinds(await broker.events()))
    assert await broker.held() == 4
    await broker.set_clock(700)
    await broker.decide()
    lost, granted = await broker.events()
    assert (lost.lease_id, granted.request_id) == (first.lease_id, "c")
    assert granted.fencing_token == 2**50 + 1
    await broker.set_clock(770)
    await broker.decide()
    assert await broker.held() == 2


async def test_a_database_that_was_not_compared_decides_nothing(broker: Broker) -> None:
    """Commands are tried again later, and none is lost."""
    await broker.pool.execute("UPDATE incarnation SET server = 'another'")
    with pytest.raises(Transient):
        await broker.send(acquire_request("a"))
    assert await broker.pool.fetchval("SELECT count(*) FROM requests") == 0
    await broker.pool.execute("UPDATE incarnation SET server = slipway_server()")
    await broker.send(acquire_request("a"))
    assert len(await broker.grants()) == 1


async def test_a_process_that_is_cut_off_receives_nothing_over_kafka(broker: Broker) -> None:
    """Its last answer of Kafka is too old. Over HTTP it goes on, and over Kafka too once it is answered again."""
    seconds, answers = 0.0, 1
    consumer = Consumer("lease-broker", LEASE_REQUEST, LeaseCommandHandler(broker.admissions).handle)
    client = SimpleNamespace(assignment=lambda: (3,), last_poll_timestamp=lambda _: answers, highwater=lambda _: 4)
    subscription: Any = SimpleNamespace(
        consumer=consumer, owned={3: Owned(1, 4)}, client=client, at=lambda number: number
    )
    runtime = Runtime()
    runtime.subscriptions = [subscription]
    progress = RequestProgress(runtime, 4, clock=lambda: seconds)

    async def receives(at: float, answer: int) -> tuple[bool, bool]:
        nonlocal seconds, answers
        seconds, answers = at, answer
        await progress.record(broker.pool)
        receiving = progress.receiving("sim-a")
        return receiving.kafka is not None, receiving.http is not None

    assert await receives(1, 1) == (False, True)
    assert await receives(2, 2) == (True, True)
    assert await receives(8, 2) == (False, True)
    assert await receives(9, 3) == (True, True)


async def test_a_process_that_is_cut_off_before_it_has_recorded_anything(broker: Broker) -> None:
    """Its time without Kafka is downtime from the beginning, so that leases that it has granted get it."""
    handler = LeaseCommandHandler(broker.admissions)
    consumer = Consumer("lease-broker", LEASE_REQUEST, handler.handle)
    cut_off = SimpleNamespace(assignment=lambda: ())
    subscription: Any = SimpleNamespace(
        consumer=consumer, owned={3: Owned(1, 4)}, client=cut_off, at=lambda number: number
    )
    runtime = Runtime()
    runtime.subscriptions = [subscription]
    await RequestProgress(runtime, 4).record(broker.pool)
    await broker.set_clock(20)
    async with broker.pool.acquire() as db, db.transaction():
        recorded = await reception.record(db, {"3": 0.0})
    assert recorded["3"].downtimes == (Downtime(after(0), after(20)),)


async def test_a_clock_that_is_set_back_hides_no_downtime(broker: Broker) -> None:
    """A jump ahead is downtime; once the clock is set back only what is behind it is, and the next one is noticed."""
    async with broker.pool.acquire() as db:
        for seconds, downtimes in ((0, []), (3600, [(0, 3600)]), (3, [(0, 3)]), (63, [(0, 3), (3, 63)])):
            await broker.set_clock(seconds)
            async with db.transaction():
                recorded = await reception.record(db, {"3": 0.0})
            assert recorded["3"].downtimes == tuple(Downtime(after(began), after(ended)) for began, ended in downtimes)
