"""Lease pools with policies: pacing, operations, groups, gangs, tenants, backoff, adaptive limits, history."""

from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.lease import LeaseGroup, LeaseLimitChanged, LeaseLost, ReplacedLease
from slipway_common.database.tables import PLANS_KEPT
from slipway_lease_broker.domain.pacing import Pacing
from slipway_lease_broker.domain.report import PastLease
from slipway_lease_broker.domain.terms import Backoff, Bounds, Derived, Mode, Operation, Policy
from slipway_lease_broker.store import gangs, history, past_leases, pools, requests
from tests.support.lease_broker import (
    START,
    Broker,
    acquire_request,
    after,
    cancel,
    confirm,
    kinds,
    names,
    release,
    renew,
    terms,
)

QUEUES: Final = 200
READ: Final = "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'requests'"


async def declared(broker: Broker, policy: Policy, **changes: Any) -> None:
    await broker.declare(terms(policy=policy, **changes))
    await broker.events()


async def test_pacing_goes_on_from_decision_to_decision(broker: Broker) -> None:
    """A single job starts at once, the next when its interval has passed, by the clock alone."""
    await declared(broker, Policy())
    await broker.send(acquire_request("r1", 2))
    assert [grant.units for grant in await broker.grants()] == [1]
    await broker.set_clock(29.9)
    assert await broker.grants() == []
    await broker.set_clock(30)
    assert [grant.units for grant in await broker.grants()] == [1]


async def test_operations_are_paced_each_by_itself(broker: Broker) -> None:
    """Stored by operation: launches wait for no installation, and each goes on from decision to decision."""
    await declared(broker, Policy(operations={"launch": Operation(pacing=Pacing(0.5))}))
    await broker.send(*(acquire_request(name, operation="install") for name in ("i1", "i2")))
    assert names(await broker.grants()) == ["i1"]
    await broker.send(*(acquire_request(f"l{n}") for n in range(3)))
    assert names(await broker.grants()) == ["l0"]
    await broker.set_clock(0.5)
    assert names(await broker.grants()) == ["l1"]
    await broker.set_clock(30)
    assert names(await broker.grants()) == ["i2", "l2"]


async def test_a_new_mode_starts_with_fresh_pacing(broker: Broker) -> None:
    """A shadow pool computes how long its starts would have waited; enforcing delays no request for that."""
    await declared(broker, Policy(mode=Mode.SHADOW))
    await broker.send(*(acquire_request(f"r{n}") for n in range(9)))
    shadowed = await broker.grants()
    assert [(grant.mode, grant.advised_wait_seconds, grant.reason) for grant in shadowed] == [("shadow", None, "")] * 9
    rows = await broker.pool.fetch("SELECT advised_wait_seconds FROM leases ORDER BY fencing_token")
    assert [row[0] for row in rows] == [None, 30, 60, 90, 120, 240, 480, 720, 960]
    await broker.send(*(release(grant) for grant in shadowed))
    await declared(broker, Policy())
    await broker.send(acquire_request("r10"))
    assert names(await broker.grants()) == ["r10"]


async def test_an_advisory_pool_reports_the_spared_wait(broker: Broker) -> None:
    await declared(broker, Policy(mode=Mode.ADVISORY, pacing="off"))
    await broker.send(acquire_request("r1", 5), acquire_request("r2"))
    _, spared = await broker.grants()
    assert (spared.mode, spared.advised_wait_seconds, spared.reason) == ("advisory", 240, "5 of 5 held")
    assert await broker.held() == 6


async def test_costs_by_operation(broker: Broker) -> None:
    """Counted by their cost, also when they are released in part."""
    await declared(broker, Policy(pacing="off", operations={"launch": Operation(weight=2)}))
    await broker.send(acquire_request("r1", 3))
    (lease,) = await broker.grants()
    assert lease.units == 2
    assert await broker.pool.fetchval("SELECT held FROM lease_pools") == {"launch": 4}
    await broker.send(release(lease, 1))
    assert [grant.units for grant in await broker.grants()] == [1]
    await broker.send(acquire_request("d", operation="destroy"))
    assert names(await broker.grants()) == ["d"]
    assert await broker.pool.fetchval("SELECT held FROM lease_pools") == {"launch": 4, "destroy": 1}


