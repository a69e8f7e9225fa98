"""Metrics of the provisioner; labels are pools and accounts, never workers."""

from typing import Final

from prometheus_client import Counter, Histogram

DECISIONS: Final = Counter("slipway_decisions_total", "Decisions taken", ["pool"])
CALLS: Final = Counter("slipway_provider_calls_total", "Create calls by what became of them", ["account", "result"])
CALL_SECONDS: Final = Histogram("slipway_provider_call_seconds", "Duration of create calls", ["account"])
LOOKED_UP: Final = Counter("slipway_looked_up_total", "Calls of unknown outcome resolved by their tag", ["account"])
REAPED: Final = Counter("slipway_reaped_total", "What the reaper ended or found missing", ["account", "kind"])
CLAMPED: Final = Counter("slipway_times_clamped_total", "Reported times too far from receipt")
