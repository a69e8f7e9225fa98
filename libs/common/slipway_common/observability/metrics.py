"""Registry of all metrics: meaning, exporting services, dashboard panel and alerts of each.

All instruments are created from this table; the Prometheus rules, the Grafana dashboard and the page in docs/generated
are generated from it. Labels have bounded cardinality: pool, config, account, topic, stage; never a worker.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, Literal, TypeAlias

import msgspec
from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call] # omit the _created series

Kind = Literal["counter", "gauge", "histogram"]
Service = Literal["provisioner", "weight-calculator", "lease-broker"]

PROVISIONER: Final[tuple[Service, ...]] = ("provisioner",)
CALCULATOR: Final[tuple[Service, ...]] = ("weight-calculator",)
BROKER: Final[tuple[Service, ...]] = ("lease-broker",)
EVERY: Final[tuple[Service, ...]] = ("provisioner", "weight-calculator", "lease-broker")

POOLS, CONFIGS, LEASES, SERVICES = "Pools", "Launch configs", "Leases", "Services"
ROWS: Final = (POOLS, CONFIGS, LEASES, SERVICES)

SECONDS: Final = (0.01, 0.05, 0.2, 1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200)


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """A dashboard panel. `queries` maps a legend to an expression; `$pool` is the dashboard's pool variable."""

    row: str
    title: str
    queries: Mapping[str, str]
    unit: Literal["short", "s", "ops", "percentunit"] = "short"


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """A Prometheus alert: condition, effect on the fleet, what Slipway does meanwhile, and one command to run."""

    name: str
    expr: str
    for_seconds: int
    severity: Literal["critical", "warning"]
    summary: str
    effect: str
    doing: str
    command: str


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric family. With `whole`, every replica reports the same deployment-wide value: use max, not sum."""

    name: str
    kind: Kind
    help: str
    services: tuple[Service, ...]
    labels: tuple[str, ...] = ()
    whole: bool = False
    buckets: tuple[float, ...] = ()
    panel: Panel | None = None
    alerts: tuple[AlertRule, ...] = ()

    @property
    def unit(self) -> str:
        """Unit from the last word of the name; empty for a dimensionless number."""
        last = self.name.removesuffix("_total").rsplit("_", 1)[-1]
        return last if last in {"seconds", "tasks", "units", "records", "partitions", "workers"} else ""


METRICS: Final[tuple[Metric, ...]] = (
    # Pools
    Metric(
        name="slipway_pool_pending_tasks",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool",),
        whole=True,
        help="Pending tasks, from the newest report of each source",
        panel=Panel(
            row=POOLS,
            title="Tasks",
            queries={
                "{{pool}} pending": 'max by (pool) (slipway_pool_pending_tasks{pool=~"$pool"})',
                "{{pool}} claimed": 'max by (pool) (slipway_pool_claimed_tasks{pool=~"$pool"})',
            },
        ),
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
        panel=Panel(
            row=POOLS,
            title="Workers wanted and serving",
            queries={
                "{{pool}} wanted": 'max by (pool) (slipway_pool_wanted_workers{pool=~"$pool"})',
                "{{pool}} serving": 'max by (pool) (slipway_pool_serving_workers{pool=~"$pool"})',
                "{{pool}} maximum": 'max by (pool) (slipway_pool_max_workers{pool=~"$pool"})',
            },
        ),
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
        panel=Panel(
            row=POOLS,
            title="Time with pending tasks",
            unit="s",
            queries={"{{pool}}": 'max by (pool) (slipway_pool_backlog_seconds{pool=~"$pool"})'},
        ),
        alerts=(
            AlertRule(
                # A busy queue is never empty; it is a fault only while wanted workers are missing.
                name="SlipwayTasksWaiting",
                expr="max by (pool) (slipway_pool_backlog_seconds) > 900"
                " and max by (pool) (slipway_pool_serving_workers) < max by (pool) (slipway_pool_max_workers)"
                " and max by (pool) (slipway_pool_serving_workers) < max by (pool) (slipway_pool_wanted_workers)",
                for_seconds=60,
                severity="warning",
                summary="tasks of {{ $labels.pool }} pending for over 15 minutes although it is below its maximum",
                effect="tasks of this pool start late",
                doing="launches as weights, windows and launch stops allow, and records the reason of each decision",
                command="slipway why {{ $labels.pool }}",
            ),
        ),
    ),
    Metric(
        name="slipway_workers",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool", "launch_config", "state"),
        whole=True,
        help="Workers that exist or may come to exist, by state",
        panel=Panel(
            row=POOLS,
            title="Workers by state",
            queries={
                "{{pool}} {{state}}": "sum by (pool, state)"
                ' (max by (pool, launch_config, state) (slipway_workers{pool=~"$pool"}))'
            },
        ),
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
        panel=Panel(
            row=POOLS,
            title="Decision to launch, p90",
            unit="s",
            queries={
                "{{pool}}": "histogram_quantile(0.9, sum by (pool, le)"
                ' (rate(slipway_worker_launch_seconds_bucket{pool=~"$pool"}[$__rate_interval])))'
            },
        ),
    ),
    Metric(
        name="slipway_worker_boot_seconds",
        kind="histogram",
        services=PROVISIONER,
        labels=("pool",),
        buckets=SECONDS,
        help="Time from launch until the worker registered",
        panel=Panel(
            row=POOLS,
            title="Boot time, p90",
            unit="s",
            queries={
                "{{pool}}": "histogram_quantile(0.9, sum by (pool, le)"
                ' (rate(slipway_worker_boot_seconds_bucket{pool=~"$pool"}[$__rate_interval])))'
            },
        ),
    ),
    # Launch configs
    Metric(
        name="slipway_launch_config_weight",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool", "launch_config"),
        whole=True,
        help="Current weight: the share of the config within its pool",
        panel=Panel(
            row=CONFIGS,
            title="Weight",
            queries={"{{launch_config}}": 'max by (launch_config) (slipway_launch_config_weight{pool=~"$pool"})'},
        ),
    ),
    Metric(
        name="slipway_launch_config_health",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool", "launch_config"),
        whole=True,
        help="Probability that a start succeeds, 0 to 1; absent until the weight-calculator has published it",
        panel=Panel(
            row=CONFIGS,
            title="Health",
            unit="percentunit",
            queries={"{{launch_config}}": 'max by (launch_config) (slipway_launch_config_health{pool=~"$pool"})'},
        ),
    ),
    Metric(
        name="slipway_launch_config_tripped",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool", "launch_config"),
        whole=True,
        help="1 while the config is tripped and launches probes only",
        panel=Panel(
            row=CONFIGS,
            title="Tripped or paused",
            queries={
                "{{launch_config}} tripped": "max by (launch_config)"
                ' (slipway_launch_config_tripped{pool=~"$pool"}) == 1',
                "{{launch_config}} paused": 'max by (launch_config) (slipway_launch_config_paused{pool=~"$pool"}) == 1',
            },
        ),
        alerts=(
            AlertRule(
                name="SlipwayPoolTripped",
                expr="min by (pool) (slipway_launch_config_tripped unless slipway_launch_config_paused == 1) == 1",
                for_seconds=60,
                severity="critical",
                summary="all launch configs of {{ $labels.pool }} that are not paused are tripped",
                effect="the pool launches probes only; its tasks wait",
                doing="probes one config at a time and resumes launches of each config whose probe succeeds",
                command="slipway lc ls --pool {{ $labels.pool }}",
            ),
        ),
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
        panel=Panel(
            row=CONFIGS,
            title="Create calls",
            unit="ops",
            queries={
                "{{account}} {{result}} {{scope}}": "sum by (account, result, scope)"
                " (rate(slipway_provider_calls_total[$__rate_interval]))"
            },
        ),
    ),
    Metric(
        name="slipway_throttled_calls_total",
        kind="counter",
        services=PROVISIONER,
        labels=("account",),
        help="Calls of any kind that the provider has throttled",
        panel=Panel(
            row=CONFIGS,
            title="Throttled calls",
            unit="ops",
            queries={"{{account}}": "sum by (account) (rate(slipway_throttled_calls_total[$__rate_interval]))"},
        ),
        alerts=(
            AlertRule(
                name="SlipwayAccountThrottled",
                expr="sum by (account) (increase(slipway_throttled_calls_total[1m])) > 0",
                for_seconds=60,
                severity="warning",
                summary="account {{ $labels.account }} throttles calls",
                effect="launches in this account take longer; none of them fails",
                doing="makes each throttled call again under a new lease, after the provider's Retry-After",
                command="slipway alert ls  # names the lease pool whose limit may be too high",
            ),
        ),
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
        panel=Panel(
            row=CONFIGS,
            title="Failures by stage and scope",
            unit="ops",
            queries={
                "{{stage}} {{scope}}": "sum by (stage, scope)"
                ' (rate(slipway_outcomes_folded_total{result="failed"}[$__rate_interval]))'
            },
        ),
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
        panel=Panel(
            row=CONFIGS,
            title="Signals refused",
            queries={"{{reason}}": "sum by (reason) (increase(slipway_signals_refused_total[$__rate_interval]))"},
        ),
    ),
    Metric(
        name="slipway_registrations_refused_total",
        kind="counter",
        services=PROVISIONER,
        labels=("reason",),
        help="Registrations of machines refused, by reason such as identity-forged or bad-secret",
        alerts=(
            AlertRule(
                name="SlipwayMachinesRefused",
                expr='sum by (reason) (increase(slipway_registrations_refused_total{reason=~"identity-.+|bad-secret"}'
                "[15m])) > 0",
                for_seconds=0,
                severity="warning",
                summary="machines refused at their registration in the last 15 minutes: {{ $labels.reason }}",
                effect="a machine of yours that is refused runs no tasks, and is replaced after the boot timeout",
                doing="gives them no token; the provisioner's log names batch, instance and reason of each",
                command="slipway worker ls --state starting",
            ),
        ),
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
        alerts=(
            AlertRule(
                name="SlipwayReaperStale",
                expr="max by (account) (slipway_reaper_pass_age_seconds) > 600",
                for_seconds=60,
                severity="warning",
                summary="instances of {{ $labels.account }} not compared with its workers for over 10 minutes",
                effect="orphan instances keep running and are billed; workers whose instance is missing still count",
                doing="retries the listing on every pass, and terminates nothing without a listing",
                command="slipway doctor",
            ),
        ),
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
        alerts=(
            AlertRule(
                name="SlipwayTerraformRunsWait",
                expr="max(slipway_workspace_run_wait_seconds) > 900",
                for_seconds=60,
                severity="warning",
                summary="a run of Terraform has waited for a replica for over 15 minutes",
                effect="workers made by modules are launched and destroyed late, and cost money until then",
                doing="runs the oldest first, and refuses launches while 50 workspaces wait per concurrent run",
                command="slipway doctor  # then raise SLIPWAY_TERRAFORM_RUNS_MAX, or add replicas",
            ),
        ),
    ),
    Metric(
        name="slipway_workspace_listing_failed",
        kind="gauge",
        services=PROVISIONER,
        labels=("account",),
        whole=True,
        help="1 if the last listing of the resources that Terraform has created in an account failed, else 0",
        alerts=(
            AlertRule(
                name="SlipwayTerraformListingFails",
                expr="max by (account) (slipway_workspace_listing_failed) > 0",
                for_seconds=7200,
                severity="warning",
                summary="the resources of {{ $labels.account }} could not be listed by their tags for 2 hours",
                effect="resources that belong to no workspace are not found, and cost money",
                doing="lists the account again every 10 minutes at most",
                command="slipway account check {{ $labels.account }}  # then correct its credential or look-up module",
            ),
        ),
    ),
    Metric(
        name="slipway_workspace_failed_runs",
        kind="gauge",
        services=PROVISIONER,
        labels=("phase",),
        whole=True,
        help="Largest number of failed runs in a row of a Terraform workspace, by phase; 0 if none fails",
        alerts=(
            AlertRule(
                name="SlipwayTerraformRunsFail",
                # A failed destruction raises the alert termination-refused.
                expr='max by (phase) (slipway_workspace_failed_runs{phase!~"destroying|orphan"}) >= 10',
                for_seconds=60,
                severity="warning",
                summary="the runs of a workspace that is {{ $labels.phase }} have failed 10 times in a row",
                effect="its launch or its loss is not resolved; what it may have created costs money",
                doing="retries with pauses of up to 10 minutes",
                command="slipway worker ls  # then slipway worker show WORKER, whose workspace has the problem",
            ),
        ),
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
        panel=Panel(
            row=LEASES,
            title="Units held and limit",
            queries={
                "{{lease_pool}} held": "max by (lease_pool) (slipway_lease_held_units)",
                "{{lease_pool}} limit": "max by (lease_pool) (slipway_lease_limit_units)",
            },
        ),
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
        panel=Panel(
            row=LEASES,
            title="Units waiting",
            queries={"{{lease_pool}}": "max by (lease_pool) (slipway_lease_waiting_units)"},
        ),
    ),
    Metric(
        name="slipway_lease_oldest_wait_seconds",
        kind="gauge",
        services=BROKER,
        labels=("lease_pool",),
        whole=True,
        help="Wait of the first request in the queue; 0 if the queue is empty",
        panel=Panel(
            row=LEASES,
            title="Wait of the first request in the queue",
            unit="s",
            queries={"{{lease_pool}}": "max by (lease_pool) (slipway_lease_oldest_wait_seconds)"},
        ),
        alerts=(
            AlertRule(
                name="SlipwayLeasesWaiting",
                expr="max by (lease_pool) (slipway_lease_oldest_wait_seconds) > 900",
                for_seconds=60,
                severity="warning",
                summary="a request has been waiting for a lease of {{ $labels.lease_pool }} for over 15 minutes",
                effect="launches in the accounts of this lease pool wait",
                doing="grants waiting requests as leases are released or expire",
                command="slipway lease ls --pool {{ $labels.lease_pool }}",
            ),
        ),
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
        panel=Panel(
            row=LEASES,
            title="Units granted",
            unit="ops",
            queries={
                "{{lease_pool}}": "sum by (lease_pool) (rate(slipway_lease_granted_units_total[$__rate_interval]))"
            },
        ),
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
        panel=Panel(
            row=LEASES,
            title="Units held by tenant",
            queries={"{{lease_pool}} {{tenant}}": "max by (lease_pool, tenant) (slipway_lease_tenant_held_units)"},
        ),
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
        panel=Panel(
            row=LEASES,
            title="Units idle while requests wait",
            queries={
                "{{lease_pool}}": "sum by (lease_pool) (rate(slipway_lease_idle_unit_seconds_total[$__rate_interval]))"
            },
        ),
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
        panel=Panel(
            row=LEASES,
            title="Throttled leases",
            unit="ops",
            queries={"{{lease_pool}}": "sum by (lease_pool) (rate(slipway_lease_throttles_total[$__rate_interval]))"},
        ),
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
        help="Unleased starts, made while the lease-broker was unavailable and reported later",
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
        alerts=(
            AlertRule(
                name="SlipwayLeaseDecisionsFailing",
                expr="sum by (lease_pool) (increase(slipway_lease_decision_failures_total[2m])) > 0",
                for_seconds=0,
                severity="critical",
                summary="decisions fail for {{ $labels.lease_pool }} or for a gang that includes it",
                effect="requests for it wait and its leases do not expire in time; or only the gang waits",
                doing="records all commands and retries every 30 s; `slipway why` or the log shows the error",
                command="slipway lease pools",
            ),
        ),
    ),
    Metric(
        name="slipway_lease_drift_total",
        kind="counter",
        services=BROKER,
        labels=("lease_pool",),
        help="Repairs of a lease pool's counters that differed from its rows; any value above 0 is a bug",
        alerts=(
            AlertRule(
                name="SlipwayLeaseCounterDrift",
                expr="sum by (lease_pool) (increase(slipway_lease_drift_total[1h])) > 0",
                for_seconds=0,
                severity="warning",
                summary="the counters of {{ $labels.lease_pool }} differed from its leases and requests",
                effect="until the repair, more than the limit was granted, or units were idle",
                doing="repaired the counters and decided again; the history of the lease pool has both values",
                command="slipway lease history {{ $labels.lease_pool }}",
            ),
        ),
    ),
    # Services
    Metric(
        name="slipway_heartbeat_age_seconds",
        kind="gauge",
        services=PROVISIONER,
        labels=("service",),
        help="Time since a service's last heartbeat, or since the start of this process; use min over replicas",
        panel=Panel(
            row=SERVICES,
            title="Time since the last heartbeat",
            unit="s",
            queries={"{{service}}": "min by (service) (slipway_heartbeat_age_seconds)"},
        ),
        alerts=(
            AlertRule(
                name="SlipwayServiceUnavailable",
                expr='min by (service) (slipway_heartbeat_age_seconds{service!="weight-calculator"}) > 30',
                for_seconds=15,
                severity="critical",
                summary="no heartbeat from the {{ $labels.service }} for over 30 s",
                effect="without the lease-broker, launches wait for admission; running workers are not affected",
                doing="retries its requests and resumes once the service is back",
                command="slipway doctor",
            ),
            AlertRule(
                name="SlipwayWeightCalculatorUnavailable",
                expr='min by (service) (slipway_heartbeat_age_seconds{service="weight-calculator"}) > 30',
                for_seconds=15,
                severity="critical",
                summary="no heartbeat from the weight-calculator for over 30 s",
                effect="windows are capped, and weights decay towards their values without evidence",
                doing="keeps launching within the capped windows, or one attempt per pool where they are full",
                command="slipway doctor",
            ),
        ),
    ),
    Metric(
        name="slipway_outbox_oldest_seconds",
        kind="gauge",
        services=EVERY,
        whole=True,
        help="Age of the oldest unpublished event; 0 if there is none",
        panel=Panel(
            row=SERVICES,
            title="Oldest unpublished event",
            unit="s",
            queries={"{{job}}": "max by (job) (slipway_outbox_oldest_seconds)"},
        ),
        alerts=(
            AlertRule(
                name="SlipwayOutboxStuck",
                expr="max by (job) (slipway_outbox_oldest_seconds) > 60",
                for_seconds=30,
                severity="critical",
                summary="an event of the {{ $labels.job }} has been unpublished for over a minute",
                effect="other services and subscribers see outdated state",
                doing="keeps all events in order in the database and publishes them once the broker accepts them",
                command="slipway doctor",
            ),
        ),
    ),
    Metric(
        name="slipway_dead_letters",
        kind="gauge",
        services=EVERY,
        labels=("topic",),
        whole=True,
        help="Records that could not be applied, and records parked behind them",
        panel=Panel(
            row=SERVICES,
            title="Dead letters",
            queries={"{{job}} {{topic}}": "max by (job, topic) (slipway_dead_letters)"},
        ),
        alerts=(
            AlertRule(
                name="SlipwayDeadLetters",
                expr="max by (job, topic) (slipway_dead_letters) > 0",
                for_seconds=0,
                severity="warning",
                summary="the {{ $labels.job }} has dead letters of {{ $labels.topic }} ({{ $value }})",
                effect="these records are not applied; later records of the same subject are parked behind them",
                doing="continues with all other subjects, and keeps these until they are replayed or dropped",
                command="slipway dlq ls",
            ),
        ),
    ),
    Metric(
        name="slipway_consumer_lag_records",
        kind="gauge",
        services=EVERY,
        labels=("topic",),
        help="Records not applied yet in the partitions of this replica; use sum over replicas",
        panel=Panel(
            row=SERVICES,
            title="Consumer lag",
            queries={"{{job}} {{topic}}": "sum by (job, topic) (slipway_consumer_lag_records)"},
        ),
        alerts=(
            AlertRule(
                name="SlipwayConsumerLag",
                expr="sum by (job, topic) (slipway_consumer_lag_records) > 1000",
                for_seconds=300,
                severity="warning",
                summary="the {{ $labels.job }} is {{ $value }} records behind on {{ $labels.topic }}",
                effect="its decisions are based on outdated state",
                doing="continues in order; nothing is skipped",
                command="slipway doctor",
            ),
        ),
    ),
    Metric(
        name="slipway_unowned_partitions",
        kind="gauge",
        services=EVERY,
        labels=("topic",),
        help="Assigned partitions that this process has not claimed",
        alerts=(
            AlertRule(
                name="SlipwayPartitionsUnowned",
                expr="max by (job, instance, topic) (slipway_unowned_partitions) > 0",
                for_seconds=30,
                severity="critical",
                summary="{{ $labels.instance }} cannot claim its assigned partitions of {{ $labels.topic }}",
                effect="events on these partitions are not processed",
                doing="retries every second; one with a stored position of another cluster waits for an operator",
                command="slipway topics stopped",
            ),
        ),
    ),
    Metric(
        name="slipway_unsendable_partitions",
        kind="gauge",
        services=EVERY,
        labels=("topic",),
        help="Partitions whose last batch the broker refused, or has not acknowledged in time",
        alerts=(
            AlertRule(
                name="SlipwayPartitionsUnsendable",
                expr="max by (job, topic) (slipway_unsendable_partitions) > 0",
                for_seconds=30,
                severity="critical",
                summary="the {{ $labels.job }} cannot publish to {{ $value }} partitions of {{ $labels.topic }}",
                effect="events on these partitions wait in the outbox; other partitions are not delayed",
                doing="retries each of them every few seconds, and keeps its events in order",
                command="kafka-topics.sh --describe --unavailable-partitions",
            ),
        ),
    ),
    Metric(
        name="slipway_clock_offset_seconds",
        kind="gauge",
        services=EVERY,
        help="This host's clock minus the database's",
        panel=Panel(
            row=SERVICES,
            title="Host clock minus database clock",
            unit="s",
            queries={"{{job}} {{instance}}": "max by (job, instance) (slipway_clock_offset_seconds)"},
        ),
        alerts=(
            AlertRule(
                name="SlipwayClockSkew",
                expr="max by (job, instance) (abs(slipway_clock_offset_seconds)) > 5",
                for_seconds=60,
                severity="warning",
                summary="the clocks of {{ $labels.instance }} and the database differ by more than 5 s",
                effect="displayed times are off by as much; leases are not affected, they use the database's clock",
                doing="uses the database's clock for every deadline",
                command="timedatectl timesync-status",
            ),
        ),
    ),
    Metric(
        name="slipway_consumed_total",
        kind="counter",
        services=EVERY,
        labels=("topic", "result"),
        help="Records consumed, by result",
        panel=Panel(
            row=SERVICES,
            title="Records applied",
            unit="ops",
            queries={
                "{{job}} {{topic}}": "sum by (job, topic)"
                ' (rate(slipway_consumed_total{result="applied"}[$__rate_interval]))'
            },
        ),
    ),
    Metric(
        name="slipway_published_total",
        kind="counter",
        services=EVERY,
        labels=("topic",),
        help="Records published and acknowledged by the broker",
        panel=Panel(
            row=SERVICES,
            title="Records published",
            unit="ops",
            queries={"{{job}} {{topic}}": "sum by (job, topic) (rate(slipway_published_total[$__rate_interval]))"},
        ),
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
        panel=Panel(
            row=SERVICES,
            title="Failed loop steps",
            unit="ops",
            queries={
                "{{job}} {{loop}}": "sum by (job, loop) (rate(slipway_loop_failures_total[$__rate_interval])) > 0"
            },
        ),
    ),
    Metric(
        name="slipway_pruned_rows_total",
        kind="counter",
        services=EVERY,
        labels=("table",),
        help="Rows deleted by the prune loop because their retention had passed",
        panel=Panel(
            row=SERVICES,
            title="Rows pruned",
            unit="ops",
            queries={"{{job}} {{table}}": "sum by (job, table) (rate(slipway_pruned_rows_total[$__rate_interval]))"},
        ),
    ),
)

# Alerts on the scrape targets themselves.
ALERTS_OF_TARGETS: Final = (
    AlertRule(
        name="SlipwayServiceDown",
        expr='max by (job) (up{job=~"provisioner|weight-calculator|lease-broker"}) == 0',
        for_seconds=60,
        severity="critical",
        summary="no replica of the {{ $labels.job }} can be scraped",
        effect="without a provisioner, nothing is launched or terminated; workers continue with their tasks",
        doing="resumes from the database after a restart",
        command="slipway doctor",
    ),
)

_BY_NAME: Final = {metric.name: metric for metric in METRICS}


def alerts() -> Iterator[AlertRule]:
    """All alerts, in the order of the table."""
    for metric in METRICS:
        yield from metric.alerts
    yield from ALERTS_OF_TARGETS


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
