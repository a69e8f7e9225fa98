"""Pools and launch configs for people. Takes no locks and reads nothing that grows with stopped workers."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from slipway_api.events.scopes import NEW_WINDOWS, Key
from slipway_api.events.weight import WeightChanged
from slipway_api.http.provisioner.launch_configs import (
    LaunchConfig,
    LaunchConfigDetails,
    LaunchFailure,
    SharedKey,
    StageLevel,
)
from slipway_api.http.provisioner.pools import Pool
from slipway_common.base.revisions import hash_of
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, names
from slipway_provisioner.domain import roll_out
from slipway_provisioner.domain.deadlines import DefaultDeadlines
from slipway_provisioner.domain.pool import Share, Shared
from slipway_provisioner.domain.revisions import HEALTH_SETTINGS
from slipway_provisioner.domain.windows import share_reason, tripped_share
from slipway_provisioner.store import deadlines, errors, usage
from slipway_provisioner.store.demand import CLAIMED, PENDING
from slipway_provisioner.store.pools import REPLACEMENT, SHARES, share, shared_window_size, shares, stages
from slipway_provisioner.store.tables import launch_config, launch_config_name, worker, worker_pool

P: Final = worker_pool.c
C: Final = launch_config.c
N: Final = launch_config_name.c
SWITCHES: Final = ("paused", "paused_reason", "paused_by", "paused_until", "frozen", "frozen_reason", "frozen_by")
POOL: Final = P["id", "min_capacity", "max_capacity", "scaling_ratio", "mode", *HEALTH_SETTINGS, *SWITCHES]
IDS: Final = C["id", "name", "pool_id", "account_id"]
PLACE: Final = ("region", "zone", "instance_type", "image_revision")
DRAIN: Final = ("replaced_by", "proven_at", "drain_from", "drain_until", "drain_terminate", "starts_before")
CONFIG: Final = C[*PLACE, *DRAIN, "profile", "claim_evidence", "settings"]
OF_NAME: Final = N["base_weight", "price_factor", "max_capacity", "task_slots", "paused_until"]
_PAUSED: Final = "c.state = 'active' AND n.paused"
# The newest decision is the one that REPEAT updates. Stale sources do not count as waiting.
_POOLS: Final = f"""
SELECT {names(POOL, "p.")}, d.pending, d.claimed, d.stale_sources, d.backlog_seconds, w.serving, w.running, w.leaving,
    x.wanted, x.needed, ARRAY(
        SELECT DISTINCT a.id FROM launch_config c JOIN account a ON a.id = c.account_id
        WHERE c.pool_id = p.id AND c.state = 'active' AND a.throttled ORDER BY a.id) AS throttled
FROM worker_pool p
CROSS JOIN LATERAL (
    SELECT coalesce(sum({PENDING}), 0)::int AS pending, coalesce(sum({CLAIMED}), 0)::int AS claimed,
        (count(*) FILTER (WHERE ended_at IS NULL AND observed_at + valid_for_seconds * interval '1 s'
            <= slipway_clock()))::int AS stale_sources,
        extract(epoch FROM slipway_clock() - min(least(pending_since, slipway_clock())) FILTER (
            WHERE pending_since IS NOT NULL AND observed_at + valid_for_seconds * interval '1 s' > slipway_clock()
        ))::float8 AS backlog_seconds
    FROM demand d WHERE d.pool_id = p.id) AS d
CROSS JOIN LATERAL (
    SELECT coalesce(sum(serving), 0)::int AS serving, coalesce(sum(running), 0)::int AS running,
        coalesce(sum(leaving), 0)::int AS leaving
    FROM config_usage WHERE pool_id = p.id) AS w
LEFT JOIN LATERAL (
    SELECT (details ->> 'wanted')::int AS wanted, (details ->> 'needed')::int AS needed FROM decision
    WHERE pool_id = p.id ORDER BY at DESC, id DESC LIMIT 1) AS x ON true
