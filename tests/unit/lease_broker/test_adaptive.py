"""The limit that follows what the cloud bears: one history a line, then what holds in any."""

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
    began,
    even_pacing,
    rises_at,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TERMS = AdaptiveTerms(floor=5, ceiling=60, window_seconds=1200)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def told(text: str, now: float, held: float = 600) -> list[Evidence]:
    """Words: "t7" are seven throttled leases, "o7" seven others, "q900" one that says that 900 calls are left."""
    found = []
    for word in text.split():
        value = int(word[1:])
        if word[0] == "q":
            found.append(Evidence(granted_at=at(now - held), quota_remaining=value))
        else:
            found += [Evidence(granted_at=at(now - held), throttled=word[0] == "t")] * value
    return found


#   (seconds, what was said, limit afterwards); a saturated pool throughout, declared with 50
HISTORIES = [
    [(0, "", 50), (1199, "", 50), (1200, "", 51), (1201, "", 51), (2399, "", 51), (2400, "", 52)],
    [(100, "t8", 50), (200, "t1", 45)],  # 1 − 0.95⁹ is the first above 0.35
    [(100, "t1 o9", 50), (200, "t1 o9", 50), (300, "t1 o9", 50), (400, "t1 o9", 50)],  # now and then is borne
    [(100, "t8", 50), (200, "o50", 50), (300, "t7", 50)],  # what was long ago counts no more
    [(100, "t9", 45), (699, "t50", 45), (1299, "t50", 45), (1300, "t9", 33)],  # one cut per window, then a deep one
    [(100, "t9", 45), (690, "t50", 45), (1301, "t8", 45)],  # those granted before a cut had their answer
    [(100, "t9", 45), (1301, "t8", 45), (2499, "t1", 33)],  # within two windows it follows up
    [(100, "t9", 45), (1301, "t8", 45), (2500, "t1", 40)],  # later it is the first again
    [(100, "t9", 45), (1299, "", 45), (1300, "", 46)],  # a cut is a change like any other
    [(1300 * n, "t50", limit) for n, limit in enumerate([45, 33, 25, 18, 14, 10, 8, 6, 5, 5, 5])],
    [(0, "q900", 50), (1200, "q900", 51), (2300, "q89", 51), (3499, "", 51), (3500, "", 52)],  # little is left
    [(0, "q900", 50), (1200, "q90", 51)],
]


@pytest.mark.parametrize("history", HISTORIES)
def test_histories(history: list[tuple[float, str, int]]) -> None:
    """What each of them leaves, with the reason where something changed."""
    state = began(50, TERMS, NOW)
    for seconds, text, units in history:
        before = state.units
        state, why = adapt(state, TERMS, told(text, seconds), saturated=True, now=at(seconds))
        assert state.units == units
        assert why.startswith(f"limit {before} → {units}: ") if units != before else why == ""


def test_silence_changes_nothing() -> None:
    """A limit that was not used proves nothing, however long."""
    state = began(50, TERMS, NOW)
    assert adapt(state, TERMS, [], saturated=False, now=at(1e6)) == (state, "")


@pytest.mark.parametrize("absurd", [10**4, 10**9, 2**63])
@pytest.mark.parametrize("told_after", [0, 1000])
def test_an_absurd_reading_is_forgotten(absurd: int, told_after: float) -> None:
    """After so many windows, however large it was: till then each later reading looks like little, and nothing rises.
    What really is little is seen all the while."""
    terms = AdaptiveTerms(floor=5, ceiling=100, window_seconds=1200)
    window, state = terms.window_seconds, began(50, terms, NOW)
    state, _ = adapt(state, terms, told("q900", 0), saturated=True, now=NOW)
    state, _ = adapt(state, terms, told(f"q{absurd}", 0), saturated=True, now=at(told_after))
    rose = []
    for number in range(1, 3 * QUOTA_WINDOWS):
        state, why = adapt(state, terms, told("q900", 0), saturated=True, now=at(number * window))
        if why:
            rose.append(number)
    assert rose == list(range(2 * QUOTA_WINDOWS, 3 * QUOTA_WINDOWS))
    state, why = adapt(state, terms, told("q89", 0), saturated=True, now=at(3 * QUOTA_WINDOWS * window))
    assert why == ""


