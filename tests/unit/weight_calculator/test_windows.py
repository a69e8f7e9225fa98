"""Boot windows by evidence: laws of the pure rule, and of the windows of any history."""

from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slipway_api.events.scopes import Key
from slipway_api.events.worker import Scope, Stage
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.windows import (
    UNKNOWN,
    Boots,
    counted,
    ended,
    failure_probability,
    grown,
    is_full,
    recovered,
    shrunk,
    size,
    slowed,
    tripped,
    untripped,
)
from tests.support.worlds import IMAGE, POLICY, A, B, Story, claimed, fails, known_boots, launched, registered, stopping

CAP: Final = POLICY.window_mass_cap
masses = st.floats(0, CAP)
few = st.integers(0, 15)
histories = st.lists(st.booleans(), max_size=80)
"""Boots; True: registered."""


def probability(good: float, bad: float, policy: Policy = POLICY) -> float:
    return failure_probability(good, bad, policy.bad_prior, policy.bad_success, policy.prior, policy.prior_mass)


def after(history: Sequence[bool], policy: Policy = POLICY) -> Boots:
    boots = UNKNOWN
    for ok in history:
        boots = counted(boots, policy, failed=not ok)
    return boots


# The rule


@given(masses, masses, masses)
def test_more_successes_never_shrink_and_more_failures_never_grow(good: float, bad: float, more: float) -> None:
    assert size(Boots(good + more, bad), POLICY) >= size(Boots(good, bad), POLICY) - 1e-9
    assert size(Boots(good, bad + more), POLICY) <= size(Boots(good, bad), POLICY) + 1e-9


