"""What the calls of the Boskos API do together: turns, leases and their ends, user data, who may call."""

import asyncio
from typing import Any

import httpx2
import pytest

from slipway_common.events.lease import LeaseGranted, LeaseLost, LeaseReleased
from slipway_common.runtime import Runtime
from slipway_lease_broker.domain.terms import Policy
from slipway_lease_broker.main import build
from slipway_lease_broker.metrics import REFUSED_FACTS
from slipway_lease_broker.settings import Settings
from tests import harness
from tests.contract.boskos.garage import Garage
from tests.contract.boskos.test_calls import acquire, by_state, release, reset, update


async def outcome(garage: Garage, line: str, *, by: str = "") -> Any:
    """The name of the slot that was acquired, or the status."""
    answer = await garage.say(line, by=by)
    return answer.json()["name"] if answer.status_code == 200 else answer.status_code


def asks(request_id: str, owner: str = "ann") -> str:
    return acquire(owner=owner, more=f"&request_id={request_id}")


# Turns


async def test_the_same_request_is_one_slot(garage: Garage) -> None:
    """A lost answer costs nothing: asked again it is the same slot under the same lease, until it is released."""
    first, again = await garage.done(asks("r1")), await garage.done(asks("r1"))
    assert first.json() == again.json()
    assert first.headers["Slipway-Fencing-Token"] == again.headers["Slipway-Fencing-Token"] == "1"
    assert await garage.broker.held("car") == 1
    assert await garage.slots() == {"car-1": ("leased", "ann"), "car-2": ("free", ""), "van-1": ("dirty", "")}
    assert await outcome(garage, asks("r1", "ben")) == "car-2"  # an id is its owner's own
    await garage.done(release())
    assert (await garage.done(asks("r1"))).headers["Slipway-Fencing-Token"] == "3"


async def test_first_come_first_served(garage: Garage) -> None:
    """By request id; whoever names none comes after all who do."""
    await garage.done(acquire(), acquire())
    assert [await outcome(garage, asks(name)) for name in ("a", "b")] == [404, 404]
    await garage.done(release())
    assert await outcome(garage, acquire()) == 404
    assert await outcome(garage, asks("b")) == 404
    assert await outcome(garage, asks("a")) == "car-1"
    await garage.done(release("car-2"))
    assert await outcome(garage, asks("b")) == "car-2"


async def test_a_place_is_kept_while_it_is_asked_for(garage: Garage) -> None:
    """Whoever is silent for 30 s is forgotten; each retry counts."""
    await garage.done(acquire(), acquire())
    assert [await outcome(garage, asks(name)) for name in ("a", "b")] == [404, 404]
    await garage.broker.set_clock(25)
    assert await outcome(garage, asks("b")) == 404
    await garage.done(release())
    await garage.broker.set_clock(30)
    assert await outcome(garage, asks("b")) == 404
    await garage.broker.set_clock(31)
    assert await outcome(garage, asks("b")) == "car-1"
    assert await garage.broker.pool.fetchval("SELECT count(*) FROM slot_requests") == 0
    await garage.done(release())
    assert await outcome(garage, asks("a")) == "car-1"  # it begins anew


async def test_a_later_request_takes_what_the_earlier_leaves(garage: Garage) -> None:
    """With two free slots the second in the queue need not wait for the first to ask again."""
    await garage.done(acquire(), acquire())
    assert [await outcome(garage, asks(name)) for name in ("a", "b")] == [404, 404]
    await garage.done(release("car-1"), release("car-2"))
    assert await outcome(garage, asks("b")) == "car-2"
    assert await outcome(garage, asks("a")) == "car-1"


async def test_queues_of_states_are_apart(garage: Garage) -> None:
    """Who waits for a free slot does not stand before a cleaner."""
    await garage.done(acquire(), acquire())
    assert await outcome(garage, asks("a")) == 404
    await garage.done(release(dest="dirty"))
    assert await outcome(garage, acquire("dirty", "cleaning", "cid", more="&request_id=c")) == "car-1"


