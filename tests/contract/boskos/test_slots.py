"""Interaction of Boskos calls: turns, leases and their ends, user data, access."""

import asyncio
from typing import Any

import httpx2
import pytest

from slipway_api.events.lease import LeaseGranted, LeaseLost, LeaseReleased
from slipway_common.web.runtime import Runtime
from slipway_lease_broker.domain.terms import Policy
from slipway_lease_broker.main import build
from slipway_lease_broker.metrics import REFUSED_COMMANDS
from slipway_lease_broker.settings import Settings
from tests.contract.boskos.slot_broker import SlotBroker
from tests.contract.boskos.test_calls import acquire, by_state, release, reset, update
from tests.support import harness


async def outcome(slot_broker: SlotBroker, line: str, *, by: str = "") -> Any:
    """The name of the acquired slot, or the status."""
    answer = await slot_broker.call(line, by=by)
    return answer.json()["name"] if answer.status_code == 200 else answer.status_code


def acquires(request_id: str, owner: str = "ann") -> str:
    return acquire(owner=owner, more=f"&request_id={request_id}")


# Turns


async def test_the_same_request_is_one_slot(slot_broker: SlotBroker) -> None:
    """A lost answer does no harm: a repetition gets the same slot under the same lease until its release."""
    first, again = await slot_broker.done(acquires("r1")), await slot_broker.done(acquires("r1"))
    assert first.json() == again.json()
    assert first.headers["Slipway-Fencing-Token"] == again.headers["Slipway-Fencing-Token"] == "1"
    assert await slot_broker.broker.held("car") == 1
    assert await slot_broker.slots() == {"car-1": ("leased", "ann"), "car-2": ("free", ""), "van-1": ("dirty", "")}
    assert await outcome(slot_broker, acquires("r1", "ben")) == "car-2"  # request ids belong to their owner
    await slot_broker.done(release())
    assert (await slot_broker.done(acquires("r1"))).headers["Slipway-Fencing-Token"] == "3"


async def test_first_come_first_served(slot_broker: SlotBroker) -> None:
    """By request id; calls without one come after all that have one."""
    await slot_broker.done(acquire(), acquire())
    assert [await outcome(slot_broker, acquires(name)) for name in ("a", "b")] == [404, 404]
    await slot_broker.done(release())
    assert await outcome(slot_broker, acquire()) == 404
    assert await outcome(slot_broker, acquires("b")) == 404
    assert await outcome(slot_broker, acquires("a")) == "car-1"
    await slot_broker.done(release("car-2"))
    assert await outcome(slot_broker, acquires("b")) == "car-2"


async def test_a_place_is_kept_while_the_request_is_repeated(slot_broker: SlotBroker) -> None:
    """A request that is not repeated for 30 s loses its place; each retry counts."""
    await slot_broker.done(acquire(), acquire())
    assert [await outcome(slot_broker, acquires(name)) for name in ("a", "b")] == [404, 404]
    await slot_broker.broker.set_clock(25)
    assert await outcome(slot_broker, acquires("b")) == 404
    await slot_broker.done(release())
    await slot_broker.broker.set_clock(30)
    assert await outcome(slot_broker, acquires("b")) == 404
    await slot_broker.broker.set_clock(31)
    assert await outcome(slot_broker, acquires("b")) == "car-1"
    assert await slot_broker.broker.pool.fetchval("SELECT count(*) FROM slot_requests") == 0
    await slot_broker.done(release())
    assert await outcome(slot_broker, acquires("a")) == "car-1"  # it starts at the end


async def test_a_later_request_takes_the_slots_left_by_an_earlier(slot_broker: SlotBroker) -> None:
    """With two free slots the second in the queue need not wait for the first to poll again."""
    await slot_broker.done(acquire(), acquire())
    assert [await outcome(slot_broker, acquires(name)) for name in ("a", "b")] == [404, 404]
    await slot_broker.done(release("car-1"), release("car-2"))
    assert await outcome(slot_broker, acquires("b")) == "car-2"
    assert await outcome(slot_broker, acquires("a")) == "car-1"


