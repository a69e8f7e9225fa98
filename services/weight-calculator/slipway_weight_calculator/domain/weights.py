"""Weight of a config: its share of launches relative to its siblings. Windows and trips limit the number. Pure."""

import math
import sys

from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.evidence import Stage, masses, probability, remaining
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.rows import STAGES, Config


def chances(known: Draft, config: Config, now: float) -> dict[str, float]:
    """Probability of success of each stage, for a launch started at `now`."""
    policy, row = known.policy(config), known.row(config.key)
    if row is None:
        return dict.fromkeys(STAGES, policy.prior)
    found = {}
    for name in STAGES:
        if name not in config.stages:
            found[name] = policy.prior
            continue
        stage: Stage = getattr(row, name)
        successes, failures, place_failures = masses(stage, now, policy)
        before = prior(known, config, name, successes, place_failures, now, policy)
        if name == "launch":
            failures -= place_failures  # those count in the availability of its capacity
        found[name] = probability(successes, failures, before, policy)
    found["launch"] *= availability(known, config, now)
    return found


def availability(known: Draft, config: Config, now: float) -> float:
    """Probability that the capacity which a config launches from is available, by the launches of all its configs.

    Without failures it is 1, since the config's own probability has the prior already. For a config that alone uses its
    capacity, the product of both is the smoothed share of successes in all its launches.
    """
    row = known.row(config.shared["capacity"])
    if row is None:
        return 1.0
    successes, failures, _ = masses(row.launch, now, known.policy(config))
    return probability(successes, failures, 1.0, known.policy(config))


def prior(
    known: Draft, config: Config, name: str, successes: float, place_failures: float, now: float, policy: Policy
) -> float:
    """Prior probability of a stage, from the siblings in the pool, the account and the zone.

    Each level is smoothed towards the one before. A sibling counts once for each location it shares, so closer siblings
    count more. The config's own outcomes (`successes`, `place_failures`) are subtracted, or they would count twice.
    """
    estimate = policy.prior
    for key in config.parents[name]:
        had, failed, then = known.sum_of(key)
        share = remaining(now - then, policy) if now > then else 1.0
        others, failures = max(0.0, had * share - successes), max(0.0, failed * share - place_failures)
        estimate = probability(others, failures, estimate, policy)
    return estimate


def weight(base_weight: float, price_factor: float, health: float, policy: Policy) -> float:
    """Published weight; never zero, otherwise no launch would ever show that the config works again."""
    share = policy.floor + (1 - policy.floor) * math.pow(health, policy.sharpness)
    return max(sys.float_info.min, base_weight * price_factor * share)
