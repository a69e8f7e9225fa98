"""Two sessions on requests of several lease pools."""

import asyncio
from typing import Final

import slipway_lease_broker
from slipway_lease_broker.loops.gangs import GangLoop
from slipway_lease_broker.store import gangs
from slipway_lease_broker.store import terms as live
from tests.support.lease_broker import Broker, acquire_request, after, cancel, release, terms
from tests.support.lease_decisions import WAITING
from tests.support.statements import Covered

locking: Final = Covered(slipway_lease_broker)


@locking("store.gangs.ADD", "store.gangs.LOCK", "store.gangs.TURN", "store.gangs.DONE", "store.pools.LOCK")
async def test_gangs_that_want_each_others_pools(broker: Broker) -> None:
    """Neither waits forever and neither holds a part, in whatever order they name the pools."""
    await broker.declare(terms("a", 1), terms("b", 1))
    for round_ in range(10):
        await asyncio.gather(broker.request_gang(f"x{round_}", a=1, b=1), broker.request_gang(f"y{round_}", b=1, a=1))
        first = await broker.grants()
        assert len(first) == 2
        assert len({grant.request_id for grant in first}) == 1
        await broker.send(*map(release, first))
        await asyncio.gather(*(broker.try_gangs() for _ in range(3)))
        second = await broker.grants()
        assert sorted(grant.lease_pool_id for grant in second) == ["a", "b"]
        assert {grant.request_id for grant in first + second} == {f"x{round_}", f"y{round_}"}
        await broker.send(*map(release, second))


@locking("store.gangs.LOCK", "store.gangs.DONE")
async def test_a_gang_whose_member_is_cancelled_as_it_starts(broker: Broker) -> None:
    """It starts as a whole, or the rest is given up and its units are freed."""
    await broker.declare(terms("a", 1), terms("b", 1))
    await broker.send(acquire_request("other", pool="b"))
    (other,) = await broker.grants()
    await broker.request_gang("g", a=1, b=1)
    assert not await broker.try_gangs()
    await broker.send(release(other))
    async with broker.pool.acquire() as db, db.transaction():
        await broker.send_in(db, cancel("g", pool="b"))
        trying = broker.start(GangLoop(broker.admissions).step(broker.pool))
        await broker.until_waiting(trying)
    assert await trying is False
    assert await broker.pool.fetchval(WAITING) == 0
    await broker.send(acquire_request("next", pool="a"))
    assert [grant.request_id for grant in await broker.grants()] == ["next"]


@locking("store.gangs.TURN", "store.pools.CLAIM")
async def test_units_that_come_free_while_a_gang_is_tried(broker: Broker) -> None:
    """The attempt waits for the release and sees the units."""
    await broker.declare(terms("a", 1), terms("b", 1))
    await broker.send(acquire_request("other", pool="b"))
    (other,) = await broker.grants()
    await broker.request_gang("g", a=1, b=1)
    async with broker.pool.acquire() as db, db.transaction():
        await broker.send_in(db, release(other))
        trying = broker.start(GangLoop(broker.admissions).step(broker.pool))
        await broker.until_waiting(trying)
    assert await trying is True
    assert len(await broker.grants()) == 2


@locking("store.gangs.LOSE_TURN", "store.terms.DRAIN", "store.pools.MARK")
async def test_a_pool_that_is_drained_as_a_gang_is_tried(broker: Broker) -> None:
    """The attempt waits for the drain and sees that the gang cannot start: the next decision grants its reserved units
    to others."""
    await broker.declare(terms("a", 1), terms("b", 1))
    await broker.send(acquire_request("other", pool="b"))
    (other,) = await broker.grants()
    await broker.request_gang("g", a=1, b=1)
    await broker.send(acquire_request("next", pool="a"))
    assert await broker.grants() == []
    await broker.send(release(other))
    async with broker.pool.acquire() as db, db.transaction():
        await live.drain(db, "b", "maintenance")
        trying = broker.start(GangLoop(broker.admissions).step(broker.pool))
        await broker.until_waiting(trying)
    assert await trying is False
    assert [grant.request_id for grant in await broker.grants()] == ["next"]


@locking("store.gangs.PUT_OFF", "store.gangs.ADD")
async def test_a_gang_repeated_as_it_is_put_off(broker: Broker) -> None:
    """The repetition neither undoes the postponement nor is lost by it."""
    await broker.declare(terms("a", 1), terms("b", 1))
    await broker.send(acquire_request("other", pool="b"))
    await broker.decide()
    await broker.request_gang("g", a=1, b=1)
    await broker.set_clock(5)
    async with broker.pool.acquire() as db:
        async with db.transaction():
            await broker.request_gang_in(db, "g", a=1, b=1)
            putting = broker.start(gangs.put_off(broker.pool, "g", seconds=30))
            await broker.until_waiting(putting)
        await putting
        await broker.decide()
        assert await gangs.ready(db) == []
        await broker.set_clock(35)
        assert await gangs.ready(db) == ["g"]
        gang = await gangs.named(db, "g")
    assert gang is not None
    assert (gang.requested_at, gang.last_requested_at) == (after(0), after(5))
