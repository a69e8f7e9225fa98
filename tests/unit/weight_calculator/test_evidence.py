"""Masses and their cap, attribution, late starts: the effect of single outcomes."""

from random import Random
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.scopes import Key, config_key, quota_key
from slipway_api.events.worker import Outcome, Result, Scope, WorkerEvent, WorkerLaunched
from slipway_api.events.worker import Stage as WorkerStage
from slipway_api.percent import decoded
from slipway_weight_calculator.domain import evidence
from slipway_weight_calculator.domain.blame import charged
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.evidence import Stage, change, combined, masses, probability
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.trips import HEALTHY
from slipway_weight_calculator.domain.windows import Boots, size
from slipway_weight_calculator.domain.world import World, advance
from tests.support.worlds import (
    CAPACITY,
    CREDENTIAL,
    IMAGE,
    POLICY,
    QUOTA,
    T0,
    A,
    B,
    Story,
    capacity,
    claimed,
    config,
    delayed,
    fails,
    known_boots,
    launched,
    lost,
    of,
    refused,
    registered,
    requested,
    stopped,
    stopping,
)

OK, BAD = True, False
outcomes = st.sampled_from([OK, BAD])
instants = st.integers(0, 3600).map(lambda seconds: T0 + seconds)
histories = st.lists(st.tuples(outcomes, instants), max_size=40)
SHARED: Final = {"image": IMAGE, "quota": QUOTA, "credential": CREDENTIAL, "capacity": CAPACITY}


def folded(history: list[tuple[bool, float]], start: Stage | None = None, policy: Policy = POLICY) -> Stage:
    stage = start or Stage()
    for ok, at in history:
        stage = evidence.after(stage, at, 4.0, HEALTHY, policy, failed=not ok, place=not ok)
    return stage


def chance(stage: Stage, now: float) -> float:
    successes, failures, _ = masses(stage, now, POLICY)
    return probability(successes, failures, POLICY.prior, POLICY)


# Masses


def test_one_half_life_halves() -> None:
    """Ten minutes later a failure weighs half of a new one."""
    stage = folded([(BAD, T0), (OK, T0 + 600)])
    assert (stage.successes, stage.failures, stage.place_failures, stage.at) == (1.0, 0.5, 0.5, T0 + 600)
    assert (stage.succeeded, stage.failed, stage.ok_at) == (1, 1, T0 + 600)


def test_an_old_event_weighs_what_it_would_by_now() -> None:
    """An event of ten minutes ago adds half; newer evidence keeps its mass and time."""
    stage = folded([(OK, T0 + 600), (BAD, T0)])
    assert (stage.successes, stage.failures, stage.at) == (1.0, 0.5, T0 + 600)


def test_about_eight_outcomes_outweigh_any_past() -> None:
    """The cap forgets by count: N·ln 2 failures halve the successes of a config however many there were."""
    start = folded([(OK, T0)] * 1000)
    assert start.successes == pytest.approx(12)
    assert folded([(BAD, T0)] * 8, start).successes == pytest.approx(12 / 2, rel=0.01)


@given(histories)
def test_mass_stays_within_the_cap(history: list[tuple[bool, float]]) -> None:
    stage = folded(history)
    assert 0 <= stage.successes + stage.failures <= POLICY.mass_cap + 1e-9
    assert 0 <= stage.place_failures <= stage.failures + 1e-9
    assert 0 < chance(stage, stage.at) < 1


@given(histories, instants)
def test_a_success_never_lowers_and_a_failure_never_lifts(history: list[tuple[bool, float]], at: float) -> None:
    """Compared at the same time, so that decay has no influence."""
    stage = folded(history)
    now = max(at, stage.at)
    assert chance(folded([(OK, at)], stage), now) >= chance(stage, now) - 1e-12
    assert chance(folded([(BAD, at)], stage), now) <= chance(stage, now) + 1e-12


@given(histories, st.data())
def test_monotone_in_every_past_outcome(history: list[tuple[bool, float]], data: st.DataObject) -> None:
    """Had one of the past failures been a success, the probability would be no lower."""
    failures = [index for index, (ok, _) in enumerate(history) if not ok]
    if not failures:
        return
    turned = data.draw(st.sampled_from(failures))
    better = [(ok or index == turned, at) for index, (ok, at) in enumerate(history)]
    assert chance(folded(better), T0 + 3600) >= chance(folded(history), T0 + 3600) - 1e-12


