"""Two sessions on one lease pool: never over the limit, no double grant, no lost wake-up, no revived lease."""

import asyncio
from typing import Any, Final

import slipway_lease_broker
from slipway_api.events.lease import LeaseConfirmed, LeaseExpired, LeaseGranted, LeaseGroup, LeaseLost, LeaseReleased
from slipway_common.database.postgres import Connection
from slipway_common.database.retention import DAY_SECONDS
from slipway_lease_broker import apply
from slipway_lease_broker.domain.exchange import Submission
from slipway_lease_broker.domain.reception import Downtime, Reception
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.loops.sweep import sweep
from slipway_lease_broker.store import answers, pools, reception, retention, slots
from slipway_lease_broker.store import terms as live
from tests.support.harness import PATIENCE_SECONDS, until_ended_or_waiting
from tests.support.lease_broker import (
    PROVISIONER,
    Broker,
    acquire_request,
    after,
    cancel,
    confirm,
    release,
    renew,
    terms,
)
from tests.support.lease_decisions import APPLIED, WAITING, during_decision, of_owner
from tests.support.statements import Covered

EIGHT_DAYS: Final = 8 * DAY_SECONDS
VERIFIED: Final = "SELECT count(verified_at) FROM lease_pools WHERE id = 'sim-a'"
locking: Final = Covered(slipway_lease_broker)


@locking("store.terms.RESTORED")
async def test_a_restore_during_a_decision_counts_for_the_next(broker: Broker) -> None:
    """The decision under way commits as it read; the restore waits for it, and nothing is granted after it."""

    async def restore() -> None:
        async with broker.pool.acquire() as db, db.transaction():
            await live.restored(db, 2**50)

    await broker.send(acquire_request("first"))
    await during_decision(broker, restore())
    await broker.send(acquire_request("second"))
    assert [grant.request_id for grant in await broker.grants()] == ["first"]
    assert await broker.pool.fetchval("SELECT last_token FROM lease_pools") == 2**50


@locking("store.terms.DRAIN", "store.terms.PIN", "store.terms.REPORT_UNITS")
async def test_a_change_by_an_operator_during_a_decision_counts_for_the_next(broker: Broker) -> None:
    """The decision under way commits as it read; the change waits for it and makes the pool due again."""

    async def change() -> None:
        async with broker.pool.acquire() as db, db.transaction():
            (pool,) = await pools.lock(db, ["sim-a"])
            await live.report_units(db, pool.id, 7, after(60))
            await live.pin(db, pool.id, "ratchet")
            await live.drain(db, pool.id, "moving")

    await broker.send(acquire_request("first"))
    await during_decision(broker, change())
    await broker.send(acquire_request("second"))
    assert [grant.request_id for grant in await broker.grants()] == ["first"]
    row = await broker.pool.fetchrow("SELECT * FROM lease_pools")
    assert (row["drained_reason"], row["pinned_reason"], row["derived_units"]) == ("moving", "ratchet", 7)
    assert row["limit_reason"] == "drained: moving"


@locking("store.reception.ADD", "store.reception.LOCK", "store.reception.SAVE")
async def test_two_processes_record_one_downtime(broker: Broker) -> None:
    """The second waits for the first, reads the clock then, and finds no downtime."""
    async with broker.pool.acquire() as db, db.transaction():
        await reception.record(db, {"http": 0.0})
    await broker.set_clock(60)
    async with broker.pool.acquire() as first, broker.pool.acquire() as second:
        async with first.transaction():
            recorded = await reception.record(first, {"http": 0.0, "3": 1.0})

            async def record() -> dict[str, Reception]:
                async with second.transaction():
                    return await reception.record(second, {"3": 0.0, "http": 0.5})

            recording = broker.start(record())
            await broker.until_waiting(recording)
        assert recorded["http"] == Reception(after(60), (Downtime(after(0), after(60)),))
        assert await recording == recorded


@locking("store.pools.CLAIM")
async def test_a_pool_being_decided_is_skipped(broker: Broker) -> None:
    """A second decider neither waits nor decides; if the first rolls back, the pool is still due."""
    await broker.send(acquire_request("r"))
    async with broker.pool.acquire() as db:
        transaction = db.transaction()
        await transaction.start()
        assert await pools.claim(db, ["sim-a"]) is not None
        assert await broker.loop.step(broker.pool) is False
        await transaction.rollback()
    assert len(await broker.grants()) == 1