async def test_a_new_attempt_replaces_the_old(broker: Broker) -> None:
    """The old lease ends as the new request arrives, which inherits its age: no other request passes in between."""
    await broker.send(acquire_request("r1", 5))
    (lease,) = await broker.grants()
    await broker.set_clock(10)
    await broker.send(acquire_request("other", 5))
    await broker.decide()
    await broker.set_clock(20)
    old = ReplacedLease(lease_id=lease.lease_id, fencing_token=lease.fencing_token)
    await broker.send(acquire_request("r2", 5, replaces=old))
    assert await broker.held() == 0
    assert names(await broker.grants()) == ["r2"]
    row = await broker.pool.fetchrow("SELECT state, reason FROM leases WHERE id = $1", lease.lease_id)
    assert tuple(row) == ("released", "replaced")
    stale = ReplacedLease(lease_id=lease.lease_id, fencing_token=9)
    await broker.send(acquire_request("r3", replaces=stale))
    assert await broker.pool.fetchval("SELECT since FROM requests WHERE id = 'r3'") == after(20)


async def test_a_group_starts_anew(broker: Broker) -> None:
    """With a name and terms that were used before, after its spread is over: its members start spread again."""
    await broker.declare(terms(limit=20))
    day = 86_400
    nightly = LeaseGroup(name="nightly", size=4, spread_seconds=3600)
    await broker.send(acquire_request("r0", group=nightly), acquire_request("r1", group=nightly))
    assert names(await broker.grants()) == ["r0"]
    await broker.set_clock(day)
    await broker.grants()
    await broker.set_clock(2 * day)
    await broker.send(*(acquire_request(f"w{number}", group=nightly) for number in range(3)))
    assert names(await broker.grants()) == ["w0"]
    await broker.send(acquire_request("w3", group=nightly))
    rows = await broker.pool.fetch("SELECT since FROM requests WHERE group_name <> '' ORDER BY place")
    assert [row["since"] for row in rows[-4:]] == [after(2 * day + seconds) for seconds in (0, 900, 1800, 2700)]


async def test_a_request_is_known_for_as_long_as_its_lease(broker: Broker) -> None:
    """However old the request: the same id is never granted twice."""
    await broker.declare(terms(hold_seconds=20 * 86_400, ttl_seconds=20 * 86_400))
    await broker.send(acquire_request("r"))
    (lease,) = await broker.grants()
    await broker.send(confirm(lease))
    await broker.set_clock(9 * 86_400)
    await broker.prune()
    await broker.send(acquire_request("r"))
    assert [grant.lease_id for grant in await broker.grants()] == [lease.lease_id]
    assert await broker.held() == 1


async def test_a_lapsed_request_is_pruned(broker: Broker) -> None:
    """While lapsed it raises no alert and keeps no gang from being tried, and it is deleted like all old requests."""
    broker.use(waiter_ttl_seconds=100)
    await broker.declare(terms(), terms("sim-b"))
    await broker.send(acquire_request("full", 5, "sim-b"))
    await broker.request_gang("gone", **{"sim-a": 1, "sim-b": 1})
    await broker.decide()
    async with broker.pool.acquire() as db:
        assert await gangs.ready(db) == ["gone"]
    await broker.set_clock(110)
    await broker.pool.execute("UPDATE lease_pools SET dirty = true")
    await broker.decide()
    async with broker.pool.acquire() as db:
        assert await gangs.ready(db) == []
        assert {row.id: row.oldest_wait_seconds for row in await pools.overview(db)} == {"sim-a": None, "sim-b": None}
    await broker.set_clock(9 * 86_400)
    await broker.prune()
    assert await broker.pool.fetchval("SELECT count(*) FROM requests WHERE id = 'gone'") == 0
    assert await broker.pool.fetchval("SELECT count(*) FROM gangs") == 0