@given(st.lists(st.tuples(outcomes, instants), max_size=11), st.randoms(use_true_random=False))
def test_order_of_arrival_is_irrelevant_below_the_cap(history: list[tuple[bool, float]], chance: Random) -> None:
    """Worker events arrive over different partitions, in any order."""
    one, other = folded(history), folded(chance.sample(history, len(history)))
    assert (one.at, one.failed, one.ok_at) == (other.at, other.failed, other.ok_at)
    assert one.successes == pytest.approx(other.successes, abs=1e-7)
    assert one.failures == pytest.approx(other.failures, abs=1e-7)


@given(histories, st.floats(0.01, 100))
def test_a_policy_at_another_speed_sees_the_same(history: list[tuple[bool, float]], speed: float) -> None:
    """A slower world under an equally slower policy gives the same masses."""
    slower = msgspec.structs.replace(POLICY, half_life_seconds=POLICY.half_life_seconds * speed)
    one = folded([(ok, at - T0) for ok, at in history])
    other = folded([(ok, (at - T0) * speed) for ok, at in history], policy=slower)
    assert one.successes == pytest.approx(other.successes, rel=1e-6, abs=1e-9)
    assert one.failures == pytest.approx(other.failures, rel=1e-6, abs=1e-9)


@given(histories, st.integers(0, 10**9))
def test_time_forgets_and_never_adds(history: list[tuple[bool, float]], seconds: int) -> None:
    stage = folded(history)
    successes, failures, place_failures = masses(stage, T0 + seconds, POLICY)
    assert successes <= stage.successes
    assert place_failures <= failures <= stage.failures


@given(histories, histories)
def test_sums_of_a_location_equal_its_configs(one: list[tuple[bool, float]], other: list[tuple[bool, float]]) -> None:
    """Sums are updated change by change, in any order; a config that leaves is subtracted."""
    total, first, second = evidence.NOTHING, Stage(), Stage()
    for outcome in one:
        before, first = first, folded([outcome], first)
        total = combined(total, change(before, first, POLICY), POLICY)
    for outcome in other:
        before, second = second, folded([outcome], second)
        total = combined(total, change(before, second, POLICY), POLICY)
    both = [masses(stage, total[2], POLICY) for stage in (first, second)]
    assert total[0] == pytest.approx(sum(successes for successes, _, _ in both), abs=1e-6)
    assert total[1] == pytest.approx(sum(place_failures for _, _, place_failures in both), abs=1e-6)
    left = combined(total, change(first, None, POLICY), POLICY)
    assert left[:2] == pytest.approx((both[1][0], both[1][2]), abs=1e-6)


# Attribution

ANOTHER: Final = quota_key("sim-a", "sim-1", "c5")
OWN: Final = config_key("a")
#   scope             of a launch            of a boot or a claim
ATTRIBUTION: Final = [
    (Scope.CONFIG, (OWN,), (OWN,)),
    (Scope.CAPACITY, (CAPACITY,), (CAPACITY,)),
    (Scope.QUOTA, (QUOTA,), (QUOTA,)),
    (Scope.CREDENTIAL, (CREDENTIAL,), (CREDENTIAL,)),
    (Scope.IMAGE, (IMAGE,), (IMAGE, OWN)),
    (Scope.LIMITER, (), ()),
    (Scope.NOTHING, (), ()),
    (Scope.UNKNOWN, (), ()),
]


@pytest.mark.parametrize(("scope", "of_launch", "of_later"), ATTRIBUTION)
def test_keys_that_a_failure_is_charged_to(scope: Scope, of_launch: tuple[Key, ...], of_later: tuple[Key, ...]) -> None:
    """Each scope affects the row that it names; a throttle, our own doing and an unknown scope affect none."""
    for stage, keys in (
        (WorkerStage.LAUNCH, of_launch),
        (WorkerStage.BOOT, of_later),
        (WorkerStage.CLAIM, of_later),
        (WorkerStage.UNKNOWN, ()),
    ):
        assert charged(fails(scope, stage), OWN, SHARED, lambda _: True) == keys
        assert charged(Outcome(stage, Result.UNKNOWN, scope), OWN, SHARED, lambda _: True) == ()


