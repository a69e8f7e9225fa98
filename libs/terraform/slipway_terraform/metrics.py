"""Prometheus metrics of the scheduler. Labels are few and known: never a handle, an owner or a path."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

SECONDS: Final = (0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)

PROCESSES: Final = Gauge("slipway_terraform_processes", "Plugin processes, by state", ["state"])
STARTS: Final = Counter("slipway_terraform_starts_total", "Starts of plugins, by result", ["result"])
REPLACEMENTS: Final = Counter(
    "slipway_terraform_replacements_total", "Plugins replaced or stopped, by reason", ["reason"]
)
THRASH: Final = Gauge("slipway_terraform_thrash", "Recent replacements of plugins still needed, per run of the CLI")
CRASHES: Final = Counter("slipway_terraform_crashes_total", "Plugins that exited unexpectedly, by use", ["use"])
WAITING: Final = Gauge("slipway_terraform_waiting_callers", "Callers that wait for a lease")
WAIT_SECONDS: Final = Histogram(
    "slipway_terraform_wait_seconds", "Wait for a lease, by result", ["result"], buckets=SECONDS
)
START_SECONDS: Final = Histogram(
    "slipway_terraform_start_seconds", "Time from a start to the plugin's first answer", buckets=SECONDS
)
ORPHANS: Final = Counter("slipway_terraform_orphan_folders_total", "Socket folders of killed owners that were removed")
LEASES: Final = Gauge("slipway_terraform_leases", "Leases held, counted for each plugin that they use")
INVOCATIONS: Final = Counter("slipway_terraform_invocations_total", "Runs of the CLI on leased plugins")
RUNNING: Final = Gauge("slipway_terraform_cli_processes", "CLI processes")
RUN_SECONDS: Final = Histogram(
    "slipway_terraform_cli_seconds",
    "Duration of CLI runs, by command and plugins",
    ["command", "plugins"],
    buckets=SECONDS,
)
FAILURES: Final = Counter(
    "slipway_terraform_failures_total", "Failed runs of the CLI, by command and scope", ["command", "scope"]
)
MEMORY_BYTES: Final = Gauge("slipway_terraform_memory_bytes", "Resident memory of all plugins")
MEMORY_ALARMS: Final = Counter("slipway_terraform_memory_alarms_total", "Plugins found beyond the hard memory limit")
CPU_SECONDS: Final = Counter("slipway_terraform_cpu_seconds_total", "CPU time of plugins")
