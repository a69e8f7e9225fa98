"""Metrics of the monitor."""

from typing import Final

from slipway_common.observability import metrics

REPORTS: Final = metrics.counter("slipway_monitor_reports_total")
UNREADABLE: Final = metrics.counter("slipway_monitor_unreadable_total")
LEADS: Final = metrics.gauge("slipway_monitor_leads")
TASKS: Final = metrics.gauge("slipway_monitor_tasks")
LAG_SECONDS: Final = metrics.histogram("slipway_monitor_lag_seconds")
