"""Numbers with their nouns and units, for reasons and messages. Pure."""

from datetime import timedelta


def quantity(number: int, noun: str) -> str:
    """`number` and `noun` in the singular or the plural: "1 unit", "2 units"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def brief_seconds(duration: timedelta) -> str:
    """A duration in seconds, to a tenth: "9.7 s", "30 s"."""
    return f"{round(duration.total_seconds(), 1):g} s"
