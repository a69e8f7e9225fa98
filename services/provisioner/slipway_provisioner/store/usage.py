"""Counters of what is in flight: reading, folding, and their comparison with the rows that they count.

Triggers insert them, in the transaction of each change (`functions.COUNTERS`). What else a counter depends on is copied
to the counted row: by `copy` in the transaction that changes the original.
"""

from collections.abc import Collection, Sequence
from typing import Final

from slipway_api.events.lifecycle import ENDED, REGISTERED
from slipway_common.database.postgres import Connection
from slipway_provisioner.store import spending
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.functions import COUNTED, LIMITED_KEYS

_SUMS: Final = ", ".join(
    [*(f"coalesce(sum({name}), 0)::int AS {name}" for name in COUNTED), "count(*)::int AS counter_rows"]
)
# Counters of the configs of the pool $1, and of a config `c`.
CONFIGS: Final = f"SELECT launch_config_id, {_SUMS} FROM config_usage WHERE pool_id = $1 GROUP BY launch_config_id"
CONFIG: Final = f"SELECT {_SUMS} FROM config_usage WHERE pool_id = c.pool_id AND launch_config_id = c.id"
# Of these, as `u`, what is in flight per stage, and the live workers.
OF_CONFIG: Final = ", ".join(
    [f"coalesce(u.{stage}, 0) AS {stage}" for stage in ("launch", "boot", "claim")]
    + ["coalesce(u.serving + u.leaving, 0) AS live"]
)

# Copies of a new worker of the config `c` in the account `a`. The pool is locked, so that its keys and claim evidence
# do not change meanwhile.
COPIES: Final = {key: f"c.{key}" for key in LIMITED_KEYS} | {
    "awaits_claim": "c.claim_evidence <> 'none'",
    "account_unreachable": "a.unreachable OR a.retired",
}
# Those of a worker `w`. Depending on the claim evidence a claim is confirmed by the worker's hook, or by claimed tasks
# in its queue since the worker registered.
_COPIES: Final = COPIES | {
    "awaits_claim": "CASE c.claim_evidence WHEN 'hook' THEN true WHEN 'none' THEN false ELSE NOT EXISTS ("
    "SELECT FROM demand d WHERE d.pool_id = w.pool_id AND d.claimed_seen_at >= w.registered_at) END",
}
_WORKERS: Final = "worker w JOIN launch_config c ON c.id = w.launch_config_id JOIN account a ON a.id = w.account_id"


def _copied(condition: str, skip: str = "") -> str:
    """Statement that changes the copies of live workers for which a condition holds, where they differ."""
    return f"""
UPDATE worker w SET ({", ".join(_COPIES)}) = ROW({", ".join(_COPIES.values())})
FROM launch_config c, account a WHERE c.id = w.launch_config_id AND a.id = w.account_id AND w.id = ANY(ARRAY(
    SELECT w.id FROM {_WORKERS}
    WHERE {condition} AND w.state NOT IN ({states(ENDED)})
        AND ({", ".join(f"w.{name}" for name in _COPIES)}) IS DISTINCT FROM ({", ".join(_COPIES.values())})
    ORDER BY w.id FOR UPDATE OF w{skip}))"""


COPY_CONFIGS: Final = _copied("(w.pool_id, w.launch_config_id) = (c.pool_id, c.id) AND c.id = ANY($1)")
# Nothing waits for a worker whose call is answered at this moment, or that reports. The sweep copies what was left out.
COPY_ACCOUNT: Final = _copied("w.account_id = $1 AND w.instance_id IS NULL", " SKIP LOCKED")
COPY_CLAIMS: Final = _copied(
    f"w.pool_id = ANY($1) AND w.state IN ({states(REGISTERED)}) AND w.awaits_claim AND w.first_claimed_at IS NULL "
    "AND c.claim_evidence NOT IN ('hook', 'none')",
    " SKIP LOCKED",
)
COPY_POOL: Final = _copied("w.pool_id = $1", " SKIP LOCKED")
# A revision has its rows from the beginning, so that a failure never reads its keys while these change.
OUTCOMES: Final = """
INSERT INTO launch_config_outcomes AS o (launch_config_id, stage, keys)
SELECT c.id, s.stage, window_keys(c, s.stage)
FROM launch_config c CROSS JOIN (VALUES ('launch'), ('boot'), ('claim')) AS s (stage)
WHERE c.id = ANY($1) ORDER BY c.id, s.stage
ON CONFLICT (launch_config_id, stage) DO UPDATE SET keys = excluded.keys WHERE o.keys <> excluded.keys"""

