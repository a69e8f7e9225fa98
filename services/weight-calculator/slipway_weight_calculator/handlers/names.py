"""Validation of names that become keys of rows, so that they fit into an index."""

from typing import Final

from slipway_api.percent import encoded
from slipway_common.base.errors import BadEvent

CHARACTERS_MAX: Final = 2600  # of all names together, percent-encoded; with a code they fit into an index row


def check(*texts: str) -> None:
    """Raise BadEvent for names with too many characters together."""
    if len(encoded(*texts)) > CHARACTERS_MAX:
        raise BadEvent(f"names have more than {CHARACTERS_MAX} characters together, percent-encoded")
