"""Demand of worker pools: reports over HTTP, and their sources."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from slipway_api.limits import RequiredName
from slipway_api.time import Time

TASKS_MAX: Final = 10_000_000
"""Tasks that one source may report."""
VALID_SECONDS_MAX: Final = 86_400
Tasks = Annotated[int, Meta(ge=0, le=TASKS_MAX)]


class DemandReport(msgspec.Struct, frozen=True, kw_only=True):
    """Demand report of one source: `pending`, the tasks that wait, or `total`, those that wait or run.

    `claimed` counts tasks on this pool's own workers only; null, as always beside `total`: the source does not know
    them, and those count that workers had claimed from it by then. The report is stale `valid_for_seconds` after
    `observed_at`.
    """

    pending: Tasks | msgspec.UnsetType = msgspec.UNSET
    claimed: Tasks | None = None
    total: Tasks | None = None
    observed_at: Time
    valid_for_seconds: Annotated[float, Meta(gt=0, le=VALID_SECONDS_MAX)] = 300.0
    source: RequiredName

    def __post_init__(self) -> None:
        """Refuse a report without counts, which are not zero."""
        if self.pending is msgspec.UNSET and self.total is None:
            raise ValueError("give pending or total")


class DemandReportResult(msgspec.Struct, frozen=True, kw_only=True):
    """`stored` is false for a report that is older than the stored one, which has no effect."""

    stored: bool


class DemandSource(msgspec.Struct, frozen=True, kw_only=True):
    """A source of demand with the tasks of its last report, and the name of the token that reported it, empty for
    reports by Kafka. `state` is fresh until `valid_until`, then stale: it launches nothing, protects workers until
    `protected_until`, and is dropped then unless it reports again."""

    pool_id: str
    source: str
    observed_at: Time
    received_at: Time
    reported_by: str
    pending: int
    claimed: int
    valid_until: Time
    protected_until: Time
    state: str


class RemovedSource(msgspec.Struct, frozen=True, kw_only=True):
    """A source that was removed, with the tasks of its last report. `was_fresh`: its monitor probably goes on."""

    pool_id: str
    source: str
    pending: int
    claimed: int
    was_fresh: bool
