"""The limit that follows what the cloud bears: one history a line, then what holds in any."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_lease_broker.domain.adaptive import Adaptive, AdaptiveTerms, Evidence, adapt, began, rises_at

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TERMS = AdaptiveTerms(floor=5, ceiling=60, window_seconds=1200)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def told(text: str, now: float) -> list[Evidence]:
    """Words: "t" is a throttle, "r60": stay away for 60 s, "q900": 900 calls are left."""
    found = []
    for word in text.split():
        value = int(word[1:] or 0)
        found.append(Evidence(
            granted_at=at(now - 60), throttled=word[0] == "t",
            retry_after_seconds=float(value) if word[0] == "r" else None,
            quota_remaining=value if word[0] == "q" else None,
        ))  # fmt: skip
    return found


#   (seconds, what was said, limit afterwards); a saturated pool throughout, declared with 50
HISTORIES = [
    [(0, "", 50), (1199, "", 50), (1200, "", 51), (1201, "", 51), (2399, "", 51), (2400, "", 52)],
    [(100, "t t t", 40), (101, "t", 40), (1299, "t", 40), (1300, "t", 32)],  # one cut per window
    [(100, "t", 40), (1299, "", 40), (1300, "", 41)],  # a cut is a change like any other
    [(1200 * n, "t", limit) for n, limit in enumerate([40, 32, 25, 20, 16, 12, 9, 7, 5, 5, 5])],
    [(0, "q900", 50), (1200, "q900", 51), (2300, "q224", 51), (3499, "", 51), (3500, "", 52)],  # little is left
    [(0, "q900", 50), (1200, "q225", 51)],
    [(0, "r60", 50), (1200, "r60", 51)],  # to stay away for a while is no throttle
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


def test_a_pin_holds_everything_but_the_door() -> None:
    """By hand alone; what the cloud said last about staying away is obeyed all the same."""
    state = began(50, TERMS, NOW)
    pinned, why = adapt(state, TERMS, told("t r60 q3", 0), saturated=True, now=at(5000), pinned=True)
    assert (pinned.limit, pinned.changed_at, pinned.cut_at, why) == (50, NOW, None, "")
    assert pinned.blocks(at(5059))
    assert not pinned.blocks(at(5060))


def test_the_longest_time_to_stay_away_counts() -> None:
    """A shorter one that was told later takes nothing back."""
    state, _ = adapt(began(50, TERMS, NOW), TERMS, told("r60 r10", 0), saturated=True, now=NOW)
    state, _ = adapt(state, TERMS, told("r10", 5), saturated=True, now=at(5))
    assert state.blocked_until == at(60)


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
    st.tuples(st.floats(0, 3000), st.booleans(), st.booleans(), st.none() | st.integers(0, 1000)), max_size=60
)


@given(steps)
def test_laws(steps: list[tuple[float, bool, bool, int | None]]) -> None:
    """Within the bounds; one cut and one step up per window at most; never a step up while the window of one runs."""
    state, now = began(50, TERMS, NOW), NOW
    cuts, rises = [], []
    for gap, throttled, saturated, quota in steps:
        now += timedelta(seconds=gap)
        before: Adaptive = state
        said = [Evidence(granted_at=now, throttled=throttled, quota_remaining=quota)]
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
