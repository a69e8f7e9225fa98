"""Reports of throttling: when one moves its lease pool, and when only its reporter waits. Pure.

A report is evidence, not a command: one holder could otherwise stop all others, or lower their limit. It moves the pool
on the word of the provider's adapter, of a reporter that holds at least half of the held units, or of two reporters
within one hold.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

# Longer values are cut: otherwise one mistaken answer of a provider could block a pool for days.
RETRY_AFTER_SECONDS_MAX: Final = 3_600.0
REPORTERS_MAX: Final = 2  # remembered: a report needs one other
HALF: Final = 0.5


class ThrottleReport(msgspec.Struct, frozen=True):
    """The last report of one reporter. `until` is the end of the pause that it asks for; None: it asks for none."""

    reporter: str
    at: datetime
    until: datetime | None = None


class Judgement(msgspec.Struct, frozen=True):
    """`moves_pool` unless only the reporter waits; `until` is the end of the pause of either. `reports` are those to
    remember."""

    moves_pool: bool
    until: datetime | None
    reports: tuple[ThrottleReport, ...]


def pause_until(retry_after_seconds: float | None, now: datetime, max_seconds: float) -> datetime | None:
    """End of the pause that a Retry-After asks for, at most `max_seconds`; None for none."""
    if not retry_after_seconds or retry_after_seconds < 0:
        return None
    return now + timedelta(seconds=min(retry_after_seconds, max_seconds, RETRY_AFTER_SECONDS_MAX))


def is_major(reporter: str, held: Mapping[str, int]) -> bool:
    """True if a reporter holds at least half of the held units, by holder."""
    return held.get(reporter, 0) >= HALF * sum(held.values()) > 0


def judge(
    report: ThrottleReport,
    before: Sequence[ThrottleReport],
    *,
    is_adapter: bool,
    held: Mapping[str, int],
    hold_seconds: float,
) -> Judgement:
    """Judge a report by those before it and by the units that each reporter holds."""
    since = report.at - timedelta(seconds=hold_seconds)
    others = [one for one in before if one.reporter != report.reporter and one.at >= since]
    kept = (*others, report)[-REPORTERS_MAX:]
    if not (is_adapter or is_major(report.reporter, held) or others):
        return Judgement(False, report.until, kept)
    pauses = [one.until for one in kept if one.until is not None]
    return Judgement(True, max(pauses, default=None), kept)
