"""Surplus workers: those that last are idle ones first, then busy ones, which are marked until they are wanted."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_provisioner.domain.planning import Plan, check_plan
from slipway_provisioner.domain.pool import Busy, Observed
from slipway_provisioner.domain.surplus import Span, Surplus, lasting, lasts_in_seconds, seen
from tests.unit.provisioner.test_planning import config, idle, observed, plan, reports_of

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TIMEOUT_SECONDS = 160.0  # a sixteenth of it is 10 s
Plans = Sequence[tuple[float, int, int]]  # time, registered and surplus workers


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def after(history: Plans) -> Surplus:
    """The surplus after plans at some times, that saw so many registered and surplus workers."""
    found = Surplus()
    for seconds, registered, workers in history:
        found = seen(
            found, registered=registered, workers=workers, idle_timeout_seconds=TIMEOUT_SECONDS, now=at(seconds)
        )
    return found


#    plans: time, registered, surplus                    at, surplus that lasts
LASTING = [
    ([(0, 10, 6)], 159, 0),
    ([(0, 10, 6)], 160, 6),
    ([(0, 10, 6), (80, 10, 2), (90, 10, 6)], 160, 2),  # a demand that rises for a moment
    ([(0, 10, 6), (80, 10, 2), (90, 10, 6)], 250, 6),
    ([(0, 10, 6), (80, 10, 0), (90, 10, 6)], 160, 0),
    ([(0, 10, 1), (150, 10, 9)], 200, 1),  # a demand that falls for a moment
    ([(0, 10, 1), (150, 10, 9), (170, 9, 8)], 200, 0),  # the one that was surplus for long has left
    ([(0, 10, 1), (150, 10, 9), (170, 9, 8)], 310, 8),
    ([(0, 10, 3), (100, 12, 5)], 160, 3),  # workers that have registered since are no older surplus
    ([(3, 10, 1), (5, 10, 2)], 169, 0),  # times are rounded up to 10 s
    ([(3, 10, 1), (5, 10, 2)], 170, 2),
]


@pytest.mark.parametrize(("history", "seconds", "expected"), LASTING)
def test_surplus_lasts_if_every_plan_saw_it(
    history: list[tuple[float, int, int]], seconds: float, expected: int
) -> None:
    """For the idle timeout, of the workers that are left."""
    assert lasting(after(history), idle_timeout_seconds=TIMEOUT_SECONDS, now=at(seconds)) == expected


def test_surplus_lasts_at_once_without_an_idle_timeout() -> None:
    found = seen(Surplus(), registered=2, workers=1, idle_timeout_seconds=0.0, now=at(3))
    assert (found.spans, lasting(found, idle_timeout_seconds=0.0, now=at(3))) == ([Span(at(3), 1)], 1)


def test_further_surplus_lasts_later() -> None:
    """That which lasts already makes no difference any more."""
    found = after([(0, 10, 1), (100, 10, 2), (160, 10, 3)])
    assert lasts_in_seconds(found, idle_timeout_seconds=TIMEOUT_SECONDS, now=at(160)) == [100.0, 160.0]


def least(plans: Plans, now: float, window_seconds: float) -> int:
    """Least surplus that was seen in a span until now, also by the plan before it; 0 if the span began before."""
    in_force = [workers for seconds, _, workers in plans if seconds <= now - window_seconds][-1:]
    return min([*in_force, *(workers for seconds, _, workers in plans if seconds > now - window_seconds)]) * len(
        in_force
    )


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=40), st.integers(0, 300))
def test_what_lasts_is_the_least_that_was_seen(steps: list[tuple[int, int]], later: int) -> None:
    """In a fleet that stays the same: within the idle timeout, or one that is a sixteenth longer."""
    plans: list[tuple[float, int, int]] = []
    for gap, workers in steps:
        plans.append((gap + (plans[-1][0] if plans else 0.0), 30, workers))
    found, now = after(plans), plans[-1][0] + later
    assert found.workers == plans[-1][2]
    assert all(one.since < other.since for one, other in pairwise(found.spans))
    lasts = lasting(found, idle_timeout_seconds=TIMEOUT_SECONDS, now=at(now))
    assert least(plans, now, TIMEOUT_SECONDS * 17 / 16) <= lasts <= least(plans, now, TIMEOUT_SECONDS)


def busy(*names: str, marked: bool = False, draining: bool = False) -> list[Busy]:
    return [Busy(worker_id=name, marked=marked, draining=draining) for name in names]


def crowd(pending: int, *, long: int = 0, **changes: Any) -> Observed:
    """A pool of ten busy workers, of which `long` have been surplus for long, with so many tasks."""
    surplus = after([(-TIMEOUT_SECONDS - 10, 10, long)]) if long else Surplus()
    usual: dict[str, Any] = {"busy": busy(*(f"w{n}" for n in range(10))), "serving": 10, "surplus": surplus}
    return observed(pending, **(usual | {"idle_timeout_seconds": TIMEOUT_SECONDS} | changes))


def left(made: Plan) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    return made.stop, made.mark, made.unmark


def test_a_lowered_maximum_is_reached_at_once() -> None:
    """Idle ones leave, whatever their time, then the oldest busy ones are marked."""
    assert left(plan(crowd(10, max_capacity=4))) == ([], ["w0", "w1", "w2", "w3", "w4", "w5"], [])
    idle_ones = [idle("i1", 20), idle("i2", 10)]
    made = plan(crowd(10, max_capacity=4, idle=idle_ones, busy=busy(*(f"w{n}" for n in range(8)))))
    assert left(made) == (["i1", "i2"], ["w0", "w1", "w2", "w3"], [])
    assert made.details["reason"] == "2 stopping, 4 to leave after their tasks: more workers than wanted"
    assert made.details["code"] == "surplus"


def test_surplus_below_the_maximum_leaves_once_it_lasts() -> None:
    """Three tasks, while each of ten workers is idle for 100 of every 110 s: none is idle for the timeout."""
    resting = [idle(f"i{n}", 11 * n) for n in range(9, 0, -1)]
    young = crowd(3, idle=resting, busy=busy("w"))
    assert left(plan(young)) == ([], [], [])
    assert plan(young).reconsider_after_seconds is not None
    assert left(plan(crowd(3, long=7, idle=resting, busy=busy("w")))) == ([f"i{n}" for n in range(9, 2, -1)], [], [])
    assert left(plan(crowd(3, long=5, idle=resting, busy=busy("w")))) == ([f"i{n}" for n in range(9, 4, -1)], [], [])


def test_marks_are_cleared_before_anything_is_launched() -> None:
    """Demand that returns finds the workers that were to leave."""
    marked = [*busy("w0", "w1", "w2", "w3", "w4", "w5", marked=True), *busy("w6", "w7", "w8", "w9")]
    assert left(plan(crowd(4, long=6, busy=marked))) == ([], [], [])
    assert left(plan(crowd(6, long=6, busy=marked))) == ([], [], ["w4", "w5"])
    made = plan(crowd(12, long=6, busy=marked, max_capacity=20))
    assert left(made) == ([], [], [f"w{n}" for n in range(6)])
    assert made.units == 2


def test_workers_of_draining_revisions_leave_without_a_mark() -> None:
    """They are part of the surplus that leaves, so that no others are marked in their place."""
    leaving = [*busy("w0", "w1"), *busy("d", draining=True)]
    assert left(plan(crowd(8, long=2, busy=leaving))) == ([], ["w0"], [])


def test_mode_observe_records_surplus() -> None:
    """It neither marks nor stops workers before the idle timeout, and clears marks."""
    marked = busy("w0", "w1", marked=True)
    made = plan(crowd(3, long=7, mode="observe", busy=marked, idle=[idle("i", 20)]))
    assert left(made) == ([], [], ["w0", "w1"])
    assert (made.details["surplus"], made.details["lasting_surplus"]) == (7, 7)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mark": ["w1"]}, "1 workers are to leave after their tasks, although they are wanted"),
        ({"mark": ["x"], "serving": 12}, "marks a worker that has no task"),
    ],
)
def test_check_plan_finds_wrong_marks(changes: dict[str, Any], problem: str) -> None:
    """Nobody who is wanted leaves."""
    given_plan = Plan(
        launches=(),
        cancel=(),
        stop=(),
        wanted=10,
        serving=10,
        details={},
        mark=changes["mark"],
    )
    assert check_plan(crowd(10, serving=changes.get("serving", 10)), given_plan) == [problem]


WORKERS = st.lists(st.sampled_from(["idle", "long idle", "busy", "marked", "draining"]), max_size=12)


@given(WORKERS, st.integers(0, 4), st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.booleans())
def test_only_surplus_leaves(
    kinds: list[str], starting: int, maximum: int, pending: int, long: int, stale: bool
) -> None:
    """With any fleet and demand, as many workers stay as protected demand wants, and no mark is left beside a
    launch. Above the maximum nobody stays."""
    named = [(f"w{n}", kind) for n, kind in enumerate(kinds)]
    idle_ones = [idle(name, 500 if kind == "long idle" else 5) for name, kind in named if "idle" in kind]
    busy_ones = [
        Busy(worker_id=name, marked=kind == "marked", draining=kind == "draining")
        for name, kind in named
        if "idle" not in kind
    ]
    made = plan(
        observed(
            0,
            config(launching=starting),
            demands=reports_of(pending, stale=stale),
            serving=len(kinds) + starting,
            max_capacity=maximum,
            idle=sorted(idle_ones, key=lambda each: each.since),
            busy=busy_ones,
            surplus=after([(-TIMEOUT_SECONDS - 10, len(kinds), long)]),
            idle_timeout_seconds=TIMEOUT_SECONDS,
        )
    )
    marked = {w.worker_id for w in busy_ones if w.marked} - {*made.unmark} | {*made.mark}
    assert len(kinds) - len(made.stop) - len(marked) >= min(len(kinds), pending, maximum)
    assert not (made.units and marked)
    staying = [w for w in busy_ones if w.worker_id not in marked and not w.draining]
    leaving = len(made.stop) + len(busy_ones) - len(staying)
    assert leaving >= min(len(kinds) - maximum, len(kinds) - min(pending, maximum))
