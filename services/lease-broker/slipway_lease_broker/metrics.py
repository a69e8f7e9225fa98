"""What the lease-broker tells Prometheus; what each means stands in slipway_common/metrics.py."""

from typing import Final

from slipway_common.metrics import counter, histogram

GRANTED_UNITS: Final = counter("slipway_lease_granted_units_total")
ENDED_LEASES: Final = counter("slipway_lease_ended_by_time_total")
REFUSED_FACTS: Final = counter("slipway_lease_refused_facts_total")
THROTTLES: Final = counter("slipway_lease_throttles_total")
LIMIT_CHANGES: Final = counter("slipway_lease_limit_changes_total")
UNLEASED_STARTS: Final = counter("slipway_lease_unleased_starts_total")
UNDECIDED: Final = counter("slipway_lease_undecided_total")
DRIFTED: Final = counter("slipway_lease_drift_total")
IDLE_UNIT_SECONDS: Final = counter("slipway_lease_idle_unit_seconds_total")
GRANT_GAP_SECONDS: Final = histogram("slipway_lease_grant_gap_seconds")
WAITED_SECONDS: Final = histogram("slipway_lease_waited_seconds")
