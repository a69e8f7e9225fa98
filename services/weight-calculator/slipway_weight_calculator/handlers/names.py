"""What may become a key: rows are found by it, so it fits into an index, and says whose row it is."""

from typing import Final

from slipway_common.errors import BadEvent

CHARACTERS_MAX: Final = 600  # of several together; four bytes each fit into an index row of PostgreSQL


def check(*texts: str) -> None:
    """Raises BadEvent for a NUL character, which no column takes, or too many characters."""
    joined = "".join(texts)
    if "\0" in joined or len(joined) > CHARACTERS_MAX:
        raise BadEvent(f"a name has a NUL character, or they have more than {CHARACTERS_MAX} together")