def test_the_attribution_table_is_complete() -> None:
    assert {scope for scope, _, _ in ATTRIBUTION} == set(Scope)


def test_a_scope_key_is_trusted_if_a_config_shares_it() -> None:
    """The provider knows which family it counts. The config is always charged too, or it would keep failing."""
    own, other = fails(Scope.QUOTA, key="sim-a/sim-1/m5"), fails(Scope.QUOTA, key="sim-a/sim-1/c5")
    assert charged(own, OWN, SHARED, lambda _: False) == (QUOTA,)
    assert charged(other, OWN, SHARED, lambda key: key == ANOTHER) == (ANOTHER, OWN)
    assert charged(other, OWN, SHARED, lambda _: False) == (OWN,)
    near, far = fails(Scope.CAPACITY, key=CAPACITY.id), fails(Scope.CAPACITY, key=capacity("b").id)
    assert charged(near, OWN, SHARED, lambda _: False) == (CAPACITY,)
    assert charged(far, OWN, SHARED, lambda _: True) == (capacity("b"), CAPACITY)
    assert charged(far, OWN, SHARED, lambda _: False) == (CAPACITY,)
    nobodys = fails(Scope.IMAGE, WorkerStage.BOOT, key="never-seen")
    assert charged(nobodys, OWN, SHARED, lambda _: False) == (OWN,)


def test_no_row_without_configs() -> None:
    story = Story(A, config("c", instance_type="c5.large"))
    story.fold(0, *(refused(A, Scope.QUOTA, f"w-{n}", key=f"sim-a/sim-1/{n}") for n in range(9)))
    story.fold(1, refused(A, Scope.QUOTA, key="sim-a/sim-1/c5"))
    assert set(story.world.rows) == {OWN, config_key("c"), ANOTHER}
    assert story.record("a", 2).state != "healthy"
    assert story.record("c", 2).state == "healthy"


@pytest.mark.parametrize("scope", list(Scope))
def test_every_failure_is_folded(scope: Scope) -> None:
    """Failures of every scope are folded, which frees their place in the window."""
    story = Story(A)
    story.fold(
        0, refused(A, scope), stopping(A, fails(scope, WorkerStage.BOOT)), lost(A, fails(scope, WorkerStage.CLAIM))
    )
    row = story.row("a")
    assert (row.launch.folded, row.boot.folded, row.claim.folded) == (1, 1, 1)


def test_unknown_words_move_nothing() -> None:
    """A value from a newer sender is neither a success nor a failure; it can only add its config."""
    story = Story(A)
    before = story.row("a")
    for outcome in (
        Outcome(WorkerStage.LAUNCH, Result.UNKNOWN, Scope.CONFIG),
        Outcome(WorkerStage.UNKNOWN, Result.FAILED),
    ):
        story.fold(0, WorkerLaunched(instance_id="i", batch_id="b", outcome=outcome, **of(A, outcome.stage.value)))
        story.fold(0, msgspec.structs.replace(refused(A), outcome=outcome))
        story.fold(0, stopping(A, outcome), msgspec.structs.replace(registered(A), outcome=outcome))
    assert story.row("a") == before


# Ends without a fault

OWN_DOING: Final[list[WorkerEvent]] = [
    stopping(A),
    stopped(A),
    lost(A),
    stopping(A, fails(Scope.NOTHING, WorkerStage.BOOT)),
    stopping(A, fails(Scope.NOTHING, WorkerStage.CLAIM)),
    refused(A, Scope.NOTHING),
    refused(A, Scope.LIMITER),
    delayed(A),
]


@pytest.mark.parametrize("event", OWN_DOING, ids=lambda event: type(event).__name__)
def test_our_own_stops_are_no_evidence(event: WorkerEvent) -> None:
    """Pause, drain, scale-down and cancellation change no mass, window or trip of any row."""
    story = Story(A)
    story.fold(0, launched(A), refused(A, Scope.IMAGE, "x"), refused(A, Scope.QUOTA, "y"))
    before = dict(story.world.rows)
    for n in range(9):
        story.fold(1 + n, event)
    for key, row in before.items():
        for name in ("launch", "boot", "claim"):
            now = msgspec.structs.replace(getattr(story.row(key), name), folded=0)
            assert now == msgspec.structs.replace(getattr(row, name), folded=0)


# Stages that are not evaluated


