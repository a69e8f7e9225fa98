"""Replay of a recorded log under several policies: digests, avoided starts, and invalid input."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipway_client.cli import recorded
from slipway_common.declaration.strict_yaml import Invalid
from slipway_common.events.launch_config import LaunchConfigArchived, LaunchConfigCreated
from slipway_common.events.signal import SignalRaised
from slipway_common.events.worker import (
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerClaimed,
    WorkerLaunched,
    WorkerLaunchFailed,
    WorkerRegistered,
    WorkerRequested,
)
from slipway_weight_calculator.domain.policy import PROFILES, Policy
from slipway_weight_calculator.domain.replay import Comparison, InvalidPolicy, Recorded, policies
from tests.support import outage_log

START = 1_900_000_000.0
OK = Outcome(Stage.LAUNCH, Result.OK)
IDS = {place.name: place.id for place in outage_log.PLACES}
NO_ROOM = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, "m5/zone-a/on-demand", "InsufficientCapacity")


class Log:
    """Events of the starts of one config, each with its own id."""

    def __init__(self) -> None:
        self.records: list[Recorded] = []
        self.workers = 0
        self.add(
            0,
            LaunchConfigCreated(
                launch_config_id="zone-a",
                name="zone-a",
                pool_id="linux",
                account_id="sim-a",
                region="sim-1",
                zone="a",
                instance_type="m5.large",
                image_revision="linux-1",
                base_weight=1.0,
                price_factor=1.0,
                state="active",
                revision=1,
            ),
        )

    def add(self, at: float, event: Any) -> None:
        id_ = f"event-{len(self.records)}"
        self.records.append(Recorded(id=id_, source="test", subject="zone-a", time=START + at, event=event))

    def start(self, at: float, *, fails: bool, permit: int | None = None, serves: bool = True) -> None:
        """A start that is answered after a second and serves two seconds later."""
        self.workers += 1
        ids: dict[str, Any] = {
            "worker_id": f"w-{self.workers}",
            "pool_id": "linux",
            "launch_config_id": "zone-a",
            "account_id": "sim-a",
            "image_revision": "linux-1",
            "probe_permit": permit,
        }
        self.add(at, WorkerRequested(decision_id="d", **ids))
        if fails:
            self.add(at + 1, WorkerLaunchFailed(batch_id="b", outcome=NO_ROOM, **ids))
            return
        self.add(at + 1, WorkerLaunched(instance_id="i", batch_id="b", outcome=OK, **ids))
        if serves:
            booted, claimed = Outcome(Stage.BOOT, Result.OK), Outcome(Stage.CLAIM, Result.OK)
            self.add(at + 2, WorkerRegistered(instance_id="i", boot_seconds=1.0, outcome=booted, **ids))
            self.add(at + 3, WorkerClaimed(task_id="t", source="q", outcome=claimed, **ids))


def compared(records: Sequence[Recorded], **others: Any) -> Comparison:
    comparison = Comparison({name: policies(given) for name, given in ({"default": "default"} | others).items()})
    for record in records:
        comparison.add(record)
    return comparison


@pytest.fixture(scope="module")
def recording() -> Sequence[Recorded]:
    """The recording in tests/data."""
    return [
        Recorded(id=e.id, source=e.source, subject=e.subject, time=e.time.timestamp(), event=e.event)
        for e in recorded.Recording(outage_log.FILE)
    ]


def test_the_recording_equals_the_output_of_its_script() -> None:
    assert outage_log.FILE.read_text() == "".join(f"{line}\n" for line in outage_log.lines())
    assert len(outage_log.FILE.read_text().splitlines()) >= 2000


def test_the_same_events_and_policy_give_the_same_digest(recording: Sequence[Recorded]) -> None:
    """Another policy gives another state at the end."""
    twice = [compared(recording, spot="spot") for _ in range(2)]
    digests = [{name: replay.digest() for name, replay in each.replays.items()} for each in twice]
    assert digests[0] == digests[1]
    assert len(set(digests[0].values())) == 2


def test_repeats_change_nothing(recording: Sequence[Recorded]) -> None:
    once, again = compared(recording), compared([record for record in recording for _ in range(2)])
    assert again.replays["default"].digest() == once.replays["default"].digest()
    assert again.replays["default"].tallies == once.replays["default"].tallies
    assert again.duplicates == len(recording) + once.duplicates > len(recording)


def test_most_of_the_recorded_waste_is_avoided(recording: Sequence[Recorded]) -> None:
    """The zone, the image and the quota trip; configs without failures lose no start."""
    comparison = compared(recording)
    tallies = comparison.replays["default"].tallies
    wasted = sum(tally.failed + tally.avoided_failed for tally in tallies.values())
    assert sum(tally.avoided_failed for tally in tallies.values()) > wasted / 2
    assert tallies[IDS["linux-a"]].avoided == tallies[IDS["linux-c"]].avoided == 0
    assert {(outage.config_id, outage.stage) for outage in comparison.outages} == {
        (IDS["linux-b"], "launch"),
        (IDS["win-b"], "launch"),
        (IDS["linux-d"], "boot"),
        (IDS["win-a"], "launch"),
    }


def outage() -> Log:
    """A log that succeeds for 100 s, fails from 100 s to 280 s, and succeeds again."""
    log = Log()
    for at in range(0, 500, 10):
        log.start(at, fails=100 <= at < 280)
    return log


def test_starts_avoided_and_time_to_detection() -> None:
    """Two capacity errors trip the config, then only probes fail. With six it takes 40 s longer."""
    comparison = compared(outage().records, patient={"trip_capacity": 6, "trip_launch": 6})
    (seen,) = comparison.outages
    assert (seen.config_id, seen.stage, seen.failures) == ("zone-a", "launch", 18)
    assert (seen.began, seen.ended) == (START + 101, START + 281)
    default, patient = comparison.replays.values()
    assert (default.detected(seen), patient.detected(seen)) == (10.0, 50.0)
    for replay in (default, patient):
        tally = replay.tallies["zone-a"]
        assert tally.failed + tally.avoided_failed == 18
        assert tally.probes > 0
        assert tally.allowed + tally.avoided == 50
    assert default.tallies["zone-a"].failed < patient.tallies["zone-a"].failed


def test_recovery_counts_from_the_first_success() -> None:
    """The first probe after the end of the outage recovers the config, whatever the recorded fleet did."""
    comparison = compared(outage().records)
    (seen,) = comparison.outages
    replay = comparison.replays["default"]
    ((tripped, recovered),) = replay.trips["zone-a"]
    assert tripped == START + 111
    assert replay.recovered(seen) == recovered - seen.ended >= 0
    without_end = compared([record for record in outage().records if record.time < START + 250])
    (lasting,) = without_end.outages
    assert without_end.replays["default"].recovered(lasting) is None
    assert without_end.replays["default"].detected(lasting) == 10.0


def test_recorded_permits_are_of_another_policy() -> None:
    """Recorded probes are ordinary starts in a replay, and permits that it has not issued resolve nothing."""
    plain, numbered = Log(), Log()
    for log, permits in ((plain, False), (numbered, True)):
        for at in range(0, 300, 10):
            log.start(at, fails=50 <= at < 150, permit=7 + at if permits else None)
    assert compared(plain.records).replays["default"].digest() == compared(numbered.records).replays["default"].digest()


def test_a_full_window_allows_no_start() -> None:
    """A new config has at most four launches in flight; more are avoided, although they succeed in the log."""
    log = Log()
    for number in range(9):
        log.start(10 + number / 100, fails=False)
    log.records.sort(key=lambda record: record.time)
    tally = compared(log.records).replays["default"].tallies["zone-a"]
    assert (tally.allowed, tally.avoided, tally.avoided_failed) == (4, 5, 0)


def test_an_image_without_an_outcome_has_the_window_of_a_new_one() -> None:
    """Of starts that hang at boot from the first one on, more are avoided."""
    log = Log()
    for number in range(30):
        log.start(10 + 5 * number, fails=False, serves=False)
    tally = compared(log.records).replays["default"].tallies["zone-a"]
    assert tally.allowed == PROFILES["on-demand"].new_boot_window < PROFILES["on-demand"].new_config_boot_window


def test_replay_deletes_a_config_at_its_tombstone() -> None:
    """Until then an archived one keeps its health."""
    log = Log()
    log.start(10, fails=False)
    declared = log.records[0].event
    log.add(20, LaunchConfigArchived(**(msgspec.structs.asdict(declared) | {"state": "archived", "revision": 2})))
    assert "zone-a" in compared(log.records).replays["default"].world.configs
    log.add(30 * 86_400, None)
    assert compared(log.records).replays["default"].world.rows == {}


def test_signals_count_and_refusals_are_counted() -> None:
    log = Log()
    for target in ("zone-a", "zone-z"):
        log.add(
            5,
            SignalRaised(
                source="page",
                target_kind="config",
                target_id=target,
                kind="degraded",
                reason="slow",
                observed_at=datetime.fromtimestamp(START, UTC) + timedelta(seconds=5),
            ),
        )
    replay = compared(log.records).replays["default"]
    assert (replay.refused, len(replay.world.signals)) == (1, 1)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("cheapest", "unknown policy 'cheapest'; use default, on-demand, spot, bare-metal or a file"),
        ({"half_life": 60}, "unknown coefficient half_life; known: half_life_seconds, mass_cap"),
        ({"half_life_seconds": "600"}, "Expected `float`, got `str` - at `half_life_seconds`"),
        ({"trip_boot": 2.5}, "Expected `int`, got `float` - at `trip_boot`"),
        ({"half_life_seconds": 0}, "half_life_seconds is 0; it must be at least 1e-06"),
        ({"prior": 1.5}, "prior is 1.5; it must be at least 1e-06 and at most 0.999999"),
        ({"launch_window": float("inf")}, "launch_window is inf; it must be at least 1"),
        ({"trip_boot": 10**400}, "trip_boot is too large a number; it must be at least 1 and at most 1e+12"),
        ({"trip_capacity": 0}, "trip_capacity is 0; it must be at least 1"),
        ({"permit_seconds": 0.000001}, "permit_seconds is 1e-06; it must be at least 0.1"),
        ({"pool_probe_seconds": 0.09}, "pool_probe_seconds is 0.09; it must be at least 0.1"),
        ({"probe_initial_seconds": 0.01}, "probe_initial_seconds is 0.01; it must be at least 0.1"),
        ({"probe_max_seconds": 0.01}, "probe_max_seconds is 0.01; it must be at least 0.1"),
        ({"launch_window_min": 65}, "launch_window_min is 65 and launch_window 64; launch_window_min must be at"),
        ({"boot_window": 1}, "boot_window_min is 2 and boot_window 1; boot_window_min must be at most boot_window"),
        ({"claim_window_min": 1001}, "claim_window_min is 1001 and claim_window 1000; claim_window_min must be at"),
        ({"probe_max_seconds": 100}, "probe_initial_seconds is 120 and probe_max_seconds 100; probe_initial_seconds"),
        ({"probe_max_seconds": 100}, "must be at most probe_max_seconds (profile spot)"),
        ({"late_samples": 33}, "late_samples is 33 and boot_samples 32; late_samples must be at most boot_samples"),
    ],
)
def test_invalid_policies(given: Any, reason: str) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        policies(given)
    assert reason in str(refused.value)


def test_policies_by_name_and_by_coefficient() -> None:
    """A file overrides some coefficients of each profile."""
    assert policies("default") == PROFILES
    assert set(policies("spot").values()) == {PROFILES["spot"]}
    some = policies({"trip_capacity": 3, "sharpness": 1})
    assert some["spot"] == msgspec.structs.replace(PROFILES["spot"], trip_capacity=3, sharpness=1.0)
    assert some["on-demand"] == Policy(trip_capacity=3, sharpness=1.0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"topic": "t", "id": ', "is truncated"),
        ("launched zone-a", "is not JSON"),
        ("[1]", "prints it: Expected `object`, got `array`"),
        ('{"topic": "t", "id": "1", "source": "s", "type": "x"}', "missing required field `time`"),
        (
            '{"topic": "t", "id": "1", "source": "s", "type": "io.slipway.worker.idle.v1", '
            '"time": "2026-01-05T09:00:00Z", "data": {"worker_id": 7}}',
            "does not match its schema",
        ),
    ],
)
def test_a_line_that_is_not_an_event_is_named(tmp_path: Path, line: str, reason: str) -> None:
    first = outage_log.FILE.read_text().splitlines()[0]
    file = tmp_path / "log.jsonl"
    file.write_text(f"{first}\n\n{line}")
    with pytest.raises(Invalid) as refused:
        list(recorded.Recording(file))
    (problem,) = refused.value.problems
    assert problem.line == 3
    assert reason in problem.reason


@pytest.mark.parametrize(
    "line",
    [
        '{"topic": "t", "id": "1", "source": "s", "type": "io.odd.v1", "time": "2026-01-05T09:00:00Z"}',
        '{"topic": "t", "id": "1", "source": "s", "type": "x", "time": "2026-01-05T09:00:00Z", "unreadable": "odd"}',
        '{"topic": "t", "partition": 0, "offset": 7, "unreadable": "no ce_id"}',
    ],
)
def test_unreadable_records_are_skipped_and_counted(tmp_path: Path, line: str) -> None:
    """As on a topic; a byte order mark is not part of the first record."""
    first, second, *_ = outage_log.FILE.read_text().splitlines()
    file = tmp_path / "log.jsonl"
    file.write_text(f"\ufeff{first}\n{line}\n{second}\n", encoding="utf-8")
    recording = recorded.Recording(file)
    assert [event.subject for event in recording] == [IDS["linux-a"], IDS["linux-b"]]
    assert recording.unreadable == 1


def test_a_log_out_of_order() -> None:
    """The log begins with its earliest event; events far behind later ones are counted."""
    backwards = compared(list(reversed(outage().records)))
    assert (backwards.began, backwards.ended) == (START, START + 493)
    assert backwards.disordered > 100
    assert compared(outage().records).disordered == 0


def test_a_file_without_events(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "log.gz").write_bytes(b"\x1f\x8b\x08\n")
    for name, reason in (
        ("empty", "contains no events"),
        ("log.gz", "is compressed; unpack it"),
        ("none", "cannot be read: No such file or directory"),
    ):
        with pytest.raises(Invalid, match=reason):
            list(recorded.Recording(tmp_path / name))
