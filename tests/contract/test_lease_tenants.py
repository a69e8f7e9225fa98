"""Reports of holders about others, over HTTP and Boskos: tenants, throttling and unleased units move only their own."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_common.base.ids import hash_secret
from slipway_lease_broker.domain.submissions import TENANTS_MAX
from slipway_lease_broker.domain.terms import Backoff, Bounds, Policy
from slipway_lease_broker.domain.throttling import RETRY_AFTER_SECONDS_MAX
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.contract.boskos.slot_broker import SlotBroker, slot_broker_on
from tests.support.lease_broker import acquire_request, after, release, terms
from tests.support.lease_broker_http import CALLERS, World, slug

LEASES: Final = "/lease-pools/sim-a/leases"
TOKENS: Final[dict[str, dict[str, Any]]] = {
    "ann": {"tenants": ["team-*"]},
    "ben": {},
    "few": {"unleased_max": 1},
    "none": {"unleased_max": 0},
    "adapter": {"scopes": ["leases:write:*", "throttles:write:sim-a"]},
}


@pytest.fixture
def world(world: World, tmp_path: Path) -> World:
    """With callers of CALLERS and TOKENS."""
    entries = [
        {"name": name, "sha256": hash_secret(f"secret of {name}"), "scopes": CALLERS.get(name, CALLERS["ann"])}
        | TOKENS.get(name, {})
        for name in {*CALLERS, *TOKENS}
    ]
    (tmp_path / "tokens.yaml").write_bytes(msgspec.json.encode(entries))
    return world


@pytest.fixture
async def slot_broker(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[SlotBroker]:
    """Callers need tokens."""
    async with slot_broker_on(postgres, tmp_path) as slot_broker:
        slot_broker.use(boskos_open=False)
        await slot_broker.open()
        yield slot_broker


async def held(world: World, by: str, units: int = 1, **fields: Any) -> Any:
    """A lease of a caller; the request id is its name."""
    answer = await world.replica.acquire(fields.pop("request_id", by), by=by, units=units, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json() | {"by": by}


async def released(world: World, lease: Any, **fields: Any) -> None:
    body = {"fencing_token": lease["fencing_token"]} | fields
    answer = await world.replica.call("POST", f"/leases/{lease['lease_id']}/release", body, by=lease["by"])
    assert answer.status_code == 200, answer.text


async def waits(world: World, request_id: str, **fields: Any) -> tuple[str, float]:
    """Reason and expected wait of a new request; "" and 0 if it starts at once."""
    answer = await world.replica.acquire(request_id, **fields)
    body = answer.json()
    assert answer.status_code in (200, 202), answer.text
    return ("", 0.0) if answer.status_code == 200 else (body["reason"], body["eta_seconds"])


async def pool_of(world: World) -> Any:
    return (await world.replica.call("GET", "/lease-pools/sim-a", by="reader")).json()


async def wide(world: World, **policy: Any) -> None:
    """Room for everybody, without pacing."""
    await world.broker.declare(terms(limit=20, policy=Policy(**{"pacing": "off"} | policy)))


# Tenants


@pytest.mark.parametrize("tenant", ["ben", "team", "Team-a", "anna"])
async def test_a_tenant_of_another(world: World, tenant: str) -> None:
    """It is refused with what to do, alone and in a gang, and changes nothing."""
    await wide(world)
    before = await world.rows()
    gang = {"request_id": "g", "tenant": tenant, "members": [{"pool": "sim-a"}]}
    for path, body in ((LEASES, {"request_id": "r", "tenant": tenant}), ("/lease-gangs", gang)):
        answer = await world.replica.call("POST", path, body)
        assert (answer.status_code, slug(answer)) == (403, "foreign-tenant")
        assert "tenants" in answer.json()["detail"]
    assert await world.rows() == before


async def test_a_neighbour_does_not_back_off(world: World) -> None:
    """For the failures of another: those of ann, whatever she tries, are her own."""
    await wide(world, backoff=Backoff(seconds=600))
    for tenant in ("ben", None, "team-a"):
        fields = {} if tenant is None else {"tenant": tenant}
        answer = await world.replica.acquire(f"of {tenant}", **fields)
        if answer.status_code == 200:
            await released(world, answer.json() | {"by": "ann"}, result="failed")
    assert await waits(world, "bens", by="ben") == ("", 0.0)
    reason, seconds = await waits(world, "anns")
    assert ("ann backs off" in reason, seconds) == (True, 600.0)


async def test_tenants_of_a_token(world: World) -> None:
    """Its own name and those of its pattern; an administrator's is any."""
    await wide(world)
    for by, tenant in (("ann", "ann"), ("ann", "team-a"), ("ann", "team-"), ("root", "ben")):
        assert (await held(world, by, request_id=f"{by} {tenant}", tenant=tenant))["tenant"] == tenant
    assert (await held(world, "ben"))["tenant"] == "ben"


