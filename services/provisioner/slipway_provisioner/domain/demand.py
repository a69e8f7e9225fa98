"""Validation of demand reports. Pure."""

from datetime import datetime, timedelta
from typing import Final

from slipway_common.events.pool import DemandReported

FUTURE: Final = timedelta(seconds=60)
TASKS_MAX: Final = 10_000_000


def problem(report: DemandReported, now: datetime) -> str:
    """Problem with a report; empty if it is valid. A report from the future would shadow all later ones."""
    if report.observed_at.tzinfo is None:
        return "observed_at has no time zone"
    if report.observed_at > now + FUTURE:
        return f"observed_at {report.observed_at.isoformat()} is more than 60 s in the future"
    if not (0 <= report.pending <= TASKS_MAX and 0 <= report.claimed <= TASKS_MAX):
        return f"pending and claimed must be 0 to {TASKS_MAX}"
    if not 0 < report.valid_for_seconds <= 86_400:
        return "valid_for_seconds must be above 0 and at most 86400"
    if not report.source:
        return "source is empty"
    return ""
