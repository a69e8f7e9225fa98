"""Every metric, once: its meaning, who tells it, the panel that shows it and the alerts that watch it.

Instruments are made from this table and in no other way; Prometheus' rules, the Grafana dashboard and the page in
docs/generated are written from it. Labels have bounds: a pool, a config, an account, a topic, a stage; never a worker.
"""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, Literal, TypeAlias

import msgspec
from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call] # a second series per counter and histogram, which nobody asks for

Kind = Literal["counter", "gauge", "histogram"]
Service = Literal["provisioner", "weight-calculator", "lease-broker"]

PROVISIONER: Final[tuple[Service, ...]] = ("provisioner",)
CALCULATOR: Final[tuple[Service, ...]] = ("weight-calculator",)
BROKER: Final[tuple[Service, ...]] = ("lease-broker",)
EVERY: Final[tuple[Service, ...]] = ("provisioner", "weight-calculator", "lease-broker")

POOLS, CONFIGS, LEASES, PLUMBING = "Pools", "Launch configs", "Leases", "Plumbing"
ROWS: Final = (POOLS, CONFIGS, LEASES, PLUMBING)

SECONDS: Final = (0.01, 0.05, 0.2, 1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200)


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One graph. `queries` maps a legend to an expression, in which `$pool` is the dashboard's choice of pools."""

    row: str
    title: str
    queries: Mapping[str, str]
    unit: Literal["short", "s", "ops", "percentunit"] = "short"


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """When a person should look, what it means for the fleet, what Slipway does meanwhile, and one command."""

    name: str
    expr: str
    for_seconds: int
    severity: Literal["critical", "warning"]
    summary: str
    effect: str
    doing: str
    command: str


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric family. `whole`: each replica tells the same, of the whole deployment: take max, not sum."""

    name: str
    kind: Kind
    help: str
    services: tuple[Service, ...]
    labels: tuple[str, ...] = ()
    whole: bool = False
    buckets: tuple[float, ...] = ()
    panel: Panel | None = None
    alerts: tuple[Alert, ...] = ()

    @property
    def unit(self) -> str:
        """The last word of the name that says what is counted; empty for a bare number."""
        last = self.name.removesuffix("_total").rsplit("_", 1)[-1]
        return last if last in {"seconds", "tasks", "units", "records", "partitions", "workers"} else ""


METRICS: Final[tuple[Metric, ...]] = (
    # Pools: what is asked for, what is there
    Metric(
        name="slipway_pool_pending_tasks",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool",),
        whole=True,
        help="Tasks that wait, by the newest report of each source",
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
        help="Tasks that run on workers, by the newest report of each source",
    ),
    Metric(
        name="slipway_pool_wanted_workers",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool",),
        whole=True,
        help="Workers that the newest decision wanted",
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
        help="Workers requested, launching, starting or running",
    ),
    Metric(
        name="slipway_pool_max_workers",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool",),
        whole=True,
        help="The most workers that may serve",
    ),
    Metric(
        name="slipway_pool_oldest_wait_seconds",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool",),
        whole=True,
        help="For how long the pool has had waiting tasks without a pause; 0 when none waits",
        panel=Panel(
            row=POOLS,
            title="Tasks have been waiting for",
            unit="s",
            queries={"{{pool}}": 'max by (pool) (slipway_pool_oldest_wait_seconds{pool=~"$pool"})'},
        ),
        alerts=(
            Alert(
                # A busy queue is never empty: only together with workers that are wanted and not there is it a fault.
                name="SlipwayTasksWait",
                expr="max by (pool) (slipway_pool_oldest_wait_seconds) > 900"
                " and max by (pool) (slipway_pool_serving_workers) < max by (pool) (slipway_pool_max_workers)"
                " and max by (pool) (slipway_pool_serving_workers) < max by (pool) (slipway_pool_wanted_workers)",
                for_seconds=60,
                severity="warning",
                summary="tasks of {{ $labels.pool }} wait for over 15 minutes, though it is below its maximum",
                effect="its queue is served late",
                doing="launches whatever weights, windows and brakes allow, and keeps the reason of each decision",
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
        help="Decisions taken, also those to launch nothing",
    ),
    Metric(
        name="slipway_worker_launch_seconds",
        kind="histogram",
        services=PROVISIONER,
        labels=("pool",),
        buckets=SECONDS,
        help="From the decision to launch a worker to the provider's yes: admission and call",
        panel=Panel(
            row=POOLS,
            title="From decision to launch, 9 of 10",
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
        help="From the provider's yes to a worker's registration",
        panel=Panel(
            row=POOLS,
            title="Boot, 9 of 10",
            unit="s",
            queries={
                "{{pool}}": "histogram_quantile(0.9, sum by (pool, le)"
                ' (rate(slipway_worker_boot_seconds_bucket{pool=~"$pool"}[$__rate_interval])))'
            },
        ),
    ),
    # Launch configs: where launches go, and what became of them
    Metric(
        name="slipway_launch_config_weight",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool", "launch_config"),
        whole=True,
        help="The weight in force: the share of a config among those of its pool",
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
        help="How likely a start succeeds, 0 to 1; absent until the weight-calculator has told it",
        panel=Panel(
            row=CONFIGS,
            title="Health",
            unit="percentunit",
            queries={"{{launch_config}}": 'max by (launch_config) (slipway_launch_config_health{pool=~"$pool"})'},
        ),
    ),
    Metric(
        name="slipway_launch_config_closed",
        kind="gauge",
        services=PROVISIONER,
        labels=("pool", "launch_config"),
        whole=True,
        help="1 while failures have closed the config: it launches probes only",
        panel=Panel(
            row=CONFIGS,
            title="Closed or paused",
            queries={
                "{{launch_config}} closed": 'max by (launch_config) (slipway_launch_config_closed{pool=~"$pool"}) == 1',
                "{{launch_config}} paused": 'max by (launch_config) (slipway_launch_config_paused{pool=~"$pool"}) == 1',
            },
        ),
        alerts=(
            Alert(
                name="SlipwayPoolClosed",
                expr="min by (pool) (slipway_launch_config_closed unless slipway_launch_config_paused == 1) == 1",
                for_seconds=60,
                severity="critical",
                summary="every launch config of {{ $labels.pool }} that is not paused is closed by failures",
                effect="the pool launches nothing but probes, so its tasks wait",
                doing="probes one config at a time and opens each that succeeds",
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
        help="1 while an operator or a monitor has paused the config",
    ),
    Metric(
        name="slipway_provider_calls_total",
        kind="counter",
        services=PROVISIONER,
        labels=("account", "result", "scope"),
        help="Create calls by what became of them (ok, failed, unknown) and what a failure says something about",
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
        help="Ends of a start's stages taken into the weights",
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
        name="slipway_gates_total",
        kind="counter",
        services=CALCULATOR,
        labels=("to",),
        help="Launch configs that closed or opened",
    ),
    Metric(name="slipway_probe_permits_total", kind="counter", services=CALCULATOR, help="Probe permits issued"),
    Metric(
        name="slipway_weight_records_total",
        kind="counter",
        services=CALCULATOR,
        help="Weight records and tombstones published",
    ),
    Metric(
        name="slipway_event_times_clamped_total",
        kind="counter",
        services=CALCULATOR,
        help="Facts whose time was more than two minutes from when they were written, or ahead of now",
    ),
    Metric(
        name="slipway_signals_total",
        kind="counter",
        services=CALCULATOR,
        labels=("kind",),
        help="Opinions from outside that were heard, by what they say",
    ),
    Metric(
        name="slipway_signals_refused_total",
        kind="counter",
        services=CALCULATOR,
        labels=("reason",),
        help="Opinions from outside without effect, by reason; GET /signals tells the newest",
        panel=Panel(
            row=CONFIGS,
            title="Signals refused",
            queries={"{{reason}}": "sum by (reason) (increase(slipway_signals_refused_total[$__rate_interval]))"},
        ),
    ),
    Metric(
        name="slipway_requests_refused_total",
        kind="counter",
        services=PROVISIONER,
        labels=("reason",),
        help="Pause and resume requests and spot interruptions without effect, by reason",
    ),
    Metric(
        name="slipway_looked_up_total",
        kind="counter",
        services=PROVISIONER,
        labels=("account",),
        help="Calls of unknown outcome resolved by their tag",
    ),
    Metric(
        name="slipway_reaped_total",
        kind="counter",
        services=PROVISIONER,
        labels=("account", "kind"),
        help="What the reaper ended (surplus) or found gone (missing)",
    ),
    Metric(
        name="slipway_reaper_silent_seconds",
        kind="gauge",
        services=PROVISIONER,
        labels=("account",),
        whole=True,
        help="Since the reaper last compared the account's listing with the workers",
        alerts=(
            Alert(
                name="SlipwayReaperSilent",
                expr="max by (account) (slipway_reaper_silent_seconds) > 600",
                for_seconds=60,
                severity="warning",
                summary="{{ $labels.account }} was not compared with its listing for over 10 minutes",
                effect="instances that nobody asked for keep running and are billed; workers that are gone still count",
                doing="tries to list the account again with each pass, and ends nothing it has not seen listed",
                command="slipway doctor",
            ),
        ),
    ),
    Metric(
        name="slipway_times_clamped_total",
        kind="counter",
        services=PROVISIONER,
        help="Times that workers reported too far from receipt",
    ),
    # Leases: admission to accounts
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
        help="Units that may be held at once",
    ),
    Metric(
        name="slipway_lease_waiting_units",
        kind="gauge",
        services=BROKER,
        labels=("lease_pool",),
        whole=True,
        help="Units asked for and not granted yet",
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
        help="How long the first in the queue has waited; 0 when none waits",
        panel=Panel(
            row=LEASES,
            title="First in the queue waits for",
            unit="s",
            queries={"{{lease_pool}}": "max by (lease_pool) (slipway_lease_oldest_wait_seconds)"},
        ),
        alerts=(
            Alert(
                name="SlipwayLeasesWait",
                expr="max by (lease_pool) (slipway_lease_oldest_wait_seconds) > 900",
                for_seconds=60,
                severity="warning",
                summary="a request has waited for over 15 minutes for a lease of {{ $labels.lease_pool }}",
                effect="launches in its accounts wait",
                doing="grants in order of arrival as leases are given back or end by time",
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
        name="slipway_lease_ended_by_time_total",
        kind="counter",
        services=BROKER,
        labels=("lease_pool", "state"),
        help="Leases that time ended",
    ),
    Metric(
        name="slipway_lease_refused_facts_total",
        kind="counter",
        services=BROKER,
        labels=("reason",),
        help="Facts that changed nothing",
    ),
    Metric(
        name="slipway_lease_waited_seconds",
        kind="histogram",
        services=BROKER,
        labels=("lease_pool",),
        buckets=SECONDS,
        help="From request to grant",
    ),
    Metric(
        name="slipway_lease_tenant_held_units",
        kind="gauge",
        services=BROKER,
        labels=("lease_pool", "tenant"),
        whole=True,
        help="Units counted against the limit, of the 50 tenants of a lease pool that use it most",
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
        help="Units asked for and not granted yet, of the 50 tenants of a lease pool that use it most",
    ),
    Metric(
        name="slipway_lease_idle_unit_seconds_total",
        kind="counter",
        services=BROKER,
        labels=("lease_pool",),
        help="Units that were free while somebody waited for them, times seconds: paced, kept back, or not decided yet",
        panel=Panel(
            row=LEASES,
            title="Units idle although somebody waits",
            queries={
                "{{lease_pool}}": "sum by (lease_pool) (rate(slipway_lease_idle_unit_seconds_total[$__rate_interval]))"
            },
        ),
    ),
    Metric(
        name="slipway_lease_grant_gap_seconds",
        kind="histogram",
        services=BROKER,
        labels=("lease_pool",),
        buckets=SECONDS,
        help="Between a grant and the one before it",
    ),
    Metric(
        name="slipway_lease_throttles_total",
        kind="counter",
        services=BROKER,
        labels=("lease_pool",),
        help="Leases whose holder was throttled by the cloud",
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
        help="Changes of the limit in force, by cause: declared, adaptive, derived, pinned, drained or retired",
    ),
    Metric(
        name="slipway_lease_unleased_starts_total",
        kind="counter",
        services=BROKER,
        labels=("lease_pool",),
        help="Starts without a lease while no lease-broker answered, reported and charged afterwards",
    ),
    Metric(
        name="slipway_unleased_launches_total",
        kind="counter",
        services=PROVISIONER,
        labels=("lease_pool",),
        help="Intents admitted without a lease while no lease-broker was heard",
    ),
    Metric(
        name="slipway_lease_undecided_total",
        kind="counter",
        services=BROKER,
        labels=("lease_pool",),
        help="Decisions on a lease pool, or on a gang that names it, which failed; never, or there is a bug",
        alerts=(
            Alert(
                name="SlipwayLeasePoolUndecided",
                expr="sum by (lease_pool) (increase(slipway_lease_undecided_total[2m])) > 0",
                for_seconds=0,
                severity="critical",
                summary="no decision can be made for {{ $labels.lease_pool }}, or for a gang that names it",
                effect="what waits for it does not start and its leases do not end in time; or that gang alone waits",
                doing="keeps all that is said to it, and tries again every 30 s; its why, or the log, has the error",
                command="slipway lease pools",
            ),
        ),
    ),
    Metric(
        name="slipway_lease_drift_total",
        kind="counter",
        services=BROKER,
        labels=("lease_pool",),
        help="Times that a lease pool's counters differed from its rows and were repaired; never, or there is a bug",
        alerts=(
            Alert(
                name="SlipwayLeaseCountersDrift",
                expr="sum by (lease_pool) (increase(slipway_lease_drift_total[1h])) > 0",
                for_seconds=0,
                severity="warning",
                summary="counters of {{ $labels.lease_pool }} differed from its leases and requests",
                effect="until the repair more was granted than its limit, or units lay idle",
                doing="repaired the counters and decided once more; the history of the lease pool has both numbers",
                command="slipway lease history {{ $labels.lease_pool }}",
            ),
        ),
    ),
    # Plumbing: what every service stands on
    Metric(
        name="slipway_heartbeat_silent_seconds",
        kind="gauge",
        services=PROVISIONER,
        labels=("service",),
        help="Since this process last heard a service's heartbeat, or since it started; take min over replicas",
        panel=Panel(
            row=PLUMBING,
            title="Since the last heartbeat",
            unit="s",
            queries={"{{service}}": "min by (service) (slipway_heartbeat_silent_seconds)"},
        ),
        alerts=(
            Alert(
                name="SlipwayServiceSilent",
                expr='min by (service) (slipway_heartbeat_silent_seconds{service!="weight-calculator"}) > 30',
                for_seconds=15,
                severity="critical",
                summary="no heartbeat of the {{ $labels.service }} for over 30 s",
                effect="without the lease-broker launches wait for admission; running workers are not touched",
                doing="repeats its requests, and goes on where it was once the service is back",
                command="slipway doctor",
            ),
            Alert(
                name="SlipwayNoWeightCalculator",
                expr='min by (service) (slipway_heartbeat_silent_seconds{service="weight-calculator"}) > 30',
                for_seconds=15,
                severity="critical",
                summary="no heartbeat of the weight-calculator for over 30 s",
                effect="windows are capped and weights fade towards what no evidence would give",
                doing="keeps launching within capped windows, one attempt a pool where they are full",
                command="slipway doctor",
            ),
        ),
    ),
    Metric(
        name="slipway_outbox_oldest_seconds",
        kind="gauge",
        services=EVERY,
        whole=True,
        help="Age of the oldest event not yet published; 0 when all are",
        panel=Panel(
            row=PLUMBING,
            title="Oldest event not yet published",
            unit="s",
            queries={"{{job}}": "max by (job) (slipway_outbox_oldest_seconds)"},
        ),
        alerts=(
            Alert(
                name="SlipwayOutboxStuck",
                expr="max by (job) (slipway_outbox_oldest_seconds) > 60",
                for_seconds=30,
                severity="critical",
                summary="an event of the {{ $labels.job }} has waited for over a minute to be published",
                effect="the other services and every subscriber see the state of then",
                doing="keeps all events in the database, in order, and sends them once the broker takes them",
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
        help="Records that could not be applied, and those parked behind them",
        panel=Panel(
            row=PLUMBING,
            title="Dead letters",
            queries={"{{job}} {{topic}}": "max by (job, topic) (slipway_dead_letters)"},
        ),
        alerts=(
            Alert(
                name="SlipwayDeadLetters",
                expr="max by (job, topic) (slipway_dead_letters) > 0",
                for_seconds=0,
                severity="warning",
                summary="the {{ $labels.job }} could not apply {{ $value }} records of {{ $labels.topic }}",
                effect="what these records say is not known; later ones of the same subject wait behind them",
                doing="goes on with all other subjects, and keeps these until somebody replays or drops them",
                command="slipway dlq ls",
            ),
        ),
    ),
    Metric(
        name="slipway_consumer_lag_records",
        kind="gauge",
        services=EVERY,
        labels=("topic",),
        help="Records of this replica's partitions that are not yet applied; take sum over replicas",
        panel=Panel(
            row=PLUMBING,
            title="Records not yet applied",
            queries={"{{job}} {{topic}}": "sum by (job, topic) (slipway_consumer_lag_records)"},
        ),
        alerts=(
            Alert(
                name="SlipwayConsumerLags",
                expr="sum by (job, topic) (slipway_consumer_lag_records) > 1000",
                for_seconds=300,
                severity="warning",
                summary="the {{ $labels.job }} is {{ $value }} records behind on {{ $labels.topic }}",
                effect="it decides by what was so some time ago",
                doing="reads on in order; nothing is skipped",
                command="slipway doctor",
            ),
        ),
    ),
    Metric(
        name="slipway_unowned_partitions",
        kind="gauge",
        services=EVERY,
        labels=("topic",),
        help="Assigned partitions that this process may not write for",
        alerts=(
            Alert(
                name="SlipwayPartitionsUnowned",
                expr="max by (job, instance, topic) (slipway_unowned_partitions) > 0",
                for_seconds=30,
                severity="critical",
                summary="{{ $labels.instance }} was given partitions of {{ $labels.topic }} but cannot claim them",
                effect="their events wait",
                doing="tries again each second; one whose stored position is of another cluster waits for an operator",
                command="slipway topics stopped",
            ),
        ),
    ),
    Metric(
        name="slipway_clock_offset_seconds",
        kind="gauge",
        services=EVERY,
        help="This host's clock minus the database's",
        panel=Panel(
            row=PLUMBING,
            title="Host clock minus database clock",
            unit="s",
            queries={"{{job}} {{instance}}": "max by (job, instance) (slipway_clock_offset_seconds)"},
        ),
        alerts=(
            Alert(
                name="SlipwayClockOff",
                expr="max by (job, instance) (abs(slipway_clock_offset_seconds)) > 5",
                for_seconds=60,
                severity="warning",
                summary="the clocks of {{ $labels.instance }} and of the database differ by more than 5 s",
                effect="what people read is off by as much; leases live by the database's clock alone",
                doing="counts every deadline by the database's clock",
                command="timedatectl timesync-status",
            ),
        ),
    ),
    Metric(
        name="slipway_consumed_total",
        kind="counter",
        services=EVERY,
        labels=("topic", "result"),
        help="Records read, by what became of them",
        panel=Panel(
            row=PLUMBING,
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
        help="Records acknowledged by the broker",
        panel=Panel(
            row=PLUMBING,
            title="Records published",
            unit="ops",
            queries={"{{job}} {{topic}}": "sum by (job, topic) (rate(slipway_published_total[$__rate_interval]))"},
        ),
    ),
    Metric(name="slipway_loop_seconds", kind="histogram", services=EVERY, labels=("loop",), help="One step of a loop"),
    Metric(
        name="slipway_loop_failures_total",
        kind="counter",
        services=EVERY,
        labels=("loop",),
        help="Steps of a loop that raised",
        panel=Panel(
            row=PLUMBING,
            title="Loop steps that failed",
            unit="ops",
            queries={
                "{{job}} {{loop}}": "sum by (job, loop) (rate(slipway_loop_failures_total[$__rate_interval])) > 0"
            },
        ),
    ),
)

# What Prometheus knows of its targets by itself.
ALERTS_OF_TARGETS: Final = (
    Alert(
        name="SlipwayServiceDown",
        expr='max by (job) (up{job=~"provisioner|weight-calculator|lease-broker"}) == 0',
        for_seconds=60,
        severity="critical",
        summary="no replica of the {{ $labels.job }} answers Prometheus",
        effect="without a provisioner nothing is launched or ended; workers go on with their tasks",
        doing="resumes from the database when it is started again",
        command="slipway doctor",
    ),
)

_BY_NAME: Final = {metric.name: metric for metric in METRICS}


def alerts() -> Iterator[Alert]:
    """All of them, in the order of the table."""
    for metric in METRICS:
        yield from metric.alerts
    yield from ALERTS_OF_TARGETS


@cache
def counter(name: str) -> Counter:
    """The instrument of a row. Raises LookupError for a name that the table does not have as a counter."""
    row = _row(name, "counter")
    return Counter(name, row.help, row.labels)


@cache
def gauge(name: str) -> Gauge:
    """The instrument of a row. Raises LookupError for a name that the table does not have as a gauge."""
    row = _row(name, "gauge")
    return Gauge(name, row.help, row.labels)


@cache
def histogram(name: str) -> Histogram:
    """The instrument of a row. Raises LookupError for a name that the table does not have as a histogram."""
    row = _row(name, "histogram")
    return Histogram(name, row.help, row.labels, buckets=row.buckets or Histogram.DEFAULT_BUCKETS)


def _row(name: str, kind: Kind) -> Metric:
    row = _BY_NAME.get(name)
    if row is None or row.kind != kind:
        raise LookupError(f"slipway_common/metrics.py has no {kind} {name}; add its row to METRICS")
    return row


Readings: TypeAlias = Mapping[str, Mapping[Any, float]]  # name → values of the labels, as a tuple → value


class Board:
    """Gauges that are read together, now and then. Each reading replaces the last: what is archived disappears.

    Names are gauges of the table.
    """

    def __init__(self, *names: str) -> None:
        self._gauges = {name: gauge(name) for name in names}

    def show(self, readings: Readings) -> None:
        """Set what was read; what was not has no value any more. There is no await in it: a scrape sees all or none."""
        for name, instrument in self._gauges.items():
            read = readings.get(name, {})
            if not _BY_NAME[name].labels:
                instrument.set(read.get((), math.nan))  # a gauge without labels cannot be taken away
                continue
            instrument.clear()
            for labels, value in read.items():
                instrument.labels(*labels).set(value)