async def test_least_recently_used_first(garage: Garage) -> None:
    """Slots are used in turn."""
    used = []
    for seconds in range(1, 5):
        await garage.broker.set_clock(seconds)
        used.append(await outcome(garage, acquire()))
        await garage.done(release(used[-1]))
    assert used == ["car-1", "car-2", "car-1", "car-2"]


# Leases


async def test_a_slot_is_held_under_a_lease(garage: Garage) -> None:
    """Granted with it, in the name of who asked; released with it."""
    await garage.done(asks("r1"))
    (lease,) = (await garage.replica.call("GET", "/leases?pool=car")).json()["items"]
    assert (lease["state"], lease["units"], lease["tenant"], lease["owner"]) == ("confirmed", 1, "boskos", "boskos")
    (slot, _) = (await garage.replica.call("GET", "/slots?pool=car")).json()["items"]
    assert (slot["name"], slot["owner"], slot["lease_id"], slot["fencing_token"]) == (
        "car-1",
        "ann",
        lease["lease_id"],
        lease["fencing_token"],
    )
    await garage.done(release())
    assert await garage.broker.held("car") == 0
    grant, *_, end = await garage.broker.told()
    assert isinstance(grant, LeaseGranted)
    assert isinstance(end, LeaseReleased)
    assert (end.lease_id, end.reason) == (lease["lease_id"], "done")


@pytest.mark.parametrize(("state", "dest"), [("dirty", "cleaning"), ("dirty", "busy"), ("free", "testing")])
async def test_other_ways_need_no_lease(garage: Garage, state: str, dest: str) -> None:
    """Only what goes from free to busy or leased counts against the limit."""
    await garage.open({"lease_pool": "car", "state": state, "names": ["car-1"]})
    answer = await garage.done(acquire(state, dest))
    assert "Slipway-Fencing-Token" not in answer.headers
    assert await garage.broker.held("car") == 0


async def test_the_limit_counts_not_the_names(garage: Garage) -> None:
    """A free slot without a free unit is 404, whoever holds the unit; never 429."""
    await garage.open(limit=1)
    lease = (await garage.replica.acquire(pool="car")).json()
    answer = await garage.say(acquire())
    assert (answer.status_code, answer.text) == (404, "no lease of car now: 1 of 1 held\n")
    await garage.replica.call("POST", f"/leases/{lease['lease_id']}/release", {"fencing_token": 1})
    assert await outcome(garage, acquire()) == "car-1"
    assert await outcome(garage, acquire()) == 404


async def test_who_asks_without_an_id_waits_nowhere(garage: Garage) -> None:
    """Its 404 leaves nothing behind, which would be granted to nobody."""
    await garage.open(limit=0)
    before = await garage.rows()
    assert await outcome(garage, acquire()) == 404
    assert await garage.rows() == before


async def test_starts_are_paced(garage: Garage) -> None:
    """As those of the pool's other leases; 404 until the time has come."""
    await garage.open(policy=Policy(), hold_seconds=1200)
    assert await outcome(garage, asks("a")) == "car-1"
    answer = await garage.say(asks("b"))
    assert (answer.status_code, answer.text) == (404, "no lease of car now: starts are paced\n")
    await garage.broker.set_clock(300)
    assert await outcome(garage, asks("b")) == "car-2"


async def test_a_request_waits_in_the_queue_of_the_pool(garage: Garage) -> None:
    """Its unit is kept for it while it does not ask; then it is one grant."""
    await garage.open(limit=1)
    lease = (await garage.replica.acquire(pool="car")).json()
    assert await outcome(garage, asks("a")) == 404
    await garage.replica.call("POST", f"/leases/{lease['lease_id']}/release", {"fencing_token": 1})
    assert (await garage.replica.acquire("other", pool="car")).status_code == 202
    assert (await garage.done(asks("a"))).headers["Slipway-Fencing-Token"] == "2"
    assert await garage.broker.held("car") == 1


