"""Phases of a workspace after its runs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from slipway_api.events.worker import Outcome, Scope, Stage
from slipway_api.events.worker import Result as StageResult
from slipway_provisioner.domain.workspace_runs import (
    APPLIES_MAX,
    INTERRUPTIONS_MAX,
    RETRY_SECONDS_MAX,
    STUCK_RUNS,
    Next,
    Result,
    after,
    after_rejection,
    operation_of,
    sweep_pause,
)
from slipway_provisioner.domain.workspaces import Operation, Phase, Workspace
from tests.support.workspaces import row

OUTCOME = Outcome(Stage.LAUNCH, StageResult.FAILED, Scope.QUOTA, "key", "QuotaExceeded")
FAILED = Result(failure="QuotaExceeded: no", outcome=OUTCOME)
NOTHING = Result(failure="DiskFull: no", nothing=True)
INTERRUPTED = Result(failure="interrupted", nothing=True, interrupted=True)
LOST = Result(failure="PluginLost: no", unknown=True)

phases = st.sampled_from([phase for phase in Phase if phase is not Phase.GONE])
results = st.builds(
    Result,
    failure=st.sampled_from(["", "no"]),
    nothing=st.booleans(),
    unknown=st.booleans(),
    interrupted=st.booleans(),
    resources=st.integers(0, 2),
    instance_id=st.sampled_from([None, "i-1"]),
)


def then(workspace: Workspace, result: Result, *, unsettled: float = 0.0) -> Next:
    return after(workspace, operation_of(workspace), result, unsettled_seconds=unsettled, visibility_seconds=30.0)


@pytest.mark.parametrize(
    ("result", "phase"),
    [
        (Result(instance_id="i-1", resources=1), Phase.READY),
        (FAILED, Phase.GONE),
        (Result(failure="no", outcome=OUTCOME, resources=1), Phase.DESTROYING),
        (NOTHING, Phase.QUEUED),
        (LOST, Phase.UNKNOWN),
        (Result(failure="no", unknown=True, resources=1), Phase.UNKNOWN),
    ],
    ids=["ready", "refused", "refused in the middle", "nothing was run", "lost", "lost in the middle"],
)
def test_after_an_apply(result: Result, phase: Phase) -> None:
    next_ = then(row(), result)
    assert next_.phase is phase
    assert (next_.due_seconds is None) is (phase in (Phase.READY, Phase.GONE)), "a ready workspace has no next run"
    assert (next_.outcome is not None) is (result.outcome is not None)
    assert next_.instance_id == result.instance_id


def test_applies_that_did_nothing_are_put_back_in_the_end() -> None:
    """Their launch had no effect, and says nothing about its config."""
    for failed_runs in range(APPLIES_MAX - 1):
        assert then(row(failed_runs=failed_runs), NOTHING).phase is Phase.QUEUED
    last = then(row(failed_runs=APPLIES_MAX - 1), NOTHING)
    assert (last.phase, last.put_back, last.outcome) == (Phase.GONE, True, None)


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.UNKNOWN, Phase.READY, Phase.DESTROYING, Phase.ORPHAN])
def test_an_interruption_by_a_shutdown_does_not_count_as_a_failed_run(phase: Phase) -> None:
    """Another replica continues at once."""
    last = row(phase=phase, failed_runs=APPLIES_MAX - 1, instance_id="i-1" if phase is Phase.READY else None)
    next_ = then(last, INTERRUPTED)
    assert (next_.phase, next_.failed_runs, next_.interruptions, next_.due_seconds) == (phase, APPLIES_MAX - 1, 1, 0.0)
    assert then(row(phase=phase, interruptions=3), NOTHING).interruptions == 0


def test_many_interruptions_count_as_failed_runs() -> None:
    """A run may take longer than its provisioner ever lives."""
    workspace, launches = row(), 0
    while workspace.phase is not Phase.GONE:
        next_ = then(workspace, INTERRUPTED)
        workspace = row(phase=next_.phase, failed_runs=next_.failed_runs, interruptions=next_.interruptions)
        launches += 1
    assert (launches, next_.put_back, next_.outcome) == (INTERRUPTIONS_MAX + APPLIES_MAX, True, None)
    stuck = row(phase=Phase.DESTROYING, failed_runs=STUCK_RUNS - 1, interruptions=INTERRUPTIONS_MAX)
    assert then(stuck, INTERRUPTED).failed_runs == STUCK_RUNS


@pytest.mark.parametrize(("resources", "phase"), [(0, Phase.GONE), (1, Phase.DESTROYING)])
def test_an_apply_that_is_interrupted_in_the_middle_many_times(resources: int, phase: Phase) -> None:
    """A look-up follows each interruption. After the last one the launch is put back."""
    interrupted = structs.replace(INTERRUPTED, nothing=False, unknown=True)
    workspace = row()
    for number in range(INTERRUPTIONS_MAX + 1):
        assert workspace.phase is Phase.QUEUED, number
        middle = then(workspace, interrupted)
        unknown = row(phase=middle.phase, failed_runs=middle.failed_runs, interruptions=middle.interruptions)
        assert then(unknown, Result(), unsettled=9.0).interruptions == number + 1
        next_ = then(unknown, Result(resources=resources))
        workspace = row(phase=next_.phase, failed_runs=next_.failed_runs, interruptions=next_.interruptions)
    assert (next_.phase, next_.put_back) == (phase, True)
    assert "interrupted 11 times in a row" in next_.problem


def test_a_look_up_proves_something_once_nothing_can_appear_any_more() -> None:
    """Also if a part was found: the rest may appear, and an apply would create it a second time."""
    unknown = row(phase=Phase.UNKNOWN)
    for result in (Result(), Result(resources=1)):
        early = then(unknown, result, unsettled=12.0)
        assert (early.phase, early.due_seconds) == (Phase.UNKNOWN, 12.0)
        assert then(unknown, result).phase is Phase.QUEUED
    assert then(unknown, NOTHING).phase is Phase.UNKNOWN


@pytest.mark.parametrize(
    ("result", "phase"),
    [
        (Result(resources=2, instance_id="i-1"), Phase.READY),
        (Result(resources=1), Phase.DESTROYING),
        (Result(), Phase.GONE),
        (FAILED, Phase.READY),
    ],
    ids=["there", "instance gone", "all gone", "failed"],
)
def test_after_a_refresh(result: Result, phase: Phase) -> None:
    """A failed one proves nothing."""
    assert then(row(phase=Phase.READY, instance_id="i-1"), result).phase is phase


def test_a_destruction_is_repeated_until_nothing_is_left() -> None:
    pauses = []
    for failed_runs in range(STUCK_RUNS + 5):
        next_ = then(row(phase=Phase.DESTROYING, failed_runs=failed_runs), FAILED)
        assert (next_.phase, next_.failed_runs, next_.problem) == (Phase.DESTROYING, failed_runs + 1, FAILED.failure)
        pauses.append(next_.due_seconds)
    assert pauses == sorted(pauses, key=lambda seconds: seconds or 0.0)
    assert (pauses[0], pauses[-1]) == (5.0, RETRY_SECONDS_MAX)
    assert then(row(phase=Phase.DESTROYING), Result(resources=1)).phase is Phase.DESTROYING
    assert then(row(phase=Phase.DESTROYING), Result()).phase is Phase.GONE


@given(phases, results, st.integers(0, 20), st.floats(0, 100))
def test_no_workspace_is_forgotten(phase: Phase, result: Result, failed_runs: int, unsettled: float) -> None:
    """One with resources or of unknown outcome is never gone; all but ready ones are due again."""
    workspace = row(phase=phase, failed_runs=failed_runs, instance_id="i-1" if phase is Phase.READY else None)
    next_ = then(workspace, result, unsettled=unsettled)
    if next_.phase is Phase.GONE:
        assert not result.resources
        assert not (phase is Phase.QUEUED and result.unknown)
        assert not (phase is Phase.DESTROYING and result.failure)
    assert (next_.due_seconds is None) <= (next_.phase in (Phase.READY, Phase.GONE))


@given(results, st.integers(0, 20), st.floats(0.1, 100))
def test_nothing_is_applied_while_an_earlier_run_may_have_effects(
    result: Result, failed_runs: int, unsettled: float
) -> None:
    """Neither after a look-up, nor after an apply of unknown outcome."""
    unknown = row(phase=Phase.UNKNOWN, failed_runs=failed_runs)
    assert then(unknown, result, unsettled=unsettled).phase is Phase.UNKNOWN
    if result.unknown:
        assert then(row(failed_runs=failed_runs), result).phase is Phase.UNKNOWN


@pytest.mark.parametrize("operation", [Operation.DESTROY, Operation.REFRESH])
def test_a_state_that_is_rejected_again_and_again(operation: Operation) -> None:
    """A destruction is a person's in the end, and is tried again; a refresh ends, and its worker stays."""
    phase = Phase.READY if operation is Operation.REFRESH else Phase.DESTROYING
    last = after_rejection(row(phase=phase, instance_id="i-1", failed_runs=STUCK_RUNS - 1), operation, "no")
    assert (last.phase, last.instance_id, last.failed_runs) == (phase, "i-1", STUCK_RUNS)
    assert last.due_seconds == (None if operation is Operation.REFRESH else RETRY_SECONDS_MAX)


