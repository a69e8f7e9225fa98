"""Decisions: what is launched, who leaves, and the reason that stands beside every config."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, Final

import msgspec
import pytest

from slipway_provisioner.domain import planning
from slipway_provisioner.domain.planning import Launch, Plan, check_plan
from slipway_provisioner.domain.pool import Config, Demand, Fleet, Idle, Observed, Pool, Shared, Stage, Waiting

NOW = datetime(2030, 1, 1, tzinfo=UTC)
POOL = Pool(id="linux", min_capacity=0, max_capacity=10, scaling_ratio=Fraction(1))


def config(name: str = "a", *, window: int = 64, launching: int = 0, failures: int = 0, **changes: Any) -> Config:
    usual: dict[str, Any] = {
        "id": name,
        "account_id": "sim-a",
        "lease_pool_id": "sim-a",
        "image_revision": "i",
        "active": True,
        "weight": 1.0,
        "prior_weight": 1.0,
        "boot": Stage(window=64),
        "claim": Stage(window=64),
        "launch": Stage(window=window, in_flight=launching, failures=failures),
    }
    return Config(**(usual | changes))


def observed(pending: int = 0, *configs: Config, serving: int = 0, leaving: int = 0, **changes: Any) -> Observed:
    pool = {name: changes.pop(name) for name in list(changes) if name in Pool.__struct_fields__}
    demand = Demand(source="q", pending=pending, claimed=0, gone=0, stale=False, fresh_seconds=300.0)
    usual: dict[str, Any] = {
        "pool": msgspec.structs.replace(POOL, **pool),
        "demands": [demand],
        "configs": configs or (config(),),
        "fleet": Fleet(serving=serving, leaving=leaving),
        "idle_timeout_seconds": 120.0,
    }
    return Observed(**(usual | changes))


def plan(given: Observed) -> Plan:
    made = planning.plan(given, now=NOW)
    assert check_plan(given, made) == []
    return made


def launched(made: Plan) -> dict[str, int]:
    return {launch.config.id: launch.units for launch in made.launches}


def lost(made: Plan) -> dict[str, str]:
    return {name: note.get("lost", "") for name, note in made.why["configs"].items()}


CLOSED = config("a", closed=True)
PROBE = config("a", closed=True, permit=7, last_permit=7)
PAUSED = config("a", active=False)
BRAKED = config("a", stopped="launching is stopped in sim-a: drill")
FULL = config("a", window=3, launching=3)

#         observed                                              launches        because, and why a got no more
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
    (observed(3, PAUSED), {}, "3 needed, but no config may launch now", "not active"),
    (observed(3, BRAKED), {}, "3 needed, but no config may launch now", "launching is stopped in sim-a: drill"),
    (observed(3, CLOSED), {}, "3 needed, but no config may launch now", "closed; no probe is due"),
    (observed(3, CLOSED, config("b")), {"b": 3}, "3 needed", "closed; no probe is due"),
    (observed(3, PROBE), {"a": 1}, "3 needed, room for 1", ""),
    (observed(3, PROBE, config("b")), {"a": 1, "b": 2}, "3 needed", ""),
    (observed(0, PROBE), {}, "nothing is needed", "closed; its probe waits for demand"),
    (
        observed(1, config("b", closed=True, permit=1), PROBE),
        {"b": 1},
        "1 needed",
        "closed; its probe waits for demand",
    ),
]


@pytest.mark.parametrize(("given", "launches", "because", "why_a"), DECISIONS)
def test_decisions(given: Observed, launches: dict[str, int], because: str, why_a: str) -> None:
    """Also a decision to launch nothing has its reason, in words, for the pool and for each config."""
    made = plan(given)
    assert (launched(made), made.why["because"], lost(made)["a"]) == (launches, because, why_a)
    assert made.why["launched"] == sum(launches.values())


def test_a_probe_is_one_unit_with_its_number() -> None:
    """And counts against what is needed."""
    made = plan(observed(2, PROBE, config("b")))
    assert [(launch.units, launch.permit) for launch in made.launches] == [(1, 7), (1, None)]
    assert made.why["configs"]["a"]["probe"] == 7


#        changes                          the reason
HELD = [
    ({"deleted": True}, "the pool is deleted"),
    ({"frozen": True}, "the pool is frozen"),
    ({"frozen": True, "frozen_reason": "drill"}, "the pool is frozen: drill"),
    ({"paused": True}, "the pool is paused"),
    ({"mode": "observe"}, "mode observe: decided and recorded, not launched"),
    ({"mode": "unheard-of"}, "mode unheard-of: decided and recorded, not launched"),
    ({"stopped": "launching is stopped: drill"}, "launching is stopped: drill"),
]


@pytest.mark.parametrize(("changes", "because"), HELD)
def test_held(changes: dict[str, Any], because: str) -> None:
    """Nothing launches, what would have is recorded, and nobody waits for an admission that would be in vain."""
    waiting = [Waiting(worker_id="w", config_id="a")]
    made = plan(observed(3, config("a"), config("b"), serving=1, waiting=waiting, **changes))
    assert (launched(made), made.why["because"], made.cancel) == ({}, because, ["w"])
    assert sum(note["would_launch"] for note in made.why["configs"].values()) == 2
    assert all(note["launched"] == 0 for note in made.why["configs"].values())


@pytest.mark.parametrize(
    ("serving", "configs", "launches"),
    [(0, [config("a")], {"a": 1}), (1, [config("a")], {}), (0, [PROBE, config("b", closed=True, permit=1)], {"a": 1})],
)
def test_canary(serving: int, configs: list[Config], launches: dict[str, int]) -> None:
    """One worker at a time, probes included."""
    assert launched(plan(observed(5, *configs, serving=serving, mode="canary"))) == launches


def test_silent_calculator() -> None:
    """Windows of four; and one attempt per 30 s even where nothing may launch."""
    silent: dict[str, Any] = {"calculator_silent_seconds": 1.0}
    assert launched(plan(observed(9, **silent))) == {"a": 4}
    stuck = [config("a", failures=99), config("b", closed=True)]
    assert launched(plan(observed(9, *stuck, attempt_in_seconds=12.5, **silent))) == {}
    assert sum(launched(plan(observed(9, *stuck, **silent))).values()) == 1
    assert launched(plan(observed(0, *stuck, **silent))) == {}
    assert launched(plan(observed(9, PAUSED, BRAKED, **silent))) == {}
    assert launched(plan(observed(9, *stuck))) == {}


def test_the_attempt_of_a_silent_time_is_not_given_up() -> None:
    """Its config counts as closed only as long as somebody could open it."""
    waiting: dict[str, Any] = {"waiting": [Waiting(worker_id="w", config_id="a")], "serving": 1}
    assert plan(observed(1, CLOSED, calculator_silent_seconds=1.0, **waiting)).cancel == []
    assert plan(observed(1, CLOSED, **waiting)).cancel == ["w"]


#           config of the waiting worker, its permit, hopeless
HOPELESS = [
    (config("a"), None, False),
    (PAUSED, None, True),
    (BRAKED, None, True),
    (CLOSED, None, True),
    (PROBE, 7, False),
    (config("a", closed=True, last_permit=7), 7, False),
    (config("a", closed=True, last_permit=8), 7, True),  # given back; its successor was issued
    (config("a", active=False, last_permit=7), 7, True),
    (config("b"), None, True),  # its config is gone
]


@pytest.mark.parametrize(("given", "permit", "hopeless"), HOPELESS)
def test_waiting_workers_whose_turn_would_come_in_vain(given: Config, permit: int | None, hopeless: bool) -> None:
    """They make place for others."""
    waiting = [Waiting(worker_id="w", config_id="a", permit=permit)]
    assert plan(observed(1, given, serving=1, waiting=waiting)).cancel == (["w"] if hopeless else [])


def idle(name: str, seconds: float) -> Idle:
    return Idle(worker_id=name, since=NOW - timedelta(seconds=seconds))


def test_scale_down() -> None:
    """Waiting workers first, newest first; then idle ones whose time is up, longest idle first; busy ones never."""
    waiting = [Waiting(worker_id=name, config_id="a") for name in ("w1", "w2")]
    idle_ones = [idle("i1", 500), idle("i2", 120), idle("i3", 119)]
    workers: dict[str, Any] = {"waiting": waiting, "idle": idle_ones, "serving": 8}
    #       wanted → cancelled, told
    cases = {8: ([], []), 7: (["w2"], []), 5: (["w2", "w1"], ["i1"]), 0: (["w2", "w1"], ["i1", "i2"])}
    for pending, expected in cases.items():
        made = plan(observed(pending, **workers))
        assert (made.cancel, made.tell) == expected
    made = plan(observed(0, min_capacity=7, **workers))
    assert (made.cancel, made.tell) == (["w2"], [])


def test_hopeless_workers_count_as_surplus() -> None:
    """Those that leave anyway are not sent away a second time, in the shape of others."""
    waiting = [Waiting(worker_id="old", config_id="a"), Waiting(worker_id="good", config_id="b")]
    made = plan(observed(2, PAUSED, config("b"), serving=3, waiting=waiting, idle=[idle("i", 500)]))
    assert (made.cancel, made.tell) == (["old"], [])


def test_a_stale_report_launches_nothing_and_protects() -> None:
    """Its last word still counts for those that serve."""
    stale = [Demand(source="q", pending=2, claimed=1, gone=0, stale=True, fresh_seconds=-1)]
    made = plan(observed(demands=stale, serving=4, idle=[idle("i1", 500), idle("i2", 500)]))
    assert (launched(made), made.tell, made.why["tasks"]) == ({}, ["i1"], 0)


#        observed, seconds until time alone may change the decision
LATER = [
    (observed(1), 300.0),  # the report turns stale
    (observed(demands=[]), None),
    (observed(serving=1, idle=[idle("i", 20)]), 100.0),
    (observed(1, serving=1, idle=[idle("i", 20)]), 300.0),  # wanted: its idleness changes nothing
    (observed(9, FULL, calculator_silent_seconds=1.0, attempt_in_seconds=12.5), 12.5),
    (observed(0, calculator_silent_seconds=1.0, attempt_in_seconds=12.5), 300.0),
]


@pytest.mark.parametrize(("given", "seconds"), LATER)
def test_when_to_decide_again(given: Observed, seconds: float | None) -> None:
    """Whatever else changes comes with an event."""
    assert plan(given).reconsider_after_seconds == seconds


def made(*launches: Launch, cancel: tuple[str, ...] = (), tell: tuple[str, ...] = ()) -> Plan:
    return Plan(launches=launches, cancel=cancel, tell=tell, wanted=0, serving=0, why={})


def launch(units: int, given: Config | None = None) -> Launch:
    return Launch(config=given or config(), units=units)


#          observed, plan, what is wrong with it
BROKEN = [
    (observed(9, serving=8, min_capacity=1), made(launch(3)), "11 would serve, above the maximum of 10"),
    (observed(9, serving=5, leaving=4), made(launch(2)), "7 serving and 4 leaving exceed maximum + minimum"),
    (observed(9, frozen=True), made(launch(1)), "launches although the pool is frozen"),
    (observed(9, mode="canary"), made(launch(2)), "2 would serve, and a canary is one"),
    (observed(9), made(launch(1, PAUSED)), "launches on a, which is not active"),
    (observed(9), made(launch(1, BRAKED)), "launches on a, which is not active"),
    (observed(0, serving=1), made(tell=("busy",)), "tells a worker to leave that is not idle"),
    (observed(0, serving=1), made(cancel=("admitted",)), "cancels a worker that does not wait"),
]


@pytest.mark.parametrize(("given", "broken", "problem"), BROKEN)
def test_every_broken_rule_is_found(given: Observed, broken: Plan, problem: str) -> None:
    """By name, and nothing else with it."""
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
    """After so many starts in a row that nobody has looked past; nothing is launched then, nor waits."""
    bad = Shared(key="image/i", stage="boot", window=64, unconfirmed=unconfirmed, forgiven=forgiven)
    less = msgspec.structs.replace(bad, stage="claim", unconfirmed=forgiven)
    beside = Shared(key="quota/i", stage="launch", window=64, unconfirmed=99)
    waiting = [Waiting(worker_id="w", config_id="a")]
    shared = [less, bad, beside]
    made = plan(observed(3, config("a", shares=[bad.share]), serving=1, waiting=waiting, shared=shared, **changes))
    assert made.freeze == (bad if freezes else None)
    if freezes and "paused" not in changes:
        assert (launched(made), made.cancel) == ({}, ["w"])
        assert made.why["because"].startswith("the pool freezes: ")
    other = plan(observed(3, config("a", image_revision="j"), shared=shared, **changes))
    assert other.freeze is None


OLD: Final = ("image/old", "boot")


def test_a_full_shared_window_stops_its_configs_and_no_other() -> None:
    """Failures of an image count over all its configs, whichever of them they befell."""
    old, new = config("old", shares=[OLD]), config("new", shares=[("image/new", "boot")])
    shared = [
        Shared(key="image/old", stage="boot", in_flight=60, unfolded=4, window=64),
        Shared(key="image/new", stage="boot", in_flight=58, window=64),
    ]
    made = plan(observed(20, old, new, shared=shared))
    assert [(launch.config.id, launch.units) for launch in made.launches] == [("new", 6)]
    assert made.why["configs"]["old"]["lost"] == "the boot window of image/old is full"
    assert made.why["configs"]["new"]["limited_by"] == "boot window of image/new"


def test_what_is_shared_and_closed_lets_probes_alone_pass() -> None:
    """Of the config that has a permit; not of one whose own record still says that it is open, or that has none."""
    stale, told = config("stale", shares=[OLD]), config("told", shares=[OLD], closed=True, permit=3, last_permit=3)
    other = config("other")
    shared = [Shared(key="image/old", stage="boot", window=8, closed=True, reason="closed, 5 image errors")]
    made = plan(observed(9, stale, told, other, shared=shared))
    assert [(launch.config.id, launch.units, launch.permit) for launch in made.launches] == [
        ("told", 1, 3),
        ("other", 8, None),
    ]
    assert lost(made)["stale"] == "closed, 5 image errors, by image/old; no probe is due"
    waiting = [Waiting(worker_id=name, config_id=name) for name in ("stale", "other")]
    assert plan(observed(9, stale, other, serving=2, shared=shared, waiting=waiting)).cancel == ["stale"]


def test_a_probe_takes_its_place_in_windows_that_others_share() -> None:
    """It passes whatever they say; what it takes of them is nobody else's."""
    image = ("image/i", "boot")
    probed = config("probed", closed=True, permit=1, last_permit=1, shares=[image])
    healthy = config("healthy", shares=[image])
    for in_flight, launches in ((6, {"probed": 1, "healthy": 1}), (7, {"probed": 1}), (8, {"probed": 1})):
        shared = [Shared(key="image/i", stage="boot", in_flight=in_flight, window=8)]
        assert launched(plan(observed(9, healthy, probed, shared=shared))) == launches
