"""Where to launch: the share of a config relative to its siblings. Says nothing on how many (gates.py does)."""

import math
from datetime import datetime

from slipway_weight_calculator.domain.evidence import decayed, probability
from slipway_weight_calculator.domain.health import Health
from slipway_weight_calculator.domain.policy import Policy


def success(health: Health, *, now: datetime, policy: Policy) -> float:
    """The probability that a launch begun at `now` ends in a worker that takes a task."""
    return math.prod(probability(decayed(evidence, now, policy), policy) for _, evidence in health.stages())


def weight(base_weight: float, price_factor: float, probability: float, policy: Policy) -> float:
    """Never zero for a positive base and price, or nothing would ever show that a config works again."""
    return base_weight * price_factor * (policy.floor + (1 - policy.floor) * math.pow(probability, policy.sharpness))
