"""Adaptive limits: one history per line, then properties of any history."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_lease_broker.domain.adaptive import (
    QUOTA_WINDOWS,
    Adaptive,
    AdaptiveTerms,
    Evidence,
    adapt,
    even_pacing,
    initial_adaptive,
    rises_at,
)
from slipway_lease_broker.domain.pacing import Pacing

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TERMS = AdaptiveTerms(floor=5, ceiling=60, window_seconds=1200)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def evidence(text: str, now: float, held: float = 600) -> list[Evidence]:
    """Evidence from words: "t7" is seven throttled leases, "o7" seven others, "q900" one with 900 calls remaining."""
    found = []
    for word in text.split():
        value = int(word[1:])
        if word[0] == "q":
            found.append(Evidence(granted_at=at(now - held), quota_remaining=value))
        else:
            found += [Evidence(granted_at=at(now - held), throttled=word[0] == "t")] * value
    return found


#   (seconds, evidence, limit afterwards); a saturated pool throughout, declared with 50
HISTORIES = [
    [(0, "", 50), (1199, "", 50), (1200, "", 51), (1201, "", 51), (2399, "", 51), (2400, "", 52)],
    [(100, "t8", 50), (200, "t1", 45)],  # 1 − 0.95⁹ is the first above 0.35
    [
        (100, "t1 o9", 50),
        (200, "t1 o9", 50),
        (300, "t1 o9", 50),
        (400, "t1 o9", 50),
    ],  # occasional throttling is tolerated
    [(100, "t8", 50), (200, "o50", 50), (300, "t7", 50)],  # old evidence no longer counts
    [(100, "t9", 45), (699, "t50", 45), (1299, "t50", 45), (1300, "t9", 33)],  # one cut per window, then a deep one
    [(100, "t9", 45), (690, "t50", 45), (1301, "t8", 45)],  # leases granted before a cut are covered by it
    [(100, "t9", 45), (1301, "t8", 45), (2499, "t1", 33)],  # a second cut within two windows is deeper
    [(100, "t9", 45), (1301, "t8", 45), (2500, "t1", 40)],  # a later one counts as the first again
    [(100, "t9", 45), (1299, "", 45), (1300, "", 46)],  # an increase waits a window after a cut
    [(1300 * n, "t50", limit) for n, limit in enumerate([45, 33, 25, 18, 14, 10, 8, 6, 5, 5, 5])],
    [(0, "q900", 50), (1200, "q900", 51), (2300, "q89", 51), (3499, "", 51), (3500, "", 52)],  # little quota left
    [(0, "q900", 50), (1200, "q90", 51)],
]


@pytest.mark.parametrize("history", HISTORIES)
def test_histories(history: list[tuple[float, str, int]]) -> None:
    """The limit after each step of a history, with the reason where it changed."""
    state = initial_adaptive(50, TERMS, NOW)
    for seconds, text, units in history:
        before = state.units
        state, reason = adapt(state, TERMS, evidence(text, seconds), saturated=True, now=at(seconds))
        assert state.units == units
        assert reason.startswith(f"limit {before} → {units}: ") if units != before else reason == ""


def test_no_evidence_changes_nothing() -> None:
    """A limit that was not used gives no evidence, however long."""
    state = initial_adaptive(50, TERMS, NOW)
    assert adapt(state, TERMS, [], saturated=False, now=at(1e6)) == (state, "")


@pytest.mark.parametrize("absurd", [10**4, 10**9, 2**63])
@pytest.mark.parametrize("told_after", [0, 1000])
def test_an_absurd_reading_is_forgotten(absurd: int, told_after: float) -> None:
    """An absurdly large reading expires after the remembered windows. Until then later readings look low and the limit
    does not rise; a reading that is really low counts throughout."""
    terms = AdaptiveTerms(floor=5, ceiling=100, window_seconds=1200)
    window, state = terms.window_seconds, initial_adaptive(50, terms, NOW)
    state, _ = adapt(state, terms, evidence("q900", 0), saturated=True, now=NOW)
    state, _ = adapt(state, terms, evidence(f"q{absurd}", 0), saturated=True, now=at(told_after))
    rose = []
    for number in range(1, 3 * QUOTA_WINDOWS):
        state, reason = adapt(state, terms, evidence("q900", 0), saturated=True, now=at(number * window))
        if reason:
            rose.append(number)
    assert rose == list(range(2 * QUOTA_WINDOWS, 3 * QUOTA_WINDOWS))
    state, reason = adapt(state, terms, evidence("q89", 0), saturated=True, now=at(3 * QUOTA_WINDOWS * window))
    assert reason == ""


def test_the_largest_remaining_quota_is_remembered_for_a_while() -> None:
    """A quota that stays low for hours still counts as low; after weeks without readings older ones do not count."""
    window = TERMS.window_seconds
    state, _ = adapt(initial_adaptive(50, TERMS, NOW), TERMS, evidence("q900", 0), saturated=False, now=NOW)
    low = []
    for number in range(1, 3 * QUOTA_WINDOWS):
        now = at(number * window)
        state, _ = adapt(state, TERMS, evidence("q60", 0), saturated=False, now=now)
        low.append(state.quota_low_at == now)
    assert all(low[:QUOTA_WINDOWS])
    assert not any(low[2 * QUOTA_WINDOWS :])
    state, _ = adapt(state, TERMS, evidence("q900", 0), saturated=False, now=at(3 * QUOTA_WINDOWS * window))
    weeks = at(10 * QUOTA_WINDOWS * window)
    state, _ = adapt(state, TERMS, evidence("q60", 0), saturated=False, now=weeks)
    assert state.quota_low_at != weeks


def test_a_reading_counts_for_one_to_two_periods() -> None:
    period = QUOTA_WINDOWS * TERMS.window_seconds
    for periods, is_low in ((0.5, True), (1.5, True), (2.5, False)):
        state, now = initial_adaptive(50, TERMS, NOW), at(periods * period)
        state, _ = adapt(state, TERMS, evidence("q900", 0), saturated=False, now=NOW)
        state, _ = adapt(state, TERMS, evidence("q60", 0), saturated=False, now=now)
        assert (state.quota_low_at == now) is is_low


def test_a_pinned_limit_does_not_change() -> None:
    """Only an operator changes a pinned limit; evidence that arrives meanwhile is recorded."""
    state = initial_adaptive(50, TERMS, NOW)
    pinned, reason = adapt(state, TERMS, evidence("t50 q3", 0), saturated=True, now=at(5000), pinned=True)
    assert (pinned.limit, pinned.changed_at, pinned.cut_at, reason) == (50, NOW, None, "")
    assert pinned.throttled > 0.8


#   duration of each lease, seconds between starts at a limit of 50 with a hold of 1200
PACES = [
    ([], 12),  # unknown: the default
    ([600], 12),  # the rate at which leases end would be faster than the default
    ([1050], 20),
    ([1050, 2050], 1100 / 52.5),  # a slowly moving mean
]


@pytest.mark.parametrize(("held", "interval"), PACES)
def test_starts_follow_each_other_evenly(held: list[float], interval: float) -> None:
    """Starts are paced at about the rate at which leases end, never faster than the default, nor beyond the maximum."""
    state = initial_adaptive(50, TERMS, NOW)
    for seconds in held:
        state, _ = adapt(state, TERMS, evidence("t1", 0, held=seconds), saturated=True, now=NOW)
    assert even_pacing(state, TERMS, 30).interval_seconds == pytest.approx(interval)
    assert even_pacing(state, TERMS, 10) == Pacing(10)


def test_a_limit_of_one_is_paced_by_its_one_lease() -> None:
    state = Adaptive(limit=1.0, changed_at=NOW, held_seconds=1050)
    assert even_pacing(state, TERMS, 3000).interval_seconds == pytest.approx(1000)


def test_a_limit_at_its_ceiling_does_not_rise() -> None:
    state = Adaptive(limit=60.0, changed_at=NOW)
    assert adapt(state, TERMS, [], saturated=True, now=at(5000)) == (state, "")


#   declared, floor, ceiling, in force
BOUNDS = [(50, 5, 60, 50), (50, 5, 40, 40), (3, 5, 60, 5)]


@pytest.mark.parametrize(("declared", "floor", "ceiling", "units"), BOUNDS)
def test_bounds(declared: int, floor: int, ceiling: int, units: int) -> None:
    """A declared limit outside the bounds starts at the nearest bound; new bounds apply at once."""
    terms = AdaptiveTerms(floor=floor, ceiling=ceiling, window_seconds=1200)
    assert initial_adaptive(declared, terms, NOW).units == units
    state, reason = adapt(initial_adaptive(declared, TERMS, NOW), terms, [], saturated=False, now=at(1))
    assert state.units == units
    assert bool(reason) is (units != initial_adaptive(declared, TERMS, NOW).units)
    assert state.changed_at == (at(1) if reason else NOW)


steps = st.lists(
    st.tuples(st.floats(0, 3000), st.integers(0, 30), st.booleans(), st.none() | st.integers(0, 1000)), max_size=60
)


@given(steps)
def test_laws(steps: list[tuple[float, int, bool, int | None]]) -> None:
    """The limit stays within its bounds, with at most one cut and one increase per window, and never an increase within
    the window of a cut."""
    state, now = initial_adaptive(50, TERMS, NOW), NOW
    cuts, rises = [], []
    for gap, throttled, saturated, quota in steps:
        now += timedelta(seconds=gap)
        before: Adaptive = state
        batch = [
            Evidence(granted_at=now, quota_remaining=quota),
            *[Evidence(granted_at=now, throttled=True)] * throttled,
        ]
        state, reason = adapt(state, TERMS, batch, saturated=saturated, now=now)
        assert TERMS.floor <= state.limit <= TERMS.ceiling
        assert bool(reason) is (state.units != before.units)
        if state.limit < before.limit:
            assert throttled
            cuts.append(now)
        if state.limit > before.limit:
            assert saturated
            assert not throttled
            assert state.limit == before.limit + 1
            assert now >= rises_at(before, TERMS)
            rises.append(now)
    for times in (cuts, rises):
        assert all((b - a).total_seconds() >= TERMS.window_seconds for a, b in pairwise(times))