def test_invisible_claims_are_not_evaluated() -> None:
    """An image without our agent never claims: that is no evidence, trips nothing and does not count in the weight."""
    silent = config("a", claim_evidence="none")
    story = Story(silent, B)
    story.fold(0, *(stopping(silent, fails(Scope.IMAGE, WorkerStage.CLAIM), f"w-{n}") for n in range(9)))
    assert IMAGE not in story.world.rows
    assert story.row("a").claim.folded == 9
    story.fold(1, *(stopping(B, fails(Scope.IMAGE, WorkerStage.CLAIM), f"v-{n}") for n in range(9)))
    assert story.record("b", 2).state != "healthy"
    assert story.record("a", 2).state == "healthy", "claims of b do not concern configs without claims"
    assert story.record("a", 2).stages["claim"].probability == POLICY.prior


def test_claims_no_longer_evaluated_end_their_trip() -> None:
    story = Story(A)
    story.fold(0, *(stopping(A, fails(Scope.CONFIG, WorkerStage.CLAIM), f"w-{n}") for n in range(5)))
    assert story.record("a", 1).tripped_stage == "claim"
    story.declare(config("a", claim_evidence="none", revision=2), 2)
    assert story.record("a", 2).state == "healthy"


# Slow and late starts


def late_ones(count: int = 1, *, at: float = 200.0) -> Story:
    """Boots started at 0 that have not registered, of an image whose known boots took 100 s."""
    story = Story(A, B)
    story.fold(-1000, *known_boots(A))
    story.fold(0, *(launched(A, f"w-{n}") for n in range(count)))
    story.advance_to(at)
    return story


def test_a_late_start_counts_as_failed_until_it_ends() -> None:
    """From one and a half times the slowest known boot on it counts for the config and the image."""
    before, after = late_ones(at=149), late_ones(at=150)
    for key in ("a", IMAGE):
        assert (before.row(key).boot.late, before.row(key).boot.failed) == (0, 0)
        stage = after.row(key).boot
        assert (stage.late, stage.failures, stage.failed, stage.folded) == (1, 1.0, 1, 0)
        assert [failure.late for failure in stage.trip.run] == [True]
    assert after.record("a", 150).stages["boot"].late == 1


def test_a_slow_start_counts_in_windows_until_it_ends() -> None:
    """From 1.3 times the slowest known boot on, once: when it becomes late its window stays."""
    windows = {at: [late_ones(at=at).row(key).boot.window for key in ("a", IMAGE)] for at in (129, 130, 150)}
    assert windows[129] == [pytest.approx(size(Boots(5, 0), POLICY))] * 2
    assert windows[130] == windows[150] == [pytest.approx(size(Boots(5, 1), POLICY))] * 2
    slow = late_ones(at=130)
    assert (slow.row(IMAGE).boot.boots.slow, slow.row(IMAGE).boot.failed, slow.trip(IMAGE, "boot").run) == (1, 0, ())


NOT_FAILED: Final[list[Any]] = [registered(A, "w-0", seconds=400.0), stopping(A, None, "w-0"), stopped(A, "w-0")]