async def test_states_have_separate_queues(slot_broker: SlotBroker) -> None:
    """A request for a free slot is not ahead of a cleaner."""
    await slot_broker.done(acquire(), acquire())
    assert await outcome(slot_broker, acquires("a")) == 404
    await slot_broker.done(release(dest="dirty"))
    assert await outcome(slot_broker, acquire("dirty", "cleaning", "cid", more="&request_id=c")) == "car-1"


async def test_least_recently_used_first(slot_broker: SlotBroker) -> None:
    """Slots are used in turn."""
    used = []
    for seconds in range(1, 5):
        await slot_broker.broker.set_clock(seconds)
        used.append(await outcome(slot_broker, acquire()))
        await slot_broker.done(release(used[-1]))
    assert used == ["car-1", "car-2", "car-1", "car-2"]


# Leases


async def test_a_slot_is_held_under_a_lease(slot_broker: SlotBroker) -> None:
    """Granted with it, in the name of the caller; released with it."""
    await slot_broker.done(acquires("r1"))
    (lease,) = (await slot_broker.replica.call("GET", "/leases?pool=car")).json()["items"]
    assert (lease["state"], lease["units"], lease["tenant"], lease["owner"]) == ("confirmed", 1, "boskos", "boskos")
    (slot, _) = (await slot_broker.replica.call("GET", "/slots?pool=car")).json()["items"]
    assert (slot["name"], slot["owner"], slot["lease_id"], slot["fencing_token"]) == (
        "car-1",
        "ann",
        lease["lease_id"],
        lease["fencing_token"],
    )
    await slot_broker.done(release())
    assert await slot_broker.broker.held("car") == 0
    grant, *_, end = await slot_broker.broker.events()
    assert isinstance(grant, LeaseGranted)
    assert isinstance(end, LeaseReleased)
    assert (end.lease_id, end.reason) == (lease["lease_id"], "done")


@pytest.mark.parametrize(("state", "dest"), [("dirty", "cleaning"), ("dirty", "busy"), ("free", "testing")])
async def test_other_changes_of_state_need_no_lease(slot_broker: SlotBroker, state: str, dest: str) -> None:
    """Only a change from free to busy or leased counts against the limit."""
    await slot_broker.open({"lease_pool": "car", "state": state, "names": ["car-1"]})
    answer = await slot_broker.done(acquire(state, dest))
    assert "Slipway-Fencing-Token" not in answer.headers
    assert await slot_broker.broker.held("car") == 0


async def test_the_limit_counts_and_not_the_number_of_slots(slot_broker: SlotBroker) -> None:
    """A free slot without a free unit is 404, whatever holds the unit; never 429."""
    await slot_broker.open(limit=1)
    lease = (await slot_broker.replica.acquire(pool="car")).json()
    answer = await slot_broker.call(acquire())
    assert (answer.status_code, answer.text) == (404, "no lease of car available: 1 of 1 held\n")
    await slot_broker.replica.call("POST", f"/leases/{lease['lease_id']}/release", {"fencing_token": 1})
    assert await outcome(slot_broker, acquire()) == "car-1"
    assert await outcome(slot_broker, acquire()) == 404


async def test_a_call_without_an_id_has_no_place(slot_broker: SlotBroker) -> None:
    """After its 404 no request is left that could be granted."""
    await slot_broker.open(limit=0)
    before = await slot_broker.rows()
    assert await outcome(slot_broker, acquire()) == 404
    assert await slot_broker.rows() == before


async def test_starts_are_paced(slot_broker: SlotBroker) -> None:
    """Like those of the pool's other leases; 404 until the time has come."""
    await slot_broker.open(policy=Policy(), hold_seconds=1200)
    assert await outcome(slot_broker, acquires("a")) == "car-1"
    answer = await slot_broker.call(acquires("b"))
    waits = "paced: next start in 30 s; 1 of 2 held"
    assert (answer.status_code, answer.text) == (404, f"no lease of car available: {waits}\n")
    await slot_broker.broker.set_clock(300)
    assert await outcome(slot_broker, acquires("b")) == "car-2"


