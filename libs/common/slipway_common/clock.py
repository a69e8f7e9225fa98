"""The one place that reads clocks. Deadlines in SQL use slipway_clock(), the database's; cores take `now`."""

import time
from datetime import UTC, datetime


def utc_now() -> datetime:
    """Wall clock of this host, for event times of facts that happened here. Never for lease deadlines."""
    return datetime.now(UTC)


def monotonic_seconds() -> float:
    """For durations inside this process only."""
    return time.monotonic()