@pytest.mark.parametrize("event", NOT_FAILED, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("ended", [140, 400])
def test_a_slow_start_that_registers_or_that_we_stop_has_not_failed(event: WorkerEvent, ended: float) -> None:
    """Nothing is left in evidence, trips and windows, as if it had been in time, slow or late."""
    story, quick = late_ones(at=ended), late_ones(at=100)
    story.fold(ended, event)
    quick.fold(100, event)
    for key in ("a", IMAGE):
        stage, other = story.row(key).boot, quick.row(key).boot
        assert (stage.late, stage.boots.slow, stage.failed, stage.trip.run, stage.trip.unconfirmed) == (0, 0, 0, (), 0)
        assert stage.failures == pytest.approx(0, abs=1e-9)
        assert (stage.boots, stage.window) == (other.boots, other.window)
    assert "w-0" not in story.world.boots


def test_a_late_start_at_the_cap_leaves_its_window_too() -> None:
    """Withdrawn failures were never mixed into the evidence, which is scaled at the cap."""
    story = Story(A)
    story.fold(-1000, *known_boots(A, *[100.0] * 50))
    story.fold(-900, stopping(A, fails(Scope.IMAGE, WorkerStage.BOOT), "bad"))
    before = story.row(IMAGE).boot
    story.fold(0, *(launched(A, f"w-{n}") for n in range(3)))
    story.advance_to(200)
    assert story.row(IMAGE).boot.window < before.window
    story.fold(300, *(stopping(A, None, f"w-{n}") for n in range(3)))
    assert story.row(IMAGE).boot.window == before.window


def test_a_late_start_that_fails_is_charged_once() -> None:
    """The provisional failure is confirmed: only the number of folded failures grows."""
    story = late_ones()
    before = {key: story.row(key).boot for key in ("a", IMAGE)}
    story.fold(900, stopping(A, fails(Scope.IMAGE, WorkerStage.BOOT), "w-0"), stopped(A, "w-0"))
    for key in ("a", IMAGE):
        stage = story.row(key).boot
        assert (stage.failures, stage.failed, stage.late, stage.boots.slow) == (before[key].failures, 1, 0, 0)
        assert (stage.boots.good, stage.boots.bad, stage.window) == (5, 1, before[key].window)
        assert [(failure.code, failure.late) for failure in stage.trip.run] == [("image", False)]
    assert story.row("a").boot.folded == 1


def test_a_late_start_that_fails_for_another_reason_is_charged_to_that() -> None:
    """The failure is the config's own, so the image is no longer charged."""
    story = late_ones()
    story.fold(900, lost(A, fails(Scope.CONFIG, WorkerStage.BOOT), "w-0"))
    assert (story.row("a").boot.failed, story.row(IMAGE).boot.failed) == (1, 0)
    assert (story.row("a").boot.boots.bad, story.row(IMAGE).boot.boots.bad) == (1, 0)
    assert story.row(IMAGE).boot.trip.run == ()


def test_no_start_is_late_before_five_boots_of_its_image_are_known() -> None:
    """However long it takes, though it is slow by the first ones; boots of other images say nothing about it."""
    other = config("o", image_revision="other")
    story = Story(A, other)
    story.fold(0, *known_boots(A, 90.0, 90.0, 90.0, 90.0), *known_boots(other, *[90.0] * 9), launched(A, "w"))
    story.advance_to(86_400)
    assert (story.row(IMAGE).boot.boots.slow, story.row(IMAGE).boot.late, story.world.boots["w"].judged_at) == (1, 0, 0)


def test_the_fifth_known_boot_has_the_boots_in_progress_judged() -> None:
    """Each by its own age, without those that have registered before the reply."""
    story = Story(A, B)
    story.fold(0, launched(A, "old"), registered(A, "early"), *known_boots(A, 90.0, 80.0, 70.0, 60.0))
    story.fold(100, launched(B, "young"), registered(A, "fifth", seconds=100.0))
    story.advance_to(129)
    assert story.row(IMAGE).boot.boots.slow == 0
    story.advance_to(130)
    assert [story.row(key).boot.boots.slow for key in (IMAGE, "a", "b")] == [1, 1, 0]
    story.advance_to(230)
    assert [story.row(key).boot.boots.slow for key in (IMAGE, "a", "b")] == [2, 1, 1]
    assert story.row(IMAGE).boot.late == 1


def test_lateness_is_judged_again_when_slower_boots_are_known() -> None:
    """A boot is compared with those that are known when its time has come."""
    story = late_ones(at=129)
    story.fold(129, registered(A, "slow", seconds=129.0))
    story.advance_to(167)
    assert story.row(IMAGE).boot.boots.slow == 0
    story.advance_to(168)
    assert (story.row(IMAGE).boot.boots.slow, story.row(IMAGE).boot.late) == (1, 0)
    story.fold(169, registered(A, "slower", seconds=160.0))
    for at, counts in ((193, (1, 0)), (194, (0, 0)), (208, (1, 0)), (239, (1, 0)), (240, (1, 1))):
        story.advance_to(at)
        assert (story.row(IMAGE).boot.boots.slow, story.row(IMAGE).boot.late) == counts


def test_lateness_has_a_minimum() -> None:
    """Boots of a second vary by more than their duration."""
    story = Story(A)
    story.fold(0, *known_boots(A, *[1.0] * 5), launched(A, "w"))
    for at, counts in ((19, (0, 0)), (19.5, (1, 0)), (22, (1, 0)), (22.5, (1, 1))):
        story.advance_to(at)
        assert (story.row(IMAGE).boot.boots.slow, story.row(IMAGE).boot.late) == counts


def overdue_ones() -> Story:
    """Four boots started at 0, of an image whose newest boots all took 100 s."""
    story = Story(A, B)
    story.fold(-10_000, *known_boots(A, *[100.0] * POLICY.boot_samples))
    story.fold(0, *(launched(A, f"w-{n}") for n in range(4)))
    return story


def test_starts_that_none_overtakes_count_before_they_are_slow() -> None:
    """In the window of their image alone, until a start that was launched later has registered."""
    story = overdue_ones()
    before, own = story.row(IMAGE).boot, story.row("a").boot
    story.advance_to(94)
    assert story.row(IMAGE).boot == before
    story.advance_to(95)
    after = story.row(IMAGE).boot
    assert (after.boots.overdue, after.boots.slow, after.failed) == (4, 0, 0)
    assert after.window == size(Boots(30, 4), POLICY) < before.window
    assert story.row("a").boot == own
    story.fold(96, launched(A, "later"))
    story.fold(99, registered(A, "later", seconds=3.0))
    assert (story.row(IMAGE).overdue, story.row(IMAGE).boot.boots) == ((), before.boots)
    assert story.row(IMAGE).boot.window == before.window
    story.advance_to(129)
    assert story.row(IMAGE).boot.boots.overdue == 0, "once overtaken, they stay so"


def test_an_overdue_start_that_ends_no_longer_counts() -> None:
    """By failing or by our stop, also after a restart."""
    story = overdue_ones()
    story.advance_to(95)
    story.fold(96, stopping(A, None, "w-0"))
    assert story.row(IMAGE).boot.boots.overdue == 3
    story.fold(97, stopping(A, fails(Scope.IMAGE, WorkerStage.BOOT), "w-1"))
    assert story.row(IMAGE).boot.boots.overdue == 2
    world = World()
    world.load(story.world.configs.values(), story.world.rows, story.world.boots, {})
    draft = Draft(world)
    advance(draft, T0 + 97)
    assert draft.row(IMAGE) == story.row(IMAGE)


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=80), st.sampled_from([1, 2, POLICY.boot_samples]))
def test_boots_are_compared_with_the_slowest_of_the_newest(seconds: list[float], samples: int) -> None:
    """Maintained incrementally, without looking at all of them each time."""
    story = Story(A, policies={"on-demand": msgspec.structs.replace(POLICY, boot_samples=samples, late_samples=1)})
    for n, each in enumerate(seconds):
        story.fold(n, launched(A, f"w-{n}"), registered(A, f"w-{n}", seconds=each))
    newest = tuple(seconds[-samples:])
    slowest = max(newest)
    assert story.row(IMAGE).boots == story.row("a").boots == newest
    assert story.row(IMAGE).slowest_seconds == story.row("a").slowest_seconds == slowest


