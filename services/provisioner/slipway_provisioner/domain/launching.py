"""States of leases and of launch batches, as the provisioner stores them, and the body of a launch call."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


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


def call_body(revision: Mapping[str, Any]) -> dict[str, Any]:
    """Body of a launch call: a revision of a launch config, and the incarnation of the database that commits it.

    It is committed, so that a repeat is the same call."""
    return {
        "id": revision["id"],
        "zone": revision["zone"],
        "instance_type": revision["instance_type"],
        "image": revision["image_revision"],
        "settings": revision["settings"],
        "incarnation": revision["incarnation"],
    }
