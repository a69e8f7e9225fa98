"""Weights, priors, the published record, and when it is published."""

from collections.abc import Callable
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.launch_config import LaunchConfigState
from slipway_api.events.scopes import Key
from slipway_api.events.weight import BOUNDLESS, WeightChanged
from slipway_api.events.worker import Scope, WorkerEvent
from slipway_api.events.worker import Stage as WorkerStage
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.policy import PROFILES, faster
from slipway_weight_calculator.domain.record import record, worth_publishing
from slipway_weight_calculator.domain.weights import prior, weight
from slipway_weight_calculator.domain.windows import Boots, size
from slipway_weight_calculator.domain.world import declare, fold
from tests.support.worlds import (
    CAPACITY,
    IMAGE,
    POLICY,
    QUOTA,
    T0,
    A,
    B,
    Story,
    claimed,
    config,
    fails,
    launched,
    refused,
    registered,
    requested,
    stopping,
)

# Scopes of launch failures that are charged to another row than the config's.
CHARGED: Final = (Scope.CAPACITY, Scope.QUOTA, Scope.IMAGE, Scope.CREDENTIAL)

factors = st.floats(0.01, 100)
seconds = st.integers(0, 5000)


def healthy(c: LaunchConfigState, n: int) -> list[WorkerEvent]:
    return [launched(c, f"ok-{n}"), registered(c, f"ok-{n}"), claimed(c, f"ok-{n}")]


def failing(c: LaunchConfigState, n: int) -> list[WorkerEvent]:
    """A failure of each stage, none of which trips at once."""
    boot = stopping(c, fails(Scope.CONFIG, WorkerStage.BOOT), f"no-{n}")
    return [refused(c, Scope.CONFIG, f"no-{n}"), boot, stopping(c, fails(Scope.IMAGE, WorkerStage.CLAIM), f"no-{n}")]


Kind = Callable[[LaunchConfigState, int], list[WorkerEvent]]
KINDS: Final[tuple[Kind, Kind]] = (healthy, failing)
histories = st.lists(st.tuples(seconds, st.sampled_from(KINDS)), max_size=25)


def weigh(*configs: LaunchConfigState, history: list[tuple[int, int]], now: float) -> list[float]:
    """Weights after the same history in each config: (second, 0 for success or 1 for failure)."""
    story = Story(*configs)
    for n, (at, kind) in enumerate(sorted(history)):
        for c in configs:
            story.fold(at, *KINDS[kind](c, n))
    return [story.record(c.launch_config_id, now).weight for c in configs]


same = st.lists(st.tuples(seconds, st.integers(0, 1)), max_size=15)


# Shares


@given(st.floats(0, 1), factors, factors)
def test_weight_is_always_positive(health: float, base: float, price: float) -> None:
    """At least the floor, at most base × price."""
    share = weight(base, price, health, POLICY) / (base * price)
    assert POLICY.floor * (1 - 1e-12) <= share <= 1 + 1e-12


def test_weight_is_positive_however_small_its_factors() -> None:
    assert weight(1e-300, 1e-300, 0.0, POLICY) > 0


@given(same, st.lists(st.tuples(factors, factors), min_size=2, max_size=5), seconds)
def test_equal_health_gives_shares_of_base_times_price(
    history: list[tuple[int, int]], given_factors: list[tuple[float, float]], later: int
) -> None:
    """With the same history in all configs, no share changes."""
    configs = [
        config(f"c{n}", base_weight=base, price_factor=price, zone="z") for n, (base, price) in enumerate(given_factors)
    ]
    weights = weigh(*configs, history=history, now=5000.0 + later)
    plain = [base * price for base, price in given_factors]
    for got, expected in zip(weights, plain, strict=True):
        assert got / sum(weights) == pytest.approx(expected / sum(plain), abs=1e-9)


