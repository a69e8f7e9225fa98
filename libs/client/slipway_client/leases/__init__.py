"""Leases from Python: admission to an account for the length of a block. `slipway lease` is the same for shells."""

from slipway_client.leases.context import Held, Leasing, lease
from slipway_client.leases.errors import LeaseError, LeaseLost, NotAdmitted, Refused, Unreachable

__all__ = ["Held", "LeaseError", "LeaseLost", "Leasing", "NotAdmitted", "Refused", "Unreachable", "lease"]