async def test_a_request_waits_in_the_queue_of_the_pool(slot_broker: SlotBroker) -> None:
    """Its unit is reserved between its polls; then it is one grant."""
    await slot_broker.open(limit=1)
    lease = (await slot_broker.replica.acquire(pool="car")).json()
    assert await outcome(slot_broker, acquires("a")) == 404
    await slot_broker.replica.call("POST", f"/leases/{lease['lease_id']}/release", {"fencing_token": 1})
    assert (await slot_broker.replica.acquire("other", pool="car")).status_code == 202
    assert (await slot_broker.done(acquires("a"))).headers["Slipway-Fencing-Token"] == "2"
    assert await slot_broker.broker.held("car") == 1


async def test_a_unit_reserved_too_long_is_requested_again(slot_broker: SlotBroker) -> None:
    """The reservation of a request that is not repeated ends; the same request id still gets a slot later."""
    await slot_broker.open(limit=1)
    lease = (await slot_broker.replica.acquire(pool="car")).json()
    assert await outcome(slot_broker, acquires("a")) == 404
    await slot_broker.replica.call("POST", f"/leases/{lease['lease_id']}/release", {"fencing_token": 1})
    await slot_broker.done(by_state("car-1,car-2", dest="polishing"))  # no slot is left
    for seconds in range(0, 200, 20):
        await slot_broker.broker.set_clock(seconds)
        assert await outcome(slot_broker, acquires("a")) == 404
    await slot_broker.broker.decide()
    assert await slot_broker.broker.held("car") == 0
    await slot_broker.done(release())
    assert (await slot_broker.done(acquires("a"))).headers["Slipway-Fencing-Token"] == "3"


async def test_units_of_lapsed_requests_go_to_others(slot_broker: SlotBroker) -> None:
    """Once they have lost their place in the queue for slots."""
    await slot_broker.open(limit=1)
    lease = (await slot_broker.replica.acquire(pool="car")).json()
    assert await outcome(slot_broker, acquires("a")) == 404
    await slot_broker.replica.call("POST", f"/leases/{lease['lease_id']}/release", {"fencing_token": 1})
    assert await outcome(slot_broker, acquires("b")) == 404
    await slot_broker.broker.set_clock(29)
    assert await outcome(slot_broker, acquires("b")) == 404
    await slot_broker.broker.set_clock(31)
    assert await outcome(slot_broker, acquires("b")) == "car-1"
    assert await slot_broker.broker.held("car") == 1


async def test_a_lapsed_request_leaves_all_queues(slot_broker: SlotBroker) -> None:
    """Nor does its lease request wait: the unit goes to the next, through whichever API."""
    await slot_broker.open(limit=1)
    await slot_broker.replica.acquire(pool="car")
    assert await outcome(slot_broker, acquires("a")) == 404
    await slot_broker.broker.set_clock(31)
    assert await outcome(slot_broker, acquires("b")) == 404
    waiting = (await slot_broker.replica.call("GET", "/lease-pools/car/requests")).json()["items"]
    assert [request["requested_at"] for request in waiting] == ["2026-01-01T12:00:31Z"]


async def test_several_slots_by_name_are_one_lease(slot_broker: SlotBroker) -> None:
    """With one unit per slot; each slot releases its own."""
    await slot_broker.done(by_state("car-1,car-2"))
    (lease,) = (await slot_broker.replica.call("GET", "/leases?pool=car")).json()["items"]
    assert lease["units"] == 2
    await slot_broker.done(release("car-2"))
    assert await slot_broker.broker.held("car") == 1
    await slot_broker.done(update())
    await slot_broker.done(release())
    assert await slot_broker.broker.held("car") == 0


