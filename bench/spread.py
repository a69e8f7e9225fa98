"""Minimum, median and maximum of repeated measurements, and percentiles, to four significant digits."""

from collections.abc import Sequence
from statistics import median

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """Minimum, median and maximum of one repeated measurement."""

    minimum: float
    median: float
    maximum: float

    def __str__(self) -> str:
        return f"{self.minimum:.4g} / {self.median:.4g} / {self.maximum:.4g}"


def spread(values: Sequence[float]) -> Spread:
    return Spread(*(float(f"{value:.4g}") for value in (min(values), median(values), max(values))))


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    place = min(len(ordered) - 1, int(len(ordered) * percent / 100))
    return float(f"{ordered[place]:.4g}")
