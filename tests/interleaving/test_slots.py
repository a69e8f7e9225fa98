"""Two sessions on one slot, for every locking statement on slots: no slot has two owners, none is held without a lease,
no request loses its place."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

import slipway_lease_broker
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.contract.boskos.slot_broker import SlotBroker, slot_broker_on
from tests.contract.boskos.test_calls import acquire, by_state, release
from tests.support.statements import Covered

locking: Final = Covered(slipway_lease_broker)

ONE: Final = {"lease_pool": "car", "state": "free", "names": ["car-1"]}


@pytest.fixture(scope="module")
async def building(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SlotBroker]:
    async with slot_broker_on(postgres, tmp_path_factory.mktemp("slot_broker")) as slot_broker:
        yield slot_broker


@pytest.fixture
async def slot_broker(building: SlotBroker) -> SlotBroker:
    await building.open()
    return building


@contextlib.asynccontextmanager
async def locked_pools(slot_broker: SlotBroker) -> AsyncIterator[None]:
    """Lock all lease pools until the end of this context, so that every call waits."""
    async with slot_broker.broker.pool.acquire() as db, db.transaction():
        await db.execute("SELECT FROM lease_pools FOR UPDATE")
        yield


async def race(slot_broker: SlotBroker, *calls: Any) -> list[Any]:
    """The answers of calls that waited for one lock, in this order."""
    tasks: list[asyncio.Task[Any]] = []
    async with locked_pools(slot_broker):
        for call in calls:
            tasks.append(slot_broker.broker.start(slot_broker.call(call) if isinstance(call, str) else call))
            await slot_broker.broker.until_waiting(*tasks)
    return await asyncio.gather(*tasks)


@locking("store.slots.SAVE", "store.slots.JOIN", "store.slots.LEAVE")
@pytest.mark.parametrize("more", ["", "&request_id=r"])
async def test_two_clients_race_for_one_slot(slot_broker: SlotBroker, more: str) -> None:
    """One gets it, the other gets nothing, and one unit is held."""
    await slot_broker.open(ONE)
    answers = await race(slot_broker, acquire(owner="ann", more=more), acquire(owner="ben", more=more))
    assert [answer.status_code for answer in answers] == [200, 404]
    assert await slot_broker.slots() == {"car-1": ("leased", "ann")}
    assert await slot_broker.broker.held("car") == 1


@locking("store.slots.SAVE", "store.slots.JOIN", "store.slots.LEAVE")
async def test_one_request_twice_at_once(slot_broker: SlotBroker) -> None:
    """Like a client that lost an answer: the same slot, and no other unit."""
    answers = await race(slot_broker, *[acquire(more="&request_id=r")] * 2)
    assert [answer.json()["name"] for answer in answers] == ["car-1", "car-1"]
    assert await slot_broker.broker.held("car") == 1


@locking("store.slots.SAVE")
async def test_slots_by_name_go_to_one_client(slot_broker: SlotBroker) -> None:
    """Named in opposite orders: one has both, the other none; no deadlock."""
    answers = await race(slot_broker, by_state("car-1,car-2", owner="ann"), by_state("car-2,car-1", owner="ben"))
    assert [answer.status_code for answer in answers] == [200, 404]
    assert {owner for state, owner in (await slot_broker.slots()).values() if state == "leased"} == {"ann"}


@locking("store.slots.FREE_ENDED")
async def test_a_release_that_waited_for_an_expiry_is_too_late(slot_broker: SlotBroker) -> None:
    """The slot is dirty, not free: its lease expired in the meantime."""
    await slot_broker.done(acquire())
    await slot_broker.broker.decide()  # in all other lease pools
    await slot_broker.broker.set_clock(300)
    async with slot_broker.broker.pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE leases IN SHARE MODE")
            decision = slot_broker.broker.start(slot_broker.broker.loop.step(slot_broker.broker.pool))
            await slot_broker.broker.until_waiting(decision)
            late = slot_broker.broker.start(slot_broker.call(release()))
            await slot_broker.broker.until_waiting(decision, late)
        await decision
        answer = await late
    assert answer.status_code == 401
    await slot_broker.done("GET /metric?type=car")
    assert (await slot_broker.slots())["car-1"] == ("dirty", "")


@locking("store.slots.DROP_STALE", "store.slots.JOIN")
async def test_a_place_that_is_repeated_is_not_dropped(slot_broker: SlotBroker) -> None:
    """Two retries wait while their places expire: the first to be handled drops the other, which is then behind it; one
    of them gets the slot."""
    await slot_broker.done(acquire(), acquire())
    assert [(await slot_broker.call(acquire(more=f"&request_id={name}"))).status_code for name in "ab"] == [404, 404]
    await slot_broker.done(release())
    await slot_broker.broker.set_clock(31)
    answers = await race(slot_broker, *(acquire(more=f"&request_id={name}") for name in "ba"))
    assert [answer.status_code for answer in answers] == [200, 404]
    assert await slot_broker.broker.pool.fetchval("SELECT array_agg(id) FROM slot_requests") == ["a"]


@locking("store.slots.REPLACE_LEASE_REQUEST")
async def test_a_lease_is_requested_again_once(slot_broker: SlotBroker) -> None:
    """The retry that was sent twice finds its reservation ended, and gets one other lease."""
    await slot_broker.open(ONE, limit=1)
    lease = (await slot_broker.replica.acquire(pool="car")).json()
    retry = acquire(more="&request_id=r")
    assert (await slot_broker.call(retry)).status_code == 404
    given_back = f"/leases/{lease['lease_id']}/release"
    await slot_broker.replica.call("POST", given_back, {"fencing_token": lease["fencing_token"]})
    await slot_broker.done(by_state("car-1", dest="polishing"))
    for seconds in range(0, 200, 20):
        await slot_broker.broker.set_clock(seconds)
        await slot_broker.call(retry)
    await slot_broker.broker.decide()
    await slot_broker.done(release())
    answers = await race(slot_broker, retry, retry)
    assert {answer.headers["Slipway-Fencing-Token"] for answer in answers} == {"3"}
    assert await slot_broker.broker.held("car") == 1


@locking("store.slots.REMOVE")
@pytest.mark.parametrize("removed_first", [True, False])
async def test_a_slot_is_removed_or_acquired(slot_broker: SlotBroker, removed_first: bool) -> None:
    """Whichever comes first; an owned slot is kept."""
    calls: list[Any] = [by_state("car-1"), slot_broker.put({"lease_pool": "car", "names": ["car-2"]})]
    answers = await race(slot_broker, *(reversed(calls) if removed_first else calls))
    acquired, put = reversed(answers) if removed_first else answers
    assert put.status_code == 200
    assert acquired.status_code == (404 if removed_first else 200)
    assert put.json()["items"][0]["kept"] == ([] if removed_first else ["car-1"])
    assert ("car-1" in await slot_broker.slots()) is not removed_first


@locking("store.slots.REMOVE_LEFT", "store.slots.SAVE")
@pytest.mark.parametrize("released_first", [True, False])
async def test_a_removal_is_done_or_cancelled(slot_broker: SlotBroker, released_first: bool) -> None:
    """A release of a slot that left the list, and a list that names it again: it stays either way, without an owner;
    released first, it is a new one."""
    both = {"lease_pool": "car", "state": "dirty", "names": ["car-1", "car-2"]}
    await slot_broker.done(by_state("car-1"))
    await slot_broker.put({"lease_pool": "car", "names": ["car-2"]})
    calls: list[Any] = [release(), slot_broker.put(both)]
    answers = await race(slot_broker, *(calls if released_first else reversed(calls)))
    released, put = answers if released_first else reversed(answers)
    assert (released.status_code, put.status_code) == (200, 200)
    (item,) = put.json()["items"]
    assert (item["added"], item["restored"]) == ((["car-1"], []) if released_first else ([], ["car-1"]))
    assert (await slot_broker.slots())["car-1"] == ("dirty" if released_first else "free", "")
    assert await slot_broker.broker.pool.fetchval("SELECT limit_units FROM lease_pools WHERE id = 'car'") == 2


@locking("store.slots.REMOVE_LEFT")
async def test_a_slot_that_is_being_released_is_not_acquired(slot_broker: SlotBroker) -> None:
    """It left the list while it was owned: an acquire that waits for its release finds the other slot only."""
    await slot_broker.done(by_state("car-1"))
    await slot_broker.put({"lease_pool": "car", "names": ["car-2"]})
    answers = await race(slot_broker, release(), acquire(owner="ben"))
    assert [answer.status_code for answer in answers] == [200, 200]
    assert (await slot_broker.call(acquire(owner="cid"))).status_code == 404
    assert await slot_broker.slots() == {"car-2": ("leased", "ben"), "van-1": ("dirty", "")}
