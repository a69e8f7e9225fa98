"""Pools as a decision sees them: locked, observed, marked dirty; configs with their weights and what is under way."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Any, Final

import msgspec

from slipway_common.postgres import Connection
from slipway_provisioner.domain.pool import Config, Fleet, Idle, Observed, Pool, Shared, Stage, Waiting
from slipway_provisioner.store import demand

# The marks are deleted after the pool is locked and before anything is read. Under READ COMMITTED each statement sees
# what committed before it began, so every mark deleted here came with facts that the reads below will see; a mark that
# commits later stays, and makes the pool dirty again.
LOCK_DIRTY: Final = """
SELECT p.id FROM worker_pool p
WHERE EXISTS (SELECT FROM dirty_pool d WHERE d.pool_id = p.id AND d.due_at <= slipway_clock())
ORDER BY (SELECT min(d.id) FROM dirty_pool d WHERE d.pool_id = p.id) LIMIT 1 FOR UPDATE OF p SKIP LOCKED"""
UNMARK: Final = "DELETE FROM dirty_pool WHERE pool_id = $1 AND due_at <= slipway_clock() RETURNING because"
POOL: Final = """
SELECT id, min_capacity, max_capacity, scaling_ratio, mode, paused, frozen, deleted, drawn,
    coalesce(extract(epoch FROM attempted_at + $2 * interval '1 s' - slipway_clock())::float8, 0) AS attempt_in_seconds
FROM worker_pool WHERE id = $1"""
FLEET: Final = """
SELECT count(*) FILTER (WHERE state IN ('requested', 'launching', 'starting', 'running')) AS serving,
    count(*) FILTER (WHERE state = 'stopping') AS leaving
FROM worker WHERE pool_id = $1 AND state <> 'stopped'"""
CONFIGS: Final = """
SELECT c.id, c.account_id, a.lease_pool_id, c.image_revision, c.state = 'active' AS active,
    c.base_weight * c.price_factor AS prior_weight, w.record,
    w.record IS NOT NULL AND (w.record ->> 'probe_ready')::boolean AND NOT EXISTS (
        SELECT FROM worker p WHERE p.launch_config_id = c.id
        AND p.probe_permit = (w.record ->> 'probe_permit')::bigint) AS permitted,
    (SELECT reason FROM brake b WHERE b.scope = 'account' AND b.scope_id = c.account_id
        AND (until IS NULL OR until > slipway_clock())) AS braked,
    ARRAY(SELECT key FROM shared_keys(c)) AS shares,
    count(k.id) FILTER (WHERE k.state IN ('requested', 'launching')) AS launching,
    count(k.id) FILTER (WHERE k.state = 'starting') AS booting,
    count(k.id) FILTER (WHERE k.state = 'running' AND k.first_claimed_at IS NULL) AS unclaimed
FROM launch_config c JOIN account a ON a.id = c.account_id
LEFT JOIN weight w ON w.launch_config_id = c.id
LEFT JOIN worker k ON k.launch_config_id = c.id AND k.state <> 'stopped'
WHERE c.pool_id = $1 AND (c.state <> 'archived' OR k.id IS NOT NULL)
GROUP BY c.id, a.lease_pool_id, w.launch_config_id ORDER BY c.id"""
FAILURES: Final = """
SELECT f.launch_config_id, f.stage, f.failures FROM launch_config_outcomes f
JOIN launch_config c ON c.id = f.launch_config_id WHERE c.pool_id = $1"""
# Locked after the pool and before anything under way is counted: pools that share an image or a quota decide in turn.
LOCK_SHARED: Final = """
SELECT key, size FROM shared_window WHERE key IN (
    SELECT key FROM launch_config c CROSS JOIN LATERAL shared_keys(c) AS k WHERE c.pool_id = $1)
ORDER BY key FOR UPDATE"""
# Boots count towards the image, launches towards the quota; over every pool. What failed in an archived config is over:
# the calculator withdraws its record, so nothing would ever fold it.
LEVELS: Final = """
SELECT k.key, sum(
    (SELECT count(*) FROM worker w WHERE w.pool_id = c.pool_id AND w.launch_config_id = c.id AND w.state <> 'stopped'
        AND (w.state IN ('requested', 'launching') OR (k.stage = 'boot' AND w.state = 'starting')))
    + CASE c.state WHEN 'archived' THEN 0 ELSE greatest(0, coalesce(f.failures, 0)
        - coalesce((g.record -> 'stages' -> k.stage ->> 'failures_folded')::bigint, 0)) END)::int AS level