@given(same, factors)
def test_scale_is_irrelevant(history: list[tuple[int, int]], scale: float) -> None:
    """Base weights in other units, or the same evidence in another pool, change no share."""
    configs = [config("a"), config("b", base_weight=3.0)]
    scaled = [config("a", base_weight=scale), config("b", base_weight=3.0 * scale)]
    elsewhere = [config(c.launch_config_id + "2", pool="p2", account="a2", region="r2", zone="z2") for c in configs]
    one, other = (weigh(*each, history=history, now=6000.0) for each in (configs, scaled))
    assert [w * scale for w in one] == pytest.approx(other)
    assert weigh(*configs, *elsewhere, history=history, now=6000.0)[:2] == pytest.approx(one, rel=1e-9)


@given(histories, st.sampled_from(["a", "b"]), seconds)
def test_weight_is_monotone(history: list[tuple[int, Kind]], config_id: str, at: int) -> None:
    """A success never lowers the weight of its config, a failure never raises it, whatever row is charged."""
    story = Story(A, B)
    for n, (second, kind) in enumerate(history):
        story.fold(second, *kind(A if n % 2 else B, n))
    c = {"a": A, "b": B}[config_id]
    before = story.record(config_id, 5000).weight
    failures = [*failing(c, 99), *(refused(c, scope, "no-99") for scope in CHARGED)]
    for events, sign in ((healthy(c, 99), 1), (failures, -1)):
        for event in events:
            draft = Draft(story.world)
            fold(draft, event, T0 + at)
            after = record(draft, story.world.configs[config_id], T0 + 5000).weight
            assert sign * (after - before) >= -1e-12, event


@given(histories)
def test_a_world_at_another_speed_weighs_the_same(history: list[tuple[int, Kind]]) -> None:
    """Demos run at 60 times the speed, and all times of a policy scale with it."""
    quick = {name: faster(policy, 60.0) for name, policy in PROFILES.items()}
    slow, fast = Story(A, B), Story(A, B, policies=quick)
    for n, (second, kind) in enumerate(history):
        slow.fold(second, *kind(A, n))
        fast.fold(second / 60, *kind(A, n))
    assert slow.record("a", 5000).weight == pytest.approx(fast.record("a", 5000 / 60).weight, rel=1e-6)


def test_an_unhealthy_config_keeps_about_its_floor() -> None:
    story = Story(A, B)
    story.fold(0, *(refused(A, worker_id=f"w-{n}") for n in range(60)))
    assert story.record("a", 0).weight == pytest.approx(POLICY.floor, abs=0.005)


def test_priors_come_from_siblings() -> None:
    """Closer siblings count more, configs elsewhere not at all.

    A failure of scope `config` is no evidence on the location.
    """
    near, account = config("near", pool="p1", zone="a"), config("account", pool="p2", zone="y")
    far = config("far", pool="p3", account="x", region="x", zone="x", image_revision="x")
    for scope in (Scope.CAPACITY, Scope.CONFIG):
        story = Story(A, near, account, config("pool", zone="v", account="v", region="v"), far)
        before = {id_: story.record(id_, 100).weight for id_ in story.world.configs}
        assert len(set(before.values())) == 1
        story.fold(100, *(refused(A, scope, f"w-{n}") for n in range(12)))
        after = {id_: story.record(id_, 100).weight for id_ in story.world.configs}
        if scope is Scope.CAPACITY:
            assert after["near"] < after["account"] == after["pool"] < after["far"]
        assert after["far"] == before["far"]
        assert (after["near"] < before["near"]) is (scope is Scope.CAPACITY)


def test_a_sibling_counts_once_per_shared_location() -> None:
    """One failed start of the sibling, smoothed with a prior mass of two."""
    siblings = [
        config("three", zone="a"),
        config("two"),
        config("one", account="v"),
        config("none", pool="p", account="v"),
    ]
    story = Story(A, *siblings)
    story.fold(100, refused(A))
    for places, sibling in zip((3, 2, 1, 0), siblings, strict=True):
        known = story.world.configs[sibling.launch_config_id]
        estimate = prior(Draft(story.world), known, "launch", 0.0, 0.0, T0 + 100, POLICY)
        assert estimate == pytest.approx(POLICY.prior * (2 / 3) ** places)