@locking("store.pools.CLAIM", "store.pools.SETTLE", "store.requests.SAVE")
async def test_two_deciders_grant_each_unit_once(broker: Broker) -> None:
    """The second sees the commit of the first or nothing: units, tokens and waiting units add up."""
    for round_ in range(20):
        await broker.send(acquire_request(f"r{round_}", 5))
        await asyncio.gather(*(broker.loop.step(broker.pool) for _ in range(4)))
        grants = await broker.grants()
        assert [(g.units, g.fencing_token) for g in grants] == [(3, round_ + 1)]
        await broker.send(cancel(f"r{round_}", 2), release(grants[0]))


@locking("store.pools.LOCK", "store.pools.MARK", "store.pools.SETTLE")
async def test_a_command_during_a_decision_is_not_missed(broker: Broker) -> None:
    """It waits for the decision, marks the pool again, and the next decision sees it."""
    await broker.send(acquire_request("first"))
    await during_decision(broker, broker.send(acquire_request("second")))
    assert [grant.request_id for grant in await broker.grants()] == ["first", "second"]


@locking("store.pools.LOCK", "store.pools.MARK", "store.pools.PUT_OFF")
async def test_a_command_before_a_pool_is_put_off_is_not_lost(broker: Broker) -> None:
    """Its mark is cleared by the postponement, which waited for it; the decision is made when the pool is due again."""
    async with broker.pool.acquire() as db:
        async with db.transaction():
            await broker.send_in(db, acquire_request("r"))
            putting = broker.start(pools.put_off(broker.pool, "sim-a", "it failed", seconds=30))
            await broker.until_waiting(putting)
        await putting
    assert await broker.grants() == []
    await broker.set_clock(30)
    assert [grant.request_id for grant in await broker.grants()] == ["r"]


@locking("store.pools.LOCK", "store.pools.MARK", "store.pools.CLAIM")
async def test_a_decision_during_a_command_comes_after_it(broker: Broker) -> None:
    """The pool is skipped while the command is being written, and due once it has committed."""
    await broker.send(acquire_request("first"))
    async with broker.pool.acquire() as db, db.transaction():
        await broker.send_in(db, acquire_request("second"))
        assert await broker.loop.step(broker.pool) is False
    assert [grant.request_id for grant in await broker.grants()] == ["first", "second"]


@locking("store.pools.LOCK")
async def test_pools_are_locked_in_one_order(broker: Broker) -> None:
    """Batches that name the same pools in opposite orders do not deadlock."""
    await broker.declare(terms("a", 9), terms("b", 9))
    for round_ in range(15):
        await asyncio.gather(
            broker.send(acquire_request(f"x{round_}", pool="a"), acquire_request(f"x{round_}", pool="b")),
            broker.send(acquire_request(f"y{round_}", pool="b"), acquire_request(f"y{round_}", pool="a")),
        )
    assert await broker.pool.fetchval("SELECT count(*) FROM requests") == 60


@locking("store.pools.LOCK", "store.leases.SAVE")
async def test_a_renewal_that_waited_for_an_expiry_does_not_revive(broker: Broker) -> None:
    """Its units were granted to the next in the queue, so its holder gets LeaseLost; one lease on a limit of 3."""
    await broker.send(acquire_request("r1", 3), acquire_request("r2", 3))
    (lease,) = await broker.grants()
    await broker.set_clock(180)
    await during_decision(broker, broker.send(renew(lease)))
    expired, granted, lost = await broker.events()
    assert isinstance(expired, LeaseExpired)
    assert isinstance(granted, LeaseGranted)
    assert granted.request_id == "r2"
    assert isinstance(lost, LeaseLost)
    assert lost.lease_id == lease.lease_id
    assert await broker.held() == 3


@locking("store.pools.LOCK", "store.pools.CLAIM", "store.leases.SAVE")
async def test_a_renewal_that_comes_first_keeps_the_lease(broker: Broker) -> None:
    """Past its deadline but before its expiry has committed: the decision after it finds a live lease."""
    await broker.send(acquire_request("r1", 3), acquire_request("r2", 3))
    (lease,) = await broker.grants()
    await broker.set_clock(180)
    async with broker.pool.acquire() as db, db.transaction():
        await broker.send_in(db, confirm(lease))
        assert await broker.loop.step(broker.pool) is False
    assert await broker.grants() == []
    assert await broker.held() == 3


