"""Which configs are told of in which turn, and how the journal writes places: pure, on worlds of a few configs."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_common.events.launch_config import LaunchConfigState
from slipway_common.events.worker import Scope, WorkerEvent
from slipway_common.outbox import Tombstone, Traced
from slipway_common.records import Record
from slipway_weight_calculator.domain.world import Draft, World
from slipway_weight_calculator.loops import publish
from slipway_weight_calculator.loops.publish import Publishing, affected
from slipway_weight_calculator.store.journal import ranges
from tests.worlds import T0, A, B, C, config, refused, said


class Teller:
    """Turns of a calculator that has no rows."""

    def __init__(self, *configs: LaunchConfigState, refresh_seconds: float = 60.0) -> None:
        self.world = World()
        self.publishing = Publishing(refresh_seconds, republish_seconds=600.0)
        draft = Draft(self.world)
        for state in configs:
            draft.declare(state, T0)
        self.turn(0.0, draft)

    def turn(self, at: float, draft: Draft | None = None, *, behind: bool = False) -> list[Any]:
        draft = draft or Draft(self.world)
        events, _ = self.publishing.look(draft, T0 + at, {"a": "trace"}, behind=behind)
        draft.commit()
        return events

    def fold(self, at: float, *events: WorkerEvent, behind: bool = False) -> list[Any]:
        draft = Draft(self.world)
        for event in events:
            draft.fold(event, T0 + at)
        return self.turn(at, draft, behind=behind)


def ids(events: Sequence[Any]) -> list[str]:
    return [event.event.launch_config_id for event in events]


def test_in_the_turn_that_changed_it_or_at_the_tick() -> None:
    """At once after 100 ms of quiet, else 100 ms after the last time; with the trace of what changed it."""
    teller = Teller(A, B)
    (told,) = teller.fold(1.0, refused(A))
    assert (told.event.launch_config_id, told.traceparent) == ("a", "trace")
    assert teller.fold(1.05, refused(A)) == []
    assert teller.publishing.due() == pytest.approx(T0 + 1.15)
    assert ids(teller.turn(1.11)) == ["a"]
    assert teller.publishing.due() is None


def test_a_backlog_waits_for_the_second() -> None:
    teller = Teller(A)
    assert ids(teller.fold(5.0, refused(A), behind=True)) == ["a"]
    assert teller.fold(5.5, refused(A), behind=True) == []
    assert teller.fold(5.9, refused(A), behind=True) == []
    (told,) = teller.fold(6.1, behind=True)
    assert told.event.stages["launch"].failures_folded == 3


def test_what_is_told_is_not_told_again() -> None:
    """Until it is old: then once more."""
    teller = Teller(A, B)
    assert teller.turn(30.0) == []
    told = [config_id for second in range(40, 700, 2) for config_id in ids(teller.turn(float(second)))]
    assert sorted(told) == ["a", "b"]


def test_everything_is_looked_at_within_the_refresh_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever only time or a sibling has moved, in turns that look at a few each."""
    monkeypatch.setattr(publish, "LOOKS_MAX", 3)
    configs = [config(f"c{n:02}") for n in range(20)]
    teller = Teller(*configs)
    for tick in range(1, 30):
        teller.turn(tick / 10)
    teller.fold(10.0, *(refused(configs[0], Scope.CAPACITY, f"w{n}") for n in range(3)))
    told = [config_id for tick in range(101, 720) for config_id in ids(teller.turn(tick / 10))]
    assert set(told) >= {f"c{n:02}" for n in range(1, 20)}, "their priors have moved with their sibling"


def test_an_archived_config_is_told_of_once_more() -> None:
    teller = Teller(A)
    draft = Draft(teller.world)
    draft.archive("a", T0 + 1)
    (told,) = teller.turn(1.0, draft)
    assert isinstance(told, Tombstone)
    assert teller.fold(2.0, refused(A)) == []
    assert teller.turn(700.0) == []


def test_only_what_closes_or_opens_concerns_all_who_share_it() -> None:
    teller = Teller(A, B, C, config("d", account="sim-b", image_revision="other"))
    first = Draft(teller.world)
    first.fold(refused(A, Scope.CREDENTIAL), T0 + 1)
    assert affected(first) == {"a"}
    first.fold(refused(A, Scope.CREDENTIAL, "w2"), T0 + 1)
    assert affected(first) == {"a", "b", "c"}
    first.commit()
    dim = Draft(teller.world)
    assert dim.signal(said("degraded", "config", "d"), T0) == ""
    assert affected(dim) == {"d"}


def test_after_a_restart_all_are_looked_at_and_nothing_is_told_twice() -> None:
    teller = Teller(A, config("d", pool="other", account="sim-b", region="r2"))
    told = teller.fold(1.0, refused(A))
    assert all(isinstance(event, Traced) for event in told)
    again = Publishing(60.0, 600.0)
    again.load(dict(teller.publishing.published), teller.world.configs)
    due = again.due()
    assert due is not None
    assert due <= T0
    assert again.look(Draft(teller.world), T0 + 2, {}, behind=False) == ([], {})


PLACES = st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 2), st.integers(0, 12))


@given(st.sets(PLACES))
def test_ranges_are_the_places_and_no_more(places: set[tuple[str, int, int]]) -> None:
    """In order, neighbours together, none twice."""
    found = ranges([Record(*place, None, None, (), 0) for place in places])
    assert [(t, p, n) for t, p, first, end in found for n in range(first, end)] == sorted(places)
    for (t, p, _, end), (u, q, first, _) in pairwise(found):
        assert (t, p) != (u, q) or end < first