WHERE NOT p.deleted AND {{given}} ORDER BY p.id"""
POOLS: Final = _POOLS.format(given="($1::text IS NULL OR p.id = $1)")
POOLS_OF: Final = _POOLS.format(given="p.id = ANY($1)")
CONFIGS: Final = f"""
SELECT {names(IDS, "c.")}, a.lease_pool_id, {names(CONFIG, "c.")}, {names(OF_NAME, "n.")},
    CASE WHEN {_PAUSED} THEN 'paused' ELSE c.state END AS state,
    CASE WHEN {_PAUSED} THEN n.paused_reason ELSE c.state_reason END AS state_reason,
    CASE WHEN {_PAUSED} THEN n.paused_by ELSE c.state_by END AS state_by,
    n.current_id = c.id AS current, n.current_id, p.max_capacity AS pool_max_capacity, r.strategy, r.booted,
    g.record, o.unfolded, coalesce(o.successes, 0)::int AS launched, coalesce(o.failed, 0)::int AS failed,
    {usage.OF_CONFIG}, u.launch + u.boot AS starting, u.running, {SHARES} AS shares, s.shared
FROM launch_config c JOIN launch_config_name n ON n.name = c.name JOIN worker_pool p ON p.id = c.pool_id
JOIN account a ON a.id = c.account_id LEFT JOIN weight g ON g.launch_config_id = c.id
LEFT JOIN LATERAL ({REPLACEMENT}) AS r ON true
LEFT JOIN LATERAL (
    SELECT sum(failures) AS failed, sum(successes) AS successes,
        jsonb_object_agg(stage, unfolded) AS unfolded
    FROM launch_config_outcomes WHERE launch_config_id = c.id) AS o ON true
CROSS JOIN LATERAL ({usage.CONFIG}) AS u
LEFT JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_object('key', k.key, 'stage', k.stage, 'window', s.size,
        'state', s.state, 'unconfirmed', s.unconfirmed, 'reason', s.reason) ORDER BY k.key, k.stage) AS shared
    FROM shared_keys(c) AS k JOIN shared_window s ON s.key = k.key AND s.stage = k.stage) AS s ON true
