"""Surplus workers: registered ones beyond those wanted, and since when every plan of their pool has seen them. Pure.

A demand that falls for a moment makes no surplus that lasts, and one that alternates between two values only as much as
at the higher one.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Final

import msgspec

STEPS: Final = 16
"""Parts of the idle timeout by which times are rounded up, so that a pool of thousands stores a few spans."""


class Span(msgspec.Struct, frozen=True):
    """Number of surplus workers that every plan has seen since a time."""

    since: datetime
    workers: int


class Surplus(msgspec.Struct, frozen=True):
    """Surplus workers of a pool by since when they have been seen, longest first, and its `registered` workers at the
    last plan; 0 without surplus."""

    registered: int = 0
    spans: Sequence[Span] = ()

    @property
    def workers(self) -> int:
        return sum(span.workers for span in self.spans)


def seen(before: Surplus, *, registered: int, workers: int, idle_timeout_seconds: float, now: datetime) -> Surplus:
    """The surplus after a plan that sees `workers` of the `registered` ones as surplus.

    Workers that have left since the last plan are those seen longest: what was surplus beside them is no older than it
    was. A demand that rises ends the surplus seen last.
    """
    if not workers:
        return Surplus()
    spans = _first(before.spans, workers, skipped=max(0, before.registered - registered))
    more = workers - sum(span.workers for span in spans)
    if more:
        step = idle_timeout_seconds / STEPS
        since = datetime.fromtimestamp(ceil(now.timestamp() / step) * step, UTC) if step else now
        if spans and spans[-1].since >= since:
            more += spans[-1].workers
            spans = spans[:-1]
        spans = [*spans, Span(since, more)]
    return Surplus(registered, spans)


def lasting(surplus: Surplus, *, idle_timeout_seconds: float, now: datetime) -> int:
    """Surplus workers that every plan has seen for the idle timeout."""
    latest = now - timedelta(seconds=idle_timeout_seconds)
    return sum(span.workers for span in surplus.spans if span.since <= latest)


def lasts_in_seconds(surplus: Surplus, *, idle_timeout_seconds: float, now: datetime) -> list[float]:
    """Times until further workers have been surplus for the idle timeout."""
    ages = [(now - span.since).total_seconds() for span in surplus.spans]
    return [idle_timeout_seconds - age for age in ages if age < idle_timeout_seconds]


def _first(spans: Sequence[Span], workers: int, *, skipped: int) -> list[Span]:
    """The next `workers` of the spans after the `skipped` ones."""
    kept = []
    for span in spans:
        left = max(0, span.workers - skipped)
        skipped -= span.workers - left
        if taken := min(left, workers):
            kept.append(Span(span.since, taken))
            workers -= taken
    return kept
