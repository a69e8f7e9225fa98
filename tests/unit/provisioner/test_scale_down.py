"""Scale-down: which workers leave, in which order, and how many at a time."""

from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from slipway_provisioner.domain.pool import Busy, Idle
from slipway_provisioner.domain.scale_down import drained, leaving_room, marks, select

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)


def idle(name: str, seconds: float, config_id: str = "a", timeout: float | None = None) -> Idle:
    """A worker that has been idle for so long."""
    return Idle(worker_id=name, config_id=config_id, since=NOW - timedelta(seconds=seconds), timeout_seconds=timeout)


LONG, SHORT, OWN = idle("long", 300), idle("short", 100), idle("own", 100, timeout=60)
#   surplus, waiting, idle, registered surplus, at once → cancelled, stopped; the idle timeout is 120 s
SELECTED: Final = [
    (0, ["w"], [LONG], 9, 0, [], []),
    (1, ["old", "new"], [LONG], 9, 0, ["new"], []),
    (3, ["old", "new"], [LONG, SHORT], 9, 0, ["new", "old"], ["long"]),
    (3, [], [LONG, idle("other", 120), SHORT], 9, 0, [], ["long", "other"]),
    (3, [], [LONG, idle("other", 119.9), OWN], 9, 0, [], ["long", "own"]),
    (1, [], [LONG, OWN], 9, 0, [], ["long"]),
    (3, [], [LONG, OWN], 1, 0, [], ["long"]),  # the rest of the surplus has not registered
    (3, [], [LONG], -1, 0, [], []),
    (3, [], [SHORT, idle("new", 1)], 9, 1, [], ["short"]),
]


@pytest.mark.parametrize(("surplus", "waiting", "workers", "registered", "at_once", "cancelled", "stopped"), SELECTED)
def test_workers_that_leave(
    surplus: int,
    waiting: list[str],
    workers: list[Idle],
    registered: int,
    at_once: int,
    cancelled: list[str],
    stopped: list[str],
) -> None:
    """The newest of those that wait, then those that were idle for longest."""
    assert select(
        surplus,
        waiting,
        workers,
        registered_surplus=registered,
        at_once=at_once,
        idle_timeout_seconds=120,
        now=NOW,
    ) == (cancelled, stopped)


def test_busy_workers_are_marked_or_cleared() -> None:
    """Those that leave anyway count first, then those that are marked already."""
    busy = [
        Busy(worker_id="plain"),
        Busy(worker_id="marked", marked=True),
        Busy(worker_id="draining", draining=True),
        Busy(worker_id="both", draining=True, marked=True),
    ]
    assert marks(busy, 4) == (["plain"], [])
    assert marks(busy, 3) == ([], [])
    assert marks(busy, 2) == ([], ["marked"])
    assert marks(busy, 0) == ([], ["both", "marked"])


#   wanted, missing, workers that may leave
ROOM: Final = [(0, 0, 1), (3, 0, 1), (7, 0, 1), (8, 0, 2), (100, 0, 25), (100, 20, 5), (100, 30, 0), (3, 1, 0)]


@pytest.mark.parametrize(("wanted", "missing", "room"), ROOM)
def test_a_quarter_of_the_wanted_workers_may_be_missing(wanted: int, missing: int, room: int) -> None:
    assert leaving_room(wanted=wanted, missing=missing) == room


def test_idle_workers_of_draining_revisions_leave_a_part_at_a_time() -> None:
    workers = [idle("a1", 9), idle("b1", 9, "b"), idle("a2", 9), idle("a3", 9)]
    assert drained(workers, {"a"}, wanted=8, missing=0) == ["a1", "a2"]
    assert drained(workers, {"a", "b"}, wanted=8, missing=1) == ["a1"]
    assert drained(workers, set(), wanted=8, missing=0) == []
