"""States of leases and of launch batches, as the provisioner stores them."""

from enum import StrEnum


class LeaseState(StrEnum):
    """State of a lease. The lease-broker confirms and ends leases, also those of unleased launches."""

    RESERVED = "reserved"  # granted; confirmed once its call is committed
    CONFIRMED = "confirmed"  # renewed until it ends
    UNLEASED = "unleased"  # an unleased launch that the lease-broker has not charged yet
    ENDED = "ended"  # nothing is left to release


class BatchState(StrEnum):
    """State of a launch batch: its call may be in flight, or its outcome is recorded."""

    CALLING = "calling"
    KNOWN = "known"
