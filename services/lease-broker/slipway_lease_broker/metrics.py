"""What the lease-broker tells Prometheus; what each means stands in slipway_common/metrics.py."""

from typing import Final

from slipway_common.metrics import counter, histogram

GRANTED_UNITS: Final = counter("slipway_lease_granted_units_total")
ENDED_LEASES: Final = counter("slipway_lease_ended_by_time_total")
REFUSED_FACTS: Final = counter("slipway_lease_refused_facts_total")
WAITED_SECONDS: Final = histogram("slipway_lease_waited_seconds")