def test_a_run_that_waits_for_its_provider_does_not_stop_the_sweep() -> None:
    """A listing that hung for 300 s did not use a core for 300 s."""
    assert sweep_pause(4.0, 0.01) == pytest.approx(400)
    assert sweep_pause(300.0, 0.01) == sweep_pause(10.0, 0.01) == pytest.approx(1000)
    assert sweep_pause(300.0, 0.0) == 0


KEPT: dict[str, Any] = {"instance_id": "i-1", "address": "machine.a"}
#        phase and failed runs of the workspace, operation, the row after its state was rejected
REJECTED = [
    (Phase.QUEUED, 2, Operation.APPLY, Next(phase=Phase.UNKNOWN, due_seconds=0.0, effects_seconds=0.0, **KEPT)),
    (Phase.UNKNOWN, 2, Operation.LOOK_UP, Next(phase=Phase.UNKNOWN, due_seconds=0.0, effects_seconds=0.0, **KEPT)),
    (Phase.DESTROYING, 2, Operation.DESTROY, Next(phase=Phase.DESTROYING, due_seconds=600.0, failed_runs=3, **KEPT)),
    (Phase.ORPHAN, 2, Operation.RECLAIM, Next(phase=Phase.ORPHAN, due_seconds=600.0, failed_runs=3, **KEPT)),
    (Phase.READY, 2, Operation.REFRESH, Next(phase=Phase.READY, due_seconds=20.0, failed_runs=3, **KEPT)),
    (Phase.READY, STUCK_RUNS - 1, Operation.REFRESH, Next(phase=Phase.READY, failed_runs=STUCK_RUNS, **KEPT)),
    (Phase.DESTROYING, 2, Operation.REFRESH, Next(phase=Phase.DESTROYING, due_seconds=0.0, failed_runs=2, **KEPT)),
]


