"""Outcomes in, weight records and a journal out, on a real database: the service without Kafka and HTTP."""

from itertools import pairwise

import msgspec
import pytest

from slipway_api.events.scopes import config_key
from slipway_api.events.signal import SignalRaised
from slipway_api.events.topics import WORKER_LIFECYCLE
from slipway_api.events.weight import WeightChanged
from slipway_api.events.worker import Outcome, Result, Scope, Stage, WorkerRegistered, WorkerStopping
from slipway_common.messaging.consume import Fenced, Owned
from slipway_common.messaging.leadership import LeadershipLost
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_weight_calculator import metrics
from slipway_weight_calculator.loops import publish
from tests.support.calculators import ZONE_B, ZONES
from tests.support.weight_calculator import (
    START,
    Calculator,
    after,
    calculator_on,
    declared,
    failed,
    of,
    ok,
    stopped,
    stored,
)


async def test_declared_configs_are_published_equal(postgres: EmbeddedPostgres) -> None:
    """Each once, at revision 1, with equal weights, in the turn that consumed them; further turns publish nothing."""
    async with calculator_on(postgres) as calculator:
        await calculator.consume(*map(declared, ZONES))
        published = await calculator.published()
        assert [(revision, record and record.launch_config_id) for revision, record in published] == [
            (1, zone) for zone in ZONES
        ]
        assert len({record.weight for _, record in published if record}) == 1
        assert await calculator.publish() == []


async def test_outage_trips_and_is_published_in_its_turn(calculator: Calculator) -> None:
    """One failure lowers the weight, the second trips the config; other zones stay as they are."""
    await calculator.set_clock(2)
    await calculator.consume(failed(), at=1)
    ((_, first),) = await calculator.published()
    assert first is not None
    assert (first.state, first.stages["launch"].failures_folded) == ("healthy", 1)
    await calculator.set_clock(3)
    await calculator.consume(failed(), at=2)
    ((_, second),) = await calculator.published()
    assert second is not None
    assert (second.launch_config_id, second.state, second.tripped_stage) == ("zone-b", "tripped", "launch")
    assert second.stages["launch"].failures_folded == 2
    assert (second.probe_permit, second.probe_ready) == (None, False)
    assert second.next_probe_at is not None
    assert after(2 + 7.5) <= second.next_probe_at <= after(2 + 15)
    assert second.offsets == {f"{WORKER_LIFECYCLE.name}/0": 2}


async def test_probe_is_issued_when_it_is_due(calculator: Calculator) -> None:
    """A timer issues the probe in a journalled turn without records; a failure backs off, a success recovers."""
    await calculator.consume(failed(), failed())
    (tripped,) = await calculator.publish()
    assert tripped.next_probe_at is not None
    due = calculator.work.due()
    assert due == pytest.approx(tripped.next_probe_at.timestamp(), abs=1e-5)
    await calculator.set_clock((tripped.next_probe_at - START).total_seconds() - 0.1)
    turns = len(await calculator.journal())
    assert await calculator.publish() == []
    assert len(await calculator.journal()) == turns

    await calculator.set_clock(15)
    (ready,) = await calculator.publish()
    assert (ready.probe_permit, ready.probe_ready, ready.next_probe_at) == (1, True, None)
    timer = (await calculator.journal())[-1]
    assert (timer.taken, timer.at) == ([], after(15).timestamp())

    await calculator.set_clock(100)
    await calculator.consume(failed(permit=1), at=100)
    answered = await newest(calculator)
    assert (answered.probe_permit, answered.probe_ready) == (1, False)
    await calculator.set_clock(130)
    again = await newest(calculator)
    assert (again.probe_permit, again.probe_ready) == (2, True)
    await calculator.consume(ok(permit=2), at=130)
    recovered = await newest(calculator)
    assert (recovered.state, recovered.tripped_stage, recovered.probe_ready) == ("healthy", None, False)
    assert recovered.stages["launch"].failures_folded == 3


async def newest(calculator: Calculator) -> WeightChanged:
    """The newest of the records of zone-b published now."""
    return [record for record in await calculator.publish() if record.launch_config_id == "zone-b"][-1]


async def test_cancelled_probe_is_reissued_with_a_new_number(calculator: Calculator) -> None:
    await calculator.consume(failed(), failed())
    await calculator.set_clock(15)
    await calculator.publish()
    await calculator.consume(stopped(permit=1, cancelled=True), at=15)
    assert not (await newest(calculator)).probe_ready
    await calculator.set_clock(31)
    ready = await newest(calculator)
    assert (ready.probe_permit, ready.probe_ready) == (2, True)


