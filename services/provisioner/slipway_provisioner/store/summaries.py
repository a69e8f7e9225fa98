"""Pools and launch configs as people look at them: no lock, and nothing that grows with what has ended."""

from typing import Any, Final

from slipway_common.postgres import Connection
from slipway_provisioner.store.pools import stages

# The newest decision is the one that REPEAT renews. Only sources that are fresh wait for us.
POOLS: Final = """
SELECT p.id, p.min_capacity, p.max_capacity, p.scaling_ratio, p.mode, p.paused, p.paused_reason, p.paused_by,
    p.paused_until, p.frozen,
    d.pending, d.claimed, d.oldest_wait_seconds, w.serving, w.running, w.leaving, x.wanted, x.needed
FROM worker_pool p
CROSS JOIN LATERAL (
    SELECT coalesce(sum(pending), 0)::int AS pending, coalesce(sum(claimed), 0)::int AS claimed,
        extract(epoch FROM slipway_clock() - min(least(pending_since, slipway_clock())) FILTER (
            WHERE pending_since IS NOT NULL AND observed_at + valid_for_seconds * interval '1 s' > slipway_clock()
        ))::float8 AS oldest_wait_seconds
    FROM demand WHERE pool_id = p.id) AS d
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE state <> 'stopping')::int AS serving,
        count(*) FILTER (WHERE state = 'running')::int AS running,
        count(*) FILTER (WHERE state = 'stopping')::int AS leaving
    FROM worker WHERE pool_id = p.id AND state <> 'stopped') AS w
LEFT JOIN LATERAL (
    SELECT (why ->> 'wanted')::int AS wanted, (why ->> 'needed')::int AS needed FROM decision
    WHERE pool_id = p.id ORDER BY at DESC, id DESC LIMIT 1) AS x ON true
WHERE NOT p.deleted AND ($1::text IS NULL OR p.id = $1) ORDER BY p.id"""
CONFIGS: Final = """
SELECT c.id, c.pool_id, c.account_id, c.region, c.zone, c.instance_type, c.image_revision, c.state, c.state_reason,
    c.state_by, c.paused_until, c.base_weight, c.price_factor, c.settings, w.record, o.failures,
    coalesce(o.successes, 0)::int AS ok, coalesce(o.failed, 0)::int AS failed,
    k.launching, k.booting, k.unclaimed, k.launching + k.booting AS starting, k.running
FROM launch_config c LEFT JOIN weight w ON w.launch_config_id = c.id
LEFT JOIN LATERAL (
    SELECT sum(failures) AS failed, sum(successes) AS successes, jsonb_object_agg(stage, failures) AS failures
    FROM launch_config_outcomes WHERE launch_config_id = c.id) AS o ON true
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE state IN ('requested', 'launching'))::int AS launching,
        count(*) FILTER (WHERE state = 'starting')::int AS booting,
        count(*) FILTER (WHERE state = 'running')::int AS running,
        count(*) FILTER (WHERE state = 'running' AND first_claimed_at IS NULL)::int AS unclaimed
    FROM worker WHERE pool_id = c.pool_id AND launch_config_id = c.id AND state <> 'stopped') AS k
WHERE ($1::text IS NULL OR c.pool_id = $1) AND ($2::text IS NULL OR c.id = $2) ORDER BY c.pool_id, c.id"""
FAILURES: Final = """
SELECT id::text AS worker_id, failed_at AS at, reason FROM worker
WHERE launch_config_id = $1 AND failed_at IS NOT NULL ORDER BY failed_at DESC, id DESC LIMIT 10"""
IN_FLIGHT: Final = {"launch": "launching", "boot": "booting", "claim": "unclaimed"}  # stage → column
OF_RECORD: Final = ("weight", "health", "closed_stage", "next_probe_at", "reason")


async def pools(db: Connection, pool_id: str | None = None) -> list[dict[str, Any]]:
    """Pools with their demand, their fleet, and what the newest decision wanted and missed (null before the first).

    `oldest_wait_seconds` is how long a source has had tasks pending; null when no fresh source has.
    """
    return [dict(row) for row in await db.fetch(POOLS, pool_id)]


async def configs(db: Connection, pool_id: str | None = None) -> list[dict[str, Any]]:
    """Launch configs with the weight record in force, their windows, and how their starts ended."""
    return [_config(row) for row in await db.fetch(CONFIGS, pool_id, None)]


async def config(db: Connection, config_id: str) -> dict[str, Any] | None:
    """One launch config with its settings, its whole weight record (null before the first) and its newest failures."""
    row = await db.fetchrow(CONFIGS, None, config_id)
    if row is None:
        return None
    failures = [dict(failure) for failure in await db.fetch(FAILURES, config_id)]
    return _config(row) | {"settings": row["settings"], "record": row["record"], "recent_failures": failures}


def _config(row: Any) -> dict[str, Any]:
    """`ok` are launches that were accepted, `failed` the failures of any stage, over the config's life."""
    values = dict(row)
    record, failures = values.pop("record") or {}, values.pop("failures") or {}
    in_flight = {stage: values.pop(name) for stage, name in IN_FLIGHT.items()}
    del values["settings"]
    levels = {
        name: {"in_flight": stage.in_flight, "unfolded": max(0, stage.failures - stage.folded), "window": stage.window}
        for name, stage in stages(record, in_flight, failures).items()
    }
    shown = {name: record.get(name) for name in OF_RECORD}
    return values | shown | {
        "circuit": record.get("state", "open"), "probe_ready": record.get("probe_ready", False), "stages": levels,
    }  # fmt: skip
