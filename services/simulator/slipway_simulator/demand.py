"""Sources of tasks: a list, a trace file, or a seeded bursty generator. Chance is an argument.

Every source yields (arrival offset, task length) in product seconds, in order of arrival.
"""

import struct
from collections.abc import Iterator
from itertools import count
from math import log
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec

Arrival = tuple[float, float]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]

# Standard deviation of the logarithm of task lengths, typical for builds.
TASK_SIGMA = 0.4


class Arrivals(msgspec.Struct, frozen=True, tag_field="kind", tag="arrivals", forbid_unknown_fields=True):
    """A list of [arrival offset, task length], in any order."""

    arrivals: tuple[tuple[NotNegative, NotNegative], ...] = ()


class Bursty(msgspec.Struct, frozen=True, tag_field="kind", tag="bursty", forbid_unknown_fields=True):
    """Random tasks with additional bursts. `rate_per_minute` is the average of both, without the initial burst."""

    rate_per_minute: Positive = 30.0
    initial_burst: Annotated[int, msgspec.Meta(ge=0)] = 20
    burst_size: NotNegative = 15.0
    burst_every_seconds: Positive = 300.0
    task_seconds_median: Positive = 120.0
    task_sigma: NotNegative = TASK_SIGMA
    until_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.steady_per_second < 0:
            raise ValueError("bursts alone exceed rate_per_minute")

    @property
    def steady_per_second(self) -> float:
        return self.rate_per_minute / 60.0 - self.burst_size / self.burst_every_seconds


class Trace(msgspec.Struct, frozen=True, tag_field="kind", tag="trace", forbid_unknown_fields=True):
    """A recorded queue, starting at `from_seconds` of the recording. See read_trace for the format."""

    path: str
    from_seconds: NotNegative = 0.0
    until_seconds: float | None = None


Demand = Arrivals | Bursty | Trace


class BadTrace(ValueError):
    """The file does not exist or is not a trace."""


def arrivals(demand: Demand, rng: Random) -> Iterator[Arrival]:
    """Tasks of a source. The same seed gives the same tasks, so that a restart can skip those that have arrived."""
    match demand:
        case Arrivals():
            return iter(sorted(demand.arrivals))
        case Bursty():
            return _bursty(demand, rng)
        case Trace():
            return read_trace(demand)


def read_trace(trace: Trace) -> Iterator[Arrival]:
    """Records of 8 bytes: big-endian uint32 arrival offset in ms, uint32 task length in ms. Raises BadTrace."""
    try:
        content = Path(trace.path).read_bytes()
    except OSError as error:
        raise BadTrace(f"{trace.path}: {error.strerror}") from error
    if len(content) % RECORD.size:
        raise BadTrace(
            f"{trace.path}: {len(content)} bytes are not a multiple of the record size of {RECORD.size} bytes"
        )
    end = float("inf") if trace.until_seconds is None else trace.until_seconds
    tasks = ((offset / 1000.0, length / 1000.0) for offset, length in RECORD.iter_unpack(content))
    return iter(sorted((at - trace.from_seconds, length) for at, length in tasks if trace.from_seconds <= at < end))


RECORD = struct.Struct(">II")


def _bursty(demand: Bursty, rng: Random) -> Iterator[Arrival]:
    """Two independent Poisson streams, tasks and bursts, merged; burst sizes are geometric."""
    end = float("inf") if demand.until_seconds is None else demand.until_seconds
    for _ in range(demand.initial_burst):
        yield 0.0, _length(demand, rng)
    task_at = _later(0.0, demand.steady_per_second, rng)
    burst_at = _later(0.0, 1.0 / demand.burst_every_seconds if demand.burst_size else 0.0, rng)
    while (at := min(task_at, burst_at)) < end:
        if at == task_at:
            yield at, _length(demand, rng)
            task_at = _later(at, demand.steady_per_second, rng)
        else:
            for _ in range(_geometric(demand.burst_size, rng)):
                yield at, _length(demand, rng)
            burst_at = _later(at, 1.0 / demand.burst_every_seconds, rng)


def _later(at: float, per_second: float, rng: Random) -> float:
    return at + rng.expovariate(per_second) if per_second > 0 else float("inf")


def _length(demand: Bursty, rng: Random) -> float:
    return rng.lognormvariate(log(demand.task_seconds_median), demand.task_sigma)


def _geometric(mean: float, rng: Random) -> int:
    """0, 1, 2 … with the given mean."""
    more = mean / (1.0 + mean)
    return next(number for number in count() if rng.random() >= more)
