"""Health of one stage of a row: healthy, or tripped with one probe at a time. Pure.

A row trips after failures in a row. It recovers when a probe succeeds, or when a start that counted as failed because
it was late succeeds. All functions decide on the given events and times; the jitter of a probe is a hash of the config
and the permit, so a replay computes the same times.
"""

import hashlib
from math import exp2
from typing import Final, NamedTuple

import msgspec

from slipway_api.events.worker import Scope
from slipway_weight_calculator.domain.blame import DEFINITE
from slipway_weight_calculator.domain.policy import Policy

CODE_LENGTH_MAX: Final = 60


class Failure(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """One failed start. `late`: provisional, the start is still in progress. The fields after it are for diagnosis."""

    at: float
    scope: Scope
    code: str
    classified: bool
    worker_id: str
    late: bool = False
    instance_id: str = ""
    console: str = ""
    sample: str = ""


class Probe(NamedTuple):
    """A probe of one config, by the number of its permit."""

    config_id: str
    permit: int

    def __str__(self) -> str:
        return f"{self.config_id}#{self.permit}"


class Trip(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Health of one stage of a row. `tripped_at` 0: healthy.

    `run` holds the charged failures that are not older than the newest success, by time; once tripped it keeps the
    failures that caused the trip, and only `unconfirmed` continues to count. `probe` is the unresolved probe;
    `next_probe_at` is the time of the next one, 0: none. `signal_probe_at` is the earliest time at which a `recovered`
    signal may cause the next probe, 0: no signal has caused one yet.
    """

    tripped_at: float = 0.0
    run: tuple[Failure, ...] = ()
    unconfirmed: int = 0
    probe: Probe | None = None
    probe_at: float = 0.0
    next_probe_at: float = 0.0
    backoff_seconds: float = 0.0
    failed_probes: int = 0
    probe_code: str = ""
    recovered_at: float = 0.0
    signal_probe_at: float = 0.0

    @property
    def tripped(self) -> bool:
        return self.tripped_at > 0


HEALTHY: Final = Trip()


def failed(trip: Trip, failure: Failure, threshold: int, seed: str, policy: Policy, *, proven: bool = True) -> Trip:
    """State after a charged failure that is not older than the newest success; `threshold` failures of any kind trip.

    A stage that has recovered before and is not yet `proven` by successes trips at the first definite refusal, so a
    flapping location costs one start per recovery.
    """
    if trip.tripped:
        return msgspec.structs.replace(trip, unconfirmed=trip.unconfirmed + 1)
    # Sorted, because outcomes of different workers arrive in any order.
    run = tuple(sorted((*trip.run, failure)))
    trip = msgspec.structs.replace(trip, run=run, unconfirmed=len(run))
    relapsed = trip.recovered_at > 0 and not proven and _definite((failure,))
    return started(trip, run[-1].at, seed, policy) if relapsed or _reaches(run, threshold, policy) else trip


def succeeded(trip: Trip, ok_at: float) -> Trip:
    """State after a success other than the probe's: failures before `ok_at` are no longer in a row."""
    if not trip.unconfirmed:
        return trip
    if trip.tripped:
        return msgspec.structs.replace(trip, unconfirmed=0)
    run = tuple(failure for failure in trip.run if failure.at >= ok_at)
    return msgspec.structs.replace(trip, run=run, unconfirmed=len(run))


def withdrawn(trip: Trip, worker_id: str) -> Trip:
    """State after a late start has ended without failing: its provisional failure is removed."""
    run = tuple(failure for failure in trip.run if failure.worker_id != worker_id or not failure.late)
    unconfirmed = max(0, trip.unconfirmed - 1) if trip.tripped else len(run)
    return msgspec.structs.replace(trip, run=run, unconfirmed=unconfirmed)


def confirmed(trip: Trip, failure: Failure) -> Trip:
    """State after a late start has failed: the actual failure replaces its provisional one."""
    run = tuple(
        msgspec.structs.replace(failure, at=known.at) if known.late and known.worker_id == failure.worker_id else known
        for known in trip.run
    )
    return msgspec.structs.replace(trip, run=run)


def actual_failures(trip: Trip) -> int:
    """Number of failures that caused the trip, without provisional ones of late starts."""
    return sum(not failure.late for failure in trip.run)


def unfounded(trip: Trip, late: int, threshold: int) -> bool:
    """True if the failures that caused the trip were withdrawn; `late` starts still count as failed."""
    return trip.tripped and max(late, len(trip.run)) < threshold and not _definite(trip.run)


def started(trip: Trip, at: float, seed: str, policy: Policy) -> Trip:
    """The trip as it begins: tripped at `at`, with the first probe scheduled."""
    # The remembered delay fades by time, not by successes: then a location that fails now and then settles at a steady
    # rate of probes, where counting successes would drift to either extreme.
    left = exp2((trip.probe_at - at) / policy.relapse_seconds) if at > trip.probe_at else 1.0
    backoff = max(trip.backoff_seconds * left, policy.probe_initial_seconds)
    trip = msgspec.structs.replace(trip, tripped_at=at, failed_probes=0, probe_code="", probe=None)
    return schedule(trip, seed, at, backoff, backoff)


def recovered(trip: Trip, at: float) -> Trip:
    """Healthy again. The delay and time of the last probe are kept for a stage that trips again soon."""
    return Trip(recovered_at=at, backoff_seconds=trip.backoff_seconds, probe_at=trip.probe_at)


def issued(trip: Trip, probe: Probe, now: float) -> Trip:
    """State after a probe permit was issued."""
    return msgspec.structs.replace(trip, probe=probe, probe_at=now, next_probe_at=0.0)


def probe_failed(trip: Trip, code: str, at: float, policy: Policy) -> Trip:
    """State after the probe has failed: the delay to the next one doubles."""
    backoff = min(2 * trip.backoff_seconds, policy.probe_max_seconds)
    failed_ = msgspec.structs.replace(
        trip,
        failed_probes=trip.failed_probes + 1,
        probe_code=code[:CODE_LENGTH_MAX],
        signal_probe_at=at + backoff / 2 if trip.signal_probe_at else 0.0,
    )
    return schedule(failed_, str(trip.probe), at, backoff, backoff)


def unanswered(trip: Trip, at: float, policy: Policy) -> Trip:
    """State after a probe has ended without an answer: the next one comes soon, and the delay does not grow."""
    return schedule(trip, str(trip.probe), at, policy.probe_initial_seconds, trip.backoff_seconds)


def brought_forward(trip: Trip, at: float, policy: Policy) -> Trip:
    """The next probe at `at` if it was scheduled later, but never sooner than the initial delay after the last one."""
    due = max(at, trip.probe_at + policy.probe_initial_seconds) if trip.probe_at else at
    if not trip.tripped or trip.probe or trip.next_probe_at <= due:
        return trip
    return msgspec.structs.replace(trip, next_probe_at=due)


def brought_forward_by_signal(trip: Trip, at: float, policy: Policy) -> Trip:
    """The next probe brought forward by a `recovered` signal.

    The first signal causes a probe at once. After that probe has failed, a repeated signal saves at most half the
    delay, which grows with each failure: repeating a signal costs no more probes than chance does.
    """
    sooner = brought_forward(trip, max(at, trip.signal_probe_at), policy)
    return sooner if sooner is trip else msgspec.structs.replace(sooner, signal_probe_at=sooner.next_probe_at)


def released(trip: Trip, at: float) -> Trip:
    """State after an unspent permit was withdrawn: another one may be issued from `at` on."""
    return msgspec.structs.replace(trip, probe=None, next_probe_at=at)


def schedule(trip: Trip, seed: str, at: float, delay_seconds: float, backoff_seconds: float) -> Trip:
    """The next probe scheduled with equal jitter: between half the delay and all of it."""
    seconds = delay_seconds * (1 + _fraction(f"{seed}/{trip.failed_probes}")) / 2
    return msgspec.structs.replace(trip, probe=None, next_probe_at=at + seconds, backoff_seconds=backoff_seconds)


def _reaches(run: tuple[Failure, ...], threshold: int, policy: Policy) -> bool:
    return len(run) >= threshold or _definite(run) >= policy.trip_capacity


def _definite(run: tuple[Failure, ...]) -> int:
    return sum(failure.classified and failure.scope in DEFINITE for failure in run)


def _fraction(seed: str) -> float:
    """A number in [0, 1), evenly distributed, the same for the same seed."""
    return int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=8).digest()) / 2**64
