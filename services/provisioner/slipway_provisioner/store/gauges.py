"""Gauges for Prometheus: the numbers of the HTTP API without archived and deleted objects. Takes no locks."""

from typing import Any, Final

from slipway_common.database.postgres import Connection
from slipway_common.events.lifecycle import ENDED, LIVE
from slipway_common.observability.metrics import Readings
from slipway_provisioner.store import summaries
from slipway_provisioner.store.tables import states

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
)
# A config has a value for every state, so that series fall to zero instead of ending.
WORKERS: Final = f"""
SELECT c.pool_id, c.id, s.state, coalesce(w.number, 0)::int AS number
FROM launch_config c CROSS JOIN unnest(ARRAY[{states(LIVE)}]) AS s (state)
LEFT JOIN (SELECT pool_id, launch_config_id, state, count(*) AS number FROM worker
    WHERE state NOT IN ({states(ENDED)}) GROUP BY pool_id, launch_config_id, state) AS w
    ON w.pool_id = c.pool_id AND w.launch_config_id = c.id AND w.state = s.state
WHERE c.state <> 'archived' OR w.number > 0"""
REAPER: Final = """
SELECT id, extract(epoch FROM slipway_clock() - passed_at)::float8 AS age_seconds FROM account
WHERE EXISTS (SELECT FROM launch_config c WHERE c.account_id = account.id AND c.state <> 'archived')"""


async def read(db: Connection) -> Readings:
    """Readings of the gauges in NAMES."""
    workers = await db.fetch(WORKERS)
    pools = await summaries.pools(db)
    configs = await summaries.configs(db)
    reaper = await db.fetch(REAPER)

    def of_pools(column: str) -> dict[tuple[str, ...], Any]:
        return {(pool["id"],): pool[column] or 0 for pool in pools}

    return {
        "slipway_workers": {(row["pool_id"], row["id"], row["state"]): row["number"] for row in workers},
        "slipway_pool_pending_tasks": of_pools("pending"),
        "slipway_pool_claimed_tasks": of_pools("claimed"),
        "slipway_pool_wanted_workers": of_pools("wanted"),
        "slipway_pool_serving_workers": of_pools("serving"),
        "slipway_pool_max_workers": of_pools("max_capacity"),
        "slipway_pool_backlog_seconds": of_pools("backlog_seconds"),
        "slipway_launch_config_weight": {_config(c): _weight(c) for c in configs},
        "slipway_launch_config_health": {_config(c): c["health"] for c in configs if c["health"] is not None},
        "slipway_launch_config_tripped": {_config(c): c["health_state"] != "healthy" for c in configs},
        "slipway_launch_config_paused": {_config(c): c["state"] == "paused" for c in configs},
        "slipway_reaper_pass_age_seconds": {(row["id"],): row["age_seconds"] for row in reaper},
    }


def _config(config: dict[str, Any]) -> tuple[str, ...]:
    return config["pool_id"], config["id"]


def _weight(config: dict[str, Any]) -> float:
    """Weight used by planning: before the first record, the weight without evidence."""
    weight: float | None = config["weight"]
    return config["base_weight"] * config["price_factor"] if weight is None else weight
