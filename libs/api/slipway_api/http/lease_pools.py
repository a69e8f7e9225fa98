"""Bodies of the lease-broker about lease pools: terms, use, changes, reports, slots."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from slipway_api.http.declaration import Change, OwnedSpec
from slipway_api.http.lease_broker import Seconds, Units, UnitsOrNone
from slipway_api.limits import Id, Name, RequiredName, RequiredReason
from slipway_api.time import Time

SlotName = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$(?!\n)")]


class LeasePace(msgspec.Struct, frozen=True, kw_only=True):
    """At most one unit of an operation starts per interval, after a burst."""

    interval_seconds: float
    burst: int = 1


class LeaseOperationTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Terms of an operation."""

    weight: int
    """Cost of one unit against the limit; 0 is granted at once."""
    reserved_units: int
    """Units that other operations do not get."""
    max_wait_seconds: float | None
    """Seconds after which it proceeds over the limit."""
    pacing: LeasePace | str | None
    """off: all at once; null: that of the pool."""


class LeaseBackoffTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Wait of a tenant after a failed lease, doubled by each failure in a row up to the maximum."""

    seconds: float
    max_seconds: float


class LeaseBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds between which the limit follows throttling."""

    floor: int
    ceiling: int


class LeaseDerivation(msgspec.Struct, frozen=True, kw_only=True):
    """Rule by which the limit follows reported units."""

    per_unit: float


class LeasePoolTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Terms of a lease pool, with the names of slipway.yaml."""

    id: str
    limit: int
    """Maximum units held at once, as declared."""
    mode: str
    """shadow, advisory or enforce."""
    lock_delay_seconds: float | None
    """Seconds for which a lost lease stays counted; null: as the lease-broker is set."""
    pacing: LeasePace | str | None
    """off: all at once; null: by the hold and the limit."""
    max_interval_seconds: float
    operations: dict[str, LeaseOperationTerms]
    tenants: dict[str, float]
    """Fair-share weight of each tenant."""
    ageing_seconds: float
    """Seconds of waiting that equal one step of priority."""
    backoff: LeaseBackoffTerms | None
    no_progress_seconds: float | None
    retry_after_max_seconds: float
    adaptive: LeaseBounds | None
    derived: LeaseDerivation | None
    hold_seconds: float
    """Maximum lifetime of a lease after its grant, regardless of renewals, in seconds."""
    ttl_seconds: float
    """Lifetime of a confirmed lease without renewal, in seconds."""
    reserve_seconds: float
    """Seconds to confirm a grant before it expires."""
    owner: str
    """Owner of the declaration; empty for one that nobody declares."""
    revision: int
    """Grows with each change."""
    archived: bool
    """No longer declared: it is listed until its leases and requests have ended."""


class LeasePacesInForce(msgspec.Struct, frozen=True, kw_only=True):
    """Pacing in force: of each declared operation, and of all others; null: not paced."""

    default: LeasePace | None
    operations: dict[str, LeasePace | None]


class LeasePool(LeasePoolTerms, frozen=True, kw_only=True):
    """A lease pool with its terms and its present use."""

    reason: str
    """Reasons of the last decision."""
    limit_in_force: int | None
    """Limit of the last decision; null before the first."""
    limit_reason: str
    pinned_reason: str | None
    """Reason why only operators change the limit; null if others may."""
    drained_reason: str | None
    """Reason why it grants nothing; null unless it is drained."""
    derived_units: int | None
    """Units that were reported last."""
    derived_until: Time | None
    """Time until which they hold."""
    blocked_until: Time | None
    """End of a pause after throttling."""
    held: int
    """Units held."""
    waiting: int
    """Units that wait."""
    requests: int
    """Requests that wait."""
    oldest_wait_seconds: float | None
    """Longest wait, in seconds; null while none waits."""
    granted_per_minute: int
    """Units granted in the last minute."""
    eta_seconds: float | None
    """Expected wait of one unit requested now, in seconds; null: forever."""
    pacing_in_force: LeasePacesInForce


class LeasePacingTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pacing to declare."""

    interval_seconds: Seconds
    burst: Units = 1


class ChangeLeasePool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Changes to the terms of a lease pool; omitted terms stay."""

    reason: RequiredReason
    revision: Annotated[int, Meta(ge=1)] | None = None
    """Refuse the change unless the pool has this revision."""
    limit: UnitsOrNone | None = None
    hold_seconds: Seconds | None = None
    ttl_seconds: Seconds | None = None
    pacing: LeasePacingTerms | Literal["off"] | UnsetType | None = UNSET
    """null: default pacing."""
    operation: RequiredName | None = None
    """Operation whose pacing changes [default: that of the pool]."""
    mode: Literal["shadow", "advisory", "enforce"] | None = None
    pinned: bool | None = None
    """Pin the limit: only operators change it."""
    confirm: Name = ""
    """Digest of a dangerous change."""

    def __post_init__(self) -> None:
        if self.operation is not None and self.pacing is UNSET:
            raise ValueError("operation names what pacing changes: give both")


class ChangedLeasePool(LeasePoolTerms, frozen=True, kw_only=True):
    """A lease pool after a change of its terms."""

    pinned: bool
    result: str
    """updated or unchanged."""


class LeasePoolReason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reason to drain a lease pool, or to end its drain."""

    reason: RequiredReason


