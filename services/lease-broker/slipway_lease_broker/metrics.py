"""Prometheus metrics of the lease-broker; their meaning is documented in slipway_common/observability/metrics.py."""

from typing import Final

from slipway_common.observability.metrics import counter, histogram

GRANTED_UNITS: Final = counter("slipway_lease_granted_units_total")
ENDED_LEASES: Final = counter("slipway_lease_expirations_total")
REFUSED_COMMANDS: Final = counter("slipway_lease_refused_commands_total")
THROTTLES: Final = counter("slipway_lease_throttles_total")
LIMIT_CHANGES: Final = counter("slipway_lease_limit_changes_total")
UNLEASED_STARTS: Final = counter("slipway_lease_unleased_starts_total")
UNDECIDED: Final = counter("slipway_lease_decision_failures_total")
DRIFTED: Final = counter("slipway_lease_drift_total")
IDLE_UNIT_SECONDS: Final = counter("slipway_lease_idle_unit_seconds_total")
GRANT_INTERVAL_SECONDS: Final = histogram("slipway_lease_grant_interval_seconds")
WAITED_SECONDS: Final = histogram("slipway_lease_wait_seconds")