async def test_a_unit_kept_too_long_is_asked_for_anew(garage: Garage) -> None:
    """The reservation of who asked for nothing passes; the same request id still gets a slot later."""
    await garage.open(limit=1)
    lease = (await garage.replica.acquire(pool="car")).json()
    assert await outcome(garage, asks("a")) == 404
    await garage.replica.call("POST", f"/leases/{lease['lease_id']}/release", {"fencing_token": 1})
    await garage.done(by_state("car-1,car-2", dest="polishing"))  # no slot is left for it
    for seconds in range(0, 200, 20):
        await garage.broker.set_clock(seconds)
        assert await outcome(garage, asks("a")) == 404
    await garage.broker.decide()
    assert await garage.broker.held("car") == 0
    await garage.done(release())
    assert (await garage.done(asks("a"))).headers["Slipway-Fencing-Token"] == "3"


async def test_what_was_kept_for_the_silent_is_given_to_others(garage: Garage) -> None:
    """Once they have lost their place in the queue for slots."""
    await garage.open(limit=1)
    lease = (await garage.replica.acquire(pool="car")).json()
    assert await outcome(garage, asks("a")) == 404
    await garage.replica.call("POST", f"/leases/{lease['lease_id']}/release", {"fencing_token": 1})
    assert await outcome(garage, asks("b")) == 404
    await garage.broker.set_clock(29)
    assert await outcome(garage, asks("b")) == 404
    await garage.broker.set_clock(31)
    assert await outcome(garage, asks("b")) == "car-1"
    assert await garage.broker.held("car") == 1


async def test_who_falls_silent_waits_nowhere(garage: Garage) -> None:
    """Nor does its request for a lease: the unit goes to the next, in whatever way that one asks."""
    await garage.open(limit=1)
    await garage.replica.acquire(pool="car")
    assert await outcome(garage, asks("a")) == 404
    await garage.broker.set_clock(31)
    assert await outcome(garage, asks("b")) == 404
    waiting = (await garage.replica.call("GET", "/lease-pools/car/requests")).json()["items"]
    assert [request["asked_at"] for request in waiting] == ["2026-01-01T12:00:31Z"]


async def test_several_slots_by_name_are_one_lease(garage: Garage) -> None:
    """Of so many units; each slot gives back its own."""
    await garage.done(by_state("car-1,car-2"))
    (lease,) = (await garage.replica.call("GET", "/leases?pool=car")).json()["items"]
    assert lease["units"] == 2
    await garage.done(release("car-2"))
    assert await garage.broker.held("car") == 1
    await garage.done(update())
    await garage.done(release())
    assert await garage.broker.held("car") == 0


async def test_several_slots_by_name_are_all_or_none(garage: Garage) -> None:
    """Also where units are lacking: nothing is kept."""
    await garage.open(limit=1)
    before = await garage.rows()
    answer = await garage.say(by_state("car-1,car-2"))
    assert answer.status_code == 404
    assert "asks for more than the limit of 1 allows" in answer.text
    assert await garage.rows() == before


# Ends


async def test_signs_of_life_keep_a_slot(garage: Garage) -> None:
    """Without them the broker takes it as a reaper would: it is dirty, and its owner learns of it by 401."""
    await garage.done(acquire())
    for seconds in (200, 400, 600):
        await garage.broker.set_clock(seconds)
        await garage.done(update())
        await garage.broker.decide()
    assert (await garage.slots())["car-1"] == ("leased", "ann")
    await garage.broker.set_clock(900)
    await garage.broker.decide()
    answers = [await garage.say(line) for line in (update(), release())]
    assert [(answer.status_code, answer.text) for answer in answers] == [
        (401, 'resource "car-1" is owned by "", not by "ann"\n')
    ] * 2
    assert (await garage.done("GET /metric?type=car")).json()["current"] == {"dirty": 1, "free": 1}
    assert (await garage.slots())["car-1"] == ("dirty", "")
    assert await outcome(garage, acquire("dirty", "cleaning", "cid")) == "car-1"


async def test_a_hold_ends_whatever_its_owner_says(garage: Garage) -> None:
    """Signs of life do not prolong it; the slot goes into the state that the settings name."""
    garage.use(boskos_expired_state="used")
    await garage.done(acquire())
    for seconds in range(200, 1300, 200):
        await garage.broker.set_clock(seconds)
        answer = await garage.say(update())
        await garage.broker.decide()
    assert answer.status_code == 200
    assert (await garage.say(update())).status_code == 401
    assert (await garage.done("GET /metric?type=car")).json()["current"] == {"used": 1, "free": 1}
    assert await garage.broker.held("car") == 0


