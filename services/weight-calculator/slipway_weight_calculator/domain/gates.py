"""When a launch config may launch at all: open, or closed with one numbered permit at a time to probe it.

A gate closes after failures of the launch stage in a row and opens only by a success of the newest permit. It decides
on events and on instants given to `advance`; the jitter of a probe is a function of the config and the permit, so a
replay gives the same instants.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from slipway_common.events.worker import (
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerDelayed,
    WorkerEvent,
    WorkerLaunchFailed,
    WorkerLost,
    WorkerStopped,
)
from slipway_weight_calculator.domain.evidence import charged
from slipway_weight_calculator.domain.policy import Policy

# After these the worker that held a permit will not tell what a probe wants to know.
GIVE_BACK: Final = (WorkerDelayed, WorkerLaunchFailed, WorkerStopped, WorkerLost)
CODE_LENGTH_MAX: Final = 60


class Failure(msgspec.Struct, frozen=True, order=True):
    at: datetime
    scope: Scope
    code: str
    classified: bool


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """`run` holds the charged failures that are not older than the newest success; at most five, since then it closes.

    While closed, `run` keeps what closed it. `permit` is the newest number issued, over the config's life; it may be
    spent while `ready`. `next_probe_at` is when the next number is issued.
    """

    closed_at: datetime | None = None
    run: tuple[Failure, ...] = ()
    last_ok_at: datetime | None = None
    permit: int = 0
    permit_at: datetime | None = None
    ready: bool = False
    next_probe_at: datetime | None = None
    backoff_seconds: float = 0.0
    failed_probes: int = 0
    probe_code: str = ""

    @property
    def closed(self) -> bool:
        return self.closed_at is not None


def fold(gate: Gate, event: WorkerEvent, *, at: datetime, policy: Policy) -> Gate:
    """The gate after an event at event time `at`. Outcomes of other stages than launch change nothing."""
    outcome = launch_outcome(event)
    if outcome is not None and outcome.result is Result.OK:
        gate = _succeeded(gate, at)
    if gate.closed:
        if event.probe_permit is None or event.probe_permit != gate.permit:
            return gate
        return _settle(gate, event, outcome, at, policy)
    if outcome is None or not charged(outcome) or (gate.last_ok_at is not None and at < gate.last_ok_at):
        return gate
    failure = Failure(at, outcome.scope, outcome.code[:CODE_LENGTH_MAX], outcome.classified)
    # Sorted, since outcomes of different workers arrive in any order.
    run = tuple(sorted((*gate.run, failure)))
    gate = msgspec.structs.replace(gate, run=run)
    return _close(gate, event.launch_config_id, policy) if _trips(run, policy) else gate


def advance(gate: Gate, now: datetime) -> Gate:
    """Issue the permit that is due at `now`; the same gate when none is."""
    if gate.next_probe_at is None or now < gate.next_probe_at:
        return gate
    return msgspec.structs.replace(gate, permit=gate.permit + 1, permit_at=now, ready=True, next_probe_at=None)


def pull_forward(gates: Mapping[str, Gate], policy: Policy) -> tuple[str, datetime] | None:
    """Which config of a pool must be probed sooner, and when; None when nothing has to change.

    While all active configs (`gates`) are closed, a pool is owed a permit per `pool_probe_seconds`, whatever the
    backoff of each has grown to. A permit that waits for demand holds up only its own config.
    """
    waiting = [(gate.next_probe_at, config_id) for config_id, gate in gates.items() if gate.next_probe_at is not None]
    if not waiting or not all(gate.closed for gate in gates.values()):
        return None
    latest = max(at for gate in gates.values() for at in (gate.closed_at, gate.permit_at) if at is not None)
    due = latest + timedelta(seconds=policy.pool_probe_seconds)
    earliest, config_id = min(waiting)
    return (config_id, due) if due < earliest else None


def launch_outcome(event: WorkerEvent) -> Outcome | None:
    outcome: Outcome | None = getattr(event, "outcome", None)
    return outcome if outcome is not None and outcome.stage is Stage.LAUNCH else None


def _succeeded(gate: Gate, at: datetime) -> Gate:
    """Failures older than a success are no longer in a row; while closed only the time is kept."""
    newest = at if gate.last_ok_at is None else max(at, gate.last_ok_at)
    run = gate.run if gate.closed else tuple(failure for failure in gate.run if failure.at >= newest)
    return msgspec.structs.replace(gate, last_ok_at=newest, run=run)


def _trips(run: tuple[Failure, ...], policy: Policy) -> bool:
    definite = sum(failure.classified and failure.scope in {Scope.CAPACITY, Scope.QUOTA} for failure in run)
    return definite >= policy.trip_capacity or len(run) >= policy.trip_any


def _close(gate: Gate, config_id: str, policy: Policy) -> Gate:
    at = gate.run[-1].at
    gate = msgspec.structs.replace(gate, closed_at=at, failed_probes=0, probe_code="", ready=False)
    return _schedule(gate, config_id, at, policy.probe_initial_seconds, policy.probe_initial_seconds)


def _settle(gate: Gate, event: WorkerEvent, outcome: Outcome | None, at: datetime, policy: Policy) -> Gate:
    """What the holder of the newest permit has told."""
    config_id = event.launch_config_id
    if outcome is not None and outcome.result is Result.OK:
        return Gate(permit=gate.permit, permit_at=gate.permit_at, last_ok_at=gate.last_ok_at)
    if outcome is not None and charged(outcome):
        gate = msgspec.structs.replace(
            gate, failed_probes=gate.failed_probes + 1, probe_code=outcome.code[:CODE_LENGTH_MAX]
        )
        backoff = min(2 * gate.backoff_seconds, policy.probe_max_seconds)
        return _schedule(gate, config_id, at, backoff, backoff)
    if gate.ready and isinstance(event, GIVE_BACK):
        # Nothing was learned: soon again under a new number, and the backoff does not grow.
        return _schedule(gate, config_id, at, policy.probe_initial_seconds, gate.backoff_seconds)
    return gate


def _schedule(gate: Gate, config_id: str, at: datetime, delay_seconds: float, backoff_seconds: float) -> Gate:
    """Equal jitter: between half the delay and all of it."""
    seconds = delay_seconds * (1 + _chance(config_id, gate.permit + 1)) / 2
    return msgspec.structs.replace(
        gate, ready=False, next_probe_at=at + timedelta(seconds=seconds), backoff_seconds=backoff_seconds
    )


def _chance(config_id: str, permit: int) -> float:
    """Evenly spread over [0, 1), the same for the same permit."""
    digest = hashlib.blake2b(f"{config_id}/{permit}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64
