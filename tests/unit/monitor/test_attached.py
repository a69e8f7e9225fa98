"""The judgement of `make attach`: surplus launches beside a ledger, and reports beside counts."""

from datetime import UTC, datetime
from typing import Final

from tests.attach.judge import Machine, Sample, Task, is_right, surplus

ALLOWANCE: Final = 2.0


def found(machines: list[Machine], tasks: list[Task]) -> list[str]:
    return [machine.worker_id for machine in surplus(machines, tasks, ALLOWANCE)]


def test_a_machine_for_each_task() -> None:
    tasks = [Task(f"t{n}", 0.0, 5.0) for n in range(2)]
    machines = [Machine("a", 1.0), Machine("b", 1.5)]
    assert found(machines, tasks) == []
    assert found([*machines, Machine("c", 1.6)], tasks) == ["c"]


def test_a_machine_that_replaces_one_whose_task_has_ended() -> None:
    """The replacement of each one-task worker that ends, while the others run, is surplus."""
    tasks = [Task("t0", 0.0, 5.0), Task("t1", 0.0, 9.0)]
    machines = [Machine("a", 1.0, 5.0), Machine("b", 1.0)]
    assert found([*machines, Machine("c", 5.5)], tasks) == ["c"]
    assert found([*machines, Machine("c", 5.5)], [*tasks, Task("t2", 5.1)]) == []


def test_a_need_that_has_passed_counts_within_the_allowance() -> None:
    """A report and a decision take their time."""
    tasks = [Task("t0", 0.0, 3.0)]
    assert found([Machine("late", 4.9)], tasks) == []
    assert found([Machine("too late", 5.1)], tasks) == ["too late"]


def test_surplus_does_not_make_a_later_launch_surplus() -> None:
    tasks = [Task("t0", 0.0)]
    assert found([Machine("a", 1.0), Machine("b", 1.0), Machine("c", 3.0)], [*tasks, Task("t1", 2.9)]) == ["b"]


def test_reports_beside_counts() -> None:
    samples = [
        Sample(at, at + 0.01, {"p": count})
        for at, count in zip(
            (0.0, 0.4, 0.8, 1.2, 1.6, 2.0, 2.4),
            ((0, 0), (0, 0), (4, 0), (4, 0), (1, 3), (1, 3), (1, 3)),
            strict=True,
        )
    ]

    def right(tasks: int, running: int | None, at: float, *added_at: float) -> bool | None:
        return is_right("p", (tasks, running), datetime.fromtimestamp(at, UTC), samples, 0.5, added_at)

    assert right(4, None, 1.0) is True
    assert right(3, None, 0.9) is True
    assert right(5, None, 1.0) is False
    assert right(4, 4, 1.0) is False
    assert right(0, None, 1.8) is False
    assert right(0, None, 1.8, 1.7) is True
    assert right(0, None, 1.8, 0.9) is False
    assert right(0, 0, 1.8) is False
    assert right(0, None, 9.0) is None
    assert right(0, 0, 0.1) is True
    assert right(4, 0, -0.1) is None
    assert right(0, 0, 2.3) is None
    del samples[2:4]
    assert right(4, None, 1.0) is None
