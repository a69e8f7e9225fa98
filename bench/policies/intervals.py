"""Means with 95 % confidence intervals by Student's t."""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Final

import msgspec

# Student's t at 97.5 % for 1 … 30 degrees of freedom (any table of it); beyond that the normal value is near enough.
T_975: Final = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
    2.080,
    2.074,
    2.069,
    2.064,
    2.060,
    2.056,
    2.052,
    2.048,
    2.045,
    2.042,
)
NORMAL_975: Final = 1.960


class Interval(msgspec.Struct, frozen=True):
    """A mean of `count` values with its 95 % confidence interval; of one value the interval is that value."""

    mean: float
    half: float
    count: int

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half


def as_of(mean: float, count: int, like: Interval | None) -> Interval:
    """A mean of `count` runs of unknown spread, given the spread of `like`."""
    if like is None or like.count < 2:
        return Interval(mean, 0.0, count)
    deviation = like.half * sqrt(like.count) / _t(like.count - 1)
    return Interval(mean, _t(count - 1) * deviation / sqrt(count), count)


def interval(values: Sequence[float | None]) -> Interval | None:
    """Interval of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    degrees = len(known) - 1
    if degrees == 0:
        return Interval(known[0], 0.0, 1)
    return Interval(fmean(known), _t(degrees) * stdev(known) / sqrt(len(known)), len(known))


def _t(degrees: int) -> float:
    return T_975[degrees - 1] if degrees <= len(T_975) else NORMAL_975
