"""Next phase of a workspace after a run: a table of phases, operations and results. Pure."""

from typing import Any, Final

import msgspec

from slipway_api.events.worker import Outcome
from slipway_provisioner.domain.workspaces import NEXT, Operation, Phase, Workspace

RETRY_SECONDS: Final = 5.0
RETRY_SECONDS_MAX: Final = 600.0
APPLIES_MAX: Final = 3
"""Applies of one workspace that did nothing, after which its intent returns to the admission queue."""
INTERRUPTIONS_MAX: Final = 10
"""Interruptions by shutdowns in a row that do not count as failed runs. Further ones do: a run may take longer than its
provisioner ever lives, or be what ends it."""
STUCK_RUNS: Final = 10
"""Failed runs in a row after which a person has to help."""
CPU_SECONDS_MAX: Final = 10.0
"""Longest part of a run of the sweep that counts as CPU time. A run computes for a few seconds, and waits for its
provider otherwise. If all of it counted, a listing that hung for 300 s would stop the sweep for 8 hours."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run. `failure` is the problem of a failed one, with the `outcome` that it means for a launch;
    `nothing`: it says nothing about the cloud, and nothing was done there. `unknown`: resources may exist that the
    state lacks. `interrupted`: it failed only because this process shuts down. `resources` are those in the state
    afterwards."""

    failure: str = ""
    outcome: Outcome | None = None
    nothing: bool = False
    unknown: bool = False
    interrupted: bool = False
    resources: int = 0
    instance_id: str | None = None
    address: str = ""


class Next(msgspec.Struct, frozen=True, kw_only=True):
    """Row of a workspace after a run; `due_seconds` is None if no run is due. `outcome` is that of its launch. The run
    may have effects that are not listed yet for `effects_seconds`, if that has changed."""

    phase: Phase
    due_seconds: float | None = None
    effects_seconds: float | None = None
    failed_runs: int = 0
    interruptions: int = 0
    instance_id: str | None = None
    address: str = ""
    outcome: Outcome | None = None
    problem: str = ""
    put_back: bool = False
    """The launch had no effect and says nothing about its config."""


def after(
    workspace: Workspace, operation: Operation, result: Result, *, unsettled_seconds: float, visibility_seconds: float
) -> Next:
    """Row of a workspace after a run. Earlier runs may have effects for `unsettled_seconds`. A new resource is found
    `visibility_seconds` after its creation."""
    interruptions = workspace.interruptions + 1 if result.interrupted else 0
    is_tolerated = 0 < interruptions <= INTERRUPTIONS_MAX
    failed_runs = workspace.failed_runs + (not is_tolerated) if result.failure else 0
    kept = Next(
        phase=workspace.phase,
        due_seconds=0.0 if is_tolerated else _retry_seconds(failed_runs),  # another replica continues
        failed_runs=failed_runs,
        interruptions=interruptions,
        instance_id=workspace.instance_id,
        address=workspace.address,
        problem=result.failure,
    )
    match operation:
        case Operation.APPLY:
            return _after_apply(kept, result, visibility_seconds)
        case Operation.LOOK_UP:
            return _after_look_up(kept, result, unsettled_seconds, workspace.interruptions)
        case Operation.DESTROY | Operation.RECLAIM:
            if result.failure or result.resources:
                return kept
            return msgspec.structs.replace(kept, phase=Phase.GONE, due_seconds=None)
        case Operation.REFRESH:
            return _after_refresh(kept, result)