@locking("store.pools.LOCK")
async def test_the_clock_is_read_after_the_lock(broker: Broker) -> None:
    """The deadline of a confirm that waited a minute for the lock counts from when it got it."""
    await broker.send(acquire_request("r"))
    (lease,) = await broker.grants()
    async with broker.pool.acquire() as db:
        async with db.transaction():
            await pools.lock(db, ["sim-a"])
            waiting = broker.start(broker.send(confirm(lease)))
            await broker.until_waiting(waiting)
            await broker.set_clock(60)
        await waiting
    (published,) = await broker.events()
    assert isinstance(published, LeaseConfirmed)
    assert published.expires_at == after(60 + 300)


@locking("store.pools.LOCK", "store.pools.MARK")
async def test_a_deadline_set_during_a_decision_is_not_missed(broker: Broker) -> None:
    """A confirm with a ttl below the reserve deadline moves the pool's wake-up forward, whichever commits last."""
    await broker.declare(terms(limit=3, ttl_seconds=10))
    await broker.send(acquire_request("r1"))
    (lease,) = await broker.grants()
    await broker.send(acquire_request("r2"))
    await during_decision(broker, broker.send(confirm(lease)))
    await broker.events()
    await broker.set_clock(10)
    await broker.decide()
    (lost,) = await broker.events()
    assert isinstance(lost, LeaseLost)
    assert lost.lease_id == lease.lease_id


@locking("store.pools.MARK")
async def test_a_renewal_hides_no_request(broker: Broker) -> None:
    """A mark that asks for no decision keeps an earlier mark that does, and keeps the earlier deadline."""
    await broker.send(acquire_request("r1"))
    (lease,) = await broker.grants()
    await broker.send(acquire_request("r2"))
    await broker.set_clock(10)
    await broker.send(confirm(lease))
    assert [grant.request_id for grant in await broker.grants()] == ["r2"]


@locking("store.pools.LOCK", "store.leases.SAVE")
async def test_two_releases_return_the_units_held(broker: Broker) -> None:
    """The second counts from the units that the first left."""
    await broker.send(acquire_request("r", 3))
    (lease,) = await broker.grants()
    async with broker.pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE leases IN SHARE MODE")  # the first has read and cannot write yet
            releases = [broker.start(broker.send(release(lease, 2))) for _ in range(2)]
            await broker.until_waiting(*releases)
        await asyncio.gather(*releases)
    published = [(e.units, e.remaining) for e in await broker.events() if isinstance(e, LeaseReleased)]
    assert published == [(2, 1), (1, 0)]
    assert await broker.held() == 0


@locking("store.requests.SAVE")
async def test_a_cancel_during_the_grant_changes_nothing(broker: Broker) -> None:
    """Granted units are not cancelled; units cancelled first are not granted."""
    await broker.send(acquire_request("r", 2))
    await during_decision(broker, broker.send(cancel("r", 2)), table="requests")
    assert [grant.units for grant in await broker.grants()] == [2]

    await broker.send(acquire_request("s", 1))
    async with broker.pool.acquire() as db, db.transaction():
        await broker.send_in(db, cancel("s", 1))
        assert await broker.loop.step(broker.pool) is False
    assert await broker.grants() == []


@locking("store.requests.LAPSE", "store.requests.SAVE")
async def test_a_request_repeated_as_it_lapses(broker: Broker) -> None:
    """Whichever commits last, it is in the queue again and counted once."""
    broker.use(waiter_ttl_seconds=100)
    await broker.send(acquire_request("r1", 3), acquire_request("r2", 3))
    (lease,) = await broker.grants()
    await broker.set_clock(101)
    await broker.pool.execute("UPDATE lease_pools SET dirty = true")
    await during_decision(broker, broker.send(acquire_request("r2", 3)), table="requests")
    assert await broker.pool.fetchval("SELECT waiting_units FROM lease_pools") == 3
    await broker.send(release(lease))
    assert [grant.request_id for grant in await broker.grants()] == ["r2"]