async def test_several_slots_by_name_are_all_or_none(slot_broker: SlotBroker) -> None:
    """Also when units are lacking: nothing is held."""
    await slot_broker.open(limit=1)
    before = await slot_broker.rows()
    answer = await slot_broker.call(by_state("car-1,car-2"))
    assert answer.status_code == 404
    assert "requests 2 units, more than the limit of 1 allows" in answer.text
    assert await slot_broker.rows() == before


# Ends


async def test_updates_keep_a_slot(slot_broker: SlotBroker) -> None:
    """Without them the broker takes the slot like a reaper: it becomes dirty, and its owner gets 401."""
    await slot_broker.done(acquire())
    for seconds in (200, 400, 600):
        await slot_broker.broker.set_clock(seconds)
        await slot_broker.done(update())
        await slot_broker.broker.decide()
    assert (await slot_broker.slots())["car-1"] == ("leased", "ann")
    await slot_broker.broker.set_clock(900)
    await slot_broker.broker.decide()
    answers = [await slot_broker.call(line) for line in (update(), release())]
    assert [(answer.status_code, answer.text) for answer in answers] == [
        (401, 'resource "car-1" is owned by "", not by "ann"\n')
    ] * 2
    assert (await slot_broker.done("GET /metric?type=car")).json()["current"] == {"dirty": 1, "free": 1}
    assert (await slot_broker.slots())["car-1"] == ("dirty", "")
    assert await outcome(slot_broker, acquire("dirty", "cleaning", "cid")) == "car-1"


async def test_a_hold_ends_in_spite_of_updates(slot_broker: SlotBroker) -> None:
    """Updates do not extend it; the slot changes to the state named by the settings."""
    slot_broker.use(boskos_expired_state="used")
    await slot_broker.done(acquire())
    for seconds in range(200, 1300, 200):
        await slot_broker.broker.set_clock(seconds)
        answer = await slot_broker.call(update())
        await slot_broker.broker.decide()
    assert answer.status_code == 200
    assert (await slot_broker.call(update())).status_code == 401
    assert (await slot_broker.done("GET /metric?type=car")).json()["current"] == {"used": 1, "free": 1}
    assert await slot_broker.broker.held("car") == 0


async def test_a_lease_that_others_end_frees_its_slot(slot_broker: SlotBroker) -> None:
    """A release of the lease itself frees the slot."""
    await slot_broker.done(acquire())
    (lease,) = (await slot_broker.replica.call("GET", "/leases?pool=car")).json()["items"]
    path, token = f"/leases/{lease['lease_id']}/release", {"fencing_token": lease["fencing_token"]}
    assert (await slot_broker.replica.call("POST", path, token, by="ann")).status_code == 403
    assert (await slot_broker.replica.call("POST", path, token, by="root")).status_code == 200
    assert (await slot_broker.call(release())).status_code == 401
    assert (await slot_broker.done("GET /metric?type=car")).json()["owner"] == {"": 2}


async def test_reset_is_a_loss(slot_broker: SlotBroker) -> None:
    """The work of its owner may still be in flight, so the unit stays counted like that of a lost lease; the slot is
    free at once."""
    await slot_broker.done(acquire())
    await slot_broker.broker.set_clock(61)
    assert (await slot_broker.done(reset(expire="1m"))).json() == {"car-1": "ann"}
    assert (await slot_broker.slots())["car-1"] == ("dirty", "")
    await slot_broker.broker.decide()
    assert [type(event) for event in await slot_broker.broker.events()][-1] is LeaseLost
    assert (await slot_broker.call(update())).status_code == 401
    assert await slot_broker.broker.held("car") == 1
    await slot_broker.broker.set_clock(61 + 70)
    await slot_broker.broker.decide()
    assert await slot_broker.broker.held("car") == 0