async def test_every_failure_is_counted_and_published(calculator: Calculator) -> None:
    """A throttle changes neither weight nor health, but its folded count frees its place in the window."""
    before = calculator.work.publishing.published["zone-b"].record
    await calculator.set_clock(1)
    await calculator.consume(*[failed(scope) for scope in (Scope.LIMITER, Scope.NOTHING, Scope.UNKNOWN) * 3])
    ((_, record),) = await calculator.published()
    assert record is not None
    assert record.stages["launch"].failures_folded == 9
    assert (record.state, record.weight) == ("healthy", before.weight)


async def test_boot_and_claim_outcomes_have_their_own_stages(calculator: Calculator) -> None:
    boot = Outcome(Stage.BOOT, Result.FAILED, Scope.CONFIG, code="boot-timeout")
    await calculator.consume(*[WorkerStopping(reason="boot", outcome=boot, **of("zone-b")) for _ in range(9)])
    registered = Outcome(Stage.BOOT, Result.OK)
    await calculator.consume(WorkerRegistered(instance_id="i", boot_seconds=9, outcome=registered, **of("zone-b")))
    record = (await calculator.publish())[-1]
    assert {name: stage.failures_folded for name, stage in record.stages.items()} == {
        "launch": 0,
        "boot": 9,
        "claim": 0,
    }
    assert (record.state, record.tripped_stage) == ("tripped", "boot")


async def test_revisions_of_records_count_up(calculator: Calculator) -> None:
    """Each record of a config has the next revision."""
    for n in range(4):
        await calculator.set_clock(1 + n)
        await calculator.consume(failed(Scope.LIMITER), at=n)
    assert [revision for revision, _ in await calculator.published()] == [2, 3, 4, 5]


async def test_a_config_published_just_now_waits_for_the_tick(calculator: Calculator) -> None:
    """A second failure within 100 ms publishes nothing; the next tick publishes all of them, once."""
    await calculator.set_clock(1)
    await calculator.consume(failed(Scope.LIMITER))
    await calculator.consume(failed(Scope.LIMITER))
    await calculator.consume(failed(Scope.LIMITER))
    assert [r.stages["launch"].failures_folded for _, r in await calculator.published() if r] == [1]
    due = calculator.work.due()
    assert due is not None
    assert due <= after(1.1).timestamp()
    assert [record.stages["launch"].failures_folded for record in await calculator.publish()] == [3]


async def test_a_backlog_is_published_once_a_second(calculator: Calculator) -> None:
    """Records from a backlog are soon outdated, so they are published once a second."""
    await calculator.set_clock(10)
    for second in (0.0, 0.2, 0.4, 1.1):
        await calculator.set_clock(10 + second)
        await calculator.consume(*[failed(Scope.LIMITER) for _ in range(1000)])
    assert [r.stages["launch"].failures_folded for _, r in await calculator.published() if r] == [1000, 4000]


