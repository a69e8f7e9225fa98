"""What was seen of one stage of one row: successes and failures, each worth less the older it is. Pure.

Gates (gates.py) say whether, windows how many, shares (weights.py) where; this file keeps the masses they start from,
and the sums of them that speak for a place.
"""

from math import exp2
from typing import Final

import msgspec

from slipway_weight_calculator.domain.gates import OPEN, Gate
from slipway_weight_calculator.domain.policy import Policy


class Stage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Masses as of `at`, the newest event time (seconds since the epoch); never more than the policy's cap together.

    `placed` is the part of `failures` that speaks of the place rather than of this config's own request. `succeeded`
    and `failed` count what was charged over the row's life; `folded` every failed outcome, whatever its scope: the
    provisioner subtracts it from its own count to know which failures this state has seen. `window` is a level of
    unconfirmed starts, `late` how many of them are taken for failed for the time being. `ok_at` is the time of the
    newest success.
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


Sum = tuple[float, float, float]
"""Successes, placed failures and their instant: what all configs of a place have seen together."""
NOTHING: Final[Sum] = (0.0, 0.0, 0.0)


def remaining(age_seconds: float, policy: Policy) -> float:
    """What a mass is worth after so long: half per half-life."""
    return exp2(-age_seconds / policy.half_life_seconds)


def masses(stage: Stage, now: float, policy: Policy) -> tuple[float, float, float]:
    """Successes, failures and the placed part of them at `now`; never worth more than before."""
    if now <= stage.at:
        return stage.successes, stage.failures, stage.placed
    share = exp2((stage.at - now) / policy.half_life_seconds)
    return stage.successes * share, stage.failures * share, stage.placed * share


def after(
    stage: Stage, at: float, window: float, gate: Gate, policy: Policy, *, failed: bool = False, placed: bool = False
) -> Stage:
    """After one more outcome of event time `at`, with the window and the gate that it leaves; `placed` if a failure
    speaks of the place.

    An event older than the newest one weighs what it would weigh by now, so below the cap the order of arrival does
    not matter. Room is made before adding, so that the mass never exceeds the cap and a success never lowers the
    probability.
    """
    newest = stage.at
    if at > newest:
        mass, share, newest = 1.0, exp2((newest - at) / policy.half_life_seconds), at
    else:
        mass, share = exp2((at - newest) / policy.half_life_seconds), 1.0
    held, room = (stage.successes + stage.failures) * share, policy.mass_cap - mass
    if held > room:
        share *= room / held
    if failed:
        return Stage(
            stage.successes * share,
            stage.failures * share + mass,
            stage.placed * share + mass * placed,
            newest,
            stage.succeeded,
            stage.failed + 1,
            stage.folded,
            window,
            stage.ok_at,
            stage.late,
            gate,
        )
    return Stage(
        stage.successes * share + mass,
        stage.failures * share,
        stage.placed * share,
        newest,
        stage.succeeded + 1,
        stage.failed,
        stage.folded,
        window,
        at if at > stage.ok_at else stage.ok_at,
        stage.late,
        gate,
    )


def probability(successes: float, failures: float, prior: float, policy: Policy) -> float:
    """That the stage succeeds, smoothed towards the prior; strictly between 0 and 1."""
    return (successes + policy.prior_mass * prior) / (successes + failures + policy.prior_mass)


def change(before: Stage | None, after: Stage | None, policy: Policy) -> Sum:
    """What a place has seen more of since a stage of one of its configs was `before`; None: not of the place."""
    if after is None:
        return NOTHING if before is None else (-before.successes, -before.placed, before.at)
    if before is None:
        return after.successes, after.placed, after.at
    successes, _, placed = masses(before, after.at, policy)
    return after.successes - successes, after.placed - placed, after.at


def together(one: Sum, other: Sum, policy: Policy) -> Sum:
    if one[2] < other[2]:
        one, other = other, one
    share = exp2((other[2] - one[2]) / policy.half_life_seconds)
    return one[0] + other[0] * share, one[1] + other[1] * share, one[2]
