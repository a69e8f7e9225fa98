"""Narration: one line per change, one per config that trips, one per second and cause of failures."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved, alert_key
from slipway_api.events.weight import WeightChanged
from slipway_api.events.worker import (
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerErrorReported,
    WorkerEvent,
    WorkerLaunchFailed,
    WorkerLost,
    WorkerStopping,
)
from slipway_client.view import narration
from slipway_client.view.narration import Health
from slipway_client.view.snapshot import EventLine, Service, Snapshot
from tests.support import screens

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
ZONE = "zone-b"
CAUSE = "zone-b tripped: 2 capacity errors (InsufficientCapacity)"
HEALTHY = Health(ZONE, False, None, "zone-b healthy")
TRIPPED = Health(ZONE, True, NOW + timedelta(seconds=1), CAUSE)
PROBING = Health(ZONE, True, None, f"{CAUSE}; probe 3 may launch")
LATER = Health(ZONE, True, NOW + timedelta(seconds=2), f"{CAUSE}; 1 failed probe")
DOWN = Health(ZONE, True, None, "zone-b tripped: down by page (dark)", by_signal=True)
COMMON = {"pool_id": "linux", "account_id": "sim-a", "image_revision": "linux-1"}


def ids(number: int, config: str) -> dict[str, Any]:
    return COMMON | {"worker_id": f"w-{number}", "launch_config_id": config}


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        (None, HEALTHY, None),
        (HEALTHY, HEALTHY, None),
        (None, TRIPPED, f"{CAUSE}; next probe in 1 s"),
        (HEALTHY, TRIPPED, f"{CAUSE}; next probe in 1 s"),
        (TRIPPED, TRIPPED, None),
        (TRIPPED, PROBING, None),
        (PROBING, LATER, f"{CAUSE}; 1 failed probe; next probe in 2 s"),
        (PROBING, HEALTHY, "zone-b recovered: a probe succeeded"),
        (LATER, HEALTHY, "zone-b recovered: a start succeeded"),
        (HEALTHY, PROBING, f"{CAUSE}; probe 3 may launch"),
        (HEALTHY, DOWN, "zone-b tripped: down by page (dark)"),
        (DOWN, DOWN, None),
        (DOWN, HEALTHY, "zone-b recovered: the down signal ended"),
        (LATER, DOWN, "zone-b tripped: down by page (dark)"),
        (DOWN, PROBING, f"{CAUSE}; probe 3 may launch"),
        (DOWN, LATER, f"{CAUSE}; 1 failed probe; next probe in 2 s"),
    ],
)
def test_health(before: Health | None, now: Health, text: str | None) -> None:
    line = narration.changed(before, now, at=NOW)
    assert (line and line.text) == text


def test_all_lines_of_a_trip_have_one_key() -> None:
    """The screen replaces a line by the next one of its key and mood: a tripped config has one line."""
    changes = [(HEALTHY, TRIPPED), (PROBING, LATER), (PROBING, HEALTHY)]
    lines = [narration.changed(before, now, at=NOW) for before, now in changes]
    assert [line and (line.key, line.mood) for line in lines] == [
        ("trip/zone-b", "bad"),
        ("trip/zone-b", "bad"),
        ("trip/zone-b", "good"),
    ]


def test_answers_and_events_give_the_same_health() -> None:
    config = screens.config(id=ZONE, pool_id="linux", health_state="tripped", tripped_by="signal", reason=DOWN.reason)
    assert Health.of(config) == DOWN
    event = WeightChanged(
        launch_config_id=ZONE,
        name=ZONE,
        pool_id="linux",
        config_revision=1,
        weight=0.1,
        health=0.1,
        stages={},
        state="tripped",
        tripped_by="signal",
        reason=DOWN.reason,
    )
    assert Health.of(event) == DOWN


def test_a_trip_without_a_reason() -> None:
    config = screens.config(id=ZONE, pool_id="linux", health_state="tripped", next_probe_at=TRIPPED.next_probe_at)
    assert narration.changed(None, Health.of(config), at=NOW) == EventLine(
        NOW, "zone-b tripped: no reason given; next probe in 1 s", "bad", "trip/zone-b"
    )


def test_failures_are_narrated_once_a_second_and_cause() -> None:
    """40 refusals in a second are one line; those of the current second wait."""
    refused = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, code="InsufficientCapacity")
    failures = narration.Failures()
    for n in range(40):
        config = f"c-{n % 5}"
        failures.add(NOW, WorkerLaunchFailed(batch_id="b", outcome=refused, **ids(n, config)))
    failures.add(NOW, WorkerLost(reason="vanished", **ids(40, "c-1")))
    failures.add(NOW + timedelta(seconds=1.5), WorkerLost(reason="vanished", **ids(41, "c-1")))
    assert failures.due(NOW + timedelta(seconds=1.9)) == []
    assert [line.text for line in failures.due(NOW + timedelta(seconds=2))] == [
        "40 launches refused: InsufficientCapacity (c-0 8, c-1 8, c-2 8, 2 more)",
        "1 worker lost: vanished (c-1)",
    ]
    assert failures.due(NOW + timedelta(seconds=2.9)) == []
    assert [line.text for line in failures.due(NOW + timedelta(seconds=3))] == ["1 worker lost: vanished (c-1)"]


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            WorkerStopping(reason="never registered", outcome=Outcome(Stage.BOOT, Result.FAILED), **ids(1, "c")),
            "1 boot failed: never registered (c)",
        ),
        (
            WorkerStopping(reason="idle timeout", outcome=Outcome(Stage.CLAIM, Result.FAILED), **ids(1, "c")),
            "1 worker claimed no task: idle timeout (c)",
        ),
        (WorkerStopping(reason="idle", **ids(1, "c")), None),
        (
            WorkerErrorReported(kind="disk-full", detail="/tmp", **ids(1, "c")),
            "1 worker reported an error: disk-full (c)",
        ),
    ],
)
def test_failures(event: WorkerEvent, text: str | None) -> None:
    failures = narration.Failures()
    failures.add(NOW, event)
    assert [line.text for line in failures.due(NOW + timedelta(seconds=9))] == ([text] if text else [])


def test_alerts() -> None:
    fields: dict[str, Any] = {
        "dedup_key": "s/gap/k",
        "subject_kind": "service",
        "subject_id": "s",
        "kind": "gap",
        "summary": "records are missing",
    }
    assert narration.alert(AlertRaised(**fields), NOW) == EventLine(NOW, "alert: records are missing", "bad")
    notice = AlertRaised(**fields, severity="notice")
    assert narration.alert(notice, NOW) == EventLine(NOW, "alert: records are missing", "")
    resolved = narration.alert(AlertResolved(**fields), NOW)
    assert resolved == EventLine(NOW, "alert resolved: records are missing", "good")


def test_alerts_of_a_config_do_not_repeat_its_line() -> None:
    """Its kind of subject tells it apart, whatever its name; others that recover have a line."""

    def raised(kind: str, subject: str, id_: str) -> list[EventLine | None]:
        fields: dict[str, Any] = {"subject_kind": subject, "subject_id": id_, "kind": kind, "summary": "odd"}
        key = alert_key("s", kind, subject, id_)
        return [narration.alert(of(dedup_key=key, **fields), NOW) for of in (AlertRaised, AlertResolved)]

    for kind in ("config-tripped", "recovered"):
        for name in ("zone-b@3f2c9a", "gecko-t/t-linux-large@3f2c9a"):
            assert raised(kind, "config", name) == [None, None]
    assert None not in raised("recovered", "image", "linux-1")


def test_acts_of_operators_and_services() -> None:
    def seen(state: str, limit: int, problem: str, *, paused: bool = False) -> Snapshot:
        broker = Service(name="lease-broker", unavailable_seconds=1 if problem else None, problem=problem)
        configs = [
            screens.config(id="a", pool_id="linux"),
            screens.config(id="b", pool_id="linux", state=state, state_reason="rack"),
        ]
        return Snapshot(
            now=NOW,
            title="",
            services=[Service(name="provisioner"), broker],
            configs=configs,
            pools=[screens.pool(id="linux", mode="enforce", paused=paused)],
            lease_pools=[screens.lease_pool(id="sim-a", limit=limit)],
        )

    before, after = seen("active", 45, ""), seen("paused", 40, "no answer within 5 s", paused=True)
    assert [(line.text, line.mood) for line in narration.differences(before, after)] == [
        ("lease-broker is unavailable: no answer within 5 s", "bad"),
        ("pool linux: enforce → paused", "bad"),
        ("b paused: rack", ""),
        ("lease pool sim-a: limit 45 → 40", ""),
    ]
    assert [(line.text, line.mood) for line in narration.differences(after, before)] == [
        ("lease-broker is available again", "good"),
        ("pool linux: paused → enforce", ""),
        ("b active again", "good"),
        ("lease pool sim-a: limit 40 → 45", ""),
    ]
    assert narration.differences(after, after) == []


def test_launch_stops_are_reported_when_they_begin_and_end() -> None:
    stopped = Snapshot(
        now=NOW, title="", launch_stops=[screens.launch_stop(scope="pool", scope_id="linux", reason="drill")]
    )
    free = Snapshot(now=NOW, title="")
    assert [line.text for line in narration.differences(free, stopped)] == ["launching is stopped in pool linux: drill"]
    assert [line.text for line in narration.differences(stopped, free)] == ["launching resumed in pool linux"]
    assert narration.differences(stopped, stopped) == []


def test_the_first_answers_are_no_differences() -> None:
    """Neither a config that was paused long ago nor a service before its first answer has a line."""
    nothing = Snapshot(now=NOW, title="", services=[Service(name="provisioner", unavailable_seconds=0, answered=False)])
    first = Snapshot(
        now=NOW,
        title="",
        services=[Service(name="provisioner")],
        pools=[screens.pool(id="linux", paused=True)],
        configs=[screens.config(id="a", pool_id="linux", state="paused")],
        lease_pools=[screens.lease_pool(id="sim-a", limit=4)],
    )
    assert narration.differences(nothing, first) == []


def test_status_in_a_line() -> None:
    pool = screens.pool(id="linux", pending=12, claimed=84, serving=96, wanted=100)
    configs = [
        screens.config(id="linux-zone-a", pool_id="linux", weight=0.9),
        screens.config(id="linux-zone-c", pool_id="linux", weight=0.3),
        screens.config(id="linux-zone-b", pool_id="linux", weight=0.1, health_state="tripped"),
        screens.config(id="linux-zone-d", pool_id="linux", weight=0.9, state="paused"),
    ]
    line = narration.status(pool, configs, 26.2)
    assert line == (
        "linux  12 pending  84 claimed  96/100 serving 26 launches/min  linux-zone-a 75% …c 25% …b tripped …d paused"
    )
    many = [
        screens.config(id=f"c-{n}", pool_id="linux", health_state="tripped" if n == 3 else "healthy") for n in range(60)
    ]
    assert narration.status(pool, many, None).endswith("96/100 serving  59 healthy 1 tripped")


def test_launches_per_minute() -> None:
    def seen(at: datetime, launched: int) -> Snapshot:
        return Snapshot(now=at, title="", configs=[screens.config(id="a", pool_id="linux", launched=launched)])

    assert narration.rates(seen(NOW, 10), seen(NOW + timedelta(seconds=30), 25)) == {"linux": 30.0}
    assert narration.rates(seen(NOW, 10), seen(NOW, 10)) == {}


def test_launches_of_archived_revisions_are_not_taken_back() -> None:
    old, new = (screens.config(id=id_, pool_id="linux", launched=number) for id_, number in (("a@1", 500), ("a@2", 3)))
    before = Snapshot(now=NOW, title="", configs=[old])
    assert narration.rates(before, Snapshot(now=NOW + timedelta(minutes=1), title="", configs=[new])) == {"linux": 3.0}


def test_failures_of_several_revisions_are_told_apart() -> None:
    failures = narration.Failures()
    for config in ("a@1", "a@2", "a@2", "b@1"):
        failures.add(NOW, WorkerLost(reason="vanished", **ids(1, config)))
    (line,) = failures.due(NOW + timedelta(seconds=9))
    assert line.text == "4 workers lost: vanished (a@2 2, a@1 1, b 1)"


@pytest.mark.parametrize(
    ("names", "common"),
    [
        (["linux-zone-a", "linux-zone-b"], "linux-zone-"),
        (["linux-zone-ab", "linux-zone-ac"], "linux-zone-"),
        (["east", "west"], ""),
        (["linux-zone-a"], ""),
        ([], ""),
    ],
)
def test_names_are_shortened_by_what_they_share(names: list[str], common: str) -> None:
    assert narration.common_start(names) == common


def test_lines_are_held_until_nothing_older_is_to_come() -> None:
    """Late lines stand where their times belong; at the end none is left."""
    ordered, lines = narration.InOrder(), [EventLine(NOW + timedelta(seconds=n), str(n)) for n in range(8)]
    ordered.add([lines[2], lines[3]])
    assert ordered.due(lines[4].at) == []
    ordered.add([lines[1], lines[4]])
    assert [line.text for line in ordered.due(lines[5].at)] == ["1", "2"]
    ordered.add([lines[7], lines[5]])
    assert [line.text for line in ordered.due(lines[7].at)] == ["3", "4"]
    assert [line.text for line in ordered.due()] == ["5", "7"]
    assert ordered.due() == []
