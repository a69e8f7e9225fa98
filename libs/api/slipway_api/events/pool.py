"""Worker pool events: demand reported by queues, and the state of a pool. Values only."""

from typing import ClassVar

import msgspec

from slipway_api.limits import Name, Note
from slipway_api.time import Time


class DemandReported(msgspec.Struct, frozen=True, kw_only=True):
    """Demand of one queue. After `valid_for_seconds` without a new report it is stale, not zero: it launches nothing,
    but protects idle workers for an hour. A tombstone under its key ends it at once.

    `pending` counts the tasks that wait; 0 if there is a `total` of those that wait or run, of a queue that cannot tell
    the two apart. `claimed` counts tasks running on workers of this pool that Slipway launched; null, as always beside
    `total`: the source does not know them, and those count that workers had claimed from it at `observed_at`. `epoch`
    numbers the leaders among the replicas of a monitor: until a report of a later one is stale, those of an earlier one
    do not count, whatever their times are.
    """

    type: ClassVar[str] = "io.slipway.pool.demand_reported.v1"
    pool_id: Name
    source: Name
    pending: int
    claimed: int | None
    total: int | None = None
    observed_at: Time
    valid_for_seconds: float = 300.0
    epoch: int | None = None


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """Complete state of a worker pool (its topic is compacted)."""

    pool_id: Name
    min_capacity: int
    max_capacity: int
    scaling_ratio: Name
    mode: Name
    paused: bool
    frozen: bool
    revision: int


class PoolCreated(PoolState, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.pool.created.v1"


class PoolUpdated(PoolState, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.pool.updated.v1"


class PoolPaused(PoolState, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.pool.paused.v1"
    reason: Note
    by: Note
    until: Time | None = None


class PoolResumed(PoolState, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.pool.resumed.v1"
    reason: Note
    by: Note


class PoolFrozen(PoolState, frozen=True, kw_only=True):
    """Pool frozen. `by` is "provisioner" if a bad image caused it."""

    type: ClassVar[str] = "io.slipway.pool.frozen.v1"
    reason: Note
    by: Note = ""


class PoolUnfrozen(PoolState, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.pool.unfrozen.v1"
    reason: Note
    by: Note


class PoolRolledBack(PoolState, frozen=True, kw_only=True):
    """Pool whose launch configs were declared again as in entry `to_revision` of its history."""

    type: ClassVar[str] = "io.slipway.pool.rolled_back.v1"
    to_revision: int
    reason: Note
    by: Note


class PoolDeleted(PoolState, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.pool.deleted.v1"
