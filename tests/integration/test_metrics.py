"""Gauges show current objects only."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from prometheus_client import REGISTRY, generate_latest

from slipway_api.events.lifecycle import LIVE
from slipway_api.events.topics import WORKER_LIFECYCLE
from slipway_common.base.clock import monotonic_seconds
from slipway_common.database.postgres import Connection, Database
from slipway_common.measure import SERVICE_GAUGES, InTurn, Measure, service_readings
from slipway_common.messaging.records import Received
from slipway_common.observability.metrics import Readings
from slipway_common.web.runtime import Runtime
from slipway_lease_broker.domain.pacing import Pacing
from slipway_lease_broker.domain.terms import Policy
from slipway_lease_broker.store import gauges as broker_gauges
from slipway_lease_broker.store.gauges import ROWS_AT_ONCE
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.loops.measure import measure, pools
from slipway_provisioner.loops.roll_out import roll_out_next
from slipway_provisioner.store import workspace_runs
from slipway_provisioner.store.gauges import POOLS_AT_ONCE
from tests.support.cloud import START
from tests.support.harness import Place, enqueue, member, publisher, report, until
from tests.support.lease_broker import acquire_request, broker_on, release, terms
from tests.support.provisioner import declared, provisioner_on, revision_id, weight
from tests.support.provisioner import report as demand
from tests.support.tools import run
from tests.support.workspaces import OLD, ring, stored

A, B = revision_id("zone-a"), revision_id("zone-b")


def current(name: str) -> dict[tuple[str, ...], float]:
    """Current values by label values, sorted by label name, as in a scrape."""
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == name
    }


async def test_pools_and_configs(postgres: EmbeddedPostgres) -> None:
    async with provisioner_on(postgres) as provisioner:
        await provisioner.declare(declared("zone-a", "zone-b"))
        await provisioner.weights(weight("zone-b", state="tripped", weight=0.25, health=0.5))
        await provisioner.demand(demand(3, 1))
        await provisioner.plan()
        await provisioner.set_clock(90)
        await measure({"lease-broker": 7.0, "weight-calculator": 1.0}.__getitem__).step(provisioner.database)

        assert current("slipway_pool_pending_tasks") == {("linux",): 3}
        assert current("slipway_pool_claimed_tasks") == {("linux",): 1}
        assert current("slipway_pool_wanted_workers") == current("slipway_pool_serving_workers") == {("linux",): 4}
        assert current("slipway_pool_max_workers") == {("linux",): 100}
        assert current("slipway_pool_backlog_seconds") == {("linux",): 90}
        states = current("slipway_workers")
        assert states.pop((A, "linux", "requested")) == 4
        assert set(states.values()) == {0}
        assert len(states) == 2 * len(LIVE) - 1
        assert current("slipway_launch_config_weight") == {(A, "linux"): 1, (B, "linux"): 0.25}
        assert current("slipway_launch_config_health") == {(B, "linux"): 0.5}
        assert current("slipway_launch_config_tripped") == {(A, "linux"): 0, (B, "linux"): 1}
        assert current("slipway_launch_config_paused") == {(A, "linux"): 0, (B, "linux"): 0}
        assert current("slipway_heartbeat_age_seconds") == {("lease-broker",): 7, ("weight-calculator",): 1}
        assert current("slipway_reaper_pass_age_seconds") == {("sim-a",): 90}
        await provisioner.reap()
        await measure(lambda _: 0.0).step(provisioner.database)
        assert current("slipway_reaper_pass_age_seconds") == {("sim-a",): 0}
        run("promtool", "check", "metrics", given=generate_latest().decode())


async def test_workspaces(postgres: EmbeddedPostgres) -> None:
    """By phase, and their runs: one that has lost its lock waits for another one."""
    async with provisioner_on(postgres) as provisioner:
        await measure(lambda _: 0.0).step(provisioner.database)
        assert set(current("slipway_workspaces").values()) == {0}
        assert current("slipway_workspace_run_wait_seconds") == {(): 0}
        async with provisioner.database.acquire() as db:
            made = [await stored(db, ring(OLD), due_at=START) for _ in range(3)]
        run_ = "UPDATE workspace SET holder = 'one', locked_until = slipway_clock() + $2 * interval '1 s' WHERE id = $1"
        await provisioner.set_clock(60)
        await provisioner.database.execute(run_, made[0].id, 60.0)
        await provisioner.database.execute(run_, made[1].id, -1.0)
        failed = "UPDATE workspace SET phase = 'unknown', failed_runs = 12 WHERE id = $1"
        await provisioner.database.execute(failed, made[2].id)
        await measure(lambda _: 0.0).step(provisioner.database)
        phases = current("slipway_workspaces")
        assert (phases.pop(("queued",)), phases.pop(("unknown",)), set(phases.values())) == (2, 1, {0})
        assert current("slipway_workspace_runs") == {("running",): 1, ("waiting",): 2}
        assert current("slipway_workspace_run_wait_seconds") == {(): 60}
        failures = current("slipway_workspace_failed_runs")
        assert (failures.pop(("unknown",)), set(failures.values())) == (12, {0})
        await provisioner.declare(declared("zone-a"))
        listing = "INSERT INTO workspace_listing (account_id, problem) SELECT id, 'Forbidden' FROM account"
        await provisioner.database.execute(listing)
        await measure(lambda _: 0.0).step(provisioner.database)
        assert current("slipway_workspace_listing_failed") == {("sim-a",): 1}
        async with provisioner.database.acquire() as db:
            assert await workspace_runs.waiting_number(db) == 1
            await db.execute(
                "UPDATE workspace SET due_at = slipway_clock() + interval '1 min' WHERE id = $1", made[2].id
            )
            assert await workspace_runs.waiting_number(db) == 0
            await db.execute("UPDATE workspace SET due_at = slipway_clock(), holder = ''")
            assert await workspace_runs.waiting_number(db) == 3
            await db.execute("UPDATE account SET retired = true")
            assert await workspace_runs.waiting_number(db) == 0
        await provisioner.set_clock(120)
        await measure(lambda _: 0.0).step(provisioner.database)
        assert current("slipway_workspace_runs") == {("running",): 0, ("waiting",): 0}
        assert current("slipway_workspace_run_wait_seconds") == {(): 0}
        assert set(current("slipway_workspace_failed_runs").values()) == {0}
        assert current("slipway_workspace_listing_failed") == {}


async def test_what_is_archived_disappears(postgres: EmbeddedPostgres) -> None:
    async with provisioner_on(postgres) as provisioner:
        await provisioner.declare(declared("zone-a", "zone-b"))
        await measure(lambda _: 0.0).step(provisioner.database)
        assert {config for config, *_ in current("slipway_workers")} == {A, B}
        await provisioner.declare(declared("zone-a"))
        assert await roll_out_next(provisioner.database)
        await measure(lambda _: 0.0).step(provisioner.database)
        for name in ("slipway_workers", "slipway_launch_config_weight", "slipway_launch_config_tripped"):
            assert {config for config, *_ in current(name)} == {A}


async def test_pools_are_measured_in_turn(postgres: EmbeddedPostgres) -> None:
    """Of many pools a part is read at once; those that were measured before stay, and deleted ones disappear."""
    copies = """
        INSERT INTO worker_pool SELECT c.* FROM worker_pool p CROSS JOIN generate_series(1, $1::int) AS n
        CROSS JOIN LATERAL jsonb_populate_record(p, jsonb_build_object('id', 'copy-' || lpad(n::text, 4, '0'))) AS c"""
    async with provisioner_on(postgres) as provisioner:
        await provisioner.declare(declared("zone-a"))
        await provisioner.database.execute(copies, POOLS_AT_ONCE + 50)
        measured = pools()

        async def shown() -> set[str]:
            await measured.step(provisioner.database)
            return {pool for (pool,) in current("slipway_pool_max_workers")}

        first = await shown()
        assert len(first) == POOLS_AT_ONCE
        everything = await shown()
        assert len(everything) == POOLS_AT_ONCE + 51
        assert first < everything
        await provisioner.database.execute("UPDATE worker_pool SET deleted = true WHERE id IN ('copy-0001', 'linux')")
        assert await shown() == everything - {"copy-0001"}
        assert await shown() == everything - {"copy-0001", "linux"}


async def test_boots_and_launches_are_timed(postgres: EmbeddedPostgres) -> None:
    """Launch time from decision to launch, boot time from launch to registration."""
    before = current("slipway_worker_boot_seconds_sum"), current("slipway_worker_launch_seconds_sum")
    async with provisioner_on(postgres) as provisioner:
        await provisioner.admitted()
        await provisioner.set_clock(12)
        await provisioner.launch()
        await provisioner.set_clock(42)
        worker = await provisioner.worker()
        await provisioner.register(worker.instance_id or "", worker.batch_id)
    assert grown(before[0], current("slipway_worker_boot_seconds_sum")) == {("linux",): pytest.approx(30)}
    assert grown(before[1], current("slipway_worker_launch_seconds_sum")) == {("linux",): pytest.approx(12)}


def grown(before: Mapping[Any, float], now: Mapping[Any, float]) -> dict[Any, float]:
    """Growth of the values that changed; those of earlier tests of the same process stay as they were."""
    return {labels: value - before.get(labels, 0) for labels, value in now.items() if value != before.get(labels)}


async def test_leases(postgres: EmbeddedPostgres) -> None:
    async with broker_on(postgres) as broker:
        await broker.declare(terms("sim-a", limit=2))
        await broker.send(acquire_request("r1", 5))
        await broker.decide()
        await broker.set_clock(40)
        await InTurn(broker_gauges.NAMES, broker_gauges.read_next).step(broker.pool)
        assert current("slipway_lease_limit_units") == current("slipway_lease_held_units") == {("sim-a",): 2}
        assert current("slipway_lease_waiting_units") == {("sim-a",): 3}
        assert current("slipway_lease_oldest_wait_seconds") == {("sim-a",): 40}
        assert current("slipway_leases") == {("sim-a", "reserved"): 1, ("sim-a", "confirmed"): 0, ("sim-a", "lost"): 0}
        assert current("slipway_lease_tenant_held_units") == {("sim-a", "linux"): 2}
        assert current("slipway_lease_tenant_waiting_units") == {("sim-a", "linux"): 3}


async def test_lease_pools_with_many_rows_are_measured_in_turn(postgres: EmbeddedPostgres) -> None:
    """A turn ends with the pool that completes its rows, so that a reading costs the same however many there are."""
    async with broker_on(postgres) as broker:
        await broker.declare(*(terms(name) for name in ("a", "b", "c", "d")))
        await broker.pool.execute("UPDATE lease_pools SET waiting_requests = $1 WHERE id = 'c'", ROWS_AT_ONCE)
        measured = InTurn(broker_gauges.NAMES, broker_gauges.read_next)

        async def shown() -> set[str]:
            await measured.step(broker.pool)
            return {pool for (pool,) in current("slipway_lease_limit_units")}

        assert await shown() == {"a", "b", "c"}
        assert await shown() == {"a", "b", "c", "d"}
        await broker.declare(*(terms(name) for name in ("a", "c", "d")))
        assert await shown() == {"a", "c", "d"}


async def test_admission_is_counted(postgres: EmbeddedPostgres) -> None:
    """Idle units while requests waited, intervals between grants, throttles, and causes of limit changes."""
    names = (
        "slipway_lease_idle_unit_seconds_total",
        "slipway_lease_grant_interval_seconds_sum",
        "slipway_lease_throttles_total",
        "slipway_lease_limit_changes_total",
    )
    before = {name: current(name) for name in names}
    async with broker_on(postgres) as broker:
        await broker.declare(terms("idle", limit=3, policy=Policy(pacing=Pacing(10))))
        await broker.send(acquire_request("r1", 3, "idle"))
        (lease,) = await broker.grants()  # one unit starts; two are free for the two that wait
        await broker.set_clock(10)
        await broker.grants()
        await broker.send(release(lease, throttled=True))
        await broker.pool.execute("UPDATE lease_pools SET drained_reason = 'maintenance', dirty = true")
        await broker.decide()
    idle, intervals, throttles, changes = (grown(before[name], current(name)) for name in names)
    assert idle["idle",] == 20
    assert intervals["idle",] == 10
    assert throttles["idle",] == 1
    assert changes["drained", "idle"] == 1


async def test_service_gauges(place: Place) -> None:
    """Lag of owned partitions, dead letters by topic, age of the oldest unpublished event, and clock offset."""
    topic = (WORKER_LIFECYCLE.name,)
    await place.create(WORKER_LIFECYCLE)
    runtime = Runtime()
    async with member(place) as consumer, publisher(place) as publish:
        runtime.subscriptions = [consumer.subscription]
        for word in ("a", "raise", "b"):
            await publish.send(report("w1", word))
        await until(place.dead)
        await until(lambda: sum(owned.next_offset for owned in consumer.subscription.owned.values()) == 3)
        await enqueue(place.database, report("w2", "c"))

        async def caught_up() -> bool:
            """True once the broker has returned end offsets in time."""
            await Measure(SERVICE_GAUGES, lambda pool: service_readings(pool, runtime)).step(place.database)
            return current("slipway_consumer_lag_records") == {topic: 0}

        await until(caught_up)
        assert current("slipway_dead_letters") == {topic: 2}  # one dead, one parked behind it
        assert 0 < current("slipway_outbox_oldest_seconds")[()] < 600
        assert abs(current("slipway_clock_offset_seconds")[()]) < 60


async def test_lag_counts_what_is_not_applied(place: Place) -> None:
    freed = asyncio.Event()

    async def wait(tx: Connection, events: Sequence[Received]) -> None:
        await freed.wait()

    await place.create(WORKER_LIFECYCLE)
    async with member(place, wait) as consumer, publisher(place) as publish:
        for word in ("a", "b", "c"):
            await publish.send(report("w1", word))

        async def lags_by(records: int) -> bool:
            return await consumer.subscription.lag() == records

        await until(lambda: lags_by(3))
        freed.set()
        await until(lambda: lags_by(0))


async def test_what_cannot_be_read_is_not_shown() -> None:
    """An outdated value is removed."""
    readings: list[Readings] = [{"slipway_outbox_oldest_seconds": {(): 3}, "slipway_dead_letters": {("topic",): 4}}]

    async def read(_: Database) -> Readings:
        return readings.pop()

    await Measure(SERVICE_GAUGES, read).step(None)
    assert current("slipway_dead_letters") == {("topic",): 4}
    assert current("slipway_outbox_oldest_seconds") == {(): 3}
    with pytest.raises(IndexError):
        await Measure(SERVICE_GAUGES, read).step(None)
    assert current("slipway_dead_letters") == {}
    assert math.isnan(current("slipway_outbox_oldest_seconds")[()])


async def test_readings_keep_their_distance() -> None:
    """Loops are woken by every commit, but the database is read only every few seconds."""
    read_at: list[float] = []

    async def read(_: Database) -> Readings:
        read_at.append(monotonic_seconds())
        return {}

    measuring = Measure(SERVICE_GAUGES, read)
    for _ in range(5):
        await measuring.step(None)
    assert len(read_at) == 1
