"""Bodies of the lease-broker about leases, and requests that wait for one."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from slipway_api.limits import RequiredName, RequiredReason
from slipway_api.time import Time

UNITS_MAX: Final = 1_000_000
WAIT_SECONDS_MAX: Final = 60.0
SPREAD_SECONDS_MAX: Final = 86_400
SECONDS_MAX: Final = 31_536_000

Units = Annotated[int, Meta(ge=1, le=UNITS_MAX)]
UnitsOrNone = Annotated[int, Meta(ge=0, le=UNITS_MAX)]
FencingToken = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Seconds = Annotated[float, Meta(gt=0, le=SECONDS_MAX)]
WaitSeconds = Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)]
Place = Annotated[int, Meta(ge=0, le=100_000)]


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease. Once it has ended, no time of it is left."""

    id: str
    """The same as `lease_id`."""
    lease_id: str
    lease_pool_id: str
    request_id: str
    tenant: str
    operation: str
    owner: str
    """Name of the token or the service that requested it."""
    holder: str
    """Name that its holder gave itself, the last one of several; empty if it gave none."""
    units: int
    """Units that are not released yet."""
    fencing_token: int
    """Number that grows with each lease of the pool. Whatever the lease protects refuses a lower one."""
    state: str
    """granted, confirmed, released, expired or lost."""
    granted_at: Time
    expires_at: Time
    """End of the lease unless it is confirmed or renewed before."""
    hold_until: Time
    """End of the lease whatever its renewals."""
    ended_at: Time | None
    ttl_seconds: float
    """Full TTL of the pool, by which holders time their renewals: near the end of the hold less than that is left."""
    ttl_seconds_left: float
    """Seconds until `expires_at`, by the clock of the lease-broker."""
    hold_seconds_left: float
    """Seconds until `hold_until`, by the clock of the lease-broker."""
    waited_seconds: float
    """Seconds from the request to the grant."""
    mode: str
    """Mode of the pool at the grant: shadow, advisory or enforce."""
    advised_wait_seconds: float | None
    """Seconds that the request would have waited if the pool enforced; null unless it is advisory."""
    reason: str
    """Reason of the grant, then that of the end."""
    unleased_by: str | None
    """Cause of a start without a lease: unavailable, max_wait or lost; null for one that was granted."""


class QueuedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waits in its queue. Repeat it with the same id to go on waiting."""

    request_id: str
    state: str = "waiting"
    position: int
    """Place in the queue, from 1."""
    eta_seconds: float | None
    """Expected wait in seconds; null while no passage of time will let it start."""
    retry_after_seconds: float
    """Seconds after which a repeated request may have another answer."""
    reason: str
    """Reason of the wait, for people."""
    cause: str
    """Code of the reason."""
    held_until: Time | None
    """Time at which enough held leases have ended; null if it waits for none, or for unknown ones."""


class AcquireReplaces(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lease of an earlier attempt. It ends when the new request arrives, which inherits its age."""

    lease_id: RequiredName
    fencing_token: FencingToken


class AcquireGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A group of requests with spread starts: no two start within spread_seconds / size."""

    name: RequiredName
    size: Annotated[int, Meta(ge=1, le=100_000)]
    spread_seconds: Annotated[float, Meta(gt=0, le=SPREAD_SECONDS_MAX)]
    member: Place | None = None
    """Number of this member, from 0 [default: in order of arrival]."""

    def __post_init__(self) -> None:
        if self.member is not None and self.member >= self.size:
            raise ValueError(f"member {self.member} of {self.size}: members count from 0")


class AcquireLease(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request for a lease."""

    request_id: RequiredName
    """Idempotency key: the same id is the same request."""
    units: Units = 1
    operation: RequiredName = "install"
    tenant: RequiredName | None = None
    """Fair-share tenant [default: token name]."""
    priority: Annotated[int, Meta(ge=0, le=9)] = 0
    """0 to 9, 9 first."""
    wait_seconds: WaitSeconds = 0.0
    """Answer 202 after this time, in seconds."""
    hold_seconds: Seconds | None = None
    """Shortens the hold of the pool, in seconds."""
    confirm: bool = True
    """Confirm the grant on receipt."""
    holder: RequiredName | None = None
    """Name of this process, shown to people: host:pid:random."""
    join: bool = False
    """Hold the lease together with its present holders."""
    replaces: AcquireReplaces | None = None
    group: AcquireGroup | None = None

    def __post_init__(self) -> None:
        if self.join and self.holder is None:
            raise ValueError("join needs the name of the holder that joins")


