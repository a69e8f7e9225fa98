"""Tasks, levels, and reported counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_simulator.facts import DemandSet, TaskArrived, TaskClaimed, TaskStarted
from slipway_simulator.queue import (
    ClaimLost,
    Counts,
    Queue,
    available,
    claim,
    claimed_by,
    command,
    end,
    expire,
    finish,
    renew,
    take,
)
from slipway_simulator.scenario import Scenario
from slipway_simulator.world import World, set_level

CLAIM_SECONDS = Scenario().claim_seconds


def queue_with(*durations: float, level: tuple[int, int | None] | None = None) -> Queue:
    queue = Queue()
    for number, duration in enumerate(durations, 1):
        arrived = TaskArrived(at=0.0, task_id=f"p-{number}", pool_id="p", source_id="", duration_seconds=duration)
        queue.fold(arrived)
    if level:
        queue.fold(DemandSet(at=0.0, pool_id="p", pending=level[0], claimed=level[1]))
    return queue


def start(queue: Queue, instance_id: str) -> TaskStarted | None:
    """Let a machine take a task."""
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
    """A report has tasks plus the level, either as set or with the units that machines hold as claimed."""
    queue = queue_with(*tasks, level=level)
    for number in range(takers):
        start(queue, f"i-{number}")
    assert queue.counts("p") == Counts(*reported)
    assert available(queue, "p") == left


def test_oldest_task_first_also_after_an_interruption() -> None:
    """Tasks run in order; an interrupted task is pending again, before all others."""
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
    """After lowering a level from 3 to 1, two machines lose their unit and the oldest keeps it; tasks go on."""
    world = World(queue=queue_with(5.0, level=(3, None)))
    for number in range(4):
        start(world.queue, f"i-{number}")
    for fact in set_level(world, DemandSet(at=20.0, pool_id="p", pending=1)):
        world.fold(fact)
    pool = world.queue.pools["p"]
    assert {run.instance_id for run in pool.running.values()} == {"i-0", "i-1"}
    assert world.queue.counts("p") == Counts(0, 2)


def claimed(queue: Queue, worker_id: str, *, now: float = 10.0) -> TaskClaimed | None:
    """Let an external worker claim a task."""
    if taken := claim(queue, "p", worker_id, f"i-{worker_id}", now=now):
        queue.fold(taken)
    return taken


def test_only_the_claiming_worker_renews_and_finishes() -> None:
    """Only the worker with the claim renews and finishes it, and may repeat the finish; others are refused."""
    queue = queue_with(5.0)
    taken = claimed(queue, "w-1")
    assert taken is not None
    assert (taken.task_id, taken.expires_at, taken.unit) == ("p-1", 10.0 + CLAIM_SECONDS, False)
    assert claimed(queue, "w-2") is None
    run = claimed_by(queue, "p", "w-1")
    assert run is not None
    assert command(run) == ["sleep", "5.000"]
    with pytest.raises(ClaimLost, match="p-1 runs on w-1"):
        renew(queue, "p", "p-1", "w-2", now=11.0)
    with pytest.raises(ClaimLost, match="p-1 runs on w-1"):
        finish(queue, "p", "p-1", "w-2", 0, now=11.0)
    queue.fold(renew(queue, "p", "p-1", "w-1", now=25.0))
    assert expire(queue, "p", "p-1", now=44.9) is None
    ended = finish(queue, "p", "p-1", "w-1", 3, now=44.9)
    assert ended is not None
    assert (ended.result, ended.exit_code, ended.instance_id) == ("done", 3, "i-w-1")
    queue.fold(ended)
    assert finish(queue, "p", "p-1", "w-1", 3, now=50.0) is None
    with pytest.raises(ClaimLost, match="p-1 was finished by w-1"):
        finish(queue, "p", "p-1", "w-2", 0, now=50.0)
    with pytest.raises(ClaimLost, match="nothing is not running"):
        renew(queue, "p", "nothing", "w-1", now=50.0)
    assert (queue.counts("p"), queue.pools["p"].done) == (Counts(0, 0), 1)


def test_task_of_an_expired_claim_is_pending_again() -> None:
    """The task is pending again before all others; its former worker cannot finish it, even if it is unclaimed."""
    queue = queue_with(5.0, 6.0)
    claimed(queue, "w-1", now=10.0)
    assert expire(queue, "p", "p-1", now=9.9 + CLAIM_SECONDS) is None
    lapsed = expire(queue, "p", "p-1", now=10.0 + CLAIM_SECONDS)
    assert lapsed is not None
    queue.fold(lapsed)
    assert [task.task_id for task in queue.pools["p"].pending] == ["p-1", "p-2"]
    with pytest.raises(ClaimLost, match="p-1 is pending again because its claim expired"):
        finish(queue, "p", "p-1", "w-1", 0, now=31.0)
    again = claimed(queue, "w-2")
    assert again is not None
    assert again.task_id == "p-1"
    with pytest.raises(ClaimLost, match="p-1 runs on w-2"):
        renew(queue, "p", "p-1", "w-1", now=31.0)


def test_a_level_ends_claims_too() -> None:
    """An external worker holds a unit until the level drops."""
    world = World(queue=queue_with(level=(1, None)))
    taken = claimed(world.queue, "w-1")
    assert taken is not None
    run = claimed_by(world.queue, "p", "w-1")
    assert run is not None
    assert (taken.unit, command(run), world.queue.counts("p")) == (True, ["sleep", "infinity"], Counts(0, 1))
    for fact in set_level(world, DemandSet(at=20.0, pool_id="p", pending=0)):
        world.fold(fact)
    assert world.queue.counts("p") == Counts(0, 0)
    with pytest.raises(ClaimLost):
        renew(world.queue, "p", taken.task_id, "w-1", now=21.0)


@given(st.lists(st.sampled_from(["arrive", "take", "claim", "done", "interrupt"]), max_size=60))
def test_no_task_is_lost(steps: list[str]) -> None:
    """Every arrived task is pending, running or done, whatever happens to machines and external workers."""
    queue = queue_with(1.0)
    for number, step in enumerate(steps, 2):
        pool = queue.pools["p"]
        if step == "arrive":
            task_id = f"p-{pool.arrived + 1}"
            queue.fold(TaskArrived(at=0.0, task_id=task_id, pool_id="p", source_id="", duration_seconds=1.0))
        elif step == "take":
            start(queue, f"i-{number}")
        elif step == "claim":
            claimed(queue, f"w-{number}")
        elif pool.running:
            run = next(iter(pool.running.values()))
            queue.fold(end(run, now=20.0, interrupted=step == "interrupt"))
        assert len(pool.pending) + len(pool.running) + pool.done == pool.arrived
