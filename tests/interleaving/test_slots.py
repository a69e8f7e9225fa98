"""Two sessions on one slot, for every statement on slots that takes a lock: no slot has two owners, none is held
without a lease, nobody loses a place."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar

import pytest

from slipway_lease_broker.store import slots
from slipway_local.postgres import EmbeddedPostgres
from tests.contract.boskos.garage import Garage, garage_on
from tests.contract.boskos.test_calls import acquire, by_state, release
from tests.interleaving.test_lease_broker import LOCKS, statements

Test = TypeVar("Test", bound=Callable[..., Any])
COVERED: Final[dict[str, list[str]]] = {}

ONE: Final = {"lease_pool": "car", "state": "free", "names": ["car-1"]}


def locking(*names: str) -> Callable[[Test], Test]:
    """Names the statements whose locks a test is about."""

    def note(test: Test) -> Test:
        for name in names:
            COVERED.setdefault(name, []).append(test.__name__)
        return test

    return note


@pytest.fixture(scope="module")
async def building(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Garage]:
    async with garage_on(postgres, tmp_path_factory.mktemp("garage")) as garage:
        yield garage


@pytest.fixture
async def garage(building: Garage) -> Garage:
    await building.open()
    return building


@contextlib.asynccontextmanager
async def held_up(garage: Garage) -> AsyncIterator[None]:
    """Every call waits for its lease pool until the end of this."""
    async with garage.broker.pool.acquire() as db, db.transaction():
        await db.execute("SELECT FROM lease_pools FOR UPDATE")
        yield


async def race(garage: Garage, *calls: Any) -> list[Any]:
    """The answers of calls that waited for one lock, in this order."""
    tasks: list[asyncio.Task[Any]] = []
    async with held_up(garage):
        for call in calls:
            tasks.append(garage.broker.start(garage.say(call) if isinstance(call, str) else call))
            await garage.broker.until_waiting(*tasks)
    return await asyncio.gather(*tasks)


@locking("slots.SAVE", "slots.JOIN", "slots.LEAVE")
@pytest.mark.parametrize("more", ["", "&request_id=r"])
async def test_two_clients_race_for_one_slot(garage: Garage, more: str) -> None:
    """One has it, the other has nothing, and one unit is held."""
    await garage.open(ONE)
    answers = await race(garage, acquire(owner="ann", more=more), acquire(owner="ben", more=more))
    assert [answer.status_code for answer in answers] == [200, 404]
    assert await garage.slots() == {"car-1": ("leased", "ann")}
    assert await garage.broker.held("car") == 1


@locking("slots.SAVE", "slots.JOIN", "slots.LEAVE")
async def test_one_request_twice_at_once(garage: Garage) -> None:
    """As a client does that lost an answer: the same slot, and no other unit."""
    answers = await race(garage, *[acquire(more="&request_id=r")] * 2)
    assert [answer.json()["name"] for answer in answers] == ["car-1", "car-1"]
    assert await garage.broker.held("car") == 1


@locking("slots.SAVE")
async def test_slots_by_name_go_to_one_client(garage: Garage) -> None:
    """Named in opposite orders: one has both, the other none; no deadlock."""
    answers = await race(garage, by_state("car-1,car-2", owner="ann"), by_state("car-2,car-1", owner="ben"))
    assert [answer.status_code for answer in answers] == [200, 404]
    assert {owner for state, owner in (await garage.slots()).values() if state == "leased"} == {"ann"}


@locking("slots.FREE_ENDED")
async def test_a_release_that_waited_for_an_expiry_is_too_late(garage: Garage) -> None:
    """The slot is dirty, not free: its owner was silent while it was out of sight."""
    await garage.done(acquire())
    await garage.broker.decide()  # of all other lease pools
    await garage.broker.set_clock(300)
    async with garage.broker.pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE leases IN SHARE MODE")
            decision = garage.broker.start(garage.broker.loop.step(garage.broker.pool))
            await garage.broker.until_waiting(decision)
            late = garage.broker.start(garage.say(release()))
            await garage.broker.until_waiting(decision, late)
        await decision
        answer = await late
    assert answer.status_code == 401
    await garage.done("GET /metric?type=car")
    assert (await garage.slots())["car-1"] == ("dirty", "")


@locking("slots.FORGET_SILENT", "slots.JOIN")
async def test_a_place_that_is_asked_for_is_not_forgotten(garage: Garage) -> None:
    """Two retries wait while their places run out: the first to be heard forgets the other, which stands behind it
    then; the slot is one's."""
    await garage.done(acquire(), acquire())
    assert [(await garage.say(acquire(more=f"&request_id={name}"))).status_code for name in "ab"] == [404, 404]
    await garage.done(release())
    await garage.broker.set_clock(31)
    answers = await race(garage, *(acquire(more=f"&request_id={name}") for name in "ba"))
    assert [answer.status_code for answer in answers] == [200, 404]
    assert await garage.broker.pool.fetchval("SELECT array_agg(id) FROM slot_requests") == ["a"]


@locking("slots.ASK_ANEW")
async def test_a_lease_is_asked_for_anew_once(garage: Garage) -> None:
    """The retry that was sent twice finds its reservation gone, and gets one other lease."""
    await garage.open(ONE, limit=1)
    lease = (await garage.replica.acquire(pool="car")).json()
    retry = acquire(more="&request_id=r")
    assert (await garage.say(retry)).status_code == 404
    given_back = f"/leases/{lease['lease_id']}/release"
    await garage.replica.call("POST", given_back, {"fencing_token": lease["fencing_token"]})
    await garage.done(by_state("car-1", dest="polishing"))
    for seconds in range(0, 200, 20):
        await garage.broker.set_clock(seconds)
        await garage.say(retry)
    await garage.broker.decide()
    await garage.done(release())
    answers = await race(garage, retry, retry)
    assert {answer.headers["Slipway-Fencing-Token"] for answer in answers} == {"3"}
    assert await garage.broker.held("car") == 1


@locking("slots.REMOVE")
@pytest.mark.parametrize("removed_first", [True, False])
async def test_a_slot_is_removed_or_acquired(garage: Garage, removed_first: bool) -> None:
    """Whoever comes first; a slot that is owned is kept."""
    calls: list[Any] = [by_state("car-1"), garage.put({"lease_pool": "car", "names": ["car-2"]})]
    answers = await race(garage, *(reversed(calls) if removed_first else calls))
    acquired, put = reversed(answers) if removed_first else answers
    assert put.status_code == 200
    assert acquired.status_code == (404 if removed_first else 200)
    assert put.json()["items"][0]["kept"] == ([] if removed_first else ["car-1"])
    assert ("car-1" in await garage.slots()) is not removed_first


def test_every_locking_statement_has_an_interleaving() -> None:
    """None is missing, and none is named that is gone."""
    assert {name for name, sql in statements(slots).items() if LOCKS.search(sql)} == set(COVERED)
