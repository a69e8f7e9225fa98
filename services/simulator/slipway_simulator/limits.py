"""Limits of simulated clouds: token buckets, and capacity over time. Pure: `now` is an argument."""

from math import inf
from typing import Annotated

import msgspec
from msgspec.structs import replace

from slipway_simulator.demand import NotNegative, Positive

# How many instances fit: a number, null for any number, or steps [[from_seconds, number or null], …] over time.
Capacity = int | None | tuple[tuple[NotNegative, int | None], ...]


class Bucket(msgspec.Struct, frozen=True):
    """Token bucket: the tokens left at a point in time."""

    level: float
    at: float


class Throttle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and refill of a token bucket. The default is that of an account's create calls."""

    burst: Annotated[float, msgspec.Meta(ge=1)] = 20.0
    refill_per_second: Positive = 5.0

    def faster(self, speed: float) -> "Throttle":
        return replace(self, refill_per_second=self.refill_per_second * speed)

    def draw(self, bucket: Bucket | None, units: float, now: float) -> tuple[float, float]:
        """Tokens left after `units` are drawn, and the seconds to wait if they are not admitted: then none is drawn.
        A bucket that was never drawn from is full."""
        before = bucket or Bucket(self.burst, now)
        level = min(self.burst, before.level + max(0.0, now - before.at) * self.refill_per_second)
        if level < units:
            return level, (units - level) / self.refill_per_second
        return level - units, 0.0


def size(capacity: Capacity, elapsed_seconds: float) -> float:
    """Capacity at this time; unlimited before the first step."""
    if isinstance(capacity, tuple):
        begun = [step for step in capacity if step[0] <= elapsed_seconds]
        capacity = max(begun, key=lambda step: step[0])[1] if begun else None
    return inf if capacity is None else capacity


def sooner(capacity: Capacity, speed: float) -> Capacity:
    """The capacity with its steps in real seconds."""
    if isinstance(capacity, tuple):
        return tuple((from_seconds / speed, number) for from_seconds, number in capacity)
    return capacity