async def test_reset_of_one_slot_of_two(slot_broker: SlotBroker) -> None:
    """The other is updated, so their lease goes on with one unit less."""
    await slot_broker.done(by_state("car-1,car-2"))
    await slot_broker.broker.set_clock(61)
    await slot_broker.done(update("car-2"))
    assert (await slot_broker.done(reset(expire="1m"))).json() == {"car-1": "ann"}
    await slot_broker.broker.decide()
    await slot_broker.done(update("car-2"))
    assert await slot_broker.broker.held("car") == 1


async def test_a_reset_spares_updated_slots(slot_broker: SlotBroker) -> None:
    """The age of a slot counts from its last update."""
    await slot_broker.done(acquire())
    await slot_broker.broker.set_clock(100)
    await slot_broker.done(update())
    await slot_broker.broker.set_clock(130)
    assert (await slot_broker.done(reset(expire="30s"))).json() == {}
    assert (await slot_broker.done(reset(expire="29s"))).json() == {"car-1": "ann"}


# User data


async def test_user_data_are_merged(slot_broker: SlotBroker) -> None:
    """A value replaces, an empty one deletes, others stay; they outlive their owner."""
    await slot_broker.done(acquire())
    for userdata in ({"a": "1", "b": "2"}, {"b": "3", "c": "4"}, {"a": "", "d": ""}):
        assert (await slot_broker.call(update(), userdata)).status_code == 200
    await slot_broker.done(release())
    (slot,) = (await slot_broker.done(by_state("car-1", owner="ben"))).json()
    assert slot["userdata"] == {"b": "3", "c": "4"}


async def test_every_change_is_an_update(slot_broker: SlotBroker) -> None:
    """Every change has its time, in UTC."""
    await slot_broker.done(acquire())
    await slot_broker.broker.set_clock(61.5)
    await slot_broker.done(update())
    assert (await slot_broker.done(by_state("car-2"))).json()[0]["lastupdate"] == "2026-01-01T12:01:01.500000Z"
    rows = await slot_broker.broker.pool.fetch("SELECT updated_at FROM slots WHERE lease_pool_id = 'car'")
    assert len({row["updated_at"] for row in rows}) == 1


# The lease proxy


PROXY = "POST /lease/acquire?type=car"


async def over_tcp(slot_broker: SlotBroker, line: str) -> None:
    """A call on a connection of its own, which is closed when it is cancelled."""
    method, path = line.split(" ")
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{slot_broker.port.number}", timeout=None) as client:
        await client.request(method, path)


async def test_a_proxy_call_waits(slot_broker: SlotBroker) -> None:
    """Until all slots are acquired, in the queue with all others."""
    await slot_broker.done(acquire())
    asking = asyncio.create_task(slot_broker.call(f"{PROXY}&count=2"))
    await harness.until(lambda: slot_broker.broker.pool.fetchval("SELECT count(*) FROM slot_requests"))
    assert await outcome(slot_broker, acquires("later")) == 404  # a slot is free, and reserved for the request of two
    await slot_broker.done(release())
    answer = await asking
    assert (answer.status_code, sorted(answer.json()["names"])) == (200, ["car-1", "car-2"])
    assert await outcome(slot_broker, acquires("later")) == 404


async def test_a_proxy_call_times_out(slot_broker: SlotBroker) -> None:
    """With 500."""
    await slot_broker.done(acquire(), acquire())
    slot_broker.use(boskos_proxy_wait_seconds=0)
    before = await slot_broker.rows()
    answer = await slot_broker.call(PROXY)
    assert answer.status_code == 500
    assert answer.text.startswith("not acquired within 0 s: no car is free")
    assert await slot_broker.rows() == before


async def test_a_timed_out_proxy_call_keeps_no_unit(slot_broker: SlotBroker) -> None:
    """It is not repeated: the unit goes to the next request at once."""
    await slot_broker.open(limit=1)
    lease = (await slot_broker.replica.acquire(pool="car")).json()
    slot_broker.use(boskos_proxy_wait_seconds=0)
    answer = await slot_broker.call(PROXY)
    assert (answer.status_code, answer.text) == (
        500,
        "not acquired within 0 s: no lease of car available: 1 of 1 held\n",
    )
    await slot_broker.replica.call("POST", f"/leases/{lease['lease_id']}/release", {"fencing_token": 1})
    assert await outcome(slot_broker, acquire()) == "car-1"


