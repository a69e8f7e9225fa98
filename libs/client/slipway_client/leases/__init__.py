"""Python API for leases: admission to an account for the length of a block. Shells use `slipway lease`."""

from slipway_client.leases.context import Held, Leasing, lease
from slipway_client.leases.errors import LeaseError, LeaseLost, NotAdmitted, Refused, Unreachable

__all__ = ["Held", "LeaseError", "LeaseLost", "Leasing", "NotAdmitted", "Refused", "Unreachable", "lease"]