async def test_a_lease_that_others_end_frees_its_slot(garage: Garage) -> None:
    """Whoever releases the lease itself releases the slot."""
    await garage.done(acquire())
    (lease,) = (await garage.replica.call("GET", "/leases?pool=car")).json()["items"]
    path, token = f"/leases/{lease['lease_id']}/release", {"fencing_token": lease["fencing_token"]}
    assert (await garage.replica.call("POST", path, token, by="ann")).status_code == 403
    assert (await garage.replica.call("POST", path, token, by="root")).status_code == 200
    assert (await garage.say(release())).status_code == 401
    assert (await garage.done("GET /metric?type=car")).json()["owner"] == {"": 2}


async def test_reset_is_a_loss(garage: Garage) -> None:
    """Its owner may still be at work, so the unit counts on for the time of a lost lease; the slot is free at once."""
    await garage.done(acquire())
    await garage.broker.set_clock(61)
    assert (await garage.done(reset(expire="1m"))).json() == {"car-1": "ann"}
    assert (await garage.slots())["car-1"] == ("dirty", "")
    await garage.broker.decide()
    assert [type(event) for event in await garage.broker.told()][-1] is LeaseLost
    assert (await garage.say(update())).status_code == 401
    assert await garage.broker.held("car") == 1
    await garage.broker.set_clock(61 + 70)
    await garage.broker.decide()
    assert await garage.broker.held("car") == 0


async def test_reset_of_one_slot_of_two(garage: Garage) -> None:
    """The other is kept alive, so their lease goes on with one unit less."""
    await garage.done(by_state("car-1,car-2"))
    await garage.broker.set_clock(61)
    await garage.done(update("car-2"))
    assert (await garage.done(reset(expire="1m"))).json() == {"car-1": "ann"}
    await garage.broker.decide()
    await garage.done(update("car-2"))
    assert await garage.broker.held("car") == 1


async def test_what_resets_spare(garage: Garage) -> None:
    """A slot is as old as its last sign of life."""
    await garage.done(acquire())
    await garage.broker.set_clock(100)
    await garage.done(update())
    await garage.broker.set_clock(130)
    assert (await garage.done(reset(expire="30s"))).json() == {}
    assert (await garage.done(reset(expire="29s"))).json() == {"car-1": "ann"}


# User data


async def test_user_data_are_merged(garage: Garage) -> None:
    """A value replaces, an empty one deletes, others stay; they outlive their owner."""
    await garage.done(acquire())
    for told in ({"a": "1", "b": "2"}, {"b": "3", "c": "4"}, {"a": "", "d": ""}):
        assert (await garage.say(update(), told)).status_code == 200
    await garage.done(release())
    (slot,) = (await garage.done(by_state("car-1", owner="ben"))).json()
    assert slot["userdata"] == {"b": "3", "c": "4"}


async def test_a_sign_of_life_is_an_update(garage: Garage) -> None:
    """Every change has its time, in UTC."""
    await garage.done(acquire())
    await garage.broker.set_clock(61.5)
    await garage.done(update())
    assert (await garage.done(by_state("car-2"))).json()[0]["lastupdate"] == "2026-01-01T12:01:01.500000Z"
    rows = await garage.broker.pool.fetch("SELECT updated_at FROM slots WHERE lease_pool_id = 'car'")
    assert len({row["updated_at"] for row in rows}) == 1


# The lease proxy


PROXY = "POST /lease/acquire?type=car"


async def over_tcp(garage: Garage, line: str) -> None:
    """A call on a line of its own, which is cut when it is cancelled."""
    method, path = line.split(" ")
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{garage.port.number}", timeout=None) as client:
        await client.request(method, path)


