"""Seeds as people give them."""

from collections.abc import Mapping


class BadSeed(Exception):
    """The message says what may be written."""


def seeds(environment: Mapping[str, str], many: int) -> list[int]:
    """The one that SEED names, else 1 … `many`."""
    text = environment.get("SEED", "")
    if not text:
        return list(range(1, many + 1))
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise BadSeed(f"SEED={text}: write a number from 1 to 1000000")
    return [int(text)]
