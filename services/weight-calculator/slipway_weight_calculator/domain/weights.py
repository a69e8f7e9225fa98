"""Where to launch: the share of a config relative to its siblings. Says nothing on how many (windows, gates). Pure."""

import math
import sys

from slipway_weight_calculator.domain.evidence import Stage, masses, probability, remaining
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.rows import STAGES, Config
from slipway_weight_calculator.domain.world import Draft


def chances(known: Draft, config: Config, now: float) -> dict[str, float]:
    """The probability of each stage of a launch begun at `now` to succeed."""
    policy, row = known.policy(config), known.row(config.id)
    if row is None:
        return dict.fromkeys(STAGES, policy.prior)
    found = {}
    for name in STAGES:
        if name not in config.stages:
            found[name] = policy.prior
            continue
        stage: Stage = getattr(row, name)
        successes, failures, placed = masses(stage, now, policy)
        before = prior(known, config, name, successes, placed, now, policy)
        found[name] = probability(successes, failures, before, policy)
    return found


def prior(
    known: Draft, config: Config, name: str, successes: float, placed: float, now: float, policy: Policy
) -> float:
    """What is believed of a stage without own evidence: what siblings in the pool, the account and the zone show, each
    smoothed towards the one before: a sibling is heard once for each place that is shared, so the more, the more they
    share. Own outcomes (`successes`, `placed`) are left out, or they would count twice."""
    believed = policy.prior
    for key in config.parents[name]:
        had, failed, then = known.sum_of(key)
        share = remaining(now - then, policy) if now > then else 1.0
        others, failures = max(0.0, had * share - successes), max(0.0, failed * share - placed)
        believed = probability(others, failures, believed, policy)
    return believed


def weight(base_weight: float, price_factor: float, health: float, policy: Policy) -> float:
    """Never zero, or nothing would ever show that a config works again."""
    share = policy.floor + (1 - policy.floor) * math.pow(health, policy.sharpness)
    return max(sys.float_info.min, base_weight * price_factor * share)
