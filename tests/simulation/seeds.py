"""Seeds of a run of histories, from its arguments."""

from collections.abc import Mapping
from typing import Final

FULL_SEEDS: Final = 1000


class InvalidArgument(ValueError):
    """An invalid argument of the command; the text names it and its valid values."""


def seeds_of(environment: Mapping[str, str], *, default: int) -> list[int]:
    """The seeds to play: SEED=n that one, SEEDS=N the first N from 1 or from SEED, FULL=1 the first 1,000, otherwise
    the first `default`. Raises InvalidArgument."""
    if (full := environment.get("FULL") or "0") not in ("0", "1"):
        raise InvalidArgument(f"FULL={full}: must be 1 or unset")
    first = _number(environment, "SEED", 1)
    count = FULL_SEEDS if full == "1" else 1 if environment.get("SEED") else default
    return [*range(first, first + _number(environment, "SEEDS", count))]


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and int(text)):
        raise InvalidArgument(f"{name}={text}: must be a positive integer")
    return int(text)