async def test_the_proxy_waits_on_the_line(garage: Garage) -> None:
    """Until all are there, and in the queue with all others."""
    await garage.done(acquire())
    asking = asyncio.create_task(garage.say(f"{PROXY}&count=2"))
    await harness.until(lambda: garage.broker.pool.fetchval("SELECT count(*) FROM slot_requests"))
    assert await outcome(garage, asks("later")) == 404  # a slot is free, and kept for who wants two
    await garage.done(release())
    answer = await asking
    assert (answer.status_code, sorted(answer.json()["names"])) == (200, ["car-1", "car-2"])
    assert await outcome(garage, asks("later")) == 404


async def test_the_proxy_waits_no_longer_than_it_may(garage: Garage) -> None:
    """500 then."""
    await garage.done(acquire(), acquire())
    garage.use(boskos_proxy_wait_seconds=0)
    before = await garage.rows()
    answer = await garage.say(PROXY)
    assert answer.status_code == 500
    assert answer.text.startswith("not acquired within 0 s: no car is free")
    assert await garage.rows() == before


async def test_the_proxy_keeps_no_unit_for_who_was_answered(garage: Garage) -> None:
    """Nobody asks again: the unit goes to who waits, at once."""
    await garage.open(limit=1)
    lease = (await garage.replica.acquire(pool="car")).json()
    garage.use(boskos_proxy_wait_seconds=0)
    answer = await garage.say(PROXY)
    assert (answer.status_code, answer.text) == (500, "not acquired within 0 s: no lease of car now: 1 of 1 held\n")
    await garage.replica.call("POST", f"/leases/{lease['lease_id']}/release", {"fencing_token": 1})
    assert await outcome(garage, acquire()) == "car-1"


async def test_the_proxy_keeps_no_place_for_who_hung_up(garage: Garage) -> None:
    """While it waits."""
    await garage.done(acquire())
    async with garage.port.running():
        asking = asyncio.create_task(over_tcp(garage, f"{PROXY}&count=2"))
        await harness.until(lambda: garage.broker.pool.fetchval("SELECT count(*) FROM slot_requests"))
        asking.cancel()
        await asyncio.wait({asking})
        await harness.until(lambda: garage.broker.pool.fetchval("SELECT count(*) = 0 FROM slot_requests"))
    assert await outcome(garage, asks("later")) == "car-2"


async def test_the_proxy_keeps_no_slot_for_who_hung_up(garage: Garage) -> None:
    """While it was granted: nobody would give it back before its hold passes."""
    pool = garage.broker.pool
    async with garage.port.running():
        async with pool.acquire() as db, db.transaction():
            await db.execute("SELECT FROM lease_pools WHERE id = 'car' FOR UPDATE")
            asking = asyncio.create_task(over_tcp(garage, PROXY))
            await harness.until_waiting(pool, asking)
            asking.cancel()
            await asyncio.wait({asking})
            await over_tcp(garage, "GET /healthz")  # by then it is known that the other line is cut
        await harness.until(lambda: pool.fetchval("SELECT count(*) FROM history WHERE kind = 'released'"))
    assert await garage.broker.held("car") == 0
    assert await garage.slots() == {"car-1": ("free", ""), "car-2": ("free", ""), "van-1": ("dirty", "")}


async def test_the_proxy_waits_for_nothing_in_vain(garage: Garage) -> None:
    """Slots beyond the limit are never leased at once."""
    await garage.open(limit=1)
    garage.use(boskos_proxy_wait_seconds=0)
    before = await garage.rows()
    answer = await garage.say(f"{PROXY}&count=2")
    assert (answer.status_code, answer.text) == (500, "2 of car can never be acquired: the limit allows 1 at once\n")
    assert await garage.rows() == before


async def test_nobody_renews_what_the_proxy_leases(garage: Garage) -> None:
    """It lives until its hold passes."""
    await garage.done(f"{PROXY}&count=2")
    await garage.broker.set_clock(1199)
    await garage.broker.decide()
    assert await garage.broker.held("car") == 2
    await garage.broker.set_clock(1200)
    await garage.broker.decide()
    assert await garage.broker.held("car") == 0
    answer = await garage.say("POST /lease/release", {"names": ["car-1"]})
    assert answer.status_code == 500


