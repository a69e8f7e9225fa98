"""Admission to an account: what is asked of a lease pool, and what it answered. Values only.

A request id is new per attempt and stands for 1…n units. Each grant is a lease of its own with 1…n of the units
asked for; the request waits for the rest. Releases may be partial.
"""

from typing import ClassVar

import msgspec

from slipway_common.events import Time


class LeaseRequested(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for `units`. Repeating a request id changes nothing: it only says that the asker still waits."""

    type: ClassVar[str] = "io.slipway.lease.requested.v1"
    lease_pool_id: str
    request_id: str
    units: int
    tenant: str
    operation: str = "launch"


class LeaseConfirmRequested(msgspec.Struct, frozen=True, kw_only=True):
    """The holder committed to using the lease: the reserve deadline ends, its ttl begins."""

    type: ClassVar[str] = "io.slipway.lease.confirm_requested.v1"
    lease_pool_id: str
    lease_id: str
    fencing_token: int


class LeaseRenewRequested(msgspec.Struct, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.lease.renew_requested.v1"
    lease_pool_id: str
    lease_id: str
    fencing_token: int


class LeaseCancelRequested(msgspec.Struct, frozen=True, kw_only=True):
    """Gives up `units` of a request that still wait; units already granted are released, not cancelled."""

    type: ClassVar[str] = "io.slipway.lease.cancel_requested.v1"
    lease_pool_id: str
    request_id: str
    units: int
    reason: str


class LeaseReleaseRequested(msgspec.Struct, frozen=True, kw_only=True):
    """Gives `units` of a lease back. `throttled`, `retry_after_seconds` and `quota_remaining` are throttle evidence."""

    type: ClassVar[str] = "io.slipway.lease.release_requested.v1"
    lease_pool_id: str
    lease_id: str
    fencing_token: int
    units: int
    result: str
    throttled: bool = False
    retry_after_seconds: float | None = None
    quota_remaining: int | None = None


class LeaseQueued(msgspec.Struct, frozen=True, kw_only=True):
    """No unit is free: `position` is 1 for the head of the queue."""

    type: ClassVar[str] = "io.slipway.lease.queued.v1"
    lease_pool_id: str
    request_id: str
    units: int
    position: int


class LeaseGranted(msgspec.Struct, frozen=True, kw_only=True):
    """`expires_at` is the reserve deadline until the confirm; `hold_until` ends the lease whatever its renewals."""

    type: ClassVar[str] = "io.slipway.lease.granted.v1"
    lease_pool_id: str
    lease_id: str
    request_id: str
    units: int
    fencing_token: int
    expires_at: Time
    hold_until: Time
    waited_seconds: float


class LeaseConfirmed(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmed or renewed: alive until `expires_at` (database clock of the broker)."""

    type: ClassVar[str] = "io.slipway.lease.confirmed.v1"
    lease_pool_id: str
    lease_id: str
    fencing_token: int
    expires_at: Time


class LeaseReleased(msgspec.Struct, frozen=True, kw_only=True):
    """`units` came back; `remaining` are still held. `reason` is the holder's result, "hold" or "surplus"."""

    type: ClassVar[str] = "io.slipway.lease.released.v1"
    lease_pool_id: str
    lease_id: str
    request_id: str
    units: int
    remaining: int
    reason: str


class LeaseExpired(msgspec.Struct, frozen=True, kw_only=True):
    """Never confirmed before its reserve deadline: its units are free again."""

    type: ClassVar[str] = "io.slipway.lease.expired.v1"
    lease_pool_id: str
    lease_id: str
    request_id: str
    units: int


class LeaseLost(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmed but not renewed in time. Its units stay counted until `counted_until`: a call may be in flight."""

    type: ClassVar[str] = "io.slipway.lease.lost.v1"
    lease_pool_id: str
    lease_id: str
    request_id: str
    units: int
    counted_until: Time


class LeaseLimitChanged(msgspec.Struct, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.lease.limit_changed.v1"
    lease_pool_id: str
    limit: int
    previous_limit: int | None
    reason: str