async def test_a_disconnected_proxy_call_keeps_no_place(slot_broker: SlotBroker) -> None:
    """Disconnected while it waits."""
    await slot_broker.done(acquire())
    async with slot_broker.port.running():
        asking = asyncio.create_task(over_tcp(slot_broker, f"{PROXY}&count=2"))
        await harness.until(lambda: slot_broker.broker.pool.fetchval("SELECT count(*) FROM slot_requests"))
        asking.cancel()
        await asyncio.wait({asking})
        await harness.until(lambda: slot_broker.broker.pool.fetchval("SELECT count(*) = 0 FROM slot_requests"))
    assert await outcome(slot_broker, acquires("later")) == "car-2"


async def test_a_disconnected_proxy_call_keeps_no_slot(slot_broker: SlotBroker) -> None:
    """Disconnected while it was granted: otherwise the slot would be held until its hold ends."""
    pool = slot_broker.broker.pool
    async with slot_broker.port.running():
        async with pool.acquire() as db, db.transaction():
            await db.execute("SELECT FROM lease_pools WHERE id = 'car' FOR UPDATE")
            asking = asyncio.create_task(over_tcp(slot_broker, PROXY))
            await harness.until_waiting(pool, asking)
            asking.cancel()
            await asyncio.wait({asking})
            await over_tcp(slot_broker, "GET /healthz")  # by then the disconnect is known
        await harness.until(lambda: pool.fetchval("SELECT count(*) FROM history WHERE kind = 'released'"))
    assert await slot_broker.broker.held("car") == 0
    assert await slot_broker.slots() == {"car-1": ("free", ""), "car-2": ("free", ""), "van-1": ("dirty", "")}


async def test_a_proxy_call_never_waits_in_vain(slot_broker: SlotBroker) -> None:
    """Slots beyond the limit are never leased at once."""
    await slot_broker.open(limit=1)
    slot_broker.use(boskos_proxy_wait_seconds=0)
    before = await slot_broker.rows()
    answer = await slot_broker.call(f"{PROXY}&count=2")
    assert (answer.status_code, answer.text) == (
        500,
        "2 of car can never be acquired: requests 2 units, more than the limit of 1 allows: as declared\n",
    )
    assert await slot_broker.rows() == before


async def test_leases_of_the_proxy_are_not_renewed(slot_broker: SlotBroker) -> None:
    """They live until their hold ends."""
    await slot_broker.done(f"{PROXY}&count=2")
    await slot_broker.broker.set_clock(1199)
    await slot_broker.broker.decide()
    assert await slot_broker.broker.held("car") == 2
    await slot_broker.broker.set_clock(1200)
    await slot_broker.broker.decide()
    assert await slot_broker.broker.held("car") == 0
    answer = await slot_broker.call("POST /lease/release", {"names": ["car-1"]})
    assert answer.status_code == 500


async def test_the_proxy_lists_released_slots(slot_broker: SlotBroker) -> None:
    """When not all could be released."""
    await slot_broker.done(PROXY)
    answer = await slot_broker.call("POST /lease/release", {"names": ["car-9", "car-1", "car-2"]})
    assert answer.status_code == 500
    assert 'resource "car-9" does not exist' in answer.text
    assert answer.text.endswith("Released: car-1\n")
    assert (await slot_broker.slots())["car-1"] == ("free", "")


# Who may call