async def test_a_caller_makes_a_bounded_number_of_tenants(world: World) -> None:
    """Each would get a fair share of its own. A tenant of before still gets leases, and so do those of others."""
    await held(world, "ben", units=2)
    for number in range(TENANTS_MAX):
        assert (await world.replica.acquire(f"r{number}", tenant=f"team-{number}")).status_code == 202
    before = await world.rows()
    gang = {"request_id": "g", "tenant": "team-more", "members": [{"pool": "sim-a"}]}
    for path, body in ((LEASES, {"request_id": "more", "tenant": "team-more"}), ("/lease-gangs", gang)):
        refused = await world.replica.call("POST", path, body)
        assert (refused.status_code, slug(refused)) == (403, "too-many-tenants"), path
    assert await world.rows() == before
    for fields in ({"tenant": "team-7"}, {}, {"by": "ben"}, {"by": "root", "tenant": "team-more"}):
        assert (await world.replica.acquire(f"again {fields}", **fields)).status_code == 202


async def few(world: World, number: int) -> None:
    """Let so many requests of a token wait."""
    state = world.replica.app.state
    terms_ = msgspec.structs.replace(state.admissions.terms, waiting_requests_max=number)
    state.admissions = msgspec.structs.replace(state.admissions, terms=terms_)


async def test_a_caller_has_a_bounded_number_of_requests_that_wait(world: World) -> None:
    """In one pool, alone and in gangs. A refused one stores nothing and says when to ask again. What waits already may
    be repeated, and makes room once it is granted or cancelled, or has lapsed; others have room of their own."""
    here = world.replica
    await few(world, 3)
    await world.broker.declare(terms(limit=2), terms("sim-b", limit=2))
    lease = await held(world, "ben", units=2)
    gang = {"request_id": "g", "members": [{"pool": "sim-b", "units": 2}, {"pool": "sim-a"}]}
    more = gang | {"request_id": "more"}
    for number in range(2):
        assert (await here.acquire(f"r{number}")).status_code == 202
    assert (await here.call("POST", "/lease-gangs", gang)).status_code == 202
    before = await world.rows()
    for path, body in ((LEASES, {"request_id": "more"}), ("/lease-gangs", more)):
        refused = await here.call("POST", path, body)
        assert (refused.status_code, slug(refused)) == (429, "too-many-waiting"), path
        assert refused.headers["Retry-After"] == "30"
        assert "3 requests of ann already wait in lease pool sim-a" in refused.json()["detail"]
    assert await world.rows() == before
    assert await world.broker.pool.fetchval("SELECT count(*) FROM gangs") == 1
    assert (await here.acquire("r0")).status_code == 202
    assert (await here.call("POST", "/lease-gangs", gang)).status_code == 202
    for by, pool in (("ben", "sim-a"), ("root", "sim-a"), ("ann", "sim-b")):
        assert (await here.acquire(f"of {by}", pool, by=by)).status_code in (200, 202)
    await here.call("DELETE", "/lease-pools/sim-a/requests/r1")
    assert (await here.acquire("r2")).status_code == 202
    assert slug(await here.acquire("r3")) == "too-many-waiting"
    await released(world, lease)  # grants r0
    assert (await here.acquire("r3")).status_code in (200, 202)
    await world.broker.set_clock(100_001)
    await world.broker.decide()
    for number in range(2):
        assert (await here.acquire(f"late{number}")).status_code in (200, 202)


# Throttling


