"""What the lease-broker tells Prometheus. Written by loops and handlers after the fact; nothing reads it here."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

LIMIT_UNITS: Final = Gauge("slipway_lease_limit_units", "Units that may be held at once", ["lease_pool"])
HELD_UNITS: Final = Gauge("slipway_lease_held_units", "Units counted against the limit", ["lease_pool"])
WAITING_UNITS: Final = Gauge("slipway_lease_waiting_units", "Units asked for and not granted yet", ["lease_pool"])
GRANTED_UNITS: Final = Counter("slipway_lease_granted_units_total", "Units granted", ["lease_pool"])
ENDED_LEASES: Final = Counter("slipway_lease_ended_by_time_total", "Leases that time ended", ["lease_pool", "state"])
REFUSED_FACTS: Final = Counter("slipway_lease_refused_facts_total", "Facts that changed nothing", ["reason"])
WAITED_SECONDS: Final = Histogram(
    "slipway_lease_waited_seconds",
    "From request to grant",
    ["lease_pool"],
    buckets=(0.01, 0.05, 0.2, 1, 5, 30, 60, 300, 900, 1800, 3600, 7200),
)
