"""Evidence on one stage of one row: successes and failures, each worth less the older it is. Pure.

Trips (trips.py) decide whether to launch, windows how many, weights where; this module keeps the masses that they are
computed from, and the sums of them for each location.
"""

from math import exp2
from typing import Final

import msgspec

from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.trips import HEALTHY, Trip
from slipway_weight_calculator.domain.windows import UNKNOWN, Boots


class Stage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Evidence, window and trip of one stage of one row.

    The masses `successes` and `failures` are as of `at`, the newest event time (seconds since the epoch); together they
    never exceed the policy's cap. `place_failures` is the part of `failures` that concerns the location rather than
    this config's own request. `succeeded` and `failed` count charged outcomes over the row's life; `folded` counts
    every failed outcome of any scope: the provisioner subtracts it from its own count to know which failures this state
    includes. `window` limits unconfirmed starts, and follows from `boots` in that stage; `late` is the number of starts
    in progress that count as failed. `ok_at` is the time of the newest success.
    """

    successes: float = 0.0
    failures: float = 0.0
    place_failures: float = 0.0
    at: float = 0.0
    succeeded: int = 0
    failed: int = 0
    folded: int = 0
    window: float = 0.0
    ok_at: float = 0.0
    late: int = 0
    trip: Trip = HEALTHY
    boots: Boots = UNKNOWN


Sum = tuple[float, float, float]
"""Successes and place failures of all configs of a location, and the time at which they are given."""
NOTHING: Final[Sum] = (0.0, 0.0, 0.0)


def remaining(age_seconds: float, policy: Policy) -> float:
    """Share of a mass that is left after `age_seconds`: half per half-life."""
    return exp2(-age_seconds / policy.half_life_seconds)


def masses(stage: Stage, now: float, policy: Policy) -> tuple[float, float, float]:
    """Successes, failures and place failures at `now`; never worth more than before."""
    if now <= stage.at:
        return stage.successes, stage.failures, stage.place_failures
    share = exp2((stage.at - now) / policy.half_life_seconds)
    return stage.successes * share, stage.failures * share, stage.place_failures * share


def after(
    stage: Stage,
    at: float,
    window: float,
    trip: Trip,
    policy: Policy,
    boots: Boots = UNKNOWN,
    *,
    failed: bool = False,
    place: bool = False,
) -> Stage:
    """Stage after one more outcome of event time `at`, with the resulting window, trip and boots.

    `place`: the failure concerns the location. An event older than the newest one is decayed to the newest time, so
    below the cap the order of arrival does not matter. Older masses are reduced before adding, so that the total never
    exceeds the cap and a success never lowers the probability.
    """
    newest = stage.at
    if at > newest:
        mass, share, newest = 1.0, exp2((newest - at) / policy.half_life_seconds), at
    else:
        mass, share = exp2((at - newest) / policy.half_life_seconds), 1.0
    known, room = (stage.successes + stage.failures) * share, policy.mass_cap - mass
    if known > room:
        share *= room / known
    if failed:
        return Stage(
            stage.successes * share,
            stage.failures * share + mass,
            stage.place_failures * share + mass * place,
            newest,
            stage.succeeded,
            stage.failed + 1,
            stage.folded,
            window,
            stage.ok_at,
            stage.late,
            trip,
            boots,
        )
    return Stage(
        stage.successes * share + mass,
        stage.failures * share,
        stage.place_failures * share,
        newest,
        stage.succeeded + 1,
        stage.failed,
        stage.folded,
        window,
        at if at > stage.ok_at else stage.ok_at,
        stage.late,
        trip,
        boots,
    )


def probability(successes: float, failures: float, prior: float, policy: Policy) -> float:
    """Probability that the stage succeeds, smoothed towards the prior; strictly between 0 and 1."""
    return (successes + policy.prior_mass * prior) / (successes + failures + policy.prior_mass)


def change(before: Stage | None, after: Stage | None, policy: Policy) -> Sum:
    """Change of a location's sum as a stage of one of its configs changes; None: the config is not at the location."""
    if after is None:
        return NOTHING if before is None else (-before.successes, -before.place_failures, before.at)
    if before is None:
        return after.successes, after.place_failures, after.at
    successes, _, place_failures = masses(before, after.at, policy)
    return after.successes - successes, after.place_failures - place_failures, after.at


def combined(one: Sum, other: Sum, policy: Policy) -> Sum:
    """Total of two sums at the later of their times."""
    if one[2] < other[2]:
        one, other = other, one
    share = exp2((other[2] - one[2]) / policy.half_life_seconds)
    return one[0] + other[0] * share, one[1] + other[1] * share, one[2]