WHERE {{given}} ORDER BY c.pool_id, c.id"""
_WANTED: Final = "($1::text IS NULL OR c.pool_id = $1) AND ($2::text[] IS NULL OR c.name = ANY($2))"
LISTED: Final = CONFIGS.format(given=f"c.state <> 'archived' AND {_WANTED}")
LISTED_ALL: Final = CONFIGS.format(given=_WANTED)
GET: Final = CONFIGS.format(given="c.id = $1 OR (n.name = $1 AND n.current_id = c.id)")
FAILURES: Final = Statement(
    sa.select(sa.cast(worker.c.id, sa.Text).label("worker_id"), worker.c.failed_at.label("at"), worker.c.reason)
    .where(worker.c.launch_config_id == sa.bindparam("config_id"), worker.c.failed_at.is_not(None))
    .order_by(worker.c.failed_at.desc(), worker.c.id.desc())
    .limit(10)
)
OF_ROLL_OUT: Final = ("current_id", "pool_max_capacity", "strategy", "booted")
OF_RECORD: Final = (
    "weight",
    "health",
    "tripped_stage",
    "tripped_by",
    "tripped_by_id",
    "tripped_since",
    "next_probe_at",
    "reason",
)


async def pools(db: Connection, pool_id: str | None = None) -> list[Pool]:
    """Pools with demand, fleet, and `wanted` and `needed` of the newest decision (null before the first).

    `backlog_seconds` is for how long a source has had pending tasks without a break, which is not the age of the oldest
    task; null when no fresh source has any. `throttled` are the accounts of active launch configs that throttle calls.
    """
    return [Pool(**row) for row in await db.fetch(POOLS, pool_id)]


async def pools_of(db: Connection, pool_ids: Sequence[str]) -> list[Pool]:
    """The same of these pools."""
    return [Pool(**row) for row in await db.fetch(POOLS_OF, pool_ids)]


async def configs(
    db: Connection, pool_id: str | None = None, names: Sequence[str] | None = None, *, archived: bool = False
) -> list[LaunchConfig]:
    """Revisions of launch configs with their weight record, windows, outcomes of starts and roll-out, of all or of one
    pool, of all or of some names."""
    return [LaunchConfig(**_config(row)) for row in await db.fetch(LISTED_ALL if archived else LISTED, pool_id, names)]


async def config(
    db: Connection, config_id: str, defaults: DefaultDeadlines, day_seconds: float
) -> LaunchConfigDetails | None:
    """One revision of a launch config, or the current one of a name, with its settings, full weight record (null before
    the first), newest failures, the errors that its workers report most, and the deadlines in force."""
    row = await db.fetchrow(GET, config_id)
    if row is None:
        return None
    failed = await db.fetch(FAILURES.text, *FAILURES.arguments(config_id=row["id"]))
    return LaunchConfigDetails(
        **_config(row),
        settings=row["settings"],
        record=None if row["record"] is None else msgspec.convert(row["record"], WeightChanged),
        recent_failures=[LaunchFailure(**failure) for failure in failed],
        recent_errors=await errors.recent(db, row["id"]),
        deadlines=dict(await deadlines.in_force(db, row["id"], defaults, day_seconds)),
    )


def _config(row: Any) -> dict[str, Any]:
    """Fields of a launch config. Over its life, `launched` are launches that were accepted, `booted` workers that have
    registered, as its weight record counts them, `failed` the failures of any stage. `starting`, `running` and
    `stopping` are its workers.

    `shared` is what it shares with others.
    """
    values = dict(row)
    levels = {
        name: StageLevel(in_flight=stage.in_flight, unfolded=stage.unfolded, window=stage.window)
        for name, stage in stages(row).items()
        if stage.window is not None
    }
    record = values.pop("record") or {}
    shared = [_shared(of) for of in values.pop("shared") or []]
    strategy = (values["strategy"] or "") if values["current"] else ""
    started = roll_out.succeeded_starts(record or None, row["claim_evidence"]) - values.pop("starts_before")
    needed = roll_out.needed_starts(strategy, [row["pool_max_capacity"], row["max_capacity"]])
    values |= {
        "revision": hash_of(row["id"]),
        "proven": values.pop("proven_at") is not None,
        "succeeded_starts": max(0, started),
        "needed_starts": needed,
        "share": share(row),
    }
    for name in ("settings", "unfolded", "claim_evidence", "shares", *OF_ROLL_OUT, *NEW_WINDOWS):
        del values[name]
    values["booted"] = int(record.get("stages", {}).get("boot", {}).get("succeeded", 0))
    values["stopping"] = row["live"] - row["starting"] - row["running"]
    shown = {name: record.get(name) for name in OF_RECORD}
    health_state = record.get("state", "healthy")
    tripped = tripped_share(shares(row), _by_share(shared))
    if tripped is not None and health_state == "healthy":
        health_state = "tripped"
        shown |= {
            "tripped_stage": tripped.stage,
            "tripped_by": tripped.key.kind,
            "tripped_by_id": tripped.key.id,
            "next_probe_at": None,
            "reason": f"{row['id']} {share_reason(tripped)}",
        }
    return (
        values
        | shown
        | {
            "health_state": health_state,
            "probe_ready": record.get("probe_ready", False),
            "stages": levels,
            "shared": shared,
        }
    )


def _shared(of: Mapping[str, Any]) -> SharedKey:
    """A share as shown, with its key by kind and id, and the window in force."""
    key = Key.of(of["key"])
    values = key._asdict() | {name: value for name, value in of.items() if name != "key"}
    return SharedKey(**values | {"window": shared_window_size(key.kind, of["stage"], of["window"])})


def _by_share(shared: Sequence[SharedKey]) -> dict[Share, Shared]:
    """Shares as the rules take them."""
    return {
        (key, of.stage): Shared(key=key, stage=of.stage, tripped=of.state == "tripped", reason=of.reason)
        for of in shared
        for key in [Key(of.kind, of.id)]
    }