async def test_a_gang_reserves_units_only_while_it_could_start(broker: Broker) -> None:
    """Its reserved units go to others once one of its pools is drained; afterwards it has its old place."""
    await broker.declare(terms("sim-a", 2), terms("sim-b", 1))
    await broker.send(acquire_request("b", pool="sim-b"))
    (b,) = await broker.grants()
    await broker.request_gang("g", **{"sim-a": 2, "sim-b": 1})
    await broker.send(acquire_request("r1"))
    assert not await broker.try_gangs()
    assert await broker.grants() == [], "its units are kept while it waits for its turn elsewhere"

    await broker.pool.execute("UPDATE lease_pools SET drained_reason = 'maintenance', dirty = true WHERE id = 'sim-b'")
    assert not await broker.try_gangs()
    (r1,) = await broker.grants()
    assert r1.request_id == "r1"
    assert not await broker.try_gangs()
    assert await broker.decide() == 0, "it is not looked at again and again"

    await broker.pool.execute("UPDATE lease_pools SET drained_reason = NULL, dirty = true WHERE id = 'sim-b'")
    await broker.send(acquire_request("r2"), release(b))
    assert not await broker.try_gangs()
    assert await broker.grants() == [], "r2 came later"
    await broker.send(release(r1))
    assert await broker.try_gangs()
    assert names(await broker.grants()) == ["g", "g"]


async def test_a_gang_that_requests_too_much_reserves_nothing(broker: Broker) -> None:
    """Until a limit allows it."""
    await broker.declare(terms("sim-a", 2), terms("sim-b", 1))
    await broker.request_gang("g", **{"sim-a": 1, "sim-b": 2})
    await broker.send(acquire_request("r", 2))
    (r,) = await broker.grants()
    assert (r.request_id, r.units) == ("r", 2)
    reason = await broker.pool.fetchval("SELECT reason FROM history WHERE kind = 'queued' AND lease_pool_id = 'sim-a'")
    assert reason == "its gang cannot start in sim-b: requests 2 units, more than the limit of 1 allows: as declared"
    await broker.send(release(r))
    assert not await broker.try_gangs()
    await broker.declare(terms("sim-a", 2), terms("sim-b", 2))
    assert await broker.try_gangs()
    assert names(await broker.grants()) == ["g", "g"]


async def test_others_start_behind_many_that_request_too_much(broker: Broker) -> None:
    """Also of the same tenant, and without useless decisions."""
    await broker.send(
        *(acquire_request(f"n{n}", 6, whole=True) for n in range(40)),
        acquire_request("own"),
        acquire_request("other", tenant="mac"),
    )
    assert sorted(names(await broker.grants())) == ["other", "own"]
    assert await broker.decide() == 0


async def test_no_request_stays_hidden_with_many_queues(broker: Broker) -> None:
    """With many queues few requests are read of each; if all of them are skipped, more are read."""
    others = (acquire_request(f"o{n}", 6, whole=True, tenant=f"t{n}") for n in range(130))
    await broker.send(
        *others,
        *(acquire_request(f"n{n}", 6, whole=True) for n in range(40)),
        acquire_request("own"),
        acquire_request("next"),
    )
    assert names(await broker.grants()) == ["own", "next"]
    assert await broker.decide() == 0