# The record


def test_first_record() -> None:
    """Without evidence the prior counts in all three stages, and windows are small."""
    first = Story(A).record("a", 0)
    assert (first.state, first.tripped_stage, first.probe_permit, first.probe_ready) == ("healthy", None, None, False)
    assert first.health == pytest.approx(0.95**3)
    assert {stage: (health.window, health.failures_folded) for stage, health in first.stages.items()} == {
        "launch": (4, 0),
        "boot": (48, 0),
        "claim": (64, 0),
    }
    assert (first.reason, first.shared, first.signals) == ("a healthy", (), ())


def test_windows_grow_by_successes_and_shrink_by_failures() -> None:
    """A claim shows that workers find tasks, so many idle workers are allowed then. Boot windows follow evidence."""
    story = Story(A)
    story.fold(0, *(event for n in range(100) for event in healthy(A, n)))
    windows = {name: stage.window for name, stage in story.record("a", 0).stages.items()}
    assert windows == {"launch": 64, "boot": 1000, "claim": 1000}
    shared = {(Key(each.kind, each.id), each.stage): each.window for each in story.record("a", 0).shared}
    assert shared == {(IMAGE, "launch"): BOUNDLESS, (IMAGE, "boot"): 1000, (IMAGE, "claim"): 1000}
    story.fold(1, *failing(A, 100))
    windows = {name: stage.window for name, stage in story.record("a", 1).stages.items()}
    assert windows == {"launch": 32, "boot": int(size(Boots(30 * 30 / 31, 30 / 31), POLICY)), "claim": 700}


def test_an_image_or_a_credential_limits_no_launches() -> None:
    """They only have a health state: a fleet of many pools may launch as many as its configs allow."""
    story = Story(A)
    story.fold(0, refused(A, Scope.CREDENTIAL), refused(A, Scope.IMAGE))
    windows = {each.kind: each.window for each in story.record("a", 0).shared if each.stage == "launch"}
    assert windows == {"credential": BOUNDLESS, "image": BOUNDLESS}


def test_a_new_quota_starts_with_a_full_window() -> None:
    """Nothing has limited the quota before its first failure."""
    story = Story(A, B)
    story.fold(0, refused(A, Scope.QUOTA))
    assert [(each.kind, each.id, each.window) for each in story.record("b", 0).shared] == [(*QUOTA, 32)]
    story.fold(1, launched(B))
    assert story.record("a", 1).shared[0].window == 33


def test_reasons_follow_an_outage() -> None:
    """Reason texts contain no times; the record has the time of the next probe."""
    story, now = Story(A, B), 0.0
    reasons = []

    def note() -> None:
        reasons.append(story.record("a", now).reason)

    for n in range(2):
        story.fold(0, refused(A, worker_id=f"w-{n}"))
        note()
    due = story.record("a", 0).next_probe_at
    assert due is not None
    now = due.timestamp() - T0
    story.advance_to(now)
    note()
    story.fold(now, requested(A, "p", 1))
    note()
    story.fold(now, refused(A, worker_id="p", permit=1))
    note()
    now = story.next_probe(CAPACITY)
    story.fold(now, requested(A, "q", story.probe("a", now)), launched(A, "q", 2))
    note()
    assert [reason.split("%")[0][:-2] if "%" in reason else reason for reason in reasons] == [
        "a healthy: launch ",
        f"a tripped: {CAPACITY}: 2 capacity errors (capacity)",
        f"a tripped: {CAPACITY}: 2 capacity errors (capacity); probe 1 may launch",
        f"a tripped: {CAPACITY}: 2 capacity errors (capacity); probe 1 is running",
        f"a tripped: {CAPACITY}: 2 capacity errors (capacity); 1 failed probe (capacity)",
        "a healthy: launch ",
    ]