@locking("store.tenants.SAVE")
async def test_a_failure_during_a_grant_to_its_tenant(broker: Broker) -> None:
    """Both the share of the grant and the backoff of the failure are stored."""
    await broker.send(acquire_request("r1"), acquire_request("r2"))
    first, _ = await broker.grants()
    await broker.send(acquire_request("r3"))
    await during_decision(broker, broker.send(release(first, result="failed")), table="tenants")
    row = await broker.pool.fetchrow("SELECT * FROM tenants")
    assert (row["virtual_finish"], row["failures"], row["backoff_until"]) == (3, 1, after(30))


@locking("store.groups.SAVE")
async def test_a_member_that_arrives_while_another_starts(broker: Broker) -> None:
    """It is counted, and keeps its distance from the start that it did not see."""
    group = LeaseGroup(name="payload", size=3, spread_seconds=30)
    await broker.send(acquire_request("r1", group=group))
    await during_decision(broker, broker.send(acquire_request("r2", group=group)), table="groups")
    row = await broker.pool.fetchrow("SELECT * FROM groups")
    assert (row["members"], row["first_at"], row["last_start_at"]) == (2, after(0), after(0))
    assert [grant.request_id for grant in await broker.grants()] == ["r1"]
    await broker.set_clock(10)
    assert [grant.request_id for grant in await broker.grants()] == ["r2"]


@locking("store.retention.DELETE_ENTRIES")
async def test_the_history_is_pruned_twice_at_once(broker: Broker) -> None:
    """The second does not wait for the first, and leaves its rows to it; newer rows stay."""
    await apply.declare(broker.pool, of_owner("a.yaml", terms("old")), APPLIED)
    await broker.send(acquire_request("old", pool="old"))
    await broker.grants()
    await broker.set_clock(61 * DAY_SECONDS)
    await apply.declare(broker.pool, of_owner("b.yaml", terms("new")), APPLIED)
    await broker.send(acquire_request("new", pool="new"))
    await broker.grants()
    async with broker.pool.acquire() as db, db.transaction():
        await db.execute(retention.DELETE_ENTRIES.text, EIGHT_DAYS)
        pruning = broker.start(broker.prune())
        await until_ended_or_waiting(broker.pool, pruning)
        assert pruning.done(), "pruning waits for a lock"
    await pruning
    assert await broker.pool.fetchval("SELECT min(at) FROM history") == after(61 * DAY_SECONDS)


@locking("store.requests.LOCK", "store.retention.DELETE_REQUESTS", "store.retention.DELETE_LEASES", "store.pools.LOCK")
async def test_a_repeated_request_is_not_pruned(broker: Broker) -> None:
    """Pruning waits for nobody, not even for the lock of the lease pool. It passes over a request that is repeated just
    then, and deletes a lease that ended long ago."""
    await broker.send(acquire_request("r"))
    (lease,) = await broker.grants()
    await broker.send(release(lease))
    await broker.set_clock(9 * DAY_SECONDS)
    async with broker.pool.acquire() as db, db.transaction():
        await broker.send_in(db, acquire_request("r"), renew(lease))
        await broker.prune()
        await broker.prune()
    assert await broker.pool.fetchval("SELECT count(*) FROM requests") == 1
    assert await broker.pool.fetchval("SELECT count(*) FROM leases") == 0
    assert await broker.pool.fetchval("SELECT count(*) FROM history") == 0
    assert await broker.grants() == []


@locking("store.requests.LOCK", "store.retention.DELETE_REQUESTS")
async def test_a_request_repeated_as_it_is_pruned(broker: Broker) -> None:
    """A repetition that finds its request being deleted waits for that, and is then a new request."""
    await broker.send(acquire_request("r"))
    (lease,) = await broker.grants()
    await broker.send(release(lease))
    await broker.set_clock(9 * DAY_SECONDS)
    async with broker.pool.acquire() as db:
        async with db.transaction():
            assert await db.execute(retention.DELETE_LEASES.text, EIGHT_DAYS) == "DELETE 1"
            assert await db.execute(retention.DELETE_REQUESTS.text, EIGHT_DAYS) == "DELETE 1"
            repeat = broker.start(broker.send(acquire_request("r")))
            await broker.until_waiting(repeat)
        await repeat
    assert [grant.request_id for grant in await broker.grants()] == ["r"]