async def test_the_first_of_each_queue_are_read_alone(broker: Broker) -> None:
    """By a plan that was kept since none waited."""

    async def ask(pool: str) -> None:
        await broker.send(*(acquire_request(f"{pool}-{n}", pool=pool, tenant=f"t{n}") for n in range(QUEUES)))

    await broker.declare(terms("other", QUEUES), terms("sim-a"))
    await ask("other")
    assert len(await broker.grants()) == QUEUES
    async with broker.pool.acquire() as db, db.transaction():
        await db.execute("ANALYZE requests")
        await db.execute(f"SELECT {PLANS_KEPT}")
        assert await requests.heads(db, "sim-a", enough=16) == ([], 16)
        await ask("sim-a")
        before = await db.fetchval(READ)
        found, _ = await requests.heads(db, "sim-a", enough=16)
        assert len(found) == QUEUES
        read = await db.fetchval(READ) - before
        assert read <= 3 * QUEUES, read


async def test_tenants_and_groups_are_pruned(broker: Broker) -> None:
    """Once they have no effect: not while they decide the next grant, a backoff, or the start of a member."""
    while_ = 8_640.0
    group = LeaseGroup(name="g", size=2, spread_seconds=10 * while_)
    await broker.declare(terms(limit=4, policy=Policy(pacing="off", backoff=Backoff(seconds=60))))
    await broker.send(
        acquire_request("m", 1, tenant="grouped", group=group),
        acquire_request("f", 1, tenant="failed"),
        acquire_request("s", 2, tenant="served"),
    )
    by_request = {grant.request_id: grant for grant in await broker.grants()}
    assert len(by_request) == 3
    await broker.send(release(by_request["f"], result="failed"), release(by_request["m"], result="done"))
    await broker.send(
        *(acquire_request(f"x{n}", 3, tenant="served", whole=True) for n in range(2)),
        acquire_request("y", 3, whole=True),
    )
    assert await broker.grants() == []

    async def remembered() -> tuple[list[str], list[str]]:
        await broker.prune(ended_kept_days=0.8)
        tenants = await broker.pool.fetch("SELECT tenant FROM tenants ORDER BY tenant")
        groups = await broker.pool.fetch("SELECT name FROM groups")
        return [row["tenant"] for row in tenants], [row["name"] for row in groups]

    assert await remembered() == (["failed", "served"], ["g (2 in 86400 s)"])
    await broker.send(release(by_request["s"]))
    assert names(await broker.grants()) == ["y"], "the other was served before"
    await broker.set_clock(9 * while_)
    assert await remembered() == (["served"], ["g (2 in 86400 s)"])
    await broker.set_clock(11 * while_)
    assert await remembered() == (["served"], [])


async def test_an_old_attempt_makes_one_request_old(broker: Broker) -> None:
    """Of the same tenant and operation; otherwise a former holder could pass all others with any request."""
    await broker.send(acquire_request("r1", 5))
    (lease,) = await broker.grants()
    old = ReplacedLease(lease_id=lease.lease_id, fencing_token=lease.fencing_token)
    await broker.set_clock(20)
    await broker.send(
        acquire_request("destroy", operation="destroy", replaces=old),
        acquire_request("mac", tenant="mac", replaces=old),
    )
    assert await broker.held() == 0, "its holder released it, whatever follows"
    await broker.send(acquire_request("r2", replaces=old))
    await broker.send(acquire_request("r3", replaces=old))
    rows = await broker.pool.fetch("SELECT id, since FROM requests WHERE id <> 'r1' ORDER BY place")
    assert [tuple(row) for row in rows] == [
        ("destroy", after(20)),
        ("mac", after(20)),
        ("r2", after(0)),
        ("r3", after(20)),
    ]


async def test_a_holder_without_progress_is_lost(broker: Broker) -> None:
    """However often it renews; its units stay counted for the lock delay of its pool."""
    await declared(broker, Policy(pacing="off", no_progress_seconds=100, lock_delay_seconds=7))
    await broker.send(acquire_request("r"))
    (lease,) = await broker.grants()
    await broker.send(confirm(lease), renew(lease, "1 of 3"))
    await broker.set_clock(60)
    await broker.send(renew(lease, "2 of 3"))
    await broker.set_clock(159)
    await broker.send(renew(lease, "2 of 3"))
    await broker.decide()
    assert kinds(await broker.events()) == ["LeaseConfirmed"] * 4
    await broker.set_clock(160)
    await broker.decide()
    (lost,) = await broker.events()
    assert isinstance(lost, LeaseLost)
    assert lost.counted_until == after(167)
    assert await broker.pool.fetchval("SELECT reason FROM leases") == "no-progress"


