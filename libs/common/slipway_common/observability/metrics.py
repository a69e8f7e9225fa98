"""Registry of all metrics: meaning, labels and exporting services of each.

All instruments are created from this table, and the page in docs/generated is generated from it; a test compares the
rules and the dashboard in infra/ with it. Labels have bounded cardinality: pool, config, account, topic, stage; never a
worker.
"""

import asyncio
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Literal, TypeAlias

import msgspec
from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call] # omit the _created series

Kind = Literal["counter", "gauge", "histogram"]
Service = Literal["provisioner", "weight-calculator", "lease-broker", "monitor"]

PROVISIONER: Final[tuple[Service, ...]] = ("provisioner",)
CALCULATOR: Final[tuple[Service, ...]] = ("weight-calculator",)
BROKER: Final[tuple[Service, ...]] = ("lease-broker",)
MONITOR: Final[tuple[Service, ...]] = ("monitor",)
EVERY: Final[tuple[Service, ...]] = ("provisioner", "weight-calculator", "lease-broker")


SECONDS: Final = (0.01, 0.05, 0.2, 1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200)


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric family. With `whole`, every replica reports the same deployment-wide value: use max, not sum."""

    name: str
    kind: Kind
    help: str
    services: tuple[Service, ...]
    labels: tuple[str, ...] = ()
    whole: bool = False
    buckets: tuple[float, ...] = ()

    @property
    def unit(self) -> str:
        """Unit from the last word of the name; empty for a dimensionless number."""
        last = self.name.removesuffix("_total").rsplit("_", 1)[-1]
        return last if last in {"seconds", "tasks", "units", "records", "partitions", "workers"} else ""


METRICS: Final[tuple[Metric, ...]] = (
    # Sources of demand
    Metric(
        name="slipway_monitor_reports_total",
        kind="counter",
        services=MONITOR,
        labels=("source",),
        help="Demand reports that Kafka has acknowledged",
    ),
    Metric(
        name="slipway_monitor_unreadable_total",
        kind="counter",
        services=MONITOR,
        labels=("source",),
        help="Reads of a source of which nothing was reported: no answer, or none that could be read or published",
    ),
    Metric(
        name="slipway_monitor_tasks",
        kind="gauge",
        services=MONITOR,
        labels=("source",),
        help="Tasks that a source counted when it was last read, over all of its labels",
    ),
    Metric(
        name="slipway_monitor_leads",
        kind="gauge",
        services=MONITOR,
        labels=("source",),
        help="1 if this replica reads the source, else 0",
    ),
    Metric(
        name="slipway_monitor_lag_seconds",
        kind="histogram",
        services=MONITOR,
        buckets=SECONDS,
        help="Time from when a read was due to its start",
    ),
    # Pools
    Metric(
        name="slipway_pool_pending_tasks",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool",),
        whole=True,
        help="Pending tasks, from the newest report of each source",
    ),
    Metric(
        name="slipway_pool_claimed_tasks",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool",),
        whole=True,
        help="Tasks running on workers, from the newest report of each source",
    ),
    Metric(
        name="slipway_pool_wanted_workers",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool",),
        whole=True,
        help="Workers wanted by the newest decision",
    ),
    Metric(
        name="slipway_pool_serving_workers",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool",),
        whole=True,
        help="Workers counted towards the target, from requested to running",
    ),
    Metric(
        name="slipway_pool_max_workers",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool",),
        whole=True,
        help="Maximum number of workers",
    ),
    Metric(
        name="slipway_pool_backlog_seconds",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool",),
        whole=True,
        help="Time since the pool last had no pending tasks; 0 if none are pending",
    ),
    Metric(
        name="slipway_workers",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool", "launch_config", "state"),
        whole=True,
        help="Workers that exist or may come to exist, by state",
    ),
    Metric(
        name="slipway_decisions_total",
        kind="counter",
        services=PROVISIONER,
        labels=("pool",),
        help="Decisions made, including those to launch nothing",
    ),
    Metric(
        name="slipway_worker_launch_seconds",
        kind="histogram",
        services=PROVISIONER,
        labels=("pool",),
        buckets=SECONDS,
        help="Time from the decision to launch a worker until the provider launched it: admission and call",
    ),
    Metric(
        name="slipway_worker_boot_seconds",
        kind="histogram",
        services=PROVISIONER,
        labels=("pool",),
        buckets=SECONDS,
        help="Time from launch until the worker registered",
    ),
    # Launch configs
    Metric(
        name="slipway_launch_config_weight",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool", "launch_config"),
        whole=True,
        help="Current weight: the share of the config within its pool",
    ),
    Metric(
        name="slipway_launch_config_health",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool", "launch_config"),
        whole=True,
        help="Probability that a start succeeds, 0 to 1; absent until the weight-calculator has published it",
    ),
    Metric(
        name="slipway_launch_config_tripped",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool", "launch_config"),
        whole=True,
        help="1 while the config is tripped and launches probes only",
    ),
    Metric(
        name="slipway_launch_config_paused",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool", "launch_config"),
        whole=True,
        help="1 while the config is paused by an operator or a monitor",
    ),
    Metric(
        name="slipway_provider_calls_total",
        kind="counter",
        services=PROVISIONER,
        labels=("account", "result", "scope"),
        help="Create calls by result (ok, accepted, failed, unknown) and scope of the failure",
    ),
    Metric(
        name="slipway_throttled_calls_total",
        kind="counter",
        services=PROVISIONER,
        labels=("account",),
        help="Calls of any kind that the provider has throttled",
    ),
    Metric(
        name="slipway_provider_call_seconds",
        kind="histogram",
        services=PROVISIONER,
        labels=("account",),
        help="Duration of create calls",
    ),
    Metric(
        name="slipway_outcomes_folded_total",
        kind="counter",
        services=CALCULATOR,
        labels=("stage", "result", "scope"),
        help="Results of start stages folded into the weights",
    ),
    Metric(
        name="slipway_health_transitions_total",
        kind="counter",
        services=CALCULATOR,
        labels=("to",),
        help="Trips and recoveries of launch configs, images, quotas, credentials and capacities",
    ),
    Metric(name="slipway_probe_permits_total", kind="counter", services=CALCULATOR, help="Probe permits issued"),
    Metric(
        name="slipway_weight_records_total",
        kind="counter",
        services=CALCULATOR,
        help="Weight records and tombstones published",
    ),
    Metric(
        name="slipway_event_timestamps_clamped_total",
        kind="counter",
        services=CALCULATOR,
        help="Events whose timestamp was clamped: over two minutes from the record's timestamp, or in the future",
    ),
    Metric(
        name="slipway_signals_total",
        kind="counter",
        services=CALCULATOR,
        labels=("kind",),
        help="Signals received from external sources, by kind",
    ),
    Metric(
        name="slipway_signals_refused_total",
        kind="counter",
        services=CALCULATOR,
        labels=("reason",),
        help="Signals refused, by reason; GET /signals lists the newest",
    ),
    Metric(
        name="slipway_registrations_refused_total",
        kind="counter",
        services=PROVISIONER,
        labels=("reason",),
        help="Registrations of machines refused, by reason such as identity-forged or bad-secret",
    ),
    Metric(
        name="slipway_requests_limited_total",
        kind="counter",
        services=EVERY,
        labels=("bucket",),
        help="HTTP requests answered 429, by what sent too many: token, worker, claims, batch, address",
    ),
    Metric(
        name="slipway_requests_refused_total",
        kind="counter",
        services=PROVISIONER,
        labels=("reason",),
        help="Pause requests, resume requests and spot interruptions refused, by reason such as share",
    ),
    Metric(
        name="slipway_calls_resolved_total",
        kind="counter",
        services=PROVISIONER,
        labels=("account",),
        help="Create calls of unknown outcome that were resolved by their tag",
    ),
    Metric(
        name="slipway_downtime_seconds_total",
        kind="counter",
        services=PROVISIONER,
        help="Time without a pass over the deadlines of workers, by which they were extended",
    ),
    Metric(
        name="slipway_reaped_total",
        kind="counter",
        services=PROVISIONER,
        labels=("account", "kind"),
        help="Instances that the instance reaper terminated (orphan) or found missing (missing)",
    ),
    Metric(
        name="slipway_reaper_pass_age_seconds",
        kind="gauge",
        services=PROVISIONER,
        labels=("account",),
        whole=True,
        help="Time since the instance reaper last compared the account's instances with the workers",
    ),
    Metric(
        name="slipway_workspaces",
        kind="gauge",
        services=PROVISIONER,
        labels=("phase",),
        whole=True,
        help="Terraform workspaces that are not gone, by phase",
    ),
    Metric(
        name="slipway_workspace_runs",
        kind="gauge",
        services=PROVISIONER,
        labels=("state",),
        whole=True,
        help="Runs of Terraform, by state: running in a replica, or due and waiting for one",
    ),
    Metric(
        name="slipway_workspace_run_wait_seconds",
        kind="gauge",
        services=PROVISIONER,
        whole=True,
        help="Time for which the oldest waiting run of Terraform has been due; 0 if none waits",
    ),
    Metric(
        name="slipway_workspace_listing_failed",
        kind="gauge",
        services=PROVISIONER,
        labels=("account",),
        whole=True,
        help="1 if the last listing of the resources that Terraform has created in an account failed, else 0",
    ),
    Metric(
        name="slipway_workspace_failed_runs",
        kind="gauge",
        services=PROVISIONER,
        labels=("phase",),
        whole=True,
        help="Largest number of failed runs in a row of a Terraform workspace, by phase; 0 if none fails",
    ),
    Metric(
        name="slipway_usage_drift_total",
        kind="counter",
        services=PROVISIONER,
        help="Starts and failures by which counters differed from the rows that they count; the sweep repairs them",
    ),
    Metric(
        name="slipway_worker_timestamps_clamped_total",
        kind="counter",
        services=PROVISIONER,
        help="Worker timestamps that were clamped because they were too far from the time of receipt",
    ),
    # Leases
    Metric(
        name="slipway_lease_held_units",
        kind="gauge",
        services=BROKER,
        labels=("lease_pool",),
        whole=True,
        help="Units counted against the limit",
    ),
    Metric(
        name="slipway_lease_limit_units",
        kind="gauge",
        services=BROKER,
        labels=("lease_pool",),
        whole=True,
        help="Limit of units held at once",
    ),
    Metric(
        name="slipway_lease_waiting_units",
        kind="gauge",
        services=BROKER,
        labels=("lease_pool",),
        whole=True,
        help="Units requested but not granted yet",
    ),
    Metric(
        name="slipway_lease_oldest_wait_seconds",
        kind="gauge",
        services=BROKER,
        labels=("lease_pool",),
        whole=True,
        help="Wait of the first request in the queue; 0 if the queue is empty",
    ),
    Metric(
        name="slipway_leases",
        kind="gauge",
        services=BROKER,
        labels=("lease_pool", "state"),
        whole=True,
        help="Leases that count against the limit, by state",
    ),
    Metric(
        name="slipway_lease_granted_units_total",
        kind="counter",
        services=BROKER,
        labels=("lease_pool",),
        help="Units granted",
    ),
    Metric(
        name="slipway_lease_expirations_total",
        kind="counter",
        services=BROKER,
        labels=("lease_pool", "state"),
        help="Leases that ended by a deadline, by state",
    ),
    Metric(
        name="slipway_lease_refused_commands_total",
        kind="counter",
        services=BROKER,
        labels=("reason",),
        help="Lease commands refused, by reason",
    ),
    Metric(
        name="slipway_lease_wait_seconds",
        kind="histogram",
        services=BROKER,
        labels=("lease_pool",),
        buckets=SECONDS,
        help="Time from request to grant",
    ),
    Metric(
        name="slipway_lease_tenant_held_units",
        kind="gauge",
        services=BROKER,
        labels=("lease_pool", "tenant"),
        whole=True,
        help="Units counted against the limit, for the 50 tenants with the highest usage of a lease pool",
    ),
    Metric(
        name="slipway_lease_tenant_waiting_units",
        kind="gauge",
        services=BROKER,
        labels=("lease_pool", "tenant"),
        whole=True,
        help="Units requested but not granted yet, for the 50 tenants with the highest usage of a lease pool",
    ),
    Metric(
        name="slipway_lease_idle_unit_seconds_total",
        kind="counter",
        services=BROKER,
        labels=("lease_pool",),
        help="Unit-seconds that were free while requests waited: paced, reserved, or not decided yet",
    ),
    Metric(
        name="slipway_lease_grant_interval_seconds",
        kind="histogram",
        services=BROKER,
        labels=("lease_pool",),
        buckets=SECONDS,
        help="Time between consecutive grants",
    ),
    Metric(
        name="slipway_lease_throttles_total",
        kind="counter",
        services=BROKER,
        labels=("lease_pool",),
        help="Leases whose holder was throttled by the provider",
    ),
    Metric(
        name="slipway_lease_limit_changes_total",
        kind="counter",
        services=BROKER,
        labels=("lease_pool", "cause"),
        help="Changes of the limit in force, by cause: declared, adaptive, derived, pinned, drained or archived",
    ),
    Metric(
        name="slipway_lease_unleased_starts_total",
        kind="counter",
        services=BROKER,
        labels=("lease_pool",),
        help="Starts without a lease that were reported and charged",
    ),
    Metric(
        name="slipway_unleased_launches_total",
        kind="counter",
        services=PROVISIONER,
        labels=("lease_pool",),
        help="Unleased launches, admitted while the lease-broker was unavailable",
    ),
    Metric(
        name="slipway_lease_decision_failures_total",
        kind="counter",
        services=BROKER,
        labels=("lease_pool",),
        help="Failed decisions on a lease pool or on a gang that includes it; any value above 0 is a bug",
    ),
    Metric(
        name="slipway_lease_drift_total",
        kind="counter",
        services=BROKER,
        labels=("lease_pool",),
        help="Repairs of a lease pool's counters that differed from its rows; any value above 0 is a bug",
    ),
    # Services
    Metric(
        name="slipway_heartbeat_age_seconds",
        kind="gauge",
        services=PROVISIONER,
        labels=("service",),
        help="Time since a service's last heartbeat, or since the start of this process; use min over replicas",
    ),
    Metric(
        name="slipway_outbox_oldest_seconds",
        kind="gauge",
        services=EVERY,
        whole=True,
        help="Age of the oldest unpublished event; 0 if there is none",
    ),
    Metric(
        name="slipway_dead_letters",
        kind="gauge",
        services=EVERY,
        labels=("topic",),
        whole=True,
        help="Records that could not be applied, and records parked behind them",
    ),
    Metric(
        name="slipway_consumer_lag_records",
        kind="gauge",
        services=EVERY,
        labels=("topic",),
        help="Records not applied yet in the partitions of this replica; use sum over replicas",
    ),
    Metric(
        name="slipway_unowned_partitions",
        kind="gauge",
        services=EVERY,
        labels=("topic",),
        help="Assigned partitions that this process has not claimed",
    ),
    Metric(
        name="slipway_tokens_refused",
        kind="gauge",
        services=EVERY,
        help="Entries of the tokens file that are refused, or 1 if it cannot be read as it is now",
    ),
    Metric(
        name="slipway_unsendable_partitions",
        kind="gauge",
        services=EVERY,
        labels=("topic",),
        help="Partitions whose last batch the broker refused, or has not acknowledged in time",
    ),
    Metric(
        name="slipway_clock_offset_seconds",
        kind="gauge",
        services=EVERY,
        help="This host's clock minus the database's",
    ),
    Metric(
        name="slipway_consumed_total",
        kind="counter",
        services=EVERY,
        labels=("topic", "result"),
        help="Records consumed, by result",
    ),
    Metric(
        name="slipway_published_total",
        kind="counter",
        services=EVERY,
        labels=("topic",),
        help="Records published and acknowledged by the broker",
    ),
    Metric(
        name="slipway_loop_seconds", kind="histogram", services=EVERY, labels=("loop",), help="Duration of a loop step"
    ),
    Metric(
        name="slipway_loop_failures_total",
        kind="counter",
        services=EVERY,
        labels=("loop",),
        help="Loop steps that failed",
    ),
    Metric(
        name="slipway_unknown_fields_total",
        kind="counter",
        services=EVERY,
        labels=("type",),
        help="Fields of reports over HTTP that this version does not know and ignores",
    ),
    Metric(
        name="slipway_pruned_rows_total",
        kind="counter",
        services=EVERY,
        labels=("table",),
        help="Rows deleted by the prune loop because their retention had passed",
    ),
)


_BY_NAME: Final = {metric.name: metric for metric in METRICS}


@cache
def counter(name: str) -> Counter:
    """Counter with the given name. Raises LookupError if the table has no such counter."""
    row = _row(name, "counter")
    return Counter(name, row.help, row.labels)


@cache
def gauge(name: str) -> Gauge:
    """Gauge with the given name. Raises LookupError if the table has no such gauge."""
    row = _row(name, "gauge")
    return Gauge(name, row.help, row.labels)


@cache
def histogram(name: str) -> Histogram:
    """Histogram with the given name. Raises LookupError if the table has no such histogram."""
    row = _row(name, "histogram")
    return Histogram(name, row.help, row.labels, buckets=row.buckets or Histogram.DEFAULT_BUCKETS)


def _row(name: str, kind: Kind) -> Metric:
    row = _BY_NAME.get(name)
    if row is None or row.kind != kind:
        raise LookupError(f"slipway_common/observability/metrics.py has no {kind} {name}; add its row to METRICS")
    return row


Readings: TypeAlias = Mapping[str, Mapping[Any, float]]  # metric name → label values as a tuple → value


SERIES_PER_TURN: Final = 500
"""Series that are set before other tasks of the process get their turn."""


class Board:
    """A set of gauges measured together. Each measurement replaces the previous one, so outdated series disappear."""

    def __init__(self, *names: str) -> None:
        self._gauges = {name: gauge(name) for name in names}
        self._cleared: set[str] = set()
        self._shown: dict[tuple[str, str], Mapping[tuple[str, ...], float]] = {}

    async def show(self, readings: Readings, *, part: str = "") -> None:
        """Set the gauges that were measured and clear the others, of one `part` of the series where these are measured
        in parts. Only what has changed is set, and other tasks get their turn between thousands of series."""
        for name, instrument in self._gauges.items():
            read = readings.get(name, {})
            if not _BY_NAME[name].labels:
                instrument.set(read.get((), math.nan))  # a gauge without labels cannot be removed
                continue
            if name not in self._cleared:
                self._cleared.add(name)
                instrument.clear()
            before = self._shown.pop((name, part), {})
            if read:
                self._shown[name, part] = read
            for labels in before.keys() - read.keys():
                instrument.remove(*labels)
            changed = [(labels, value) for labels, value in read.items() if before.get(labels) != value]
            for number, (labels, value) in enumerate(changed):
                if not number % SERIES_PER_TURN:
                    await asyncio.sleep(0)
                instrument.labels(*labels).set(value)