@locking("store.retention.DELETE_GROUPS", "store.groups.SAVE", "store.retention.DELETE_TENANTS", "store.tenants.SAVE")
async def test_a_group_and_a_tenant_that_are_used_as_they_are_pruned(broker: Broker) -> None:
    """Pruning passes over the rows of an open decision and deletes those of others. A decision that finds rows being
    deleted waits for that and writes them again."""
    nightly = LeaseGroup(name="nightly", size=2, spread_seconds=60)
    await broker.send(acquire_request("r1", tenant="back", group=nightly), acquire_request("r2", 2, tenant="gone"))
    assert len(await broker.grants()) == 2
    await broker.set_clock(9 * DAY_SECONDS)
    await broker.decide()
    async with broker.pool.acquire() as db:
        async with db.transaction():
            admission = broker.admissions.begin(db)
            await admission.lock(["sim-a"])
            again = acquire_request("r3", tenant="back", group=nightly)
            await admission.apply([Submission(command=again, sender=Sender(name=PROVISIONER, over_kafka=True))])
            await broker.prune()
        assert await broker.pool.fetchval("SELECT array_agg(tenant) FROM tenants") == ["back"]
        assert await broker.pool.fetchval("SELECT first_at FROM groups") == after(9 * DAY_SECONDS)
        await broker.set_clock(18 * DAY_SECONDS)
        await broker.decide()
        async with db.transaction():
            assert await db.execute(retention.DELETE_GROUPS.text, EIGHT_DAYS) == "DELETE 1"
            assert await db.execute(retention.DELETE_TENANTS.text, EIGHT_DAYS) == "DELETE 1"
            repeat = broker.start(broker.send(acquire_request("r4", tenant="back", group=nightly)))
            await broker.until_waiting(repeat)
        await repeat
    assert [grant.request_id for grant in await broker.grants()] == ["r3", "r4"]
    assert await broker.pool.fetchval("SELECT array_agg(tenant) FROM tenants") == ["back"]
    assert await broker.pool.fetchval("SELECT first_at FROM groups") == after(18 * DAY_SECONDS)


@locking("store.retention.DELETE_GANGS", "store.gangs.ADD")
async def test_a_gang_repeated_as_it_is_pruned(broker: Broker) -> None:
    """Its row exists whenever its requests do."""
    await broker.request_gang("g", **{"sim-a": 1})
    (lease,) = await broker.grants()
    await broker.send(release(lease))
    await broker.set_clock(9 * DAY_SECONDS)
    await broker.pool.execute("DELETE FROM requests")
    async with broker.pool.acquire() as db:
        async with db.transaction():
            await broker.request_gang_in(db, "g", **{"sim-a": 3})
            await broker.prune()
        assert await broker.pool.fetchval("SELECT count(*) FROM gangs") == 1
        await broker.pool.execute("DELETE FROM requests")
        await broker.set_clock(18 * DAY_SECONDS)
        async with db.transaction():
            assert await db.execute(retention.DELETE_GANGS.text, EIGHT_DAYS) == "DELETE 1"
            repeat = broker.start(broker.request_gang("g", **{"sim-a": 1}))
            await broker.until_waiting(repeat)
        await repeat
    assert await broker.pool.fetchval("SELECT requested_at FROM gangs") == after(18 * DAY_SECONDS)


@locking("store.retention.DELETE_SLOT_REQUESTS")
async def test_a_slot_request_repeated_as_it_is_pruned(broker: Broker) -> None:
    """Pruning passes over one that is being repeated; a repetition that finds it being deleted joins the queue anew."""

    async def join(db: Connection, days: float) -> slots.Place:
        now = after(days * DAY_SECONDS)
        about: Any = {"requested_by": "ann", "slot_count": 1, "lease_request_id": "l"}
        place = await slots.join(db, "sim-a", "free", "ann", "r", now=now, **about)
        assert place is not None
        return place

    async def again() -> slots.Place:
        async with broker.pool.acquire() as other:
            return await join(other, 18)

    async with broker.pool.acquire() as db:
        first = await join(db, 0)
        await broker.set_clock(9 * DAY_SECONDS)
        async with db.transaction():
            await join(db, 9)
            await broker.prune()
        assert await join(db, 9) == first
        await broker.set_clock(18 * DAY_SECONDS)
        async with db.transaction():
            assert await db.execute(retention.DELETE_SLOT_REQUESTS.text, EIGHT_DAYS) == "DELETE 1"
            joining = broker.start(again())
            await broker.until_waiting(joining)
        assert (await joining).place > first.place


