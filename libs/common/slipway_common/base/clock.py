"""Clocks of this host, read nowhere else. SQL deadlines use the database's slipway_clock(); domain code takes `now`."""

import time
from datetime import UTC, datetime


def utc_now() -> datetime:
    """Wall clock of this host, for the time of events that happened here. Never for lease deadlines."""
    return datetime.now(UTC)


def monotonic_seconds() -> float:
    """Monotonic clock in seconds, for durations inside this process only."""
    return time.monotonic()