def after_rejection(row: Workspace, operation: Operation, reason: str) -> Next:
    """Row of a workspace after a run whose state was rejected, and with it what the run has found. `row` is what is
    stored now. What an apply may have made is looked up. A destruction is repeated, for a person in the end, and so is
    a refresh, which changes nothing of its worker and undoes no destruction that was asked for meanwhile."""
    failed_runs = row.failed_runs + 1
    kept = Next(
        phase=row.phase,
        due_seconds=_retry_seconds(failed_runs),
        failed_runs=failed_runs,
        instance_id=row.instance_id,
        address=row.address,
        problem=reason,
    )
    changes: dict[str, Any]
    match operation:
        case Operation.APPLY | Operation.LOOK_UP:
            changes = {"phase": Phase.UNKNOWN, "due_seconds": 0.0, "effects_seconds": 0.0, "failed_runs": 0}
        case Operation.DESTROY | Operation.RECLAIM:
            changes = {"due_seconds": RETRY_SECONDS_MAX}
        case Operation.REFRESH if row.phase is not Phase.READY:
            changes = {"due_seconds": 0.0, "failed_runs": row.failed_runs}
        case Operation.REFRESH:
            changes = {"due_seconds": None} if failed_runs >= STUCK_RUNS else {}
    return msgspec.structs.replace(kept, **changes)


def _retry_seconds(failed_runs: int) -> float:
    """Time until the next run after so many failed ones in a row."""
    return min(RETRY_SECONDS * 2.0 ** min(max(failed_runs - 1, 0), 16), RETRY_SECONDS_MAX)


def _after_apply(kept: Next, result: Result, visibility_seconds: float) -> Next:
    if result.unknown:
        return msgspec.structs.replace(
            kept, phase=Phase.UNKNOWN, due_seconds=visibility_seconds, effects_seconds=visibility_seconds
        )
    if not result.failure:
        return msgspec.structs.replace(
            kept, phase=Phase.READY, due_seconds=None, instance_id=result.instance_id, address=result.address
        )
    if result.nothing:
        return kept if kept.failed_runs < APPLIES_MAX else _given_up(kept, result)
    return _destroyed(msgspec.structs.replace(kept, outcome=result.outcome, failed_runs=0), result)


def _after_look_up(kept: Next, result: Result, unsettled_seconds: float, interruptions: int) -> Next:
    """Next phase after a look-up, which has added what it found to the state. Once nothing more can appear, an apply
    adds what is missing, everything or nothing, and reads the outputs. If applies were interrupted too often, the
    launch is put back instead."""
    if result.failure:
        return kept
    kept = msgspec.structs.replace(kept, interruptions=interruptions)  # only an apply resets them
    if unsettled_seconds > 0:
        return msgspec.structs.replace(kept, due_seconds=unsettled_seconds)
    if interruptions > INTERRUPTIONS_MAX:
        problem = f"its runs were interrupted {interruptions} times in a row by shutdowns of provisioners"
        return _given_up(msgspec.structs.replace(kept, problem=problem), result)
    return msgspec.structs.replace(kept, phase=Phase.QUEUED, due_seconds=0.0)


def _after_refresh(kept: Next, result: Result) -> Next:
    """A failed refresh proves nothing."""
    if not result.failure and (not result.resources or result.instance_id != kept.instance_id):
        problem = f"its instance {kept.instance_id} is gone"
        return _destroyed(msgspec.structs.replace(kept, problem=problem), result)
    if result.failure and kept.failed_runs < STUCK_RUNS:
        return kept
    return msgspec.structs.replace(kept, due_seconds=None)


def _given_up(kept: Next, result: Result) -> Next:
    return _destroyed(msgspec.structs.replace(kept, put_back=True, failed_runs=0), result)


def _destroyed(kept: Next, result: Result) -> Next:
    """Destroy what is in the state; a workspace without resources is gone."""
    if result.resources:
        return msgspec.structs.replace(kept, phase=Phase.DESTROYING, due_seconds=0.0)
    return msgspec.structs.replace(kept, phase=Phase.GONE, due_seconds=None)


def operation_of(workspace: Workspace) -> Operation:
    """Operation of the next run of a workspace that is not gone."""
    return NEXT[workspace.phase]


def sweep_pause(run_seconds: float, share: float) -> float:
    """Pause after a run of the sweep, so that the sweep takes at most this share of a core."""
    return min(run_seconds, CPU_SECONDS_MAX) / share if share > 0 else 0.0