async def test_the_proxy_says_what_it_released(garage: Garage) -> None:
    """When not all could be."""
    await garage.done(PROXY)
    answer = await garage.say("POST /lease/release", {"names": ["car-9", "car-1", "car-2"]})
    assert answer.status_code == 500
    assert 'resource "car-9" does not exist' in answer.text
    assert answer.text.endswith("Released: car-1\n")
    assert (await garage.slots())["car-1"] == ("free", "")


# Who may call


async def test_callers_name_a_token(garage: Garage) -> None:
    """By HTTP Basic, unless the broker is open; then the lease is in the token's name."""
    garage.use(boskos_open=False)
    for by in ("", "stranger"):
        answer = await garage.say(acquire(), by=by)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, 'Basic realm="slipway"')
    assert (await garage.say("GET /metric?type=car")).status_code == 401
    assert (await garage.say("GET /acquire")).status_code == 405
    assert (await garage.say("GET /healthz")).status_code == 200
    assert await outcome(garage, acquire(), by="ben") == "car-1"
    (lease,) = (await garage.replica.call("GET", "/leases?pool=car")).json()["items"]
    assert (lease["tenant"], lease["owner"]) == ("ben", "ben")


@pytest.mark.parametrize("line", [acquire(), by_state("car-1"), release(), update(), reset(), PROXY])
async def test_a_scope_is_needed(garage: Garage, line: str) -> None:
    """That of writing leases of the pool; open or not."""
    before = await garage.rows()
    answer = await garage.say(line, by="cid")
    assert (answer.status_code, answer.text) == (403, "cid needs the scope leases:write:car\n")
    assert await garage.rows() == before


@pytest.mark.parametrize("header", ["Basic", "Basic ~", "Basic YW5u", "Bearer secret of ann", "Basic YW5uOmJlbg=="])
async def test_credentials_that_are_none(garage: Garage, header: str) -> None:
    """Wrong ones are refused also where none are needed."""
    transport = httpx2.ASGITransport(app=garage.port.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://boskos") as client:
        answer = await client.post(acquire().split(" ")[1], headers={"Authorization": header})
    assert answer.status_code == 401


# The port


async def test_a_port_of_its_own(garage: Garage) -> None:
    """Open while the service runs; over TCP as in process."""
    async with garage.port.running(), httpx2.AsyncClient(base_url=f"http://127.0.0.1:{garage.port.number}") as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.post(acquire().split(" ")[1])).json()["name"] == "car-1"
    with pytest.raises(httpx2.HTTPError):
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{garage.port.number}") as client:
            await client.get("/healthz")


async def test_off_unless_it_is_named(garage: Garage) -> None:
    """A port is open only with a setting for it."""
    services = [build(Settings(database_url=garage.url, kafka="", boskos_port=port)) for port in (None, 0)]
    assert [len(service.resources) for service in services] == [1, 2]


async def test_before_the_database_answers(garage: Garage) -> None:
    """500, which clients try again."""
    garage.port.app._runtime = Runtime
    answer = await garage.say(acquire())
    assert (answer.status_code, answer.text) == (500, "the lease-broker is starting, try again in a moment\n")
    assert (await garage.say("GET /healthz/ready")).status_code == 503


async def test_writes_of_former_owners_are_counted(garage: Garage) -> None:
    """Each that comes too late, as those with a stale token are; nothing else that is refused."""
    await garage.done(acquire())
    await garage.broker.set_clock(300)
    await garage.broker.decide()
    await garage.done(acquire(owner="ben"))
    before = REFUSED_FACTS.labels("stale token")._value.get()
    late = (update(), release(), update(state="busy"))
    assert [(await garage.say(line)).status_code for line in late] == [401] * 3
    assert REFUSED_FACTS.labels("stale token")._value.get() == before + 3
    others = (update("car-9"), update("car-2", owner="ben", state="busy"), release(dest=""))
    assert [(await garage.say(line)).status_code for line in others] == [404, 409, 400]
    assert REFUSED_FACTS.labels("stale token")._value.get() == before + 3
