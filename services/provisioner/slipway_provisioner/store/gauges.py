"""Gauges for Prometheus: the numbers of the HTTP API without archived and deleted objects. Takes no locks."""

from typing import Any, Final

from slipway_common.database.postgres import Connection
from slipway_common.events.lifecycle import ENDED, LIVE
from slipway_common.observability.metrics import Readings
from slipway_provisioner.domain.workspaces import Phase
from slipway_provisioner.store import summaries
from slipway_provisioner.store.columns import states

NAMES: Final = (
    "slipway_workers",
    "slipway_pool_pending_tasks",
    "slipway_pool_claimed_tasks",
    "slipway_pool_wanted_workers",
    "slipway_pool_serving_workers",
    "slipway_pool_max_workers",
    "slipway_pool_backlog_seconds",
    "slipway_launch_config_weight",
    "slipway_launch_config_health",
    "slipway_launch_config_tripped",
    "slipway_launch_config_paused",
    "slipway_reaper_pass_age_seconds",
    "slipway_workspaces",
    "slipway_workspace_runs",
    "slipway_workspace_run_wait_seconds",
    "slipway_workspace_failed_runs",
    "slipway_workspace_listing_failed",
)
LIVE_STATES: Final = sorted(state.value for state in LIVE)
WORKERS: Final = f"""
SELECT pool_id, launch_config_id, state, count(*)::int AS number FROM worker
WHERE state NOT IN ({states(ENDED)}) GROUP BY pool_id, launch_config_id, state"""
# Only what gauges show: the summaries of thousands of configs take seconds. The weight is the one that planning uses:
# before the first record, the weight without evidence. Tripped keys are few and read once, since a look-up for each
# config takes half a second at 6,000.
CONFIGS: Final = """
SELECT c.pool_id, c.id, coalesce((g.record ->> 'weight')::float8, n.base_weight * n.price_factor) AS weight,
    (g.record ->> 'health')::float8 AS health, c.state = 'active' AND n.paused AS paused,
    coalesce(g.record ->> 'state', 'healthy') <> 'healthy'
        OR ARRAY[c.image_key, c.quota_key, c.credential_key, c.capacity_key, c.subnet_key]
            && ARRAY(SELECT key FROM shared_window WHERE state = 'tripped') AS tripped
FROM launch_config c JOIN launch_config_name n ON n.name = c.name LEFT JOIN weight g ON g.launch_config_id = c.id
WHERE c.state <> 'archived'"""
REAPER: Final = """
SELECT id, extract(epoch FROM slipway_clock() - passed_at)::float8 AS age_seconds FROM account
WHERE EXISTS (SELECT FROM launch_config c WHERE c.account_id = account.id AND c.state <> 'archived')"""

PHASES: Final = [phase.value for phase in Phase if phase is not Phase.GONE]
# A run whose lock has lapsed waits for another one. In a retired account nothing is run.
WORKSPACES: Final = f"""
SELECT phase, count(*)::int AS number, count(*) FILTER (WHERE runs)::int AS running,
    count(*) FILTER (WHERE waits)::int AS waiting,
    coalesce(extract(epoch FROM slipway_clock() - min(due_at) FILTER (WHERE waits)), 0)::float8 AS wait_seconds,
    coalesce(max(failed_runs) FILTER (WHERE NOT retired), 0) AS failed_runs
FROM (SELECT phase, due_at, failed_runs, retired, holder <> '' AND locked_until >= slipway_clock() AS runs,
        due_at <= slipway_clock() AND (holder = '' OR locked_until < slipway_clock()) AND NOT retired AS waits
    FROM workspace, coalesce((SELECT a.retired FROM account a WHERE a.id = account_id), false) AS retired
    WHERE phase <> '{Phase.GONE}') AS w
GROUP BY phase"""

LISTINGS: Final = """
SELECT l.account_id, l.problem <> '' AS failed FROM workspace_listing l JOIN account a ON a.id = l.account_id
WHERE NOT a.retired"""


async def read(db: Connection) -> Readings:
    """Readings of the gauges in NAMES."""
    workers = await db.fetch(WORKERS)
    pools = await summaries.pools(db)
    configs = await db.fetch(CONFIGS)
    reaper = await db.fetch(REAPER)
    workspaces = await db.fetch(WORKSPACES)
    listings = await db.fetch(LISTINGS)

    def of_pools(column: str) -> dict[tuple[str, ...], Any]:
        return {(pool["id"],): pool[column] or 0 for pool in pools}

    def of_configs(column: str) -> dict[tuple[str, ...], Any]:
        return {(row["pool_id"], row["id"]): row[column] for row in configs if row[column] is not None}

    # A config has a value for every state, so that series fall to zero instead of ending.
    none = {(row["pool_id"], row["id"], state): 0 for row in configs for state in LIVE_STATES}
    return {
        "slipway_workers": none
        | {(row["pool_id"], row["launch_config_id"], row["state"]): row["number"] for row in workers},
        "slipway_pool_pending_tasks": of_pools("pending"),
        "slipway_pool_claimed_tasks": of_pools("claimed"),
        "slipway_pool_wanted_workers": of_pools("wanted"),
        "slipway_pool_serving_workers": of_pools("serving"),
        "slipway_pool_max_workers": of_pools("max_capacity"),
        "slipway_pool_backlog_seconds": of_pools("backlog_seconds"),
        "slipway_launch_config_weight": of_configs("weight"),
        "slipway_launch_config_health": of_configs("health"),
        "slipway_launch_config_tripped": of_configs("tripped"),
        "slipway_launch_config_paused": of_configs("paused"),
        "slipway_reaper_pass_age_seconds": {(row["id"],): row["age_seconds"] for row in reaper},
        "slipway_workspaces": {(phase,): 0 for phase in PHASES}
        | {(row["phase"],): row["number"] for row in workspaces},
        "slipway_workspace_runs": {(state,): sum(row[state] for row in workspaces) for state in ("running", "waiting")},
        "slipway_workspace_run_wait_seconds": {(): max((row["wait_seconds"] for row in workspaces), default=0.0)},
        "slipway_workspace_failed_runs": {(phase,): 0 for phase in PHASES}
        | {(row["phase"],): row["failed_runs"] for row in workspaces},
        "slipway_workspace_listing_failed": {(row["account_id"],): row["failed"] for row in listings},
    }