async def test_one_holder_of_many_blocks_itself_alone(world: World) -> None:
    """A Retry-After of a day, reported by a holder of a fifth of the units, lets its own tenant wait for the maximum of
    the pool. Its neighbours get leases, and the limit stays."""
    await wide(world, adaptive=Bounds(floor=1, ceiling=40))
    await held(world, "ben", units=4)
    for attempt in range(20):
        lease = await held(world, "ann", request_id=f"a{attempt}", tenant=f"team-{attempt}")
        await released(world, lease, throttled=True, retry_after_seconds=86_400, quota_remaining=0)
        reason, seconds = await waits(world, f"b{attempt}", tenant=f"team-{attempt}")
        assert ("waits alone" in reason, seconds) == (True, 300.0)
    pool = await pool_of(world)
    assert (pool["blocked_until"], pool["limit_in_force"]) == (None, 20)
    assert await waits(world, "bens", by="ben") == ("", 0.0)
    await world.broker.set_clock(300)
    await world.broker.decide()
    leases = (await world.replica.call("GET", "/leases?pool=sim-a", by="reader")).json()["items"]
    assert {lease["request_id"] for lease in leases} >= {"b0", "b14"}


@pytest.mark.parametrize(
    ("units", "asked", "maximum", "blocked"),
    [(4, 86_400, 300.0, 300), (4, 20, 300.0, 20), (4, 86_400, 3_600.0, 3_600), (3, 86_400, 3_600.0, None)],
)
async def test_a_holder_of_half_of_the_units_moves_the_pool(
    world: World, units: int, asked: float, maximum: float, blocked: float | None
) -> None:
    """For as long as it asks, at most for the maximum of the pool."""
    await wide(world, retry_after_max_seconds=maximum)
    await held(world, "ben", units=4)
    await released(world, await held(world, "ann", units=units), throttled=True, retry_after_seconds=asked)
    until = None if blocked is None else after(blocked).isoformat().replace("+00:00", "Z")
    assert (await pool_of(world))["blocked_until"] == until


@pytest.mark.parametrize(("second", "at", "blocked"), [("ben", 1199, True), ("ben", 1201, False), ("ann", 10, False)])
async def test_two_reporters_within_one_hold_move_the_pool(world: World, second: str, at: float, blocked: bool) -> None:
    """Neither a report of long ago nor the same reporter again confirms one."""
    await wide(world)
    await held(world, "root", units=10)
    await released(world, await held(world, "ann", request_id="a"), throttled=True, retry_after_seconds=60)
    assert (await pool_of(world))["blocked_until"] is None
    await world.broker.set_clock(at)
    await held(world, "root", units=9, request_id="more")
    tenant = "team-b" if second == "ann" else second
    lease = await held(world, second, request_id="b", tenant=tenant)
    await released(world, lease, throttled=True, retry_after_seconds=60)
    assert ((await pool_of(world))["blocked_until"] is not None) is blocked


async def test_an_adaptive_limit_follows_reporters_that_confirm_each_other(world: World) -> None:
    """Alone one of them cuts nothing, however often it reports."""
    await wide(world, adaptive=Bounds(floor=1, ceiling=40))
    await held(world, "root", units=4)
    found, names = [], itertools.count()
    for pair in (("ann", "ann"), ("ann", "ben")):
        for _ in range(12):
            for by in pair:
                lease = await held(world, by, request_id=str(next(names)))
                await released(world, lease, throttled=True)
                await world.replica.acquire("root", by="root", units=4)
        found.append((await pool_of(world))["limit_in_force"])
    assert found[0] == 20
    assert found[1] < 20


async def test_the_word_of_an_adapter_moves_the_pool(world: World) -> None:
    """Of the provisioner over Kafka, and of a token with the scope for it; both up to the pool's maximum."""
    await wide(world)
    await held(world, "ben", units=10)
    await world.broker.send(acquire_request("launch", 1))
    launch = next(grant for grant in await world.broker.grants() if grant.request_id == "launch")
    await world.broker.send(release(launch, 1, throttled=True, retry_after_seconds=86_400.0))
    assert (await pool_of(world))["blocked_until"] == after(300).isoformat().replace("+00:00", "Z")
    await world.broker.set_clock(400)
    await released(world, await held(world, "adapter"), throttled=True, retry_after_seconds=30)
    assert (await pool_of(world))["blocked_until"] == after(430).isoformat().replace("+00:00", "Z")