def test_the_most_that_was_left_is_remembered_for_a_while() -> None:
    """A quota that runs low for hours is still low; nor does a silence of weeks bring back what was seen before it."""
    window = TERMS.window_seconds
    state, _ = adapt(began(50, TERMS, NOW), TERMS, told("q900", 0), saturated=False, now=NOW)
    low = []
    for number in range(1, 3 * QUOTA_WINDOWS):
        now = at(number * window)
        state, _ = adapt(state, TERMS, told("q60", 0), saturated=False, now=now)
        low.append(state.quota_low_at == now)
    assert all(low[:QUOTA_WINDOWS])
    assert not any(low[2 * QUOTA_WINDOWS :])
    state, _ = adapt(state, TERMS, told("q900", 0), saturated=False, now=at(3 * QUOTA_WINDOWS * window))
    weeks = at(10 * QUOTA_WINDOWS * window)
    state, _ = adapt(state, TERMS, told("q60", 0), saturated=False, now=weeks)
    assert state.quota_low_at != weeks


def test_a_pin_holds_everything() -> None:
    """By hand alone; what was said meanwhile is remembered."""
    state = began(50, TERMS, NOW)
    pinned, why = adapt(state, TERMS, told("t50 q3", 0), saturated=True, now=at(5000), pinned=True)
    assert (pinned.limit, pinned.changed_at, pinned.cut_at, why) == (50, NOW, None, "")
    assert pinned.throttled > 0.8


#   held by each lease, seconds between starts at a limit of 50 with a hold of 1200
PACES = [
    ([], 12),  # unknown: by default
    ([600], 12),  # as fast as leases end would be faster than that
    ([1050], 20),
    ([1050, 2050], 1100 / 52.5),  # a mean that moves slowly
]


@pytest.mark.parametrize(("held", "interval"), PACES)
def test_starts_follow_each_other_evenly(held: list[float], interval: float) -> None:
    """About as fast as leases end, never faster than by default."""
    state = began(50, TERMS, NOW)
    for seconds in held:
        state, _ = adapt(state, TERMS, told("t1", 0, held=seconds), saturated=True, now=NOW)
    assert even_pacing(state, TERMS).interval_seconds == pytest.approx(interval)


#   declared, floor, ceiling, in force
BOUNDS = [(50, 5, 60, 50), (50, 5, 40, 40), (3, 5, 60, 5)]


@pytest.mark.parametrize(("declared", "floor", "ceiling", "units"), BOUNDS)
def test_bounds(declared: int, floor: int, ceiling: int, units: int) -> None:
    """A declared limit outside them begins at the nearest; new bounds count at once."""
    terms = AdaptiveTerms(floor=floor, ceiling=ceiling, window_seconds=1200)
    assert began(declared, terms, NOW).units == units
    state, why = adapt(began(declared, TERMS, NOW), terms, [], saturated=False, now=at(1))
    assert state.units == units
    assert bool(why) is (units != began(declared, TERMS, NOW).units)


steps = st.lists(
    st.tuples(st.floats(0, 3000), st.integers(0, 30), st.booleans(), st.none() | st.integers(0, 1000)), max_size=60
)


@given(steps)
def test_laws(steps: list[tuple[float, int, bool, int | None]]) -> None:
    """Within the bounds; one cut and one step up per window at most; never a step up while the window of one runs."""
    state, now = began(50, TERMS, NOW), NOW
    cuts, rises = [], []
    for gap, throttled, saturated, quota in steps:
        now += timedelta(seconds=gap)
        before: Adaptive = state
        said = [
            Evidence(granted_at=now, quota_remaining=quota),
            *[Evidence(granted_at=now, throttled=True)] * throttled,
        ]
        state, why = adapt(state, TERMS, said, saturated=saturated, now=now)
        assert TERMS.floor <= state.limit <= TERMS.ceiling
        assert bool(why) is (state.units != before.units)
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
