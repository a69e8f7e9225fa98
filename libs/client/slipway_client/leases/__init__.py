"""Python API for leases: admission to an account for the length of a block. Shells use `slipway lease`."""

from typing import TYPE_CHECKING

from slipway_client.leases.errors import LeaseError, LeaseLost, NotAdmitted, Refused, Unreachable

if TYPE_CHECKING:
    from slipway_client.leases.context import Held, Leasing, lease

__all__ = ["Held", "LeaseError", "LeaseLost", "Leasing", "NotAdmitted", "Refused", "Unreachable", "lease"]


def __getattr__(name: str) -> object:
    """What only programs use, so that `slipway lease` does not import it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from slipway_client.leases import context

    return getattr(context, name)