@given(masses, st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_boots_in_progress_count_where_they_exceed_the_remembered_failures(
    good: float, bad: int, slow: int, overdue: int
) -> None:
    assert size(Boots(good, bad, slow, overdue=overdue), POLICY) == size(Boots(good, max(bad, slow, overdue)), POLICY)


@given(masses, masses)
def test_windows_stay_within_their_bounds(good: float, bad: float) -> None:
    assert POLICY.boot_window_min <= size(Boots(good, bad), POLICY) <= POLICY.boot_window
    assert size(Boots(good, 0), POLICY) >= POLICY.new_boot_window


@given(masses, masses)
def test_a_window_balances_additive_increase_and_multiplicative_decrease(good: float, bad: float) -> None:
    """Adding 1 per success and multiplying by `boot_shrink` per failure would leave it where it is, on average."""
    p, window = probability(good, bad), size(Boots(good, bad), POLICY)
    if POLICY.new_boot_window < window < POLICY.boot_window:
        assert (1 - p) * 1 == pytest.approx(p * (window - POLICY.boot_shrink * window))


@given(masses, masses)
def test_at_most_three_and_a_third_failures_are_expected_of_a_window(good: float, bad: float) -> None:
    """Unless the window is at its minimum or that of a new row."""
    window = size(Boots(good, bad), POLICY)
    if window > POLICY.new_boot_window:
        assert probability(good, bad) * window <= 1 / (1 - POLICY.boot_shrink) + 1e-9


@given(few, few)
def test_the_probability_is_that_of_the_mixture(good: int, bad: int) -> None:
    """By counting: the probability of such a history and a failure, over the probability of the history."""

    def likelihood(good: int, bad: int) -> float:
        fine, successes, failures = 1.0, POLICY.prior_mass * POLICY.prior, POLICY.prior_mass * (1 - POLICY.prior)
        for n in range(good):
            fine *= (successes + n) / (POLICY.prior_mass + n)
        for n in range(bad):
            fine *= (failures + n) / (POLICY.prior_mass + good + n)
        hopeless = POLICY.bad_success**good * (1 - POLICY.bad_success) ** bad
        return POLICY.bad_prior * hopeless + (1 - POLICY.bad_prior) * fine

    assert probability(good, bad) == pytest.approx(likelihood(good, bad + 1) / likelihood(good, bad), rel=1e-6)


@given(histories, st.booleans())
@example([True] * 50, False)
@example([False] * 20 + [True] * 20, True)
def test_an_outcome_moves_a_window_in_its_direction(history: list[bool], ok: bool) -> None:
    """At the cap too, where older outcomes lose weight."""
    boots = after(history)
    assert boots.good + boots.bad <= CAP + 1e-9
    before, now = size(boots, POLICY), size(after([*history, ok]), POLICY)
    assert now >= before - 1e-9 if ok else now <= before + 1e-9


@given(st.lists(st.booleans(), max_size=int(CAP)), st.randoms(use_true_random=False))
def test_the_order_of_outcomes_is_irrelevant_below_the_cap(history: list[bool], chance: Random) -> None:
    assert after(history) == after(chance.sample(history, len(history)))


@given(histories, st.floats(0, 1))
def test_a_recovery_keeps_the_newest_success(history: list[bool], kept: float) -> None:
    """A short trip is remembered, of a long one a failure is left."""
    boots = after([*history, True])
    then = recovered(boots, kept)
    assert min(1.0, boots.good) <= then.good <= boots.good + 1e-9
    assert 0 <= then.bad <= boots.bad
    assert (then.slow, then.outages) == (boots.slow, boots.outages)
    assert size(recovered(boots, 1.0), POLICY) == pytest.approx(size(boots, POLICY))
    assert recovered(boots, 0.0) == Boots(min(1.0, boots.good), min(1.0, boots.bad))


@given(histories, st.integers(0, 9), st.integers(0, 9))
@example([True] * 30, 5, 9)
@example([True, False] * 10, 5, 9)
@example([True] * 5, 5, 0)
@example([False] + [True] * 24, 5, 0)
def test_an_outage_of_a_proven_row_is_one_failure(history: list[bool], run: int, hanging: int) -> None:
    """Its starts that hang are freed when it ends; a row that is not proven keeps all its failures."""
    failing = after(history)
    for _ in range(run):
        failing = counted(failing, POLICY, failed=True)
    for _ in range(hanging):
        failing = slowed(failing)
    down, bad = tripped(failing, run, hanging, POLICY), max(0.0, failing.bad - run)
    if failing.good < POLICY.late_samples or size(Boots(failing.good, bad), POLICY) < POLICY.proven_boot_window:
        assert down == failing
        return
    assert size(down, POLICY) == size(failing, POLICY)
    up = recovered(down, 0.5)
    assert up.bad == pytest.approx(bad + 1)
    assert (up.good, up.slow, up.hung, up.aside) == (failing.good, 0, hanging, None)
    assert size(up, POLICY) == min(size(replace(up, hung=0), POLICY) + hanging, POLICY.boot_window)
    assert ended(up, 0) == replace(up, hung=max(0, hanging - 1))
    assert ended(slowed(up), 1) == up
    assert untripped(down) == failing


def test_starts_that_are_overdue_do_not_make_a_row_less_proven() -> None:
    """They are of the outage that begins."""
    failing = after([True] * 30 + [False] * 5)
    assert tripped(replace(failing, overdue=9), 5, 0, POLICY).aside == tripped(failing, 5, 0, POLICY).aside


@given(st.integers(0, 80))
@example(60)
def test_starts_that_register_during_an_outage_displace_its_failures_too(registered: int) -> None:
    """Otherwise the end of the outage would subtract more than is left, and forgive the failures after it."""
    boots = after([True] * 30 + [False] * 5)
    boots = tripped(boots, 5, 0, POLICY)
    for _ in range(registered):
        boots = counted(boots, POLICY)
    up = recovered(boots, 0.5)
    assert up.bad == pytest.approx((CAP / (CAP + 1)) ** registered)
    assert size(counted(up, POLICY, failed=True), POLICY) < size(up, POLICY)


@given(masses, masses, st.dictionaries(st.sampled_from(["bad_prior", "bad_success", "prior"]), st.floats(1e-6, 0.99)))
@example(30.0, 0.0, {"bad_success": 1e-6, "bad_prior": 0.99})
@example(0.0, 30.0, {"prior": 0.99})
def test_any_valid_coefficients_give_a_window(good: float, bad: float, changes: dict[str, float]) -> None:
    policy = msgspec.structs.replace(POLICY, **changes)
    assert 0 < probability(good, bad, policy) < 1
    assert policy.boot_window_min <= size(Boots(good, bad), policy) <= policy.boot_window


@pytest.mark.parametrize(
    ("good", "bad", "window"),
    [
        (0, 0, POLICY.new_boot_window),
        (1, 0, 77),
        (2, 0, 129),
        (30, 0, POLICY.boot_window),
        (0, 1, POLICY.boot_window_min),
        (21, 9, 8),  # 30 % fail
        (6, 24, POLICY.boot_window_min),  # 80 % fail
    ],
)
def test_sizes(good: int, bad: int, window: float) -> None:
    assert int(size(Boots(good, bad), POLICY)) == window


@pytest.mark.parametrize(
    ("good", "bad", "window", "full"),
    [(30, 0, 1000, True), (29.4, 0.2, 1000, True), (30, 0, 999, False), (29, 0, 1000, False), (29, 0.5, 1000, False)],
)
def test_a_window_is_full_when_another_success_adds_nothing(good: float, bad: float, window: float, full: bool) -> None:
    """At its maximum, and with as many boots known as are remembered; sums of those are rounded."""
    assert is_full(Boots(good, bad), window, POLICY) is full


@pytest.mark.parametrize(
    ("stage", "window", "after_success", "after_failure"),
    [
        ("launch", 1, 2, 1),
        ("launch", 8, 9, 4),
        ("launch", 63.5, 64, 31.75),
        ("launch", 64, 64, 32),
        ("claim", 2, 4, 2),
        ("claim", 63, 126, 44.1),
        ("claim", 64, 1000, 44.8),  # its workers find tasks
        ("claim", 1000, 1000, 700),
    ],
)
def test_windows_of_launches_and_claims_change_by_steps(
    stage: str, window: float, after_success: float, after_failure: float
) -> None:
    assert grown(window, stage, POLICY) == after_success
    assert shrunk(window, stage, POLICY) == pytest.approx(after_failure)


# Windows of rows


def window(story: Story, key: Key | str = IMAGE) -> float:
    return story.row(key).boot.window


def boot(story: Story, at: float, worker_id: str, *, ok: bool) -> None:
    end = registered(A, worker_id, seconds=100.0) if ok else stopping(A, fails(Scope.IMAGE, Stage.BOOT), worker_id)
    story.fold(at, launched(A, worker_id), end)


def test_a_window_opens_with_the_first_success_and_closes_with_the_first_failure() -> None:
    for ok, expected in ((True, size(Boots(1, 0), POLICY)), (False, POLICY.boot_window_min)):
        story = Story(A)
        boot(story, 0, "w", ok=ok)
        assert window(story) == window(story, "a") == expected


@given(histories)
@settings(max_examples=40, deadline=None)
def test_windows_follow_the_evidence_of_any_history(history: list[bool]) -> None:
    """Also while a row is tripped; of the config and the image alike."""
    story = Story(A, B)
    for n, ok in enumerate(history):
        boot(story, 0, f"w-{n}", ok=ok)
    for key in ("a", IMAGE) if history else ():
        stage, wanted = story.row(key).boot, after(history)
        assert stage.window == pytest.approx(size(stage.boots, POLICY))
        if not stage.trip.tripped and not stage.boots.outages:
            assert (stage.boots.good, stage.boots.bad) == pytest.approx((wanted.good, wanted.bad), abs=0.02)


@given(histories, st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_a_slow_start_that_registers_leaves_its_window_as_if_in_time(history: list[bool], slow: int) -> None:
    """Exactly, whatever was known before and whether it became slow or late: below and at the cap."""
    sizes = []
    for delay in (10.0, 140.0, 900.0):
        story = Story(A)
        story.fold(-1000, *known_boots(A))
        for n, ok in enumerate(history):
            boot(story, -900, f"w-{n}", ok=ok)
        before = window(story)
        story.fold(0, *(launched(A, f"slow-{n}") for n in range(slow)))
        story.advance_to(delay)
        assert window(story) <= before
        story.fold(delay, *(registered(A, f"slow-{n}", seconds=100.0) for n in range(slow)))
        sizes.append([window(story), window(story, "a"), story.row(IMAGE).boot.boots.slow])
    assert sizes[0] == sizes[1] == sizes[2]


def test_a_row_that_begins_at_its_maximum_is_published() -> None:
    """Otherwise consumers would go on assuming the window of a new image."""
    most = msgspec.structs.replace(POLICY, new_boot_window=POLICY.boot_window, new_claim_window=POLICY.claim_window)
    story = Story(A, policies={"on-demand": most})
    story.fold(0, claimed(A))
    assert IMAGE in story.world.rows
    story.fold(0, *known_boots(A, 100.0))
    shared = {(each.kind, each.stage): each.window for each in story.record("a", 1).shared}
    assert shared["image", "boot"] == POLICY.boot_window
    assert shared["image", "claim"] == POLICY.claim_window


def test_a_recovered_window_remembers_a_short_trip() -> None:
    """After a short trip of a new row its failures count on; after a long one they are one."""
    sizes = []
    for seconds in (20.0, 86_400.0):
        story = Story(A)
        for n in range(7):
            boot(story, 0, f"w-{n}", ok=n < 2)
        recover(story, seconds)
        sizes.append(window(story))
    assert sizes[0] == pytest.approx(size(Boots(3, 5), POLICY), abs=0.2)
    assert sizes[1] == pytest.approx(size(Boots(1, 1), POLICY), rel=0.01)


def recover(story: Story, at: float) -> None:
    permit = story.probe("a", at)
    assert story.trip(IMAGE, "boot").tripped
    story.fold(at, launched(A, "p", permit), registered(A, "p", permit, seconds=100.0))
    assert not story.trip(IMAGE, "boot").tripped


def test_a_proven_image_is_back_after_an_outage() -> None:
    """All its starts hung: that was one failure, and those that still hang occupy no place and prove nothing."""
    story = Story(A)
    story.fold(-1000, *known_boots(A, *[100.0] * 30))
    story.fold(0, *(launched(A, f"hung-{n}") for n in range(9)))
    recover(story, 220)
    assert (story.row(IMAGE).boot.boots.hung, story.row(IMAGE).boot.boots.slow) == (9, 0)
    assert window(story) == pytest.approx(size(Boots(30, 30 / 31), POLICY) + 9, abs=3)
    story.fold(900, *(stopping(A, fails(Scope.IMAGE, Stage.BOOT), f"hung-{n}") for n in range(9)))
    for key in (IMAGE, "a"):
        assert story.row(key).boot.boots.hung == story.row(key).boot.boots.slow == 0
        assert window(story, key) == pytest.approx(size(Boots(30, 30 / 31), POLICY), abs=3)


def test_an_image_that_fails_now_and_then_has_no_outage() -> None:
    """Later starts have registered, so its failures are its own, and it keeps them after a trip."""
    story = Story(A)
    story.fold(-1000, *known_boots(A, *[100.0] * 30))
    story.fold(0, *(launched(A, f"hung-{n}") for n in range(5)), launched(A, "x"))
    story.fold(1, launched(A, "y"), registered(A, "y", seconds=1.0))
    recover(story, 220)
    boots = story.row(IMAGE).boot.boots
    assert (boots.hung, boots.slow, boots.outages) == (0, 6, 0)
    assert window(story) < 20
