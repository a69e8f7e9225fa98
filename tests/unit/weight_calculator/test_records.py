"""Health and windows in a record, when it is worth publishing, and the coefficients behind it at another speed."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace

from slipway_api.events.weight import WeightChanged
from slipway_api.events.worker import Scope
from slipway_weight_calculator.domain.policy import faster
from slipway_weight_calculator.domain.record import worth_publishing
from tests.support.worlds import (
    CAPACITY,
    POLICY,
    T0,
    A,
    B,
    C,
    Story,
    config,
    known_boots,
    refused,
    requested,
    signal_event,
)

Change = Callable[[WeightChanged], WeightChanged]


def launch(**fields: Any) -> Change:
    """A change of the launch stage."""
    return lambda one: replace(one, stages=one.stages | {"launch": replace(one.stages["launch"], **fields)})


def shared(**fields: Any) -> Change:
    """A change of the first shared window."""
    return lambda one: replace(one, shared=(replace(one.shared[0], **fields), *one.shared[1:]))


def whole(**fields: Any) -> Change:
    return lambda one: replace(one, **fields)


#   a change of a record with weight 1 and windows of 100, worth publishing
CHANGES: Final[list[tuple[Change, bool]]] = [
    (whole(), False),
    (whole(weight=1.009), False),
    (whole(weight=1.011), True),
    (whole(weight=0.989), True),
    (whole(health=0.1, reason="other", offsets={"t/0": 9}), False),
    (whole(state="tripped"), True),
    (whole(probe_permit=3), True),
    (launch(probability=0.1, successes=9.0, failures=9.0, succeeded=9, failed=9), False),
    (launch(failures_folded=9), True),
    (launch(late=1), True),
    (launch(window=99), True),
    (launch(window=110), False),
    (launch(window=111), True),
    (shared(version=9, probability=0.1), False),
    (shared(window=99), True),
    (shared(window=110), False),
    (shared(window=111), True),
    (shared(state="tripped"), True),
    (shared(unconfirmed=1), True),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_a_record_is_published_when_consumers_would_act_otherwise(change: Change, expected: bool) -> None:
    story = Story(A)
    story.fold(0, *known_boots(A), refused(A))
    last = story.record("a", 1)
    for each in (whole(weight=1.0), launch(window=100), shared(window=100)):
        last = each(last)
    assert worth_publishing(last, change(last), POLICY) is expected
    assert worth_publishing(None, last, POLICY)


def test_a_healthy_record_names_no_trip() -> None:
    story = Story(config("a", profile="spot"), B)
    story.fold(0, *known_boots(A), refused(A))
    record = story.record("a", 1)
    assert (record.state, record.profile, record.tripped_since, record.next_probe_at) == ("healthy", "spot", None, None)
    assert (record.tripped_by, record.tripped_by_id, record.tripped_stage) == ("", "", None)
    assert {(each.state, each.reason) for each in record.shared} == {("healthy", "")}
    weak = {(each.kind, each.probability < 1.0) for each in record.shared}
    assert weak == {("image", False), ("capacity", True)}


def test_a_tripped_record_says_since_when_and_by_what() -> None:
    story = Story(A, B, C)
    story.trip_config(A, 5)
    record = story.record("a", 6)
    assert (record.state, record.tripped_by, record.tripped_by_id) == ("tripped", CAPACITY.kind, CAPACITY.id)
    assert record.tripped_since == datetime.fromtimestamp(T0 + 5, UTC)
    states = {each.kind: (each.state, bool(each.reason)) for each in record.shared}
    assert states == {"capacity": ("tripped", True)}
    permit = story.probe("a", 30)
    assert (story.record("a", 30).state, story.record("a", 30).probe_ready) == ("probing", True)
    story.fold(31, requested(A, "p", permit))
    assert (story.record("a", 31).state, story.record("a", 31).probe_ready) == ("probing", False)
    assert story.signal(signal_event("down", "config", "a", 40), 40) == ""
    record = story.record("a", 41)
    assert (record.state, record.tripped_by, record.tripped_by_id) == ("tripped", "signal", "")
    assert record.tripped_since == datetime.fromtimestamp(T0 + 40, UTC)


def test_the_smallest_window_is_one() -> None:
    story = Story(A, policies={"on-demand": replace(POLICY, launch_window=1.0)})
    story.fold(0, *(refused(A, Scope.CONFIG, str(n)) for n in range(4)), refused(A, Scope.QUOTA, "q"))
    record = story.record("a", 1)
    assert record.stages["launch"].window == 1
    assert [each.window for each in record.shared if each.kind == "quota"] == [1]


def test_a_faster_policy_differs_in_its_times_only() -> None:
    fast = faster(POLICY, 10.0)
    for name, value in msgspec.structs.asdict(POLICY).items():
        assert getattr(fast, name) == (value / 10.0 if name.endswith("_seconds") else value), name