async def test_a_lapsed_request_is_skipped(broker: Broker) -> None:
    """Its wait is not awaited: the next request gets its unit. Once it is repeated it has its old place."""
    broker.use(waiter_ttl_seconds=100)
    await broker.send(acquire_request("r1", 5))
    (lease,) = await broker.grants()
    await broker.send(acquire_request("dead", 5))
    await broker.set_clock(60)
    await broker.send(acquire_request("alive", 1))
    await broker.set_clock(110)
    await broker.send(release(lease, 1))
    assert names(await broker.grants()) == ["alive"]
    assert await broker.pool.fetchval("SELECT waiting_requests FROM lease_pools") == 0
    await broker.send(acquire_request("dead", 5), acquire_request("late", 1), release(lease, 4))
    assert [(grant.request_id, grant.units) for grant in await broker.grants()] == [("dead", 4)]


async def test_a_failing_tenant_backs_off(broker: Broker) -> None:
    """Its units are free at once for others; it may start again after its backoff, which a success ends."""
    await broker.send(acquire_request("r1", 5, tenant="broken"))
    (lease,) = await broker.grants()
    await broker.send(
        acquire_request("r2", 1, tenant="broken"),
        acquire_request("s1", 1, tenant="sound"),
        release(lease, 4, result="failed"),
    )
    assert names(await broker.grants()) == ["s1"]
    await broker.set_clock(30)
    assert names(await broker.grants()) == ["r2"]
    await broker.send(release(lease, 1, result="done"))
    assert await broker.pool.fetchval("SELECT failures FROM tenants WHERE tenant = 'broken'") == 0


async def test_a_retry_after_blocks_the_pool(broker: Broker) -> None:
    """Nothing starts before, whatever is free; then by the clock alone."""
    await broker.send(acquire_request("r1", 2))
    (lease,) = await broker.grants()
    await broker.send(acquire_request("r2"), release(lease, 1, throttled=True, retry_after_seconds=45))
    assert await broker.grants() == []
    await broker.set_clock(45)
    assert names(await broker.grants()) == ["r2"]


async def test_throttling_cuts_an_adaptive_limit(broker: Broker) -> None:
    """Once per hold, published with its cause; a pin resets it to the declared limit, which then never changes."""
    await declared(broker, Policy(pacing="off", adaptive=Bounds(floor=2, ceiling=30)), limit=20)
    await broker.send(acquire_request("r1", 20))
    (lease,) = await broker.grants()
    await broker.send(*[release(lease, 1, throttled=True)] * 15)
    await broker.decide()
    (changed,) = [event for event in await broker.events() if isinstance(event, LeaseLimitChanged)]
    assert 2 <= changed.limit < 20
    assert changed.previous_limit == 20
    assert changed.reason.startswith("limit 20 → ")
    assert "throttled" in changed.reason
    await broker.send(*[release(lease, 1, throttled=True)] * 4)
    await broker.decide()
    assert await broker.pool.fetchval("SELECT limit_in_force FROM lease_pools") == changed.limit
    await broker.pool.execute("UPDATE lease_pools SET pinned_reason = 'ratchet', dirty = true")
    await broker.decide()
    assert await broker.pool.fetchval("SELECT limit_reason FROM lease_pools") == "pinned: ratchet"
    assert await broker.pool.fetchval("SELECT limit_in_force FROM lease_pools") == 20


