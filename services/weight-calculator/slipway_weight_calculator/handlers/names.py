"""Validation of names that become keys of rows, so that they fit into an index."""

from typing import Final

from slipway_common.base.errors import BadEvent

CHARACTERS_MAX: Final = 600  # of all names together; at four bytes each they fit into an index row of PostgreSQL


def check(*texts: str) -> None:
    """Raise BadEvent for a NUL character, which PostgreSQL cannot store, or too many characters."""
    joined = "".join(texts)
    if "\0" in joined or len(joined) > CHARACTERS_MAX:
        raise BadEvent(f"names contain a NUL character or have more than {CHARACTERS_MAX} characters together")
