"""Gauges for Prometheus: the numbers of the HTTP API without archived and deleted objects. Takes no locks.

Those of pools are read of some pools at a time, so that a reading costs the same in any fleet.
"""

from collections.abc import Mapping
from typing import Any, Final

from slipway_api.events.lifecycle import ENDED, LIVE
from slipway_common.database.postgres import Connection
from slipway_common.observability.metrics import Readings
from slipway_provisioner.domain.workspaces import Phase
from slipway_provisioner.store import summaries
from slipway_provisioner.store.columns import states

POOLS_AT_ONCE: Final = 200
NAMES: Final = (
    "slipway_reaper_pass_age_seconds",
    "slipway_workspaces",
    "slipway_workspace_runs",
    "slipway_workspace_run_wait_seconds",
    "slipway_workspace_failed_runs",
    "slipway_workspace_listing_failed",
)
_OF_POOL: Final = {
    "slipway_pool_pending_tasks": "pending",
    "slipway_pool_claimed_tasks": "claimed",
    "slipway_pool_wanted_workers": "wanted",
    "slipway_pool_serving_workers": "serving",
    "slipway_pool_max_workers": "max_capacity",
    "slipway_pool_backlog_seconds": "backlog_seconds",
}
_OF_CONFIG: Final = {
    "slipway_launch_config_weight": "weight",
    "slipway_launch_config_health": "health",
    "slipway_launch_config_tripped": "tripped",
    "slipway_launch_config_paused": "paused",
}
POOL_NAMES: Final = ("slipway_workers", *_OF_POOL, *_OF_CONFIG)
LIVE_STATES: Final = sorted(state.value for state in LIVE)
NEXT_POOLS: Final = f"""
SELECT id FROM worker_pool WHERE NOT deleted AND id > $1 ORDER BY id LIMIT {POOLS_AT_ONCE}"""
WORKERS: Final = f"""
SELECT pool_id, launch_config_id, state, count(*)::int AS number FROM worker
WHERE pool_id = ANY($1) AND state NOT IN ({states(ENDED)}) GROUP BY pool_id, launch_config_id, state"""
# Only what gauges show: the summaries of thousands of configs take seconds. The weight is the one that planning uses:
# before the first record, the weight without evidence. Tripped keys are few and read once, since a look-up for each
# config takes half a second at 6,000.
CONFIGS: Final = """
SELECT c.pool_id, c.id, coalesce((g.record ->> 'weight')::float8, n.base_weight * n.price_factor) AS weight,
    (g.record ->> 'health')::float8 AS health, c.state = 'active' AND n.paused AS paused,
    coalesce(g.record ->> 'state', 'healthy') <> 'healthy'
        OR ARRAY[c.image_key, c.quota_key, c.credential_key, c.capacity_key, c.subnet_key]
            && ARRAY(SELECT key FROM shared_window WHERE state = 'tripped') AS tripped
FROM launch_config c
CROSS JOIN LATERAL (SELECT * FROM launch_config_name WHERE name = c.name LIMIT 1) AS n
LEFT JOIN LATERAL (SELECT record FROM weight WHERE launch_config_id = c.id LIMIT 1) AS g ON true
WHERE c.state <> 'archived' AND c.pool_id = ANY($1)"""
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
    reaper = await db.fetch(REAPER)
    workspaces = await db.fetch(WORKSPACES)
    listings = await db.fetch(LISTINGS)
    return {
        "slipway_reaper_pass_age_seconds": {(row["id"],): row["age_seconds"] for row in reaper},
        "slipway_workspaces": {(phase,): 0 for phase in PHASES}
        | {(row["phase"],): row["number"] for row in workspaces},
        "slipway_workspace_runs": {(state,): sum(row[state] for row in workspaces) for state in ("running", "waiting")},
        "slipway_workspace_run_wait_seconds": {(): max((row["wait_seconds"] for row in workspaces), default=0.0)},
        "slipway_workspace_failed_runs": {(phase,): 0 for phase in PHASES}
        | {(row["phase"],): row["failed_runs"] for row in workspaces},
        "slipway_workspace_listing_failed": {(row["account_id"],): row["failed"] for row in listings},
    }


async def read_pools(db: Connection, after: str) -> tuple[Mapping[str, Readings], bool]:
    """Readings of the gauges in POOL_NAMES, of the first POOLS_AT_ONCE pools whose id follows `after`, in their
    order, and whether there may be more."""
    ids = [row["id"] for row in await db.fetch(NEXT_POOLS, after)]
    found: dict[str, dict[str, dict[tuple[str, ...], Any]]] = {id_: {name: {} for name in POOL_NAMES} for id_ in ids}
    for pool in await summaries.pools_of(db, ids):
        for name, column in _OF_POOL.items():
            found[pool.id][name][(pool.id,)] = getattr(pool, column) or 0
    for row in await db.fetch(CONFIGS, ids):
        of_pool, labels = found[row["pool_id"]], (row["pool_id"], row["id"])
        # A config has a value for every state, so that series fall to zero instead of ending.
        of_pool["slipway_workers"] |= {(*labels, state): 0 for state in LIVE_STATES}
        for name, column in _OF_CONFIG.items():
            if row[column] is not None:
                of_pool[name][labels] = row[column]
    for row in await db.fetch(WORKERS, ids):
        of_state = (row["pool_id"], row["launch_config_id"], row["state"])
        found[row["pool_id"]]["slipway_workers"][of_state] = row["number"]
    return found, len(ids) == POOLS_AT_ONCE
