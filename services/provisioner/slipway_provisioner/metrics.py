"""Prometheus metrics of the provisioner; slipway_common/observability/metrics.py defines them."""

from typing import Final

from slipway_common.observability.metrics import counter, histogram

DECISIONS: Final = counter("slipway_decisions_total")
CALLS: Final = counter("slipway_provider_calls_total")
UNLEASED: Final = counter("slipway_unleased_launches_total")
THROTTLED: Final = counter("slipway_throttled_calls_total")
CALL_SECONDS: Final = histogram("slipway_provider_call_seconds")
LAUNCH_SECONDS: Final = histogram("slipway_worker_launch_seconds")
BOOT_SECONDS: Final = histogram("slipway_worker_boot_seconds")
LOOKED_UP: Final = counter("slipway_calls_resolved_total")
REAPED: Final = counter("slipway_reaped_total")
REGISTRATIONS_REFUSED: Final = counter("slipway_registrations_refused_total")
REQUESTS_REFUSED: Final = counter("slipway_requests_refused_total")
DOWNTIME_SECONDS: Final = counter("slipway_downtime_seconds_total")
CLAMPED: Final = counter("slipway_worker_timestamps_clamped_total")
USAGE_DRIFT: Final = counter("slipway_usage_drift_total")
