"""Bodies of the API of Boskos and of the ci-tools lease proxy, with the names that their clients know."""

import msgspec

from slipway_api.limits import Name
from slipway_api.time import Time


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A slot."""

    type: str
    """Id of its lease pool."""
    name: str
    state: str
    owner: str
    """Empty for a slot that is available in its state."""
    lastupdate: Time
    userdata: dict[str, str]


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of slots of a type."""

    type: str
    """Id of the lease pool."""
    current: dict[str, int]
    """By state."""
    owner: dict[str, int]
    """By owner; the empty one has those that are available."""


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """Slots that the lease proxy has acquired, or that it releases."""

    names: list[Name]
