"""Text for people, made of names and durations; the limits of text from outside are in slipway_api."""

from collections.abc import Sequence
from typing import Final

LISTED_MAX: Final = 5


def listed(names: Sequence[str], most: int = LISTED_MAX, between: str = ", ") -> str:
    """Names for a sentence; of many, the first ones and the number of the others."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def duration_text(seconds: float) -> str:
    """A duration in the largest unit of which there are at least two, otherwise in seconds: 90 s, 2 min, 36 h."""
    units = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))
    return next((f"{seconds / long:.0f} {unit}" for unit, long in units if seconds >= 2 * long), f"{seconds:.0f} s")
