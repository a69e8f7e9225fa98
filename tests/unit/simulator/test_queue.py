"""Tasks, levels, and the counts that are reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_simulator.facts import DemandSet, TaskArrived, TaskStarted
from slipway_simulator.queue import Counts, Queue, available, end, take
from slipway_simulator.world import World, set_level


def queue_with(*durations: float, level: tuple[int, int | None] | None = None) -> Queue:
    queue = Queue()
    for number, duration in enumerate(durations, 1):
        arrived = TaskArrived(at=0.0, task_id=f"p-{number}", pool_id="p", source_id="", duration_seconds=duration)
        queue.fold(arrived)
    if level:
        queue.fold(DemandSet(at=0.0, pool_id="p", pending=level[0], claimed=level[1]))
    return queue


def start(queue: Queue, instance_id: str) -> TaskStarted | None:
    """A machine takes what there is."""
    if started := take(queue, "p", instance_id, now=10.0):
        queue.fold(started)
    return started


#         tasks        level       takers  reported pending, claimed  still available
COUNTS = [
    ((), None, 0, (0, 0), 0),
    ((5.0, 5.0), None, 0, (2, 0), 2),
    ((5.0, 5.0), None, 1, (1, 1), 1),
    ((5.0, 5.0), None, 3, (0, 2), 0),
    ((), (4, None), 0, (4, 0), 4),
    ((), (4, None), 3, (1, 3), 1),
    ((), (4, None), 9, (0, 4), 0),
    ((), (4, 2), 0, (4, 2), 2),
    ((), (4, 2), 9, (4, 2), 0),
    ((), (4, 0), 9, (4, 0), 0),
    ((5.0,), (2, None), 2, (1, 2), 1),
    ((5.0,), (2, 1), 1, (2, 2), 1),
]


@pytest.mark.parametrize(("tasks", "level", "takers", "reported", "left"), COUNTS)
def test_counts(
    tasks: tuple[float, ...], level: tuple[int, int | None] | None, takers: int, reported: tuple[int, int], left: int
) -> None:
    """A report carries tasks plus the level: as it is set, or with what machines hold of it as claimed."""
    queue = queue_with(*tasks, level=level)
    for number in range(takers):
        start(queue, f"i-{number}")
    assert queue.counts("p") == Counts(*reported)
    assert available(queue, "p") == left


def test_oldest_task_first_and_again_after_an_interruption() -> None:
    """Tasks run in order; one whose machine ended waits again, before all others."""
    queue = queue_with(5.0, 6.0)
    first = start(queue, "i-1")
    assert first == TaskStarted(
        at=10.0, task_id="p-1", pool_id="p", instance_id="i-1", ends_at=15.0, duration_seconds=5.0
    )
    queue.fold(end(queue.pools["p"].running["p-1"], now=12.0, interrupted=True))
    assert [task.task_id for task in queue.pools["p"].pending] == ["p-1", "p-2"]
    again = start(queue, "i-2")
    assert again is not None
    assert (again.task_id, queue.pools["p"].done) == ("p-1", 0)


def test_a_lower_level_ends_the_newest_units() -> None:
    """A level of 3 lowered to 1: two machines lose their unit, the oldest keeps it; tasks are not touched."""
    world = World(queue=queue_with(5.0, level=(3, None)))
    for number in range(4):
        start(world.queue, f"i-{number}")
    for fact in set_level(world, DemandSet(at=20.0, pool_id="p", pending=1)):
        world.fold(fact)
    pool = world.queue.pools["p"]
    assert {run.instance_id for run in pool.running.values()} == {"i-0", "i-1"}
    assert world.queue.counts("p") == Counts(0, 2)


@given(st.lists(st.sampled_from(["arrive", "take", "done", "interrupt"]), max_size=60))
def test_no_task_is_lost(steps: list[str]) -> None:
    """Every task that arrived waits, runs or is done, whatever happens to machines."""
    queue = queue_with(1.0)
    for number, step in enumerate(steps, 2):
        pool = queue.pools["p"]
        if step == "arrive":
            task_id = f"p-{pool.arrived + 1}"
            queue.fold(TaskArrived(at=0.0, task_id=task_id, pool_id="p", source_id="", duration_seconds=1.0))
        elif step == "take":
            start(queue, f"i-{number}")
        elif pool.running:
            run = next(iter(pool.running.values()))
            queue.fold(end(run, now=20.0, interrupted=step == "interrupt"))
        assert len(pool.pending) + len(pool.running) + pool.done == pool.arrived