async def test_the_maximum_of_a_pause_is_declared(world: World) -> None:
    """At most an hour, as for every pool before."""
    for seconds, status in ((RETRY_AFTER_SECONDS_MAX + 1, 422), (0, 422), (90.0, 200)):
        pool = {"id": "new", "limit": 1, "retry_after_max_seconds": seconds}
        body = {"documents": [{"owner": "a", "lease_pools": [pool]}]}
        answer = await world.replica.call("PUT", "/lease-pools?dry_run=true", body, by="operator")
        assert answer.status_code == status, answer.text


# Unleased units


async def unleased(world: World, units: int, *, by: str = "ann", request_id: str = "u", **fields: Any) -> Any:
    start = {"request_id": request_id, "units": units, "started_at": after(0).isoformat()} | fields
    answer = await world.replica.call("POST", "/lease-pools/sim-a/unleased", {"starts": [start]}, by=by)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"][0] | {"by": by}


async def test_a_million_unleased_units(world: World) -> None:
    """Those that the reporter could hold count against the pool, and the others let its own tenant wait, with an alert
    until their hold ends."""
    await wide(world)
    lease = await unleased(world, 1_000_000)
    assert (lease["units"], lease["unleased_by"]) == (1_000_000, "unavailable")
    await world.broker.decide()
    (raised,) = [event for event in await world.broker.events() if isinstance(event, AlertRaised)]
    assert (raised.kind, raised.subject_id, raised.severity) == ("lease-pool-unleased-excess", "sim-a", "notice")
    assert "ann reported 999980 unleased units more than it may count" in raised.summary
    assert (await pool_of(world))["held"] == 20
    assert "waits alone" in (await waits(world, "anns"))[0]
    assert "20 of 20 held" in (await waits(world, "bens", by="ben"))[0]
    for _ in range(2):
        assert (await unleased(world, 1_000_000))["lease_id"] == lease["lease_id"]
    assert (await pool_of(world))["held"] == 20
    await world.broker.set_clock(1_200)
    await world.broker.decide()
    resolved = [event for event in await world.broker.events() if isinstance(event, AlertResolved)]
    assert [alert.dedup_key for alert in resolved] == [raised.dedup_key]
    assert (await pool_of(world))["held"] == 2  # of ann and ben


@pytest.mark.parametrize(("by", "counted"), [("few", 1), ("none", 0), ("ben", 3)])
async def test_unleased_units_of_a_token(world: World, by: str, counted: int) -> None:
    """Up to its `unleased_max` in all, however they are reported."""
    await wide(world)
    starts = [await unleased(world, 1, by=by, request_id=f"u{number}") for number in range(3)]
    assert (await pool_of(world))["held"] == counted
    assert await waits(world, "bystander", by="ann") == ("", 0.0)
    reason, _ = await waits(world, "own", by=by)
    assert bool(reason) is (counted < 3)
    for lease in starts:
        await released(world, lease)
    # The units that held it back are released.
    assert (await world.replica.acquire("own", by=by)).status_code == 200
    assert (await pool_of(world))["held"] == 2


# Backoffs


async def test_a_declaration_without_backoff_ends_those_that_run(world: World) -> None:
    """Also for good: one that is declared again later starts anew."""
    pool = {"id": "sim-a", "limit": 5, "pacing": "off"}

    async def declare(**terms: Any) -> None:
        body = {"documents": [{"owner": "a", "lease_pools": [pool | terms]}]}
        preview = await world.replica.call("PUT", "/lease-pools?dry_run=true&adopt=true", body, by="operator")
        path = f"/lease-pools?adopt=true&confirm={preview.json()['digest']}"
        assert (await world.replica.call("PUT", path, body, by="operator")).status_code == 200

    await declare(backoff={"seconds": 600.0, "max_seconds": 900.0})
    await released(world, await held(world, "ann"), result="failed")
    assert "backs off" in (await waits(world, "next"))[0]
    await declare(backoff=None)
    await world.broker.decide()
    assert (await world.replica.acquire("next")).status_code == 200
    await declare(backoff={"seconds": 600.0, "max_seconds": 900.0})
    assert await waits(world, "last") == ("", 0.0)


