"""The SEED argument of the lease benchmarks."""

from collections.abc import Mapping


class BadSeed(Exception):
    """An invalid SEED; the message names the allowed values."""


def seeds(environment: Mapping[str, str], number: int) -> list[int]:
    """The seed given as SEED, else 1 to `number`."""
    text = environment.get("SEED", "")
    if not text:
        return list(range(1, number + 1))
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise BadSeed(f"SEED={text}: must be a number from 1 to 1000000")
    return [int(text)]
