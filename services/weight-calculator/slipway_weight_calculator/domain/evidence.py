"""What was seen of one stage of one launch config: successes and failures, each worth less the older it is.

Decides what an outcome moves and by how much; gates (gates.py) and shares (weights.py) are derived elsewhere.
"""

from datetime import datetime
from math import exp2
from typing import Final

import msgspec

from slipway_common.events.worker import Outcome, Result, Scope
from slipway_weight_calculator.domain.policy import Policy

# A throttle says something about our call rate, a time-out of our own nothing yet, an unknown word nothing we can read.
# Quotas, images and credentials have no rows of their own so far: the config that met the error carries it.
CHARGED: Final = frozenset({Scope.CONFIG, Scope.CAPACITY, Scope.QUOTA, Scope.IMAGE, Scope.CREDENTIAL})
NEGLIGIBLE: Final = 1e-9


class Evidence(msgspec.Struct, frozen=True):
    """Decayed masses as of `at`, the newest event time; never more than the policy's cap together.

    `failures_folded` counts every failed outcome over the config's life, whatever its scope: the provisioner subtracts
    it from its own count to know which failures this state has seen.
    """

    successes: float = 0.0
    failures: float = 0.0
    at: datetime | None = None
    failures_folded: int = 0


def charged(outcome: Outcome) -> bool:
    """Whether this failure says something about the config."""
    return outcome.result is Result.FAILED and outcome.scope in CHARGED


def fold(evidence: Evidence, outcome: Outcome, *, at: datetime, policy: Policy) -> Evidence:
    """The evidence after one outcome at event time `at`.

    An event older than the newest one weighs what it would weigh by now, so below the cap the order of arrival does
    not matter.
    """
    success = outcome.result is Result.OK
    folded = evidence.failures_folded + (outcome.result is Result.FAILED)
    if not success and not charged(outcome):
        return msgspec.structs.replace(evidence, failures_folded=folded)
    newest = at if evidence.at is None else max(at, evidence.at)
    then = decayed(evidence, newest, policy)
    mass = remaining((newest - at).total_seconds(), policy)
    # Room is made before adding, so that the mass never exceeds the cap and a success never lowers the probability.
    held, room = then.successes + then.failures, policy.mass_cap - mass
    scale = room / held if held > room else 1.0
    return Evidence(
        successes=then.successes * scale + mass * success,
        failures=then.failures * scale + mass * (not success),
        at=newest,
        failures_folded=folded,
    )


def decayed(evidence: Evidence, now: datetime, policy: Policy) -> Evidence:
    """The same evidence seen at `now`; never worth more than before."""
    if evidence.at is None or now <= evidence.at:
        return evidence
    share = remaining((now - evidence.at).total_seconds(), policy)
    return msgspec.structs.replace(
        evidence,
        successes=_flush(evidence.successes * share),
        failures=_flush(evidence.failures * share),
        at=now,
    )


def remaining(age_seconds: float, policy: Policy) -> float:
    return exp2(-age_seconds / policy.half_life_seconds)


def probability(evidence: Evidence, policy: Policy) -> float:
    """That the stage succeeds, smoothed towards the prior; strictly between 0 and 1."""
    successes = evidence.successes + policy.prior_mass * policy.prior
    return successes / (evidence.successes + evidence.failures + policy.prior_mass)


def _flush(mass: float) -> float:
    return mass if mass > NEGLIGIBLE else 0.0