@locking("store.pools.CLAIM_UNVERIFIED", "store.pools.VERIFY")
async def test_counters_are_verified_beside_commands(broker: Broker) -> None:
    """Verification skips locked pools, and does not report uncommitted changes as drift."""
    await broker.send(acquire_request("r1", 2), acquire_request("r2", 4))
    (lease, _) = await broker.grants()
    async with broker.pool.acquire() as db, db.transaction():
        await broker.send_in(db, release(lease))
        await sweep(broker.pool)
        assert await broker.pool.fetchval(VERIFIED) == 0
    async with broker.pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE lease_pools IN SHARE MODE")
            command = broker.start(broker.send(acquire_request("r3")))
            await broker.until_waiting(command)
            proof = broker.start(sweep(broker.pool))
        await asyncio.gather(proof, command)
    assert await broker.pool.fetchval("SELECT count(*) FROM history WHERE kind = 'repaired'") == 0

    await broker.pool.execute("UPDATE lease_pools SET held_units = 9, held = '{}', verified_at = NULL")
    await sweep(broker.pool)
    reason = await broker.pool.fetchval("SELECT reason FROM history WHERE kind = 'repaired'")
    assert reason == "held was {}, rows give {'launch': 1}; held_units was 9, rows give 1"
    await broker.decide()
    assert await broker.held() == await broker.pool.fetchval("SELECT held_units FROM lease_pools") == 3


@locking(
    "store.pools.LOCK",
    "store.pools.MARK",
    "store.pools.CLAIM",
    "store.pools.SETTLE",
    "store.leases.SAVE",
    "store.requests.SAVE",
)
async def test_all_at_once(broker: Broker) -> None:
    """Two replicas that send commands and decide at the same time: never over the limit, every unit granted once, no
    grantable unit left, tokens in order."""
    stop = asyncio.Event()
    todo = {f"r{n}": 1 + n % 4 for n in range(40)}
    seen: set[str] = set()

    async def decider() -> None:
        while not stop.is_set():
            if not await broker.loop.step(broker.pool):
                await asyncio.sleep(0.001)

    async def holders(share: int) -> None:
        for name in [name for n, name in enumerate(todo) if n % 2 == share]:
            await broker.send(acquire_request(name, todo[name]))
            await broker.send(acquire_request(name, todo[name]))
        while await broker.pool.fetchval(WAITING) or await broker.held():
            for lease in await answers.held(broker.pool, "sim-a", None, None, limit=100):
                if lease.fencing_token % 2 != share or lease.id in seen:
                    continue
                seen.add(lease.id)
                grant = LeaseGranted(
                    lease_pool_id="sim-a",
                    lease_id=lease.id,
                    request_id=lease.request_id,
                    units=lease.units,
                    fencing_token=lease.fencing_token,
                    expires_at=lease.expires_at,
                    hold_until=lease.hold_until,
                    waited_seconds=0,
                )
                await broker.send(confirm(grant), renew(grant))
                await broker.send(release(grant))

    deciders = [broker.start(decider()) for _ in range(2)]
    await asyncio.wait_for(asyncio.gather(holders(0), holders(1)), PATIENCE_SECONDS)
    stop.set()
    await asyncio.gather(*deciders)

    held, tokens, granted = 0, [0], dict.fromkeys(todo, 0)
    for event in await broker.events():  # transactions of one pool are serial: this is the order of their commits
        # A request that is repeated while it holds units is answered with the same grants.
        if isinstance(event, LeaseGranted) and event.fencing_token in tokens:
            continue
        if isinstance(event, LeaseGranted):
            held += event.units
            granted[event.request_id] += event.units
            assert event.fencing_token == tokens[-1] + 1
            tokens.append(event.fencing_token)
        elif isinstance(event, LeaseReleased):
            held -= event.units
        assert held <= 3
        assert not isinstance(event, LeaseExpired | LeaseLost)
    assert (held, granted) == (0, todo)