@pytest.mark.parametrize(("phase", "failed_runs", "operation", "expected"), REJECTED)
def test_the_row_after_a_rejected_state(phase: Phase, failed_runs: int, operation: Operation, expected: Next) -> None:
    """What the run has found is rejected with it."""
    before = row(phase=phase, failed_runs=failed_runs, interruptions=4, **KEPT)
    assert after_rejection(before, operation, "no") == structs.replace(expected, problem="no")


FOUND = Result(resources=1, instance_id="i-2", address="machine.b")
BROKEN = Result(failure="no", outcome=OUTCOME)
#        phase of the workspace, result, unsettled seconds, the row afterwards
AFTER = [
    (Phase.QUEUED, FOUND, 0, Next(phase=Phase.READY, instance_id="i-2", address="machine.b")),
    (
        Phase.QUEUED,
        LOST,
        9,
        Next(phase=Phase.UNKNOWN, due_seconds=30.0, effects_seconds=30.0, failed_runs=3, problem=LOST.failure, **KEPT),
    ),
    (Phase.QUEUED, BROKEN, 0, Next(phase=Phase.GONE, outcome=OUTCOME, problem="no", **KEPT)),
    (
        Phase.QUEUED,
        structs.replace(BROKEN, resources=1),
        0,
        Next(phase=Phase.DESTROYING, due_seconds=0.0, outcome=OUTCOME, problem="no", **KEPT),
    ),
    (
        Phase.QUEUED,
        structs.replace(NOTHING, resources=1),
        0,
        Next(phase=Phase.DESTROYING, due_seconds=0.0, put_back=True, problem=NOTHING.failure, **KEPT),
    ),
    (Phase.UNKNOWN, FOUND, 9, Next(phase=Phase.UNKNOWN, due_seconds=9.0, interruptions=4, **KEPT)),
    (Phase.UNKNOWN, FOUND, 0, Next(phase=Phase.QUEUED, due_seconds=0.0, interruptions=4, **KEPT)),
    (Phase.UNKNOWN, BROKEN, 0, Next(phase=Phase.UNKNOWN, due_seconds=20.0, failed_runs=3, problem="no", **KEPT)),
    (Phase.DESTROYING, FOUND, 0, Next(phase=Phase.DESTROYING, due_seconds=5.0, **KEPT)),
    (Phase.DESTROYING, Result(), 0, Next(phase=Phase.GONE, **KEPT)),
    (Phase.ORPHAN, Result(), 0, Next(phase=Phase.GONE, **KEPT)),
    (Phase.ORPHAN, BROKEN, 0, Next(phase=Phase.ORPHAN, due_seconds=20.0, failed_runs=3, problem="no", **KEPT)),
    (Phase.READY, structs.replace(FOUND, instance_id="i-1"), 0, Next(phase=Phase.READY, **KEPT)),
    (
        Phase.READY,
        FOUND,
        0,
        Next(phase=Phase.DESTROYING, due_seconds=0.0, problem="its instance i-1 is gone", **KEPT),
    ),
    (Phase.READY, Result(instance_id="i-1"), 0, Next(phase=Phase.GONE, problem="its instance i-1 is gone", **KEPT)),
    (Phase.READY, BROKEN, 0, Next(phase=Phase.READY, due_seconds=20.0, failed_runs=3, problem="no", **KEPT)),
]


@pytest.mark.parametrize(("phase", "result", "unsettled", "expected"), AFTER)
def test_the_row_after_a_run(phase: Phase, result: Result, unsettled: float, expected: Next) -> None:
    """All of it. The workspace has failed twice, and was interrupted four times."""
    before = row(phase=phase, failed_runs=2, interruptions=4, **KEPT)
    assert then(before, result, unsettled=unsettled) == expected


def test_a_refresh_that_fails_too_often_ends() -> None:
    before = row(phase=Phase.READY, failed_runs=STUCK_RUNS - 1, instance_id="i-1")
    assert then(before, BROKEN).due_seconds is None