FROM launch_config c CROSS JOIN LATERAL shared_keys(c) AS k
LEFT JOIN launch_config_outcomes f ON f.launch_config_id = c.id AND f.stage = k.stage
LEFT JOIN weight g ON g.launch_config_id = c.id
WHERE k.key = ANY($1::text[]) GROUP BY k.key"""
# Only workers that no lease was granted for may be cancelled: a call may start for the others at any moment.
WAITING: Final = """
SELECT id::text AS worker_id, launch_config_id AS config_id, probe_permit AS permit FROM worker
WHERE pool_id = $1 AND state = 'requested' AND lease_id IS NULL ORDER BY worker.id"""
IDLE: Final = """
SELECT id::text AS worker_id, idle_since AS since FROM worker
WHERE pool_id = $1 AND state = 'running' AND idle_since IS NOT NULL ORDER BY idle_since LIMIT 500"""
BRAKES: Final = """
SELECT reason FROM brake WHERE (scope = 'all' OR (scope = 'pool' AND scope_id = $1))
    AND (until IS NULL OR until > slipway_clock()) LIMIT 1"""
DREW: Final = "UPDATE worker_pool SET drawn = drawn + $2, attempted_at = slipway_clock() WHERE id = $1"
DEFAULT_WINDOWS: Final = {"launch": 64, "boot": 64, "claim": 1000}  # until the first weight record arrives


class Dirty(msgspec.Struct, frozen=True):
    """A pool to decide for, and what its marks say about why."""

    pool_id: str
    because: frozenset[str]


async def claim_dirty(tx: Connection) -> Dirty | None:
    """Lock the pool that has been dirty longest and that nobody plans for; None when there is none."""
    pool_id: str | None = await tx.fetchval(LOCK_DIRTY)
    if pool_id is None:
        return None
    return Dirty(pool_id, frozenset(row["because"] for row in await tx.fetch(UNMARK, pool_id)))


async def observe(
    tx: Connection, pool_id: str, *, idle_timeout_seconds: float, silent_seconds: float, attempt_seconds: float
) -> Observed:
    """Everything a decision may look at. The pool is locked by the caller."""
    sizes: dict[str, int] = dict(await tx.fetch(LOCK_SHARED, pool_id))
    levels: dict[str, int] = dict(await tx.fetch(LEVELS, list(sizes)))
    row = dict(await tx.fetchrow(POOL, pool_id, attempt_seconds))
    attempt_in_seconds = row.pop("attempt_in_seconds")
    pool = Pool(**row | {"scaling_ratio": Fraction(row["scaling_ratio"])})
    failures = {(r["launch_config_id"], r["stage"]): r["failures"] for r in await tx.fetch(FAILURES, pool_id)}
    brake = await tx.fetchval(BRAKES, pool_id)
    return Observed(
        pool=pool,
        demands=await demand.observe(tx, pool_id),
        fleet=Fleet(**await tx.fetchrow(FLEET, pool_id)),
        configs=[_config(r, failures) for r in await tx.fetch(CONFIGS, pool_id)],
        shared=[Shared(key=key, level=levels.get(key, 0), window=size) for key, size in sizes.items()],
        waiting=[Waiting(**r) for r in await tx.fetch(WAITING, pool_id)],
        idle=[Idle(**r) for r in await tx.fetch(IDLE, pool_id)],
        idle_timeout_seconds=idle_timeout_seconds,
        calculator_silent_seconds=silent_seconds,
        attempt_in_seconds=attempt_in_seconds,
        stopped=f"launching is stopped: {brake}" if brake else "",
    )


def _config(row: Any, failures: dict[tuple[str, str], int]) -> Config:
    record: dict[str, Any] = row["record"] or {}
    in_flight = {"launch": row["launching"], "boot": row["booting"], "claim": row["unclaimed"]}
    of_config = {stage: count for (config_id, stage), count in failures.items() if config_id == row["id"]}
    return Config(
        id=row["id"],
        account_id=row["account_id"],
        lease_pool_id=row["lease_pool_id"],
        image_revision=row["image_revision"],
        active=row["active"],
        stopped=f"launching is stopped in {row['account_id']}: {row['braked']}" if row["braked"] else "",
        weight=record.get("weight", row["prior_weight"]),
        prior_weight=row["prior_weight"],
        closed=record.get("state") == "closed",
        permit=record.get("probe_permit") if row["permitted"] and record.get("state") == "closed" else None,
        last_permit=record.get("probe_permit"),
        shares=row["shares"],
        **stages(record, in_flight, of_config),
    )


def stages(record: Mapping[str, Any], in_flight: Mapping[str, int], failures: Mapping[str, int]) -> dict[str, Stage]:
    """The three stages of a config, by its weight record and by our own counts per stage."""
    published = record.get("stages", {})
    return {
        name: Stage(
            in_flight=in_flight[name],
            failures=failures.get(name, 0),
            folded=published.get(name, {}).get("failures_folded", 0),
            window=published.get(name, {}).get("window", window),
        )
        for name, window in DEFAULT_WINDOWS.items()
    }


async def drew(tx: Connection, pool_id: str, units: int) -> None:
    """Continue the pool's draws behind `units` launches."""
    await tx.execute(DREW, pool_id, units)


async def known(db: Connection, pool_ids: Sequence[str]) -> set[str]:
    """Which of these pools exist."""
    rows = await db.fetch("SELECT id FROM worker_pool WHERE id = ANY($1::text[]) AND NOT deleted", list(pool_ids))
    return {row["id"] for row in rows}


async def now(db: Connection) -> datetime:
    """The database's clock; after the locks of the caller's transaction are held."""
    at: datetime = await db.fetchval("SELECT slipway_clock()")
    return at