def test_a_tripped_row_trips_every_config_in_its_scope() -> None:
    story = Story(A, B, config("c", instance_type="c5.large"))
    story.trip_config(A, 0, Scope.QUOTA)
    records = {id_: story.record(id_, 0) for id_ in ("a", "b", "c")}
    assert {id_: (r.state, r.tripped_by, r.tripped_by_id, r.tripped_stage) for id_, r in records.items()} == {
        "a": ("tripped", *QUOTA, "launch"),
        "b": ("tripped", *QUOTA, "launch"),
        "c": ("healthy", "", "", None),
    }
    assert records["b"].reason == "b tripped: quota sim-a/sim-1/m5: 2 quota errors (quota)"
    (window,) = records["b"].shared
    assert (Key(window.kind, window.id), window.state, window.unconfirmed, window.reason) == (
        QUOTA,
        "tripped",
        2,
        "2 quota errors (quota)",
    )
    version = window.version
    story.fold(1, refused(B, Scope.QUOTA))
    assert story.record("a", 1).shared[0].version > version


def test_counts_over_life_and_late_starts_are_published() -> None:
    story = Story(A)
    healthies = [event for n in range(5) for event in healthy(A, n)]
    story.fold(0, *healthies, *failing(A, 9), launched(A, "late"), refused(A, Scope.LIMITER))
    story.advance_to(180)
    stages = story.record("a", 180).stages
    assert (stages["launch"].succeeded, stages["launch"].failed, stages["launch"].failures_folded) == (6, 1, 2)
    assert (stages["boot"].succeeded, stages["boot"].failed, stages["boot"].late) == (5, 2, 1)
    assert stages["claim"].failures == pytest.approx(2 ** (-180 / 600))


def test_offsets_are_those_that_are_given() -> None:
    story = Story(A)
    draft = Draft(story.world)
    fold(draft, launched(A), T0, "slipway.worker.lifecycle.v1/3", 8)
    fold(draft, registered(A), T0, "slipway.worker.lifecycle.v1/3", 9)
    assert draft.seen == {"a": {"slipway.worker.lifecycle.v1/3": 9}}
    assert record(draft, story.world.configs["a"], T0, draft.seen["a"]).offsets == draft.seen["a"]


def test_changes_worth_a_record() -> None:
    """Every folded failure is published, even one that changes no weight; a success on top of many is not."""
    story = Story(A)
    story.fold(0, *(event for n in range(992) for event in healthy(A, n)))
    last = story.record("a", 0)

    def after(*events: WorkerEvent, now: float = 0.0) -> bool:
        draft = Draft(story.world)
        for event in events:
            fold(draft, event, T0)
        return worth_publishing(last, record(draft, story.world.configs["a"], T0 + now), POLICY)

    assert worth_publishing(None, last, POLICY)
    assert not worth_publishing(last, last, POLICY)
    assert not after(launched(A), registered(A), claimed(A))
    assert not after(now=1.0)
    assert after(now=2000.0), "time alone has changed the weight"
    assert after(refused(A, Scope.LIMITER))
    assert after(refused(A))
    for changed in (config("a", revision=2), config("a", revision=2, base_weight=2.0)):
        draft = Draft(story.world)
        declare(draft, changed, T0)
        known = draft.config("a")
        assert known is not None
        assert worth_publishing(last, record(draft, known, T0), POLICY)


def test_an_issued_permit_is_worth_a_record_and_so_is_a_window_that_grew_much() -> None:
    story = Story(A, B)
    fresh = story.record("a", 0)
    story.fold(0, launched(A))
    assert worth_publishing(fresh, story.record("a", 0), POLICY)
    story.trip_config(A)
    tripped = story.record("a", 15)
    story.advance_to(15)
    assert worth_publishing(tripped, story.record("a", 15), POLICY)


def test_records_survive_encoding() -> None:
    story = Story(A)
    story.trip_config(A, 0, Scope.QUOTA)
    published = story.record("a", 0)
    assert msgspec.json.decode(msgspec.json.encode(published), type=WeightChanged) == published
