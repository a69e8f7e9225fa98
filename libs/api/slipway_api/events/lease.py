"""Events of leases: commands to a lease pool and the answers of the lease-broker. Values only.

A request id is new per attempt and stands for 1…n units. Each grant is a lease of its own with 1…n of the requested
units; the request waits for the rest. Releases may be partial.
"""

from typing import ClassVar

import msgspec

from slipway_api.limits import Name, Note
from slipway_api.time import Time


class LeaseGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of requests whose starts are spread over `spread_seconds`: no two within spread / size. `member` counts
    from 0; without it members are numbered in order of arrival."""

    name: Name
    size: int
    spread_seconds: float
    member: int | None = None


class ReplacedLease(msgspec.Struct, frozen=True, kw_only=True):
    """The lease of an earlier attempt. It ends when the new request arrives, which inherits its age."""

    lease_id: Name
    fencing_token: int


class LeaseRequested(msgspec.Struct, frozen=True, kw_only=True):
    """Request for `units`. Repeating a request id keeps the request from lapsing. The answer is each of its leases
    again, with its grant or its end, then LeaseQueued with the units that wait.

    `priority` is 0 to 9, 9 first. A `whole` request is never granted in part. `hold_seconds` may shorten the pool's
    hold.
    """

    type: ClassVar[str] = "io.slipway.lease.requested.v1"
    lease_pool_id: Name
    request_id: Name
    units: int
    tenant: Name
    operation: Name = "launch"
    priority: int = 0
    whole: bool = False
    hold_seconds: float | None = None
    group: LeaseGroup | None = None
    replaces: ReplacedLease | None = None


class LeaseConfirmRequested(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation that the holder uses the lease: the reserve deadline ends and its ttl begins."""

    type: ClassVar[str] = "io.slipway.lease.confirm_requested.v1"
    lease_pool_id: Name
    lease_id: Name
    fencing_token: int


class LeaseRenewRequested(msgspec.Struct, frozen=True, kw_only=True):
    """Renewal of a lease. `progress` is any text that changes while the work progresses; a pool may end leases whose
    progress does not change."""

    type: ClassVar[str] = "io.slipway.lease.renew_requested.v1"
    lease_pool_id: Name
    lease_id: Name
    fencing_token: int
    progress: Note | None = None


class LeaseCancelRequested(msgspec.Struct, frozen=True, kw_only=True):
    """Cancellation of waiting `units` of a request; granted units are released, not cancelled."""

    type: ClassVar[str] = "io.slipway.lease.cancel_requested.v1"
    lease_pool_id: Name
    request_id: Name
    units: int
    reason: Note


class LeaseReleaseRequested(msgspec.Struct, frozen=True, kw_only=True):
    """Release of `units` of a lease. `throttled`, `retry_after_seconds` and `quota_remaining` are throttle evidence."""

    type: ClassVar[str] = "io.slipway.lease.release_requested.v1"
    lease_pool_id: Name
    lease_id: Name
    fencing_token: int
    units: int
    result: Note
    throttled: bool = False
    retry_after_seconds: float | None = None
    quota_remaining: int | None = None


class LeaseUnleasedReported(msgspec.Struct, frozen=True, kw_only=True):
    """Report of `units` launched without a lease while the broker was unavailable. They count as a lease of this id,
    granted at `started_at`, until it is released or its hold ends; the answer is a confirm with its token. Repeating
    the id changes nothing."""

    type: ClassVar[str] = "io.slipway.lease.unleased_reported.v1"
    lease_pool_id: Name
    lease_id: Name
    request_id: Name
    units: int
    tenant: Name
    started_at: Time
    operation: Name = "launch"


class LeaseQueued(msgspec.Struct, frozen=True, kw_only=True):
    """Units of a request that wait because none is free. `position` is 1 for the head of the queue.

    In the answer to a repeated request `position` is 0; 0 `units` then mean that nothing of it waits.
    """

    type: ClassVar[str] = "io.slipway.lease.queued.v1"
    lease_pool_id: Name
    request_id: Name
    units: int
    position: int


class LeaseGranted(msgspec.Struct, frozen=True, kw_only=True):
    """A grant. `expires_at` is the reserve deadline until the confirm; `hold_until` ends the lease whatever its
    renewals.

    `mode` is the pool's: shadow, advisory or enforce. `advised_wait_seconds` is the wait under enforce, reported by
    advisory pools; `reason` is the reason of that wait, or names a grant over the limit. `owner` is the service that
    sent the request (the source of its events) or the name of the token; other consumers ignore the lease.
    """

    type: ClassVar[str] = "io.slipway.lease.granted.v1"
    lease_pool_id: Name
    lease_id: Name
    request_id: Name
    units: int
    fencing_token: int
    expires_at: Time
    hold_until: Time
    waited_seconds: float
    mode: Name = "enforce"
    advised_wait_seconds: float | None = None
    reason: Note = ""
    owner: Name = ""


class LeaseConfirmed(msgspec.Struct, frozen=True, kw_only=True):
    """A lease was confirmed or renewed and is alive until `expires_at` (database clock of the broker)."""

    type: ClassVar[str] = "io.slipway.lease.confirmed.v1"
    lease_pool_id: Name
    lease_id: Name
    fencing_token: int
    expires_at: Time


class LeaseReleased(msgspec.Struct, frozen=True, kw_only=True):
    """`units` were released and `remaining` are still held. `reason` is the holder's result, "hold" or "surplus"."""

    type: ClassVar[str] = "io.slipway.lease.released.v1"
    lease_pool_id: Name
    lease_id: Name
    request_id: Name
    units: int
    remaining: int
    reason: Note


class LeaseExpired(msgspec.Struct, frozen=True, kw_only=True):
    """A lease was not confirmed before its reserve deadline; its units are free again."""

    type: ClassVar[str] = "io.slipway.lease.expired.v1"
    lease_pool_id: Name
    lease_id: Name
    request_id: Name
    units: int


class LeaseLost(msgspec.Struct, frozen=True, kw_only=True):
    """A confirmed lease was not renewed in time. Its units stay counted until `counted_until`, since a call may be in
    flight."""

    type: ClassVar[str] = "io.slipway.lease.lost.v1"
    lease_pool_id: Name
    lease_id: Name
    request_id: Name
    units: int
    counted_until: Time


class LeaseLimitChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The limit of a lease pool changed."""

    type: ClassVar[str] = "io.slipway.lease.limit_changed.v1"
    lease_pool_id: Name
    limit: int
    previous_limit: int | None
    reason: Note