# Derived limits


async def test_holders_report_no_units_of_a_derived_limit(world: World) -> None:
    answer = await world.replica.call("PUT", "/lease-pools/sim-a/units", {"units": 1, "ttl_seconds": 9.0})
    assert (answer.status_code, slug(answer)) == (403, "scope-missing")


# Boskos


async def test_the_owner_of_a_slot_is_no_tenant(slot_broker: SlotBroker) -> None:
    """The owner of a Boskos call is text of the caller: whatever it is, the lease is the token's."""
    for owner in ("ben", "ben", "anybody"):
        await slot_broker.call(f"POST /acquire?type=car&state=free&dest=busy&owner={owner}", by="ann")
    named = "SELECT tenant, owner FROM leases UNION SELECT tenant, owner FROM requests"
    rows = await slot_broker.broker.pool.fetch(named)
    assert [tuple(row) for row in rows] == [("ann", "ann")]


async def test_the_name_of_an_owner_is_no_token(slot_broker: SlotBroker) -> None:
    """Another token can neither release nor renew a slot by the name of its owner, nor reset one that is renewed."""
    acquired = await slot_broker.call("POST /acquire?type=car&state=free&dest=busy&owner=job", by="ann")
    name = acquired.json()["name"]
    before = await slot_broker.rows()
    for line in (f"POST /release?name={name}&dest=dirty&owner=job", f"POST /update?name={name}&state=busy&owner=job"):
        answer = await slot_broker.call(line, by="ben")
        assert (answer.status_code, "another token" in answer.text) == (401, True), answer.text
    reset = "POST /reset?type=car&state=busy&dest=dirty&expire=1ms"
    await slot_broker.broker.set_clock(225)
    assert (await slot_broker.call(reset, by="ben")).json() == {}
    assert (await slot_broker.rows())[0] == before[0]
    assert (await slot_broker.call(f"POST /update?name={name}&state=busy&owner=job", by="ann")).status_code == 200
    await slot_broker.broker.set_clock(450)
    assert (await slot_broker.call(reset, by="ben")).json() == {}
    await slot_broker.broker.set_clock(451)
    assert (await slot_broker.call(reset, by="ben")).json() == {name: "job"}


async def test_the_own_slot_is_reset_at_once(slot_broker: SlotBroker) -> None:
    acquired = await slot_broker.call("POST /acquire?type=car&state=free&dest=busy&owner=job", by="ann")
    await slot_broker.broker.set_clock(1)
    answer = await slot_broker.call("POST /reset?type=car&state=busy&dest=dirty&expire=1ms", by="ann")
    assert answer.json() == {acquired.json()["name"]: "job"}


# Reports that build on each other


async def test_unleased_units_are_no_weight_of_a_reporter(world: World) -> None:
    """A Retry-After moves the pool on the word of a holder of half of its units: of granted ones, not of its claims."""
    await wide(world)
    await held(world, "ben", units=4)
    claimed = await unleased(world, 1_000_000)
    over = await unleased(world, 20, request_id="over", started_at=after(-1_200).isoformat())
    for lease in (claimed, over):
        await released(world, lease, throttled=True, retry_after_seconds=300)
        assert (await pool_of(world))["blocked_until"] is None
    assert await waits(world, "bens", by="ben") == ("", 0.0)


@pytest.mark.parametrize(("at", "blocked"), [(1_210, True), (2_401, False)])
async def test_the_weight_of_a_reporter_ends_a_hold_after_its_lease(world: World, at: float, blocked: bool) -> None:
    """Otherwise one could save leases that have ended, and block the pool with one after the other."""
    await wide(world)
    lease = await held(world, "ann", units=10)
    await world.broker.set_clock(601)
    await held(world, "ben", units=4)
    for seconds in (300, 600, 900, 1_199):
        await world.broker.set_clock(seconds)
        await world.replica.call("POST", f"/leases/{lease['lease_id']}/renew", {"fencing_token": 1})
    await world.broker.set_clock(1_200)
    await world.broker.decide()
    await world.broker.set_clock(at)
    await held(world, "ben", units=4, request_id="later")
    await released(world, lease, throttled=True, retry_after_seconds=300)
    assert ((await pool_of(world))["blocked_until"] is not None) is blocked


