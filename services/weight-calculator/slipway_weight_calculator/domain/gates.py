"""When a row may launch at all: open, or closed with one probe at a time. Pure.

A gate closes after failures in a row and opens by the success of a probe, or when a start that was taken for failed
succeeds late. It decides on events and on instants that it is given; the jitter of a probe is a function of the config
and the permit, so that a replay gives the same instants.
"""

import hashlib
from typing import Final

import msgspec

from slipway_common.events.worker import Scope
from slipway_weight_calculator.domain.blame import DEFINITE
from slipway_weight_calculator.domain.policy import Policy

CODE_LENGTH_MAX: Final = 60
SHOWN_MAX: Final = 5  # failures kept of a run: as many as any trip needs


class Failure(msgspec.Struct, frozen=True, array_like=True, order=True):
    """`late`: provisional, the start is still under way. What follows is for whoever looks into it."""

    at: float
    scope: Scope
    code: str
    classified: bool
    worker_id: str
    late: bool = False
    instance_id: str = ""
    console: str = ""
    sample: str = ""


class Gate(msgspec.Struct, frozen=True, array_like=True):
    """`closed_at` 0 means open. `run` holds the newest charged failures that are not older than the newest success,
    `unconfirmed` counts them all; while closed, `run` keeps what closed it.

    `probe` names the unresolved probe as "config#permit"; `next_probe_at` is when one is due, 0: none.
    """

    closed_at: float = 0.0
    run: tuple[Failure, ...] = ()
    unconfirmed: int = 0
    probe: str = ""
    probe_at: float = 0.0
    next_probe_at: float = 0.0
    backoff_seconds: float = 0.0
    failed_probes: int = 0
    probe_code: str = ""
    opened_at: float = 0.0

    @property
    def closed(self) -> bool:
        return self.closed_at > 0


OPEN: Final = Gate()


def failed(gate: Gate, failure: Failure, trip: int, owner: str, policy: Policy) -> Gate:
    """After a charged failure that is not older than the newest success; `trip` of any kind close it."""
    # Sorted, since outcomes of different workers arrive in any order.
    run = tuple(sorted((*gate.run, failure)))[-SHOWN_MAX:] if not gate.closed else gate.run
    gate = msgspec.structs.replace(gate, run=run, unconfirmed=gate.unconfirmed + 1)
    return gate if gate.closed or not _trips(gate, trip, policy) else close(gate, run[-1].at, owner, policy)


def succeeded(gate: Gate, ok_at: float) -> Gate:
    """After a success of somebody else than the probe: failures before `ok_at` are no longer in a row."""
    if gate is OPEN or (not gate.run and not gate.unconfirmed):
        return gate
    run = gate.run if gate.closed else tuple(failure for failure in gate.run if failure.at >= ok_at)
    return msgspec.structs.replace(gate, run=run, unconfirmed=0 if gate.closed else len(run))


def withdrawn(gate: Gate, worker_id: str, trip: int, at: float, policy: Policy) -> Gate:
    """After a late start came to an end otherwise: its provisional failure is taken back, and what it has closed."""
    run = tuple(failure for failure in gate.run if failure.worker_id != worker_id or not failure.late)
    if len(run) == len(gate.run):
        return gate
    gate = msgspec.structs.replace(gate, run=run, unconfirmed=max(len(run), gate.unconfirmed - 1))
    return opened(gate, at) if gate.closed and not _trips(gate, trip, policy) else gate


def close(gate: Gate, at: float, owner: str, policy: Policy) -> Gate:
    relapsed = gate.opened_at > 0 and at - gate.opened_at < policy.relapse_seconds
    backoff = max(gate.backoff_seconds if relapsed else 0.0, policy.probe_initial_seconds)
    gate = msgspec.structs.replace(gate, closed_at=at, failed_probes=0, probe_code="", probe="")
    return schedule(gate, owner, at, backoff, backoff)


def opened(gate: Gate, at: float) -> Gate:
    """The delay of the last probes is kept: a gate that closes again soon goes on with it."""
    return Gate(opened_at=at, backoff_seconds=gate.backoff_seconds)


def issued(gate: Gate, probe: str, now: float) -> Gate:
    return msgspec.structs.replace(gate, probe=probe, probe_at=now, next_probe_at=0.0)


def probe_failed(gate: Gate, code: str, at: float, policy: Policy) -> Gate:
    backoff = min(2 * gate.backoff_seconds, policy.probe_max_seconds)
    told = msgspec.structs.replace(gate, failed_probes=gate.failed_probes + 1, probe_code=code[:CODE_LENGTH_MAX])
    return schedule(told, gate.probe, at, backoff, backoff)


def given_back(gate: Gate, at: float, policy: Policy) -> Gate:
    """Nothing was learned: soon again under a new number, and the delay does not grow."""
    return schedule(gate, gate.probe, at, policy.probe_initial_seconds, gate.backoff_seconds)


def pulled(gate: Gate, at: float) -> Gate:
    """Due at `at` if it would have been later."""
    if not gate.closed or gate.probe or gate.next_probe_at <= at:
        return gate
    return msgspec.structs.replace(gate, next_probe_at=at)


def schedule(gate: Gate, chance_of: str, at: float, delay_seconds: float, backoff_seconds: float) -> Gate:
    """Equal jitter: between half the delay and all of it."""
    seconds = delay_seconds * (1 + _chance(f"{chance_of}/{gate.failed_probes}")) / 2
    return msgspec.structs.replace(gate, probe="", next_probe_at=at + seconds, backoff_seconds=backoff_seconds)


def _trips(gate: Gate, trip: int, policy: Policy) -> bool:
    if len(gate.run) >= min(trip, SHOWN_MAX) and gate.unconfirmed >= trip:
        return True
    return sum(failure.classified and failure.scope in DEFINITE for failure in gate.run) >= policy.trip_capacity


def _chance(of: str) -> float:
    """Evenly spread over [0, 1), the same for the same words."""
    return int.from_bytes(hashlib.blake2b(of.encode(), digest_size=8).digest()) / 2**64