class DrainedLeasePool(msgspec.Struct, frozen=True, kw_only=True):
    """A lease pool whose drain began or ended."""

    id: str
    drained: bool
    held: int
    """Units held."""


class ReportUnits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Units that a derived limit follows for `ttl_seconds`."""

    units: UnitsOrNone
    ttl_seconds: Seconds


class ReportedUnits(msgspec.Struct, frozen=True, kw_only=True):
    """Units that a derived limit follows."""

    id: str
    """Id of the lease pool."""
    units: int
    valid_until: Time


class LeasePoolChange(Change, frozen=True, kw_only=True):
    """A change of a lease pool by a declaration."""

    fields: dict[str, tuple[Any, Any]]
    """Value before and after of each field that changes."""


class ExportedLeasePools(msgspec.Struct, frozen=True, kw_only=True):
    """Declared objects by section, and nothing else."""

    lease_pools: list[OwnedSpec]


class DeclaredLeasePools(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a declaration of lease pools."""

    items: list[LeasePoolChange]
    more: int
    """Number of changes that are not listed."""
    unchanged: int
    """Number of lease pools that do not change."""
    digest: str
    """Digest of the changes, by which dangerous ones are confirmed."""
    dangers: list[str]
    """Effects that need the confirmation."""
    applied: bool
    """False after a dry run."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of seconds or units; 0 without values."""

    of: str
    count: int
    p50: float
    p95: float
    most: float


class ThrottledBand(msgspec.Struct, frozen=True, kw_only=True):
    """Starts at a concurrency of `least` to `most` units, including the starting ones."""

    least: int
    most: int
    starts: int
    throttled: int


class OtherTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The same requests under a limit, a hold and a pacing, first come first served."""

    limit_units: int
    hold_seconds: float
    interval_seconds: float | None
    """Seconds between starts of one operation; null: none is paced."""
    waited: int
    """Requests that would have waited."""
    never: int
    """Requests for more than the limit, or that would not have started for a hundred years."""
    concurrency_most: int
    starts_per_minute_most: int
    cut_short: int
    """Leases that the hold would have ended."""
    wait_seconds_p50: float
    wait_seconds_p95: float
    wait_seconds_most: float


class LeasePoolReport(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a lease pool's past."""

    id: str
    mode: str
    limit: int
    since: Time
    until: Time
    requests: int
    starts_per_minute_most: int
    throttled: int
    bands: list[ThrottledBand]
    quiet_units: int | None
    """Concurrency up to which at most one start in twenty was throttled; null without any throttling."""
    spreads: list[Spread]
    what_if: list[OtherTerms]


class NamedSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A named slot of a lease pool. Without an owner it is available in its state."""

    name: str
    lease_pool_id: str
    state: str
    owner: str
    updated_at: Time
    userdata: dict[str, str]
    request_id: str | None
    """Request that its owner acquired it with."""
    acquired_by: str
    """Token that its owner acquired it with."""
    lease_id: str | None
    """Lease that it is held under."""
    fencing_token: int | None
    """Token of the last lease."""
    removed_at: Time | None
    """Time at which it left the declared list while it was owned: it goes with its owner."""


class SlotsOfPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The slots of one lease pool."""

    lease_pool: Id
    state: RequiredName = "free"
    """Initial state of new slots."""
    names: Annotated[list[SlotName], Meta(max_length=10_000)]


class DeclareSlots(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Slots by lease pool. Missing lease pools are declared with these terms, without pacing."""

    slots: Annotated[list[SlotsOfPool], Meta(max_length=1_000)]
    hold_seconds: Seconds = 86_400.0
    ttl_seconds: Seconds = 1_800.0


class SlotsChange(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of the slots of a lease pool."""

    id: str
    """Id of the lease pool."""
    result: str
    """Change of its terms: created, updated, reactivated or unchanged."""
    limit: int | None
    """New limit; null if it stays."""
    added: list[str]
    removed: list[str]
    kept: list[str]
    """No longer listed, and removed once they have no owner."""
    restored: list[str]
    """Listed again before that."""


class DeclaredSlots(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a list of slots."""

    dry_run: bool
    items: list[SlotsChange]