async def test_a_release_after_the_hold_is_recorded_once(broker: Broker) -> None:
    """Only its throttle evidence: no unit is released, its tenant does not back off, and a repetition is refused."""
    await broker.send(acquire_request("r1", 3))
    (lease,) = await broker.grants()
    await broker.send(confirm(lease))
    for seconds in range(200, 1200, 200):
        await broker.set_clock(seconds)
        await broker.send(renew(lease))
    await broker.set_clock(1200)
    await broker.decide()
    ended = await broker.pool.fetchrow("SELECT state, units, ended_at, reason FROM leases")
    assert ended["reason"] == "hold"
    await broker.events()
    await broker.set_clock(1300)
    late = release(lease, result="failed", throttled=True, retry_after_seconds=45)
    for again_after in (0, 30):
        await broker.set_clock(1300 + again_after)
        await broker.send(late, late, acquire_request(f"after {again_after}"))
        assert await broker.grants() == []
    await broker.set_clock(1345)
    assert names(await broker.grants()) == ["after 0", "after 30"]
    assert (
        await broker.pool.fetchrow("SELECT state, units, ended_at, reason FROM leases WHERE id = $1", lease.lease_id)
        == ended
    )
    assert await broker.pool.fetchval("SELECT coalesce(sum(failures), 0) FROM tenants") == 0
    published = [(entry.kind, entry.at) for entry in await history.of_lease(broker.pool, lease.lease_id)]
    assert published[-3:] == [("released", after(1200)), ("reported-late", after(1300)), ("throttled", after(1300))]


@pytest.mark.parametrize(("throttled", "limit"), [([True] * 10, 18), ([True] * 5 + [False] * 5 + [True] * 4, 20)])
async def test_an_adaptive_limit_counts_operations_that_outlast_their_hold(
    broker: Broker, throttled: list[bool], limit: int
) -> None:
    """Also of successful ones. The duration of leases is measured by released ones."""
    await declared(broker, Policy(pacing="off", adaptive=Bounds(floor=2, ceiling=30)), limit=20, ttl_seconds=1200)
    await broker.send(*(acquire_request(f"r{n}") for n in range(20)))
    grants = await broker.grants()
    await broker.send(*map(confirm, grants))
    await broker.set_clock(1200)
    await broker.decide()
    await broker.set_clock(5000)
    for _ in range(2):
        await broker.send(*(release(lease, throttled=met) for lease, met in zip(grants, throttled, strict=False)))
        await broker.decide()
    state = msgspec.json.decode(await broker.pool.fetchval("SELECT adaptive::text FROM lease_pools"))
    assert int(state["limit"]) == limit
    assert state["held_seconds"] is None


async def test_a_derived_limit_outlives_its_report_with_an_alert(broker: Broker) -> None:
    """The last value holds; one alert is raised, and resolved when reports are back."""
    await declared(broker, Policy(pacing="off", derived=Derived(per_unit=0.29)), limit=5)
    report = "UPDATE lease_pools SET derived_units = 100, derived_until = $1, dirty = true"
    await broker.pool.execute(report, after(60))
    await broker.send(acquire_request("r", 99))
    assert [grant.units for grant in await broker.grants()] == [29]
    await broker.set_clock(60)
    await broker.decide()
    (alert,) = await broker.events()
    assert isinstance(alert, AlertRaised)
    row = await broker.pool.fetchrow("SELECT limit_in_force, limit_reason FROM lease_pools")
    assert tuple(row) == (29, "derived: 0.29 × 100 units (stale report)")
    assert await broker.decide() == 0
    await broker.pool.execute(report, after(200))
    await broker.decide()
    assert [type(event) for event in await broker.events()] == [AlertResolved]


async def test_a_derived_limit_is_one_that_can_be_declared(broker: Broker) -> None:
    """Any reported number is capped, since the column has the same bound."""
    await broker.declare(terms(policy=Policy(pacing="off", derived=Derived(per_unit=9_999))))
    await broker.pool.execute("UPDATE lease_pools SET derived_units = 1000000, dirty = true")
    await broker.send(acquire_request("r"))
    assert names(await broker.grants()) == ["r"]
    assert await broker.pool.fetchval("SELECT limit_in_force FROM lease_pools") == 1_000_000