_DIFFERS: Final = " OR ".join(f"sum(sign * {name}) <> 0" for name in COUNTED)
# What the rows say beyond the counters. In one statement, since both have to be of one moment: a change commits with
# what it counts.
CONFIG_DRIFT: Final = f"""
SELECT pool_id, launch_config_id, {", ".join(f"sum(sign * {name})::int AS {name}" for name in COUNTED)} FROM (
    SELECT 1 AS sign, w.pool_id, w.launch_config_id, u.* FROM worker w CROSS JOIN LATERAL config_usage_of(w) AS u
    WHERE w.state NOT IN ({states(ENDED)}) AND ($1::text IS NULL OR w.pool_id = $1)
    UNION ALL SELECT -1, u.* FROM config_usage u WHERE $1::text IS NULL OR u.pool_id = $1) AS c
GROUP BY pool_id, launch_config_id HAVING {_DIFFERS}"""
_STARTS: Final = " OR ".join(COUNTED[stage] for stage in ("launch", "boot", "claim"))
SHARED_DRIFT: Final = f"""
SELECT key, stage, sum(in_flight)::int AS in_flight, sum(unfolded)::int AS unfolded FROM (
    SELECT k.key, k.stage, 1 AS in_flight, 0 AS unfolded FROM worker w CROSS JOIN LATERAL shared_usage_of(w) AS k
    WHERE w.state NOT IN ({states(ENDED)}) AND ({_STARTS})
    UNION ALL SELECT k.key, o.stage, 0, o.unfolded
    FROM launch_config_outcomes o CROSS JOIN LATERAL unnest(o.keys) AS k (key) WHERE o.unfolded > 0
    UNION ALL SELECT key, stage, -in_flight, -unfolded FROM shared_usage) AS c
WHERE $1::text[] IS NULL OR key = ANY($1)
GROUP BY key, stage HAVING sum(in_flight) <> 0 OR sum(unfolded) <> 0"""
REPAIR_CONFIGS: Final = f"""
INSERT INTO config_usage (pool_id, launch_config_id, {", ".join(COUNTED)}) {CONFIG_DRIFT}
RETURNING {" + ".join(f"abs({name})" for name in COUNTED)} AS drift"""
REPAIR_SHARED: Final = f"""
INSERT INTO shared_usage (key, stage, in_flight, unfolded) {SHARED_DRIFT}
RETURNING abs(in_flight) + abs(unfolded) AS drift"""
LOCK_KEYS: Final = "SELECT FROM shared_window WHERE key = ANY($1) ORDER BY key, stage FOR UPDATE"
FOLDED_ROWS: Final = 200
"""Rows of a counter beyond which the holder of its lock replaces them by their sum."""
FOLD_CONFIGS: Final = f"""
WITH folded AS (DELETE FROM config_usage WHERE pool_id = $1 RETURNING *)
INSERT INTO config_usage (pool_id, launch_config_id, {", ".join(COUNTED)})
SELECT pool_id, launch_config_id, {", ".join(f"sum({name})" for name in COUNTED)} FROM folded
GROUP BY pool_id, launch_config_id HAVING {" OR ".join(f"sum({name}) <> 0" for name in COUNTED)}"""
FOLD_SHARED: Final = """
WITH folded AS (DELETE FROM shared_usage WHERE key = ANY($1) RETURNING *)
INSERT INTO shared_usage (key, stage, in_flight, unfolded)
SELECT key, stage, sum(in_flight), sum(unfolded) FROM folded
GROUP BY key, stage HAVING sum(in_flight) <> 0 OR sum(unfolded) <> 0"""


async def add_outcomes(tx: Connection, config_ids: Sequence[str]) -> None:
    """Insert the outcomes of new revisions, or change the keys of those whose keys or claim evidence has changed."""
    await tx.execute(OUTCOMES, config_ids)


async def copy(tx: Connection, config_ids: Sequence[str]) -> None:
    """Copy changed keys and claim evidence of revisions to their live workers and outcomes. The pool is locked."""
    await tx.execute(COPY_CONFIGS, config_ids)
    await add_outcomes(tx, config_ids)


async def copy_account(tx: Connection, account_id: str) -> None:
    """Copy a change of whether an account is called to its workers without an instance. The account is locked."""
    await tx.execute(COPY_ACCOUNT, account_id)


async def confirm_claims(tx: Connection, pool_ids: Collection[str]) -> None:
    """Confirm first claims of workers by claimed tasks in the queues of their pools."""
    await tx.execute(COPY_CLAIMS, sorted(pool_ids))


async def fold_pool(tx: Connection, pool_id: str) -> None:
    """Replace the counters of a pool's configs by their sums. The pool is locked."""
    await tx.execute(FOLD_CONFIGS, pool_id)


async def fold_shared(tx: Connection, keys: Sequence[str]) -> None:
    """Replace the counters of shared windows by their sums. The keys are locked."""
    await tx.execute(FOLD_SHARED, keys)


async def repair_pool(tx: Connection, pool_id: str) -> int:
    """Compare the counters of a pool's configs with its workers and repair them; returns by how much they were wrong.
    The pool is locked."""
    await tx.execute(COPY_POOL, pool_id)
    return sum(row["drift"] for row in await tx.fetch(REPAIR_CONFIGS, pool_id))


async def repair_shared(tx: Connection) -> int:
    """Compare the counters of all shared windows with the rows and repair them; returns by how much they were wrong.
    The keys of wrong ones are locked."""
    keys = sorted({row["key"] for row in await tx.fetch(SHARED_DRIFT, None)})
    if not keys:
        return 0
    await tx.execute(LOCK_KEYS, keys)
    return sum(row["drift"] for row in await tx.fetch(REPAIR_SHARED, keys))


async def drift(db: Connection) -> int:
    """Number of counters that differ from the rows."""
    wrong = len(await db.fetch(CONFIG_DRIFT, None)) + len(await db.fetch(SHARED_DRIFT, None))
    return wrong + await spending.drift(db)
