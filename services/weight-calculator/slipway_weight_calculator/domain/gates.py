"""When a row may launch at all: open, or closed with one probe at a time. Pure.

A gate closes after failures in a row and opens by the success of a probe, or when a start that was taken for failed
succeeds late. It decides on events and on instants that it is given; the jitter of a probe is a function of the config
and the permit, so that a replay gives the same instants.
"""

import hashlib
from math import exp2
from typing import Final

import msgspec

from slipway_common.events.worker import Scope
from slipway_weight_calculator.domain.blame import DEFINITE
from slipway_weight_calculator.domain.policy import Policy

CODE_LENGTH_MAX: Final = 60


class Failure(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
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


class Gate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`closed_at` 0 means open. `run` holds the charged failures that are not older than the newest success, by their
    time; while closed it keeps what closed it, and `unconfirmed` alone goes on counting.

    `probe` names the unresolved probe as "config#permit"; `next_probe_at` is when one is due, 0: none. `ask_at` is when
    somebody from outside may have one made sooner, 0: nobody has yet.
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
    ask_at: float = 0.0

    @property
    def closed(self) -> bool:
        return self.closed_at > 0


OPEN: Final = Gate()


def failed(gate: Gate, failure: Failure, trip: int, owner: str, policy: Policy, *, proven: bool = True) -> Gate:
    """After a charged failure that is not older than the newest success; `trip` of any kind close it.

    One that was closed before and is not `proven` again by successes closes at the first definite refusal: a place that
    flaps costs one start per opening.
    """
    if gate.closed:
        return msgspec.structs.replace(gate, unconfirmed=gate.unconfirmed + 1)
    # Sorted, since outcomes of different workers arrive in any order.
    run = tuple(sorted((*gate.run, failure)))
    gate = msgspec.structs.replace(gate, run=run, unconfirmed=len(run))
    relapsed = gate.opened_at > 0 and not proven and _definite((failure,))
    return close(gate, run[-1].at, owner, policy) if relapsed or _trips(run, trip, policy) else gate


def succeeded(gate: Gate, ok_at: float) -> Gate:
    """After a success of somebody else than the probe: failures before `ok_at` are no longer in a row."""
    if not gate.unconfirmed:
        return gate
    if gate.closed:
        return msgspec.structs.replace(gate, unconfirmed=0)
    run = tuple(failure for failure in gate.run if failure.at >= ok_at)
    return msgspec.structs.replace(gate, run=run, unconfirmed=len(run))


def withdrawn(gate: Gate, worker_id: str) -> Gate:
    """After a start that was taken for failed has ended otherwise: its failure is taken back."""
    run = tuple(failure for failure in gate.run if failure.worker_id != worker_id or not failure.late)
    unconfirmed = max(0, gate.unconfirmed - 1) if gate.closed else len(run)
    return msgspec.structs.replace(gate, run=run, unconfirmed=unconfirmed)


def confirmed(gate: Gate, failure: Failure) -> Gate:
    """After a start that was taken for failed has failed: what is known of it now stands in its place."""
    run = tuple(
        msgspec.structs.replace(failure, at=held.at) if held.late and held.worker_id == failure.worker_id else held
        for held in gate.run
    )
    return msgspec.structs.replace(gate, run=run)


def unfounded(gate: Gate, late: int, trip: int) -> bool:
    """Whether what has closed it was taken back; `late` starts are still taken for failed."""
    return gate.closed and max(late, len(gate.run)) < trip and not _definite(gate.run)


def close(gate: Gate, at: float, owner: str, policy: Policy) -> Gate:
    # What is remembered fades by time, not by successes: then a place that fails now and then settles at a steady rate
    # of probes, where a count of them would drift to one end or the other.
    left = exp2((gate.probe_at - at) / policy.relapse_seconds) if at > gate.probe_at else 1.0
    backoff = max(gate.backoff_seconds * left, policy.probe_initial_seconds)
    gate = msgspec.structs.replace(gate, closed_at=at, failed_probes=0, probe_code="", probe="")
    return schedule(gate, owner, at, backoff, backoff)


def opened(gate: Gate, at: float) -> Gate:
    """The delay of the last probe is kept, and when that was: a gate that closes again soon goes on with it."""
    return Gate(opened_at=at, backoff_seconds=gate.backoff_seconds, probe_at=gate.probe_at)


def issued(gate: Gate, probe: str, now: float) -> Gate:
    return msgspec.structs.replace(gate, probe=probe, probe_at=now, next_probe_at=0.0)


def probe_failed(gate: Gate, code: str, at: float, policy: Policy) -> Gate:
    backoff = min(2 * gate.backoff_seconds, policy.probe_max_seconds)
    told = msgspec.structs.replace(
        gate,
        failed_probes=gate.failed_probes + 1,
        probe_code=code[:CODE_LENGTH_MAX],
        ask_at=at + backoff / 2 if gate.ask_at else 0.0,
    )
    return schedule(told, gate.probe, at, backoff, backoff)


def given_back(gate: Gate, at: float, policy: Policy) -> Gate:
    """Nothing was learned: soon again under a new number, and the delay does not grow."""
    return schedule(gate, gate.probe, at, policy.probe_initial_seconds, gate.backoff_seconds)


def pulled(gate: Gate, at: float, policy: Policy) -> Gate:
    """Due at `at` if it would have been later; yet however often peers open, a delay behind the last probe."""
    due = max(at, gate.probe_at + policy.probe_initial_seconds) if gate.probe_at else at
    if not gate.closed or gate.probe or gate.next_probe_at <= due:
        return gate
    return msgspec.structs.replace(gate, next_probe_at=due)


def asked(gate: Gate, at: float, policy: Policy) -> Gate:
    """Pulled by a word from outside. The first has a probe made at once; once that has failed, a word repeated saves
    half the delay at most, which grows with each failure: whoever goes on saying so costs no more than chance does."""
    sooner = pulled(gate, max(at, gate.ask_at), policy)
    return sooner if sooner is gate else msgspec.structs.replace(sooner, ask_at=sooner.next_probe_at)


def released(gate: Gate, at: float) -> Gate:
    """After a permit was taken back that nobody had spent: another one may be issued."""
    return msgspec.structs.replace(gate, probe="", next_probe_at=at)


def schedule(gate: Gate, chance_of: str, at: float, delay_seconds: float, backoff_seconds: float) -> Gate:
    """Equal jitter: between half the delay and all of it."""
    seconds = delay_seconds * (1 + _chance(f"{chance_of}/{gate.failed_probes}")) / 2
    return msgspec.structs.replace(gate, probe="", next_probe_at=at + seconds, backoff_seconds=backoff_seconds)


def _trips(run: tuple[Failure, ...], trip: int, policy: Policy) -> bool:
    return len(run) >= trip or _definite(run) >= policy.trip_capacity


def _definite(run: tuple[Failure, ...]) -> int:
    return sum(failure.classified and failure.scope in DEFINITE for failure in run)


def _chance(of: str) -> float:
    """Evenly spread over [0, 1), the same for the same words."""
    return int.from_bytes(hashlib.blake2b(of.encode(), digest_size=8).digest()) / 2**64