def test_a_start_that_registers_before_the_reply_is_never_late() -> None:
    story = Story(A)
    story.fold(0, registered(A), launched(A))
    story.advance_to(10_000)
    assert story.row("a").boot.late == 0
    assert story.world.boots == {}


def test_a_stopped_start_is_never_late() -> None:
    """In whatever order the call and the machine answer; the success of the call counts."""
    left = registered(A)
    left = msgspec.structs.replace(left, outcome=Outcome(WorkerStage.UNKNOWN, Result.UNKNOWN))
    for events in ([launched(A, leaving=True)], [launched(A, leaving=True), left], [left, launched(A, leaving=True)]):
        story = Story(A)
        story.fold(0, requested(A), stopping(A), *events)
        assert story.world.boots == {}
        story.advance_to(3600)
        assert (story.row("a").launch.succeeded, story.row("a").boot) == (1, Story(A).row("a").boot)


def test_masses_of_late_starts_are_removed_from_sums() -> None:
    story = late_ones(3)
    story.fold(201, *(registered(A, f"w-{n}", seconds=201.0) for n in range(3)), claimed(A, "w-0"))
    for key, (successes, place_failures, _) in story.world.sums.items():
        if decoded(key)[-1] == "boot":
            assert successes == pytest.approx(3 + 5 * 2 ** (-1201 / 600))
            assert place_failures == pytest.approx(0, abs=1e-9)
