"""Selection of the configs to publish in a turn, and ranges in the journal; pure, on worlds of a few configs."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.launch_config import LaunchConfigState
from slipway_api.events.worker import Scope, WorkerEvent
from slipway_common.messaging.outbox import Tombstone, Traced
from slipway_common.messaging.records import Record
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.world import World, apply_signal, commit, declare, fold, forget
from slipway_weight_calculator.loops import publish
from slipway_weight_calculator.loops.publish import Publishing, affected
from slipway_weight_calculator.store.journal import ranges
from tests.support.worlds import T0, A, B, C, config, refused, signal_event


class Publisher:
    """Turns of a calculator without a database."""

    def __init__(self, *configs: LaunchConfigState, refresh_seconds: float = 60.0) -> None:
        self.world = World()
        self.publishing = Publishing(refresh_seconds, republish_seconds=600.0)
        draft = Draft(self.world)
        for state in configs:
            declare(draft, state, T0)
        self.turn(0.0, draft)

    def turn(self, at: float, draft: Draft | None = None, *, behind: bool = False) -> list[Any]:
        draft = draft or Draft(self.world)
        events, _ = self.publishing.publish(draft, T0 + at, {"a": "trace"}, behind=behind)
        commit(draft)
        return events

    def fold(self, at: float, *events: WorkerEvent, behind: bool = False) -> list[Any]:
        draft = Draft(self.world)
        for event in events:
            fold(draft, event, T0 + at)
        return self.turn(at, draft, behind=behind)


def ids(events: Sequence[Any]) -> list[str]:
    return [event.event.launch_config_id for event in events]


def test_in_the_turn_that_changed_it_or_at_the_tick() -> None:
    """At once if the last record is 100 ms old, else 100 ms after it; with the trace of the change."""
    publisher = Publisher(A, B)
    (published,) = publisher.fold(1.0, refused(A))
    assert (published.event.launch_config_id, published.traceparent) == ("a", "trace")
    assert publisher.fold(1.05, refused(A)) == []
    assert publisher.publishing.due() == pytest.approx(T0 + 1.15)
    assert ids(publisher.turn(1.11)) == ["a"]
    assert publisher.publishing.due() is None


def test_a_backlog_waits_for_the_second() -> None:
    publisher = Publisher(A)
    assert ids(publisher.fold(5.0, refused(A), behind=True)) == ["a"]
    assert publisher.fold(5.5, refused(A), behind=True) == []
    assert publisher.fold(5.9, refused(A), behind=True) == []
    (published,) = publisher.fold(6.1, behind=True)
    assert published.event.stages["launch"].failures_folded == 3


def test_unchanged_records_are_not_published_again() -> None:
    """An unchanged record is repeated once it is old."""
    publisher = Publisher(A, B)
    assert publisher.turn(30.0) == []
    published = [config_id for second in range(40, 700, 2) for config_id in ids(publisher.turn(float(second)))]
    assert sorted(published) == ["a", "b"]


def test_everything_is_computed_within_the_refresh_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs changed by time or by a sibling are computed in turns of a few each."""
    monkeypatch.setattr(publish, "CONFIGS_MAX", 3)
    configs = [config(f"c{n:02}") for n in range(20)]
    publisher = Publisher(*configs)
    for tick in range(1, 30):
        publisher.turn(tick / 10)
    publisher.fold(10.0, *(refused(configs[0], Scope.CAPACITY, f"w{n}") for n in range(3)))
    published = [config_id for tick in range(101, 720) for config_id in ids(publisher.turn(tick / 10))]
    assert set(published) >= {f"c{n:02}" for n in range(1, 20)}, "their priors have moved with their sibling"


def test_an_archived_config_stays_published_until_its_tombstone() -> None:
    """It is not refreshed, but outcomes of its last workers are published."""
    publisher = Publisher(A)
    draft = Draft(publisher.world)
    declare(draft, config("a", state="archived", revision=2), T0 + 1)
    (published,) = publisher.turn(1.0, draft)
    assert published.event.config_revision == 2
    assert publisher.turn(700.0) == []
    assert publisher.turn(1400.0) == []
    (published,) = publisher.fold(1401.0, refused(A))
    assert published.event.stages["launch"].failures_folded == 1
    draft = Draft(publisher.world)
    forget(draft, "a", T0 + 1402)
    (published,) = publisher.turn(1402.0, draft)
    assert isinstance(published, Tombstone)
    assert publisher.turn(2100.0) == []


def test_only_trips_of_a_shared_key_affect_all_its_configs() -> None:
    publisher = Publisher(A, B, C, config("d", account="sim-b", image_revision="other"))
    first = Draft(publisher.world)
    fold(first, refused(A, Scope.CREDENTIAL), T0 + 1)
    assert affected(first) == {"a"}
    fold(first, refused(A, Scope.CREDENTIAL, "w2"), T0 + 1)
    assert affected(first) == {"a", "b", "c"}
    commit(first)
    dim = Draft(publisher.world)
    assert apply_signal(dim, signal_event("degraded", "config", "d"), T0) == ""
    assert affected(dim) == {"d"}


def test_after_a_restart_nothing_is_published_twice() -> None:
    publisher = Publisher(A, config("d", pool="other", account="sim-b", region="r2"))
    published = publisher.fold(1.0, refused(A))
    assert all(isinstance(event, Traced) for event in published)
    again = Publishing(60.0, 600.0)
    again.load(dict(publisher.publishing.published), publisher.world.configs)
    due = again.due()
    assert due is not None
    assert due <= T0
    assert again.publish(Draft(publisher.world), T0 + 2, {}, behind=False) == ([], {})


PLACES = st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 2), st.integers(0, 12))


@given(st.sets(PLACES))
def test_ranges_cover_exactly_the_offsets(places: set[tuple[str, int, int]]) -> None:
    """Ranges are in order and merged, and none overlap."""
    found = ranges([Record(*place, None, None, (), 0) for place in places])
    assert [(t, p, n) for t, p, first, end in found for n in range(first, end)] == sorted(places)
    for (t, p, _, end), (u, q, first, _) in pairwise(found):
        assert (t, p) != (u, q) or end < first