async def test_callers_have_a_token(slot_broker: SlotBroker) -> None:
    """By HTTP Basic, unless the broker is open; the lease is in the token's name."""
    slot_broker.use(boskos_open=False)
    for by in ("", "stranger"):
        answer = await slot_broker.call(acquire(), by=by)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, 'Basic realm="slipway"')
    assert (await slot_broker.call("GET /metric?type=car")).status_code == 401
    assert (await slot_broker.call("GET /acquire")).status_code == 405
    assert (await slot_broker.call("GET /healthz")).status_code == 200
    assert await outcome(slot_broker, acquire(), by="ben") == "car-1"
    (lease,) = (await slot_broker.replica.call("GET", "/leases?pool=car")).json()["items"]
    assert (lease["tenant"], lease["owner"]) == ("ben", "ben")


@pytest.mark.parametrize("line", [acquire(), by_state("car-1"), release(), update(), reset(), PROXY])
async def test_a_scope_is_needed(slot_broker: SlotBroker, line: str) -> None:
    """The scope to write leases of the pool; also on an open broker."""
    before = await slot_broker.rows()
    answer = await slot_broker.call(line, by="cid")
    assert (answer.status_code, answer.text) == (403, "cid needs the scope leases:write:car\n")
    assert await slot_broker.rows() == before


async def test_counts_of_slots_are_for_readers_and_holders(slot_broker: SlotBroker) -> None:
    """A token for something else reads no owners."""
    answer = await slot_broker.call("GET /metric?type=car", by="cid")
    assert (answer.status_code, answer.text) == (403, "cid needs the scope read or leases:write:car\n")
    found = [(await slot_broker.call("GET /metric?type=car", by=by)).status_code for by in ("reader", "ann", "nobody")]
    assert found == [200, 200, 403]


@pytest.mark.parametrize("header", ["Basic", "Basic ~", "Basic YW5u", "Bearer secret of ann", "Basic YW5uOmJlbg=="])
async def test_invalid_credentials(slot_broker: SlotBroker, header: str) -> None:
    """Wrong ones are refused even where none are needed."""
    transport = httpx2.ASGITransport(app=slot_broker.port.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://boskos") as client:
        answer = await client.post(acquire().split(" ")[1], headers={"Authorization": header})
    assert answer.status_code == 401


# The port


async def test_a_port_of_its_own(slot_broker: SlotBroker) -> None:
    """Open while the service runs; the same over TCP and in process."""
    async with (
        slot_broker.port.running(),
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{slot_broker.port.number}", timeout=None) as client,
    ):
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.post(acquire().split(" ")[1])).json()["name"] == "car-1"
    with pytest.raises(httpx2.HTTPError):
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{slot_broker.port.number}", timeout=None) as client:
            await client.get("/healthz")


async def test_off_by_default(slot_broker: SlotBroker) -> None:
    """The port is open only with a setting for it."""
    services = [build(Settings(database_url=slot_broker.url, kafka="", boskos_port=port)) for port in (None, 0)]
    assert [len(service.resources) for service in services] == [1, 2]


async def test_before_the_database_is_available(slot_broker: SlotBroker) -> None:
    """500, which clients retry."""
    slot_broker.port.app._runtime = Runtime()
    answer = await slot_broker.call(acquire())
    assert (answer.status_code, answer.text) == (500, "the lease-broker is starting, retry in a moment\n")
    assert (await slot_broker.call("GET /healthz/ready")).status_code == 503


async def test_writes_of_former_owners_are_counted(slot_broker: SlotBroker) -> None:
    """Each late write is counted like a stale token, and no other refusal."""
    await slot_broker.done(acquire())
    await slot_broker.broker.set_clock(300)
    await slot_broker.broker.decide()
    await slot_broker.done(acquire(owner="ben"))
    before = REFUSED_COMMANDS.labels("stale token")._value.get()
    late = (update(), release(), update(state="busy"))
    assert [(await slot_broker.call(line)).status_code for line in late] == [401] * 3
    assert REFUSED_COMMANDS.labels("stale token")._value.get() == before + 3
    others = (update("car-9"), update("car-2", owner="ben", state="busy"), release(dest=""))
    assert [(await slot_broker.call(line)).status_code for line in others] == [404, 409, 400]
    assert REFUSED_COMMANDS.labels("stale token")._value.get() == before + 3
