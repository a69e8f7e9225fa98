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


def succeeded(stage: Stage, at: float, window: float, gate: Gate, policy: Policy) -> Stage:
    """After one more success of event time `at`, with the window and the gate that it leaves."""
    mass, share, newest = _room(stage, at, policy)
    return Stage(
        stage.successes * share + mass, stage.failures * share, stage.placed * share, newest, stage.succeeded + 1,
        stage.failed, stage.folded, window, at if at > stage.ok_at else stage.ok_at, stage.late, gate,
    )  # fmt: skip


def failed(stage: Stage, at: float, window: float, gate: Gate, policy: Policy, *, placed: bool) -> Stage:
    """After one more failure of event time `at`; `placed` if it speaks of the place."""
    mass, share, newest = _room(stage, at, policy)
    return Stage(
        stage.successes * share, stage.failures * share + mass, stage.placed * share + mass * placed, newest,
        stage.succeeded, stage.failed + 1, stage.folded, window, stage.ok_at, stage.late, gate,
    )  # fmt: skip


def _room(stage: Stage, at: float, policy: Policy) -> tuple[float, float, float]:
    """What one more outcome weighs, the share that it leaves of what was there, and the newest event time.

    An event older than the newest one weighs what it would weigh by now, so below the cap the order of arrival does
    not matter. Room is made before adding, so that the mass never exceeds the cap and a success never lowers the
    probability.
    """
    then = stage.at
    if at > then:
        mass, share, newest = 1.0, exp2((then - at) / policy.half_life_seconds), at
    else:
        mass, share, newest = exp2((at - then) / policy.half_life_seconds), 1.0, then
    held, room = (stage.successes + stage.failures) * share, policy.mass_cap - mass
    return mass, share if held <= room else share * (room / held), newest


def probability(successes: float, failures: float, prior: float, policy: Policy) -> float:
    """That the stage succeeds, smoothed towards the prior; strictly between 0 and 1."""
    return (successes + policy.prior_mass * prior) / (successes + failures + policy.prior_mass)


def with_change(total: Sum, before: Stage | None, after: Stage | None, policy: Policy) -> Sum:
    """What a place has seen, once a stage of one of its configs has gone from `before` to `after`; None: not of the
    place."""
    newest = max(total[2], before.at if before else 0.0, after.at if after else 0.0)
    aged = remaining(newest - total[2], policy)
    gained, _, worse = masses(after, newest, policy) if after else NOTHING
    lost, _, better = masses(before, newest, policy) if before else NOTHING
    return total[0] * aged + gained - lost, total[1] * aged + worse - better, newest