class ConfirmLease(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation that the holder uses the lease."""

    fencing_token: FencingToken


class RenewLease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Report that the holder still needs the lease."""

    fencing_token: FencingToken
    progress: RequiredReason | None = None
    """Any text that changes while the work progresses."""


class ReleaseLease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Report that the holder no longer needs the lease, or some of its units, with what became of the work."""

    fencing_token: FencingToken
    holder: RequiredName | None = None
    """As in the request for the lease."""
    units: Units | None = None
    """Units to release [default: all]. A repeated call releases as many again."""
    remaining: UnitsOrNone | None = None
    """Units to keep, instead of `units`. A repeated call changes nothing."""
    result: RequiredReason = "done"
    throttled: bool = False
    """The provider throttled the operation."""
    retry_after_seconds: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    """Seconds for which the provider asked to wait."""
    quota_remaining: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """Units that the provider said are left of its quota."""

    def __post_init__(self) -> None:
        if self.units is not None and self.remaining is not None:
            raise ValueError("units and remaining exclude each other")


class ReleasedLease(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a release."""

    lease_id: str
    released_units: int
    """Units that this call released."""
    remaining: int
    """Units that are still held."""


class BindLease(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request for a token that is bound to the lease."""

    fencing_token: FencingToken
    holder: RequiredName | None = None
    """Holder that the token is for; needed if the lease has several."""


class BoundToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token that is bound to a lease. It is shown only here."""

    token: str


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a lease."""

    request_id: str
    lease_pool_id: str
    state: str
    """waiting, lapsed (it waits and was not repeated in time), granted or cancelled."""
    tenant: str
    operation: str
    owner: str
    """Name of the token or the service that sent it."""
    priority: int
    units: int
    """Units requested."""
    waiting_units: int
    requested_at: Time
    last_requested_at: Time
    """Time of the last repetition."""


class LeaseRequestStatus(LeaseRequest, frozen=True, kw_only=True):
    """A request for a lease, with its place while it waits, as in QueuedRequest, and its leases once granted."""

    leases: list[Lease]
    position: int | UnsetType = UNSET
    eta_seconds: float | UnsetType | None = UNSET
    retry_after_seconds: float | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    cause: str | UnsetType = UNSET
    held_until: Time | UnsetType | None = UNSET


class CancelledRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a cancellation."""

    request_id: str
    cancelled_units: int
    """Units that no longer wait."""
    released_units: int
    """Units that had been granted in the meantime."""


class GangMember(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One lease of a gang."""

    pool: RequiredName
    units: Units = 1
    hold_seconds: Seconds | None = None
    """Shortens the hold of the pool, in seconds."""


class AcquireGang(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request for leases of several pools, all or none."""

    request_id: RequiredName
    """Idempotency key: the same id is the same gang."""
    tenant: RequiredName | None = None
    """Fair-share tenant [default: token name]."""
    operation: RequiredName = "install"
    wait_seconds: WaitSeconds = 0.0
    """Answer 202 after this time, in seconds."""
    members: Annotated[list[GangMember], Meta(min_length=1, max_length=100)]


class GrantedGang(msgspec.Struct, frozen=True, kw_only=True):
    """The leases of a gang, in the order of its members."""

    request_id: str
    leases: list[Lease]


class LeaseDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A line of history: a decision and its reason."""

    at: Time
    lease_pool_id: str
    kind: str
    lease_id: str | None
    request_id: str | None
    units: int | None
    reason: str
    by: str
    """Caller or service; empty for changes by time or by the broker itself."""


class UnleasedStart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation that was started without a lease, or whose lease ended while it ran."""

    request_id: RequiredName
    operation: RequiredName = "install"
    units: Units = 1
    started_at: Time
    hold_seconds: Seconds | None = None
    """Shortens the hold of the pool, in seconds."""
    cause: Literal["unavailable", "max_wait", "lost"] = "unavailable"
    """unavailable: the lease-broker did not answer; max_wait: the request still waited; lost: the lease ended while the
    operation ran."""


class UnleasedStarts(msgspec.Struct, frozen=True, kw_only=True):
    """Report of starts without a lease."""

    starts: Annotated[list[UnleasedStart], Meta(min_length=1, max_length=1_000)]


class ChargedStarts(msgspec.Struct, frozen=True, kw_only=True):
    """The leases as which starts count, in their order."""

    charged: int
    """Number of those that did not count before."""
    items: list[Lease]
