"""What is told, and what is not: one sentence for a change, one a second for a crowd."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipway_client import narration
from slipway_client.narration import Circuit
from slipway_client.snapshot import Brake, Config, LeasePool, Line, Pool, Service, Snapshot
from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_common.events.worker import (
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

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
OPEN = Circuit(False, None, "zone-b: open")
CLOSED = Circuit(True, NOW + timedelta(seconds=1), "zone-b: closed, 2 capacity errors (InsufficientCapacity)")
READY = Circuit(True, None, "zone-b: closed, probe 3 may start")
LATER = Circuit(True, NOW + timedelta(seconds=2), "zone-b: closed, 2 capacity errors (InsufficientCapacity)")
DOWN = Circuit(True, None, "zone-b: closed, down by page (dark)", by_signal=True)
COMMON = {"pool_id": "linux", "account_id": "sim-a", "image_revision": "linux-1"}


def ids(number: int, config: str) -> dict[str, Any]:
    return COMMON | {"worker_id": f"w-{number}", "launch_config_id": config}


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (None, OPEN, None),
        (OPEN, OPEN, None),
        (None, CLOSED, "zone-b closed: 2 capacity errors (InsufficientCapacity), next probe 20 s"),
        (OPEN, CLOSED, "zone-b closed: 2 capacity errors (InsufficientCapacity), next probe 20 s"),
        (CLOSED, CLOSED, None),
        (CLOSED, READY, None),
        (READY, LATER, "zone-b still closed: 2 capacity errors (InsufficientCapacity), next probe 40 s"),
        (READY, OPEN, "zone-b open again: a probe succeeded"),
        (LATER, OPEN, "zone-b open again: a start succeeded"),
        (OPEN, READY, "zone-b closed: probe 3 may start"),
        (OPEN, DOWN, "zone-b closed: down by page (dark)"),
        (DOWN, DOWN, None),
        (DOWN, OPEN, "zone-b open again: the signal that closed it is over"),
        (LATER, DOWN, "zone-b still closed: down by page (dark)"),
        (DOWN, READY, "zone-b still closed: probe 3 may start"),
        (DOWN, LATER, "zone-b still closed: 2 capacity errors (InsufficientCapacity), next probe 40 s"),
    ],
)
def test_circuits(before: Circuit | None, now: Circuit, told: str | None) -> None:
    line = narration.changed(before, now, at=NOW, speed=20)
    assert (line and line.text) == told


def test_who_closed_it_is_heard_and_read_alike() -> None:
    config = Config(id="linux-zone-b", pool_id="linux", circuit="closed", closed_by="signal", reason=DOWN.reason)
    assert Circuit.seen(config) == DOWN


def test_answers_and_events_tell_the_same() -> None:
    config = Config(id="linux-zone-b", pool_id="linux", circuit="closed", next_probe_at=CLOSED.next_probe_at)
    assert narration.changed(None, Circuit.seen(config), at=NOW, speed=1) == Line(
        NOW, "linux-zone-b closed: no reason given, next probe 1 s", "bad"
    )


def test_failures_are_told_once_a_second_and_cause() -> None:
    """40 refusals in a second are one line; those of a second that is not over wait."""
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
    ("event", "told"),
    [
        (
            WorkerStopping(reason="never registered", outcome=Outcome(Stage.BOOT, Result.FAILED), **ids(1, "c")),
            "1 boot failed: never registered (c)",
        ),
        (
            WorkerStopping(reason="no task", outcome=Outcome(Stage.CLAIM, Result.FAILED), **ids(1, "c")),
            "1 worker claimed nothing: no task (c)",
        ),
        (WorkerStopping(reason="idle", **ids(1, "c")), None),
        (
            WorkerErrorReported(kind="disk-full", detail="/tmp", **ids(1, "c")),
            "1 worker reported an error: disk-full (c)",
        ),
    ],
)
def test_what_counts_as_a_failure(event: WorkerEvent, told: str | None) -> None:
    failures = narration.Failures()
    failures.add(NOW, event)
    assert [line.text for line in failures.due(NOW + timedelta(seconds=9))] == ([told] if told else [])


def test_alerts() -> None:
    fields: dict[str, Any] = {"dedup_key": "k", "subject_id": "s", "kind": "gap", "summary": "records are missing"}
    assert narration.alert(AlertRaised(**fields), NOW) == Line(NOW, "alert: records are missing", "bad")
    assert narration.alert(AlertResolved(**fields), NOW) == Line(NOW, "alert over: records are missing", "good")


def test_differences_tell_what_operators_and_services_did() -> None:
    def seen(state: str, limit: int, problem: str, *, paused: bool = False) -> Snapshot:
        silent = Service(name="lease-broker", silent_seconds=1 if problem else None, problem=problem)
        configs = [Config(id="a", pool_id="linux"), Config(id="b", pool_id="linux", state=state, state_reason="rack")]
        return Snapshot(
            now=NOW,
            title="",
            services=[Service(name="provisioner"), silent],
            configs=configs,
            pools=[Pool(id="linux", mode="enforce", paused=paused)],
            lease_pools=[LeasePool(id="sim-a", limit=limit)],
        )

    before, after = seen("active", 45, ""), seen("paused", 40, "nothing in 5 s", paused=True)
    assert [(line.text, line.mood) for line in narration.differences(before, after)] == [
        ("lease-broker does not answer: nothing in 5 s", "bad"),
        ("pool linux: enforce → paused", "bad"),
        ("b paused: rack", ""),
        ("lease pool sim-a: limit 45 → 40", ""),
    ]
    assert [(line.text, line.mood) for line in narration.differences(after, before)] == [
        ("lease-broker answers again", "good"),
        ("pool linux: paused → enforce", ""),
        ("b active again", "good"),
        ("lease pool sim-a: limit 40 → 45", ""),
    ]
    assert narration.differences(after, after) == []


def test_brakes_are_told_when_they_begin_and_end() -> None:
    braked = Snapshot(now=NOW, title="", brakes=[Brake(scope="pool", scope_id="linux", reason="drill")])
    free = Snapshot(now=NOW, title="")
    assert [line.text for line in narration.differences(free, braked)] == ["launching is stopped in pool linux: drill"]
    assert [line.text for line in narration.differences(braked, free)] == ["launching goes on in pool linux"]
    assert narration.differences(braked, braked) == []


def test_the_first_answers_are_no_differences() -> None:
    """A config that was paused long ago is not told when watching begins, nor a service that was not asked yet."""
    nothing = Snapshot(now=NOW, title="", services=[Service(name="provisioner", silent_seconds=0, answered=False)])
    first = Snapshot(
        now=NOW,
        title="",
        services=[Service(name="provisioner")],
        pools=[Pool(id="linux", paused=True)],
        configs=[Config(id="a", pool_id="linux", state="paused")],
        lease_pools=[LeasePool(id="sim-a", limit=4)],
    )
    assert narration.differences(nothing, first) == []


def test_status_in_a_line() -> None:
    pool = Pool(id="linux", pending=12, claimed=84, serving=96, wanted=100)
    configs = [
        Config(id="linux-zone-a", pool_id="linux", weight=0.9),
        Config(id="linux-zone-c", pool_id="linux", weight=0.3),
        Config(id="linux-zone-b", pool_id="linux", weight=0.1, circuit="closed"),
        Config(id="linux-zone-d", pool_id="linux", weight=0.9, state="paused"),
    ]
    line = narration.status(pool, configs, 26)
    assert line == "linux  12 waiting  84 running  96/100 up   26/min  a 75% c 25% b closed d paused"
    many = [Config(id=f"c-{n}", pool_id="linux", circuit="closed" if n == 3 else "open") for n in range(60)]
    assert narration.status(pool, many, None).endswith("96/100 up  1 closed 59 open")


def test_launches_per_minute_are_of_product_time() -> None:
    def seen(at: datetime, ok: int) -> Snapshot:
        return Snapshot(now=at, title="", configs=[Config(id="a", pool_id="linux", ok=ok)])

    assert narration.rates(seen(NOW, 10), seen(NOW + timedelta(seconds=30), 25)) == {"linux": 30.0}
    assert narration.rates(seen(NOW, 10), seen(NOW, 10)) == {}


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
    """What is told late stands where it belongs; at the end all is told."""
    told, lines = narration.InOrder(), [Line(NOW + timedelta(seconds=n), str(n)) for n in range(8)]
    told.add([lines[2], lines[3]])
    assert told.due(lines[4].at) == []
    told.add([lines[1], lines[4]])
    assert [line.text for line in told.due(lines[5].at)] == ["1", "2"]
    told.add([lines[7], lines[5]])
    assert [line.text for line in told.due(lines[7].at)] == ["3", "4"]
    assert [line.text for line in told.due()] == ["5", "7"]
    assert told.due() == []