async def test_a_drained_pool_starts_nothing(broker: Broker) -> None:
    """It revokes nothing either; undrained it goes on."""
    await broker.send(acquire_request("r1", 2))
    assert names(await broker.grants()) == ["r1"]
    await broker.pool.execute("UPDATE lease_pools SET drained_reason = 'maintenance', dirty = true")
    await broker.send(acquire_request("r2"))
    assert await broker.grants() == []
    assert await broker.held() == 2
    await broker.pool.execute("UPDATE lease_pools SET drained_reason = NULL, dirty = true")
    assert names(await broker.grants()) == ["r2"]


async def test_a_request_may_shorten_its_hold(broker: Broker) -> None:
    await broker.send(acquire_request("r1", hold_seconds=60), acquire_request("r2", hold_seconds=99_999))
    assert [grant.hold_until for grant in await broker.grants()] == [after(60), after(1200)]


async def test_every_decision_has_a_line_of_history(broker: Broker) -> None:
    """With its actor; time and the broker's own decisions have none."""
    await broker.send(acquire_request("r1", 5))
    (lease,) = await broker.grants()
    await broker.send(acquire_request("r2", 1))
    await broker.decide()
    await broker.send(confirm(lease), release(lease, 4), cancel("r2"))
    await broker.set_clock(2000)
    await broker.decide()
    entries = [entry for _, entry in await history.of_pool(broker.pool, "sim-a", limit=10)]
    assert [(entry.kind, entry.reason, entry.actor) for entry in reversed(entries)] == [
        ("granted", "5 units granted to request r1", ""),
        ("queued", "5 of 5 held", ""),
        ("confirmed", "confirmed by its holder", "provisioner"),
        ("released", "4 units released: registered", "provisioner"),
        ("cancelled", "demand fell", "provisioner"),
        ("lost", f"lost, not renewed in time: 1 unit counted until {after(2070)}", ""),
    ]
    assert [entry.kind for entry in await history.of_lease(broker.pool, lease.lease_id)] == [
        "granted",
        "confirmed",
        "released",
        "lost",
    ]


async def test_past_leases_include_partial_releases(broker: Broker) -> None:
    """The final release is not part of them; partial ones pruned from the history count until the end."""
    await broker.send(acquire_request("r", 4))
    (lease,) = await broker.grants()
    for seconds, units in ((100, 1), (200, 2), (300, 1)):
        await broker.set_clock(seconds)
        await broker.send(release(lease, units))
    await broker.send(acquire_request("s", 5))
    (other,) = await broker.grants()
    await broker.set_clock(400)
    await broker.send(release(other, 2), acquire_request("t", 9))
    assert len(await broker.grants()) == 1

    async def past() -> list[PastLease]:
        async with broker.pool.acquire() as db:
            return await past_leases.since(db, "sim-a", START, limit=100)

    assert {(lease.units, lease.ended_at): lease.returned for lease in await past()} == {
        (4, after(300)): ((after(100), 1), (after(200), 2)),
        (5, None): ((after(400), 2),),
        (2, None): (),
        (7, None): (),  # waits
    }
    await broker.set_clock(450)
    await broker.pool.execute("DELETE FROM history")
    assert [lease.returned for lease in await past()] == [(), (), (), ()]


async def test_more_than_one_decision_takes_on(broker: Broker) -> None:
    """Rows that were not loaded are decided right after, in the same order."""
    await broker.declare(terms(limit=1500))
    for start in range(0, 1500, 500):
        await broker.send(*(acquire_request(f"r{n:04}") for n in range(start, start + 500)))
    assert names(await broker.grants()) == [f"r{n:04}" for n in range(1500)]
    await broker.set_clock(180)
    await broker.decide()
    assert await broker.held() == 0
