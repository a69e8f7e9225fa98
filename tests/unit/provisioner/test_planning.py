"""Planning decisions: launches, workers to cancel and to stop, and a reason per config."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.scopes import Key
from slipway_provisioner.domain import planning
from slipway_provisioner.domain.ageing import Life
from slipway_provisioner.domain.headroom import Launch
from slipway_provisioner.domain.planning import Plan, check_plan
from slipway_provisioner.domain.pool import Config, Demand, Fleet, Idle, Observed, Pool, Shared, Stage, Waiting

NOW = datetime(2030, 1, 1, tzinfo=UTC)
POOL = Pool(id="linux", min_capacity=0, max_capacity=10, scaling_ratio=Fraction(1))


def config(name: str = "a", *, window: int = 64, launching: int = 0, failures: int = 0, **changes: Any) -> Config:
    usual: dict[str, Any] = {
        "id": name,
        "name": name,
        "current_id": name,
        "account_id": "sim-a",
        "lease_pool_id": "sim-a",
        "image_revision": "i",
        "weight": 1.0,
        "prior_weight": 1.0,
        "boot": Stage(window=64),
        "claim": Stage(window=64),
        "launch": Stage(window=window, in_flight=launching, unfolded=failures),
    }
    return Config(**(usual | changes))


def reports_of(pending: int, *, stale: bool = False) -> list[Demand]:
    """Demand of one source with so many pending tasks."""
    return [Demand(source="q", pending=pending, claimed=0, gone=0, stale=stale, fresh_seconds=-1.0 if stale else 300.0)]


def observed(pending: int = 0, *configs: Config, serving: int = 0, leaving: int = 0, **changes: Any) -> Observed:
    pool = {name: changes.pop(name) for name in list(changes) if name in Pool.__struct_fields__}
    fleet = {name: changes.pop(name) for name in ("stuck", "stranded") if name in changes}
    usual: dict[str, Any] = {
        "pool": msgspec.structs.replace(POOL, **pool),
        "demands": reports_of(pending),
        "configs": configs or (config(),),
        "fleet": Fleet(serving=serving, leaving=leaving, **fleet),
        "idle_timeout_seconds": 120.0,
    }
    return Observed(**(usual | changes))


def plan(given: Observed) -> Plan:
    made = planning.plan(given, now=NOW)
    assert check_plan(given, made) == []
    return made


def launched(made: Plan) -> dict[str, int]:
    return {launch.config.id: launch.units for launch in made.launches}


def reasons(made: Plan) -> dict[str, str]:
    return {name: note.get("reason", "") for name, note in made.details["configs"].items()}


TRIPPED = config("a", tripped=True)
PROBE = config("a", tripped=True, permit=7, last_permit=7)
PAUSED = config("a", state="paused")
STOPPED = config("a", stopped="launching is stopped in sim-a: drill")
FULL = config("a", window=3, launching=3)

#         observed                                              launches        reason, and reason of config a
DECISIONS = [
    (observed(0), {}, "nothing is needed", "nothing is needed"),
    (observed(3), {"a": 3}, "3 needed", ""),
    (observed(3, serving=3), {}, "nothing is needed", "nothing is needed"),
    (observed(99), {"a": 10}, "10 needed", ""),
    (observed(99, serving=4, leaving=5), {"a": 1}, "1 needed", ""),
    (observed(3, FULL), {}, "3 needed, but no config may launch now", "the launch window is full"),
    (observed(3, FULL, config("b")), {"b": 3}, "3 needed", "the launch window is full"),
    (observed(3, config("a", window=2)), {"a": 2}, "3 needed, room for 2", ""),
    (observed(3, config("a", window=2, failures=1)), {"a": 1}, "3 needed, room for 1", ""),
    (observed(3, PAUSED), {}, "3 needed, but no config may launch now", "paused"),
    (observed(3, STOPPED), {}, "3 needed, but no config may launch now", "launching is stopped in sim-a: drill"),
    (observed(3, TRIPPED), {}, "3 needed, but no config may launch now", "tripped; no probe is due"),
    (observed(3, TRIPPED, config("b")), {"b": 3}, "3 needed", "tripped; no probe is due"),
    (observed(3, PROBE), {"a": 1}, "3 needed, room for 1", ""),
    (observed(3, PROBE, config("b")), {"a": 1, "b": 2}, "3 needed", ""),
    (observed(0, PROBE), {}, "nothing is needed", "tripped; its probe waits for demand"),
    (
        observed(1, config("b", tripped=True, permit=1), PROBE),
        {"b": 1},
        "1 needed",
        "tripped; its probe waits for demand",
    ),
]


@pytest.mark.parametrize(("given", "launches", "reason", "reason_a"), DECISIONS)
def test_decisions(given: Observed, launches: dict[str, int], reason: str, reason_a: str) -> None:
    """Every decision has a reason for the pool and for each config, also if nothing is launched."""
    made = plan(given)
    assert (launched(made), made.details["reason"], reasons(made)["a"]) == (launches, reason, reason_a)
    assert made.details["launched"] == sum(launches.values())


def test_a_probe_is_one_unit_with_its_number() -> None:
    """A probe serves one unit of the demand and carries its permit."""
    made = plan(observed(2, PROBE, config("b")))
    assert [(launch.units, launch.permit) for launch in made.launches] == [(1, 7), (1, None)]
    assert made.details["configs"]["a"]["probe"] == 7


#        changes                          reason
BLOCKED = [
    ({"deleted": True}, "the pool is deleted"),
    ({"frozen": True}, "the pool is frozen"),
    ({"frozen": True, "frozen_reason": "drill"}, "the pool is frozen: drill"),
    ({"paused": True}, "the pool is paused"),
    ({"mode": "observe"}, "mode observe: launches are decided and recorded, not made"),
    ({"mode": "other"}, "mode other: launches are decided and recorded, not made"),
    ({"stopped": "launching is stopped: drill"}, "launching is stopped: drill"),
]


@pytest.mark.parametrize(("changes", "reason"), BLOCKED)
def test_blocked_pools(changes: dict[str, Any], reason: str) -> None:
    """Nothing launches, suppressed launches are recorded, and waiting workers are cancelled."""
    waiting = [Waiting(worker_id="w", config_id="a")]
    made = plan(observed(3, config("a"), config("b"), serving=1, waiting=waiting, **changes))
    assert (launched(made), made.details["reason"], made.cancel) == ({}, reason, ["w"])
    assert sum(note["would_launch"] for note in made.details["configs"].values()) == 2
    assert all(note["launched"] == 0 for note in made.details["configs"].values())


@pytest.mark.parametrize(
    ("serving", "configs", "launches"),
    [(0, [config("a")], {"a": 1}), (1, [config("a")], {}), (0, [PROBE, config("b", tripped=True, permit=1)], {"a": 1})],
)
def test_canary(serving: int, configs: list[Config], launches: dict[str, int]) -> None:
    """A canary has one worker at a time, including probes."""
    assert launched(plan(observed(5, *configs, serving=serving, mode="canary"))) == launches


def test_unavailable_calculator() -> None:
    """Windows are capped at four, and one attempt per 30 s is made where nothing else may launch."""
    unavailable: dict[str, Any] = {"calculator_unavailable_seconds": 0.5}
    assert launched(plan(observed(9, **unavailable))) == {"a": 4}
    stuck = [config("a", failures=99), config("b", tripped=True)]
    assert launched(plan(observed(9, *stuck, attempt_in_seconds=0.5, **unavailable))) == {}
    assert sum(launched(plan(observed(9, *stuck, **unavailable))).values()) == 1
    assert launched(plan(observed(0, *stuck, **unavailable))) == {}
    assert launched(plan(observed(9, PAUSED, STOPPED, **unavailable))) == {}
    assert launched(plan(observed(9, *stuck))) == {}


def test_an_attempt_while_the_calculator_is_unavailable_is_not_cancelled() -> None:
    """A trip counts only while the calculator is available."""
    waiting: dict[str, Any] = {"waiting": [Waiting(worker_id="w", config_id="a")], "serving": 1}
    assert plan(observed(1, TRIPPED, calculator_unavailable_seconds=1.0, **waiting)).cancel == []
    assert plan(observed(1, TRIPPED, **waiting)).cancel == ["w"]


#           config of the waiting worker, its permit, cancelled?
WITHDRAWN = [
    (config("a"), None, False),
    (PAUSED, None, True),
    (STOPPED, None, True),
    (TRIPPED, None, True),
    (PROBE, 7, False),
    (config("a", tripped=True, last_permit=7), 7, False),
    (config("a", tripped=True, last_permit=8), 7, True),  # returned; its successor was issued
    (config("a", state="paused", last_permit=7), 7, True),
    (config("b"), None, True),  # its config is deleted
]


@pytest.mark.parametrize(("given", "permit", "cancelled"), WITHDRAWN)
def test_waiting_workers_that_cannot_launch_are_cancelled(given: Config, permit: int | None, cancelled: bool) -> None:
    """Their place in the queue becomes free for others."""
    waiting = [Waiting(worker_id="w", config_id="a", permit=permit)]
    assert plan(observed(1, given, serving=1, waiting=waiting)).cancel == (["w"] if cancelled else [])


def idle(name: str, seconds: float) -> Idle:
    return Idle(worker_id=name, config_id="a", since=NOW - timedelta(seconds=seconds))


def test_scale_down() -> None:
    """Cancels the newest waiting workers first, then stops the longest idle ones past the timeout, never busy ones."""
    waiting = [Waiting(worker_id=name, config_id="a") for name in ("w1", "w2")]
    idle_ones = [idle("i1", 500), idle("i2", 120), idle("i3", 119)]
    workers: dict[str, Any] = {"waiting": waiting, "idle": idle_ones, "serving": 8}
    #       wanted → cancelled, stopped
    cases = {8: ([], []), 7: (["w2"], []), 5: (["w2", "w1"], ["i1"]), 0: (["w2", "w1"], ["i1", "i2"])}
    for pending, expected in cases.items():
        made = plan(observed(pending, **workers))
        assert (made.cancel, made.stop) == expected
    made = plan(observed(0, min_capacity=7, **workers))
    assert (made.cancel, made.stop) == (["w2"], [])


def test_withdrawn_workers_count_as_surplus() -> None:
    """No further worker is cancelled or stopped in place of a withdrawn one."""
    waiting = [Waiting(worker_id="old", config_id="a"), Waiting(worker_id="good", config_id="b")]
    made = plan(observed(2, PAUSED, config("b"), serving=3, waiting=waiting, idle=[idle("i", 500)]))
    assert (made.cancel, made.stop) == (["old"], [])


def test_a_stale_report_launches_nothing_and_protects() -> None:
    """The tasks of a stale report still protect serving workers."""
    stale = [Demand(source="q", pending=2, claimed=1, gone=0, stale=True, fresh_seconds=-1)]
    made = plan(observed(demands=stale, serving=4, idle=[idle("i1", 500), idle("i2", 500)]))
    assert (launched(made), made.stop, made.details["tasks"]) == ({}, ["i1"], 0)


#        observed, seconds until time alone may change the decision
LATER = [
    (observed(1), 300.0),  # the report turns stale
    (observed(demands=[]), None),
    (observed(serving=1, idle=[idle("i", 20)]), 100.0),
    (observed(1, serving=1, idle=[idle("i", 20)]), 300.0),  # a wanted worker is not stopped for being idle
    (observed(9, FULL, calculator_unavailable_seconds=1.0, attempt_in_seconds=12.5), 12.5),
    (observed(0, calculator_unavailable_seconds=1.0, attempt_in_seconds=12.5), 300.0),
]


@pytest.mark.parametrize(("given", "seconds"), LATER)
def test_reconsider_after(given: Observed, seconds: float | None) -> None:
    """Time until a decision may change without an event."""
    assert plan(given).reconsider_after_seconds == seconds


def made(*launches: Launch, cancel: tuple[str, ...] = (), stop: tuple[str, ...] = ()) -> Plan:
    return Plan(launches=launches, cancel=cancel, stop=stop, wanted=0, serving=0, details={})


def launch(units: int, given: Config | None = None) -> Launch:
    return Launch(config=given or config(), units=units)


#          observed, plan, its violation
BROKEN = [
    (observed(9, serving=8, min_capacity=1), made(launch(3)), "11 would serve, above the maximum of 10"),
    (observed(9, serving=5, leaving=4), made(launch(2)), "7 serving and 4 leaving exceed maximum + minimum"),
    (observed(9, frozen=True), made(launch(1)), "launches although the pool is frozen"),
    (observed(9, mode="canary"), made(launch(2)), "2 would serve, above the one worker of a canary"),
    (observed(9), made(launch(1, PAUSED)), "launches on a, which is not active"),
    (observed(9), made(launch(1, STOPPED)), "launches on a, which is not active"),
    (observed(0, serving=1), made(stop=("busy",)), "stops a worker that is not idle"),
    (
        observed(0, config(launching=3), serving=4, idle=[idle("i1", 500), idle("i2", 500)]),
        made(stop=("i1", "i2")),
        "stops 2 workers, although 1 registered ones are not wanted",
    ),
    (observed(0, serving=1), made(cancel=("admitted",)), "cancels a worker that is not waiting"),
]


@pytest.mark.parametrize(("given", "broken", "problem"), BROKEN)
def test_check_plan_finds_each_violation(given: Observed, broken: Plan, problem: str) -> None:
    """Each violation is reported by its own message, without others."""
    assert check_plan(given, broken) == [problem]


#         changes of the pool; unconfirmed, forgiven; does it freeze?
FREEZES = [
    ({}, 99, 0, False),
    ({"on_bad_image": "freeze"}, 9, 0, False),
    ({"on_bad_image": "freeze"}, 10, 0, True),
    ({"on_bad_image": "freeze", "freeze_after": 3}, 3, 0, True),
    ({"on_bad_image": "freeze"}, 19, 10, False),
    ({"on_bad_image": "freeze"}, 20, 10, True),
    ({"on_bad_image": "freeze"}, 10, 30, True),  # a success came between
    ({"on_bad_image": "freeze", "frozen": True}, 99, 0, False),
    ({"on_bad_image": "freeze", "deleted": True}, 99, 0, False),
    ({"on_bad_image": "freeze", "paused": True}, 99, 0, True),
]


@pytest.mark.parametrize(("changes", "unconfirmed", "forgiven", "freezes"), FREEZES)
def test_a_bad_image_freezes_its_pool(changes: dict[str, Any], unconfirmed: int, forgiven: int, freezes: bool) -> None:
    """After `freeze_after` new unconfirmed starts nothing is launched and waiting workers are cancelled."""
    bad = Shared(key=Key("image", "i"), stage="boot", window=64, unconfirmed=unconfirmed, forgiven=forgiven)
    less = msgspec.structs.replace(bad, stage="claim", unconfirmed=forgiven)
    beside = Shared(key=Key("quota", "i"), stage="launch", window=64, unconfirmed=99)
    waiting = [Waiting(worker_id="w", config_id="a")]
    shared = [less, bad, beside]
    made = plan(observed(3, config("a", shares=[bad.share]), serving=1, waiting=waiting, shared=shared, **changes))
    assert made.freeze == (bad if freezes else None)
    if freezes and "paused" not in changes:
        assert (launched(made), made.cancel) == ({}, ["w"])
        assert made.details["reason"].startswith("the pool freezes: ")
    other = plan(observed(3, config("a", image_revision="j"), shared=shared, **changes))
    assert other.freeze is None


OLD: Final = (Key("image", "old"), "boot")


def test_a_full_shared_window_stops_its_configs_and_no_other() -> None:
    """Failures of an image count against all its configs."""
    old, new = config("old", shares=[OLD]), config("new", shares=[(Key("image", "new"), "boot")])
    shared = [
        Shared(key=Key("image", "old"), stage="boot", in_flight=60, unfolded=4, window=64),
        Shared(key=Key("image", "new"), stage="boot", in_flight=58, window=64),
    ]
    made = plan(observed(20, old, new, shared=shared))
    assert [(launch.config.id, launch.units) for launch in made.launches] == [("new", 6)]
    assert made.details["configs"]["old"]["reason"] == "the boot window of image old is full"
    assert made.details["configs"]["new"]["limited_by"] == "boot window of image new"


def test_a_tripped_share_allows_only_probes() -> None:
    """A probe launches where a permit is issued, not on a config whose own record is still healthy."""
    stale, probed = config("stale", shares=[OLD]), config("probed", shares=[OLD], tripped=True, permit=3, last_permit=3)
    other = config("other")
    shared = [Shared(key=Key("image", "old"), stage="boot", window=8, tripped=True, reason="5 image errors")]
    made = plan(observed(9, stale, probed, other, shared=shared))
    assert [(launch.config.id, launch.units, launch.permit) for launch in made.launches] == [
        ("probed", 1, 3),
        ("other", 8, None),
    ]
    assert reasons(made)["stale"] == "tripped: image old: 5 image errors; no probe is due"
    waiting = [Waiting(worker_id=name, config_id=name) for name in ("stale", "other")]
    assert plan(observed(9, stale, other, serving=2, shared=shared, waiting=waiting)).cancel == ["stale"]


def test_a_probe_uses_a_unit_of_shared_windows() -> None:
    """A probe launches even into a full window, and the unit it uses is not available to others."""
    image = (Key("image", "i"), "boot")
    probed = config("probed", tripped=True, permit=1, last_permit=1, shares=[image])
    healthy = config("healthy", shares=[image])
    for in_flight, launches in ((6, {"probed": 1, "healthy": 1}), (7, {"probed": 1}), (8, {"probed": 1})):
        shared = [Shared(key=Key("image", "i"), stage="boot", in_flight=in_flight, window=8)]
        made = plan(observed(9, healthy, probed, shared=shared))
        assert launched(made) == launches
        assert reasons(made)["healthy"] == ("" if "healthy" in launches else "the boot window of image i is full")


def at_maximum_age(name: str, **changes: Any) -> Life:
    usual: dict[str, Any] = {"has_task": False, "draining": False, "age_seconds": 60.0, "clock_seconds": 60.0}
    return Life(worker_id=name, maximum_age_seconds=60.0, **(usual | changes))


@pytest.mark.parametrize(
    ("given", "stop", "cause"),
    [
        (observed(4, serving=4), ["w"], ""),
        (observed(4, config(max_capacity=4, live=4), serving=4), ["w"], ""),  # its own departure makes room
        (observed(5, FULL, serving=4), ["w"], ""),  # what fills a window ends by itself
        (observed(4, TRIPPED, serving=4), [], "no launch config may launch: tripped"),
        (observed(4, TRIPPED, config("b"), serving=4), ["w"], ""),
        (observed(4, PROBE, serving=4), [], "no launch config may launch: tripped"),
        (observed(4, STOPPED, serving=4), [], "no launch config may launch: launching is stopped in sim-a: drill"),
        (observed(4, serving=4, paused=True), [], "the pool is paused"),
        (observed(3, TRIPPED, serving=4), ["w"], "no launch config may launch: tripped"),  # nobody wants it
    ],
)
def test_a_worker_of_full_age(given: Observed, stop: list[str], cause: str) -> None:
    """It leaves if something could replace it, or if it is not wanted. Nothing is launched for it meanwhile."""
    made = plan(msgspec.structs.replace(given, lives=[at_maximum_age("w"), at_maximum_age("young", age_seconds=1.0)]))
    assert (made.ageing.stop, made.ageing.cause, made.units) == (stop, cause, 0)


def test_made_up_ends_stop_no_other_worker_of_full_age() -> None:
    """Ends that one worker had made up for all tasks of the sample made others unwanted, which nothing could replace.
    They are wanted until a sample has fewer tasks."""
    for pending, stop in ((4, []), (3, ["w"])):
        (sample,) = reports_of(pending)
        given = observed(0, TRIPPED, serving=4, demands=[msgspec.structs.replace(sample, gone=pending)])
        made = plan(msgspec.structs.replace(given, lives=[at_maximum_age("w")]))
        assert (made.ageing.stop, made.ageing.drain) == (stop, [])


def test_a_plan_is_short_if_launches_in_flight_keep_it_from_more() -> None:
    """It waits for its turn on a shared window, and one that launches all needs none."""
    full = Shared(key=Key("image", "i"), stage="boot", window=1)
    assert plan(observed(3, config(window=2))).short
    assert not plan(observed(3, config(window=3))).short
    assert not plan(observed(3, config(shares=[full.share]), shared=[full])).short
    assert plan(observed(3, config("a", shares=[full.share]), config("b", window=1), shared=[full])).short


def test_a_worker_of_full_age_waits_for_what_is_missing_already() -> None:
    """Before the maximum age itself, while more than a quarter is missing."""
    early = at_maximum_age("w", age_seconds=59.99)
    assert early.late_in > 0 >= early.drains_in
    for missing, stop in ((0, ["w"]), (1, [])):
        given = observed(4, config(launching=missing), serving=4, lives=[early])
        assert plan(given).ageing.stop == stop