async def test_a_turn_publishes_a_limited_number(calculator: Calculator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remaining changed configs wait for the next tick."""
    monkeypatch.setattr(publish, "CONFIGS_MAX", 2)
    await calculator.set_clock(1)
    await calculator.consume(*[failed(Scope.LIMITER, config_id=zone) for zone in ZONES])
    assert len(await calculator.published()) == 2
    assert len(await calculator.publish()) == 1


async def test_outcome_before_its_declaration_is_kept(calculator: Calculator) -> None:
    """The config gets a row; its declaration then adds its fields and keeps the evidence."""
    await calculator.consume(failed(config_id="zone-d"))
    (record,) = await calculator.publish()
    assert (record.pool_id, record.config_revision, record.stages["launch"].failures_folded) == ("linux", 0, 1)
    await calculator.consume(declared("zone-d", revision=3, base_weight=2.0))
    (record,) = await calculator.publish()
    assert (record.config_revision, record.stages["launch"].failures_folded) == (3, 1)
    await calculator.consume(declared("zone-d", revision=2, base_weight=9.0))
    assert await calculator.publish() == [], "an older declaration changes nothing"


async def test_an_archived_revision_keeps_its_health_until_its_tombstone(calculator: Calculator) -> None:
    """Its last outcomes are folded and published; declared again, it continues with its evidence."""
    await calculator.set_clock(1)
    await calculator.consume(declared("zone-b", revision=2, state="archived"))
    await calculator.consume(failed())
    (record,) = [record for record in await calculator.publish() if record.stages["launch"].failures_folded]
    assert (record.launch_config_id, record.config_revision) == ("zone-b", 2)
    await calculator.consume(declared("zone-b", revision=3))
    (record,) = await calculator.publish()
    assert (record.config_revision, record.stages["launch"].failures_folded) == (3, 1)
    await calculator.set_clock(10)
    await calculator.consume(declared("zone-b", revision=3), value=None)
    assert await calculator.published() == [(5, None)]
    assert ZONE_B not in calculator.work.world.rows
    assert "config/zone-b" not in (await calculator.stored())["health"]


async def test_ids_with_slashes_are_keys_of_their_own(calculator: Calculator) -> None:
    """A tombstone names a config by its encoded id, and after a restart every row is found again."""
    for config_id in ("gecko-t/t-linux-large/a@1", "gecko-t/t-linux-large", "image/linux-1"):
        await calculator.consume(declared(config_id, image_revision="a/b", account_id="c/d"))
        await calculator.consume(failed(config_id=config_id))
    rows = dict(calculator.work.world.rows)
    calculator.restart()
    await calculator.take_over()
    assert calculator.work.world.rows == rows
    assert rows[config_key("image/linux-1")].launch.failed == 1
    await calculator.consume(declared("image/linux-1"), value=None)
    assert config_key("image/linux-1") not in calculator.work.world.rows
    assert {config_key("gecko-t/t-linux-large/a@1"), config_key("gecko-t/t-linux-large")} <= set(
        calculator.work.world.rows
    )


async def test_faded_evidence_and_old_records_are_published_again(calculator: Calculator) -> None:
    """Failures decay by time alone, and published records are repeated."""
    await calculator.consume(failed())
    (low,) = await calculator.publish()
    await calculator.set_clock(300)
    faded = {record.launch_config_id: record for record in await calculator.publish()}
    assert faded["zone-b"].stages["launch"].failures == pytest.approx(0.5**0.5)
    assert faded["zone-b"].weight > low.weight
    await calculator.set_clock(960)
    assert {record.launch_config_id for record in await calculator.publish()} == set(ZONES)
    assert await calculator.publish() == []


async def test_a_shared_trip_is_published_for_all(calculator: Calculator) -> None:
    """A credential trips every config of its account, in one turn and with one alert."""
    await calculator.set_clock(1)
    await calculator.consume(failed(Scope.CREDENTIAL), failed(Scope.CREDENTIAL))
    published = [record for _, record in await calculator.published() if record]
    assert {(r.launch_config_id, r.state, r.tripped_by, r.tripped_by_id) for r in published} == {
        (zone, "tripped", "credential", "sim-a") for zone in ZONES
    }
    rows = await calculator.database.fetch("SELECT value FROM outbox WHERE topic = 'slipway.alert.v1'")
    assert [msgspec.json.decode(row["value"])["kind"] for row in rows].count("credential-failing") == 1


async def test_future_event_times_count_as_now(calculator: Calculator) -> None:
    """A wrong clock must not make all later events look late."""
    await calculator.consume(failed(), at=10**6)
    await calculator.consume(ok(), at=0)
    launch = calculator.work.world.rows[ZONE_B].launch
    assert (launch.at, launch.successes) == (START.timestamp(), 1.0)


@pytest.mark.parametrize(("event_at", "counts_at"), [(-500.0, -120.0), (500.0, 60.0), (-100.0, -100.0)])
async def test_implausible_event_times_are_clamped(calculator: Calculator, event_at: float, counts_at: float) -> None:
    """To two minutes from the time of the record, in a replay too, and never later than now."""
    await calculator.set_clock(60)
    before = metrics.CLAMPED._value.get()
    await calculator.consume(failed(), at=0, time=after(event_at))
    launch = calculator.work.world.rows[ZONE_B].launch
    assert launch.at == pytest.approx(after(counts_at).timestamp())
    assert metrics.CLAMPED._value.get() - before == (event_at != counts_at)


async def test_the_clock_of_turns_never_goes_back(calculator: Calculator) -> None:
    await calculator.set_clock(50)
    await calculator.consume(failed())
    await calculator.set_clock(10)
    await calculator.consume(ok())
    times = [entry.at for entry in await calculator.journal()]
    assert times == sorted(times)
    assert times[-1] == after(50).timestamp()


async def test_a_start_is_not_late_before_its_events_are_read(calculator: Calculator) -> None:
    """After an hour without a calculator, time advances only as far as all topics have been read.

    So a machine that has registered never counts as late; one that has not does. A signal that has expired unread has
    no effect.
    """
    starts = [ok() for _ in range(6)]
    await calculator.consume(*starts)
    down = SignalRaised(
        source="monitor",
        kind="down",
        target_kind="config",
        target_id="zone-a",
        reason="seen",
        observed_at=START,
        ttl_seconds=600,
    )
    await calculator.consume(down)
    await calculator.publish()
    await calculator.set_clock(3600)
    calculator.restart()
    await calculator.take_over()
    boot = Outcome(Stage.BOOT, Result.OK)
    ids_of = [of("zone-b") | {"worker_id": start.worker_id} for start in starts]
    came = [WorkerRegistered(instance_id="i", boot_seconds=90, outcome=boot, **ids) for ids in ids_of]
    await calculator.turn([], reached=0)
    await calculator.consume(came[0], at=90, reached=90)
    row = calculator.work.world.rows[ZONE_B]
    assert (row.boot.late, row.boot.succeeded, calculator.work.due()) == (0, 1, after(135).timestamp())
    await calculator.consume(*came[1:-1], at=91)
    row = calculator.work.world.rows[ZONE_B]
    assert (row.boot.late, row.boot.succeeded, row.boot.trip.tripped) == (1, 5, False)
    published = await calculator.publish()
    assert [record.state for record in published if record.launch_config_id == "zone-b"][-1] == "healthy"
    assert calculator.work.world.signals == {}


async def test_replayed_duplicates_do_nothing(calculator: Calculator) -> None:
    """The same records again, below the position and above it, change nothing."""
    await calculator.consume(failed(), ok(), failed(), at=5)
    await calculator.publish()
    before = await calculator.stored()
    log = calculator.records[WORKER_LIFECYCLE.name, 0]
    log += [msgspec.structs.replace(record, offset=record.offset + 3) for record in log]
    await calculator.turn(log[3:])
    assert await calculator.stored() == before
    assert (await calculator.journal())[-1].left_out == [(WORKER_LIFECYCLE.name, 0, 3, 6)]
    assert await calculator.publish() == []
    calculator.positions[WORKER_LIFECYCLE.name, 0] = Owned(1, 0)
    with pytest.raises(Fenced):
        await calculator.turn(log[:3])
    await calculator.leadership.reload(calculator.database)
    assert await calculator.stored() == before


async def test_a_successor_loads_everything_and_publishes_nothing_twice(calculator: Calculator) -> None:
    """The loaded state equals the one in memory; turns of the predecessor are fenced."""
    await calculator.consume(failed(), failed(), ok(config_id="zone-a"))
    await calculator.set_clock(100)
    await calculator.publish()
    before = calculator.work.world
    successor = Calculator(calculator.database, "b")
    successor.records = calculator.records
    assert (await successor.leadership.bid(successor.database)).role == "standby"
    await calculator.database.execute("UPDATE leader SET seen_at = slipway_clock() - interval '11 s'")
    await successor.take_over()
    now = successor.work.world
    assert (now.configs, now.rows, now.boots, now.signals) == (
        before.configs,
        before.rows,
        before.boots,
        before.signals,
    )
    assert now.due() == before.due()
    await successor.published()
    assert await successor.publish() == []
    kept = await stored(calculator.database)
    calculator.records = {place: list(records) for place, records in calculator.records.items()}
    with pytest.raises(LeadershipLost):
        await calculator.consume(failed())
    assert await stored(calculator.database) == kept
    calculator.records = successor.records


async def test_ranges_tile_the_log(calculator: Calculator) -> None:
    """Every record is in exactly one range, and the turns are numbered without a gap."""
    for n in range(1, 6):
        await calculator.consume(*[failed(Scope.LIMITER) for _ in range(n)])
        await calculator.publish()
    entries = await calculator.journal()
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    taken = [r[2:] for entry in entries for r in entry.taken if r[0] == WORKER_LIFECYCLE.name]
    assert taken[0][0] == 0
    assert all(a[1] == b[0] for a, b in pairwise(taken))
    assert taken[-1][1] == len(calculator.records[WORKER_LIFECYCLE.name, 0])
