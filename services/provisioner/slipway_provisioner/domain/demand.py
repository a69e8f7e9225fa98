"""Reports of the sources of demand, and their ends. Pure."""

from datetime import MINYEAR, datetime, timedelta
from typing import Final

import msgspec

from slipway_api.events.pool import DemandReported
from slipway_api.limits import NAME
from slipway_api.percent import decoded
from slipway_common.base.errors import BadEvent

FUTURE: Final = timedelta(seconds=60)
TASKS_MAX: Final = 10_000_000


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A report of one source, or its end, which is a report of no tasks with an `end_reason`. Of each source the newest
    `observed_at` counts, of the latest `epoch` if both reports have one, until it is stale, and at equal times an end.
    Without `claimed` its claims that were open then count, and the rest of a `total` is pending, beside which `pending`
    is 0."""

    pool_id: str
    source: str
    pending: int
    claimed: int | None
    total: int | None = None
    observed_at: datetime
    valid_for_seconds: float
    epoch: int | None = None
    reported_by: str
    traceparent: str = ""
    end_reason: str = ""


def problem(report: DemandReported, now: datetime) -> str:
    """Problem with a report; empty if it is valid. A report from the future would shadow all later ones."""
    if report.observed_at.tzinfo is None:
        return "observed_at has no time zone"
    if report.observed_at > now + FUTURE:
        return f"observed_at {report.observed_at.isoformat()} is more than 60 s in the future"
    if report.observed_at.year == MINYEAR:
        return f"observed_at {report.observed_at.isoformat()} is in year 1: a client has left it at zero"
    if report.total is not None and (report.pending, report.claimed) != (0, None):
        return "total has all tasks: beside it pending is 0 and claimed is null"
    if not all(0 <= (tasks or 0) <= TASKS_MAX for tasks in (report.pending, report.claimed, report.total)):
        return f"pending, claimed and total must be 0 to {TASKS_MAX}"
    if not 0 < report.valid_for_seconds <= 86_400:
        return "valid_for_seconds must be above 0 and at most 86400"
    if not report.source:
        return "source is empty"
    return ""


def reported(event: DemandReported, *, by: str, traceparent: str) -> Report:
    """The report of an event."""
    return Report(**msgspec.structs.asdict(event), reported_by=by, traceparent=traceparent)


def ended(pool_id: str, source: str, at: datetime, *, by: str, reason: str) -> Report:
    """The end of a source: its reports up to `at` do not count, later ones do."""
    return Report(
        pool_id=pool_id,
        source=source,
        pending=0,
        claimed=0,
        observed_at=at,
        valid_for_seconds=0,
        reported_by=by,
        end_reason=reason,
    )


def ended_by_tombstone(key: str, at: datetime, now: datetime, *, by: str) -> Report:
    """The end of the source in the key of a tombstone. One from the future would shadow all later reports, so it counts
    up to the time that reports may be ahead. Raises BadEvent."""
    parts = decoded(key)
    if len(parts) != 2 or not all(parts):
        raise BadEvent(f"the key {key!r} of a tombstone is not POOL/SOURCE, each part percent-encoded")
    if wrong := NAME.problem(parts[1]):
        raise BadEvent(f"the source in the key of a tombstone {wrong}")
    return ended(*parts, min(at, now + FUTURE), by=by, reason="ended by a tombstone on its topic")