@pytest.mark.parametrize("cause", ["unavailable", "max_wait", "lost"])
async def test_a_request_is_no_licence_for_unleased_units(world: World, cause: str) -> None:
    """Starts under requests that wait or were cancelled, and in the place of leases that have ended, count for no more
    than the reporter could hold, however many units they name."""
    await wide(world)
    await held(world, "ben", units=20)
    for number in range(3):
        name = f"r{number}"
        assert (await world.replica.acquire(name)).status_code == 202
        if number:
            await world.replica.call("DELETE", f"/lease-pools/sim-a/requests/{name}")
        await unleased(world, 1_000_000, request_id=name, cause=cause)
    assert (await pool_of(world))["held"] == 40


async def test_ended_leases_are_no_licence_for_unleased_units(world: World) -> None:
    """A lease that was released was not lost."""
    await wide(world)
    leases = [await held(world, "ann", units=6, request_id=f"r{number}") for number in range(3)]
    for lease in leases:
        await released(world, lease)
    for lease in leases:
        await unleased(world, 1_000_000, request_id=f"lost-{lease['lease_id']}", cause="lost")
    assert (await pool_of(world))["held"] == 20


async def test_the_id_of_a_lost_lease_is_its_owners(world: World) -> None:
    """Another token can take it neither by a request nor by a report, which would have its owner's report refused."""
    await wide(world)
    lease = await held(world, "ann")
    name = f"lost-{lease['lease_id']}"
    before = await world.rows()
    for cause in ("lost", "unavailable"):
        start = {"request_id": name, "started_at": after(0).isoformat(), "cause": cause}
        answer = await world.replica.call("POST", "/lease-pools/sim-a/unleased", {"starts": [start]}, by="ben")
        assert (answer.status_code, slug(answer)) == (403, "wrong-owner")
    assert (await world.replica.acquire(name, by="ben")).status_code == 403
    assert await world.rows() == before
    await world.broker.set_clock(301)
    await world.broker.decide()
    assert (await unleased(world, 1, request_id=name, cause="lost"))["unleased_by"] == "lost"


async def test_a_slot_of_the_same_owner_and_request_id(slot_broker: SlotBroker) -> None:
    """Both are text that anybody may send: they give neither the slot of another token nor its place in the queue."""
    line = "POST /acquire?type=car&state=free&dest=busy&owner=job&request_id=r"
    first = await slot_broker.call(line, by="ann")
    again = await slot_broker.call(line, by="ann")
    assert first.json()["name"] == again.json()["name"]
    other = await slot_broker.call(line, by="ben")
    assert (other.status_code, "another token" in other.text) == (401, True), other.text
    await slot_broker.call("POST /acquire?type=car&state=free&dest=busy&owner=second", by="ann")
    waits = line.replace("request_id=r", "request_id=waits")
    assert (await slot_broker.call(waits, by="ann")).status_code == 404
    other = await slot_broker.call(waits, by="ben")
    assert (other.status_code, "another token" in other.text) == (401, True), other.text


async def test_a_slot_that_is_cleaned(slot_broker: SlotBroker) -> None:
    """It is held without a lease; its owner's name gives it to no other token either."""
    acquired = await slot_broker.call("POST /acquire?type=van&state=dirty&dest=cleaning&owner=janitor", by="ann")
    assert acquired.status_code == 200, acquired.text
    for line in ("POST /release?name=van-1&dest=free", "POST /update?name=van-1&state=cleaning"):
        assert (await slot_broker.call(f"{line}&owner=janitor", by="ben")).status_code == 401
    assert (await slot_broker.call("POST /release?name=van-1&dest=free&owner=janitor", by="ann")).status_code == 200


# Groups


async def test_strangers_do_not_delay_a_group(world: World) -> None:
    """Its name and terms are no secret: members of another token would let its own start hours later."""
    await wide(world)
    group = {"name": "payload", "size": 10, "spread_seconds": 900.0}
    for number in range(50):
        await world.replica.acquire(f"stranger{number}", by="ben", group=group)
    assert (await world.replica.acquire("first", group=group)).status_code == 200
    reason, seconds = await waits(world, "second", group=group)
    assert ("group" in reason, seconds) == (True, 90.0)
