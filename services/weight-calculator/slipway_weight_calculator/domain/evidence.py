"""What was seen of one stage of one row: successes and failures, each worth less the older it is. Pure.

Gates (gates.py) say whether, windows how many, shares (weights.py) where; this file keeps the masses they start from.
"""

from math import exp2
from typing import Final

import msgspec

from slipway_weight_calculator.domain.gates import OPEN, Gate
from slipway_weight_calculator.domain.policy import Policy

NEGLIGIBLE: Final = 1e-9


class Stage(msgspec.Struct, frozen=True, array_like=True):
    """Masses as of `at`, the newest event time (seconds since the epoch); never more than the policy's cap together.

    `placed` is the part of `failures` that speaks of the place rather than of this config's own request. `succeeded`
    and `failed` count what was charged over the row's life; `folded` every failed outcome, whatever its scope: the
    provisioner subtracts it from its own count to know which failures this state has seen. `window` is a level of
    unconfirmed starts, `late` how many of them are taken for failed for the time being.
    """

    successes: float = 0.0
    failures: float = 0.0
    placed: float = 0.0
    at: float = 0.0
    succeeded: int = 0
    failed: int = 0
    folded: int = 0
    window: float = 0.0
    ok_at: float = 0.0
    late: int = 0
    gate: Gate = OPEN


def remaining(age_seconds: float, policy: Policy) -> float:
    """What a mass is worth after so long: half per half-life."""
    return exp2(-age_seconds / policy.half_life_seconds)


def masses(stage: Stage, now: float, policy: Policy) -> tuple[float, float, float]:
    """Successes, failures and the placed part of them at `now`; never worth more than before."""
    if now <= stage.at:
        return stage.successes, stage.failures, stage.placed
    share = exp2((stage.at - now) / policy.half_life_seconds)
    successes, failures, placed = stage.successes * share, stage.failures * share, stage.placed * share
    return (
        successes if successes > NEGLIGIBLE else 0.0,
        failures if failures > NEGLIGIBLE else 0.0,
        placed if placed > NEGLIGIBLE else 0.0,
    )


def added(
    stage: Stage, *, success: float, failure: float, placed: float, at: float, policy: Policy
) -> tuple[float, float, float, float]:
    """Masses and their instant after one more outcome at event time `at`.

    An event older than the newest one weighs what it would weigh by now, so below the cap the order of arrival does
    not matter. Room is made before adding, so that the mass never exceeds the cap and a success never lowers the
    probability.
    """
    newest = at if at > stage.at else stage.at
    successes, failures, place = masses(stage, newest, policy)
    mass = 1.0 if at == newest else remaining(newest - at, policy)
    held, room = successes + failures, policy.mass_cap - mass
    if held > room:
        scale = room / held
        successes, failures, place = successes * scale, failures * scale, place * scale
    return successes + mass * success, failures + mass * failure, place + mass * placed, newest


def probability(successes: float, failures: float, prior: float, policy: Policy) -> float:
    """That the stage succeeds, smoothed towards the prior; strictly between 0 and 1."""
    return (successes + policy.prior_mass * prior) / (successes + failures + policy.prior_mass)
