"""Counters of spend: reading, folding, and their comparison with the machines that they count.

Triggers insert them, in the transaction of each change (`functions.SPEND`): for the pool of a machine in its account,
and for the whole account. What a machine costs depends on the time, so they count machines by the five minutes in which
these began and ended. The day begins with such a period, up to five minutes early.
"""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from slipway_api.events.lifecycle import ENDED
from slipway_common.database.postgres import Connection
from slipway_provisioner.domain.launching import BatchState
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.functions import SPEND_PERIOD_MINUTES, SPEND_SINCE, SPENT

_KEY: Final = "account_id, pool_id, price, at"
_SUMS: Final = ", ".join(f"sum({name}) AS {name}" for name in SPENT)
_PERIOD: Final = f"make_interval(secs => ({SPEND_PERIOD_MINUTES} * $7::numeric / 60)::float8)"
_AGE: Final = "greatest(0, extract(epoch FROM $4::timestamptz - at))"
_LIFETIME: Final = "$5::numeric"
# $1 are the accounts, $2 is the pool or NULL, $3 the begin of the day, $4 now, $5 the lifetime, $6 the default price,
# $7 an hour, $8 a day: in seconds. Live machines count what they ran in the day and the rest of their lifetime, which
# is a number of lifetimes, or a day if they began before it. Ended ones count what they ran: the sum of their ends less
# that of their begins, or of the begin of the day. Unproven machines ran until an hour after the outcome of their call:
# by then the instance reaper has terminated those that exist. What began ahead of the clock began before it was set
# back, and has run for no time.
SPEND: Final = f"""
WITH day AS MATERIALIZED (SELECT date_bin({_PERIOD}, $3::timestamptz, {SPEND_SINCE}) AS begins),
counted AS MATERIALIZED (
    SELECT price, at, begins, {_SUMS}, count(*) AS counter_rows FROM spend_usage CROSS JOIN day
    WHERE account_id = ANY($1::text[]) AND pool_id = coalesce($2::text, '') GROUP BY 1, 2, 3),
machines AS (
    SELECT price, live * CASE WHEN at < begins THEN $8::numeric
            ELSE least($8, greatest(1, ceil({_AGE} / {_LIFETIME})) * {_LIFETIME}) END AS seconds,
        NULL::timestamptz AS leaves, live AS units
    FROM counted WHERE live <> 0
    UNION ALL
    SELECT price, sum(seconds) - sum(ended - began) * extract(epoch FROM begins),
        {_PERIOD} + CASE WHEN sum(ended - began) > 0 THEN begins ELSE min(at) FILTER (WHERE began <> 0) END, sum(ended)
    FROM counted WHERE at >= begins GROUP BY price, begins HAVING sum(ended) > 0
    UNION ALL
    SELECT price, unproven * ($7 + greatest(0, extract(epoch FROM known_at - started_at))), known_at, unproven
    FROM launch_batch WHERE account_id = ANY($1::text[]) AND ($2::text IS NULL OR pool_id = $2)
        AND state = '{BatchState.KNOWN}' AND unproven > 0 AND known_at > $3)
SELECT coalesce(sum(coalesce(price, $6::numeric) * greatest(0, seconds) / $7), 0) AS spend,
    (coalesce(sum(units) FILTER (WHERE coalesce(price, $6::numeric) IS NULL), 0))::int AS unpriced,
    min(leaves) FILTER (WHERE coalesce(price, $6::numeric) > 0) AS leaves,
    (SELECT coalesce(sum(counter_rows - 1), 0)::int FROM counted) AS foldable
FROM machines"""
# Rows that another transaction folds are left out: nothing waits, and no row counts twice. In any scope of $1 and $2.
FOLD: Final = f"""
WITH many AS (
    SELECT {_KEY} FROM spend_usage WHERE account_id = ANY($1::text[]) AND pool_id = ANY($2::text[])
    GROUP BY {_KEY} HAVING count(*) > 1),
places AS (
    SELECT s.ctid AS place FROM spend_usage s JOIN many m
        ON (s.account_id, s.pool_id, s.at) = (m.account_id, m.pool_id, m.at) AND s.price IS NOT DISTINCT FROM m.price
    FOR UPDATE OF s SKIP LOCKED),
folded AS (DELETE FROM spend_usage WHERE ctid = ANY(ARRAY(SELECT place FROM places)) RETURNING *)
INSERT INTO spend_usage ({_KEY}, {", ".join(SPENT)})
SELECT {_KEY}, {", ".join(f"sum({name})" for name in SPENT)} FROM folded
GROUP BY {_KEY} HAVING {" OR ".join(f"sum({name}) <> 0" for name in SPENT)}"""
# All scopes of the pool $1, and of the accounts whose first pool it is.
SCOPES: Final = """
SELECT array_agg(DISTINCT account_id) AS accounts,
    array_agg(DISTINCT account_id) FILTER (WHERE NOT EXISTS (
        SELECT FROM launch_config o WHERE o.account_id = c.account_id AND o.pool_id < $1 AND o.state <> 'archived'
    )) AS first
FROM launch_config c WHERE pool_id = $1 AND state <> 'archived'"""
# Ended machines are compared for a day after their end: their parts change no more. Both sides have one clock.
_CUT: Final = "(SELECT cut.at FROM cut)"
_DRIFT: Final = f"""
WITH cut AS MATERIALIZED (SELECT slipway_clock() - interval '1 day' AS at)
SELECT {_KEY}, live, {", ".join(f"CASE WHEN recent THEN {name} ELSE 0 END AS {name}" for name in SPENT[1:])}
FROM (SELECT {_KEY}, {", ".join(f"sum(sign * {name}) AS {name}" for name in SPENT)}, at >= {_CUT} AS recent
    FROM ({{counted}}) AS c GROUP BY {_KEY}) AS d
WHERE live <> 0 OR recent AND ({" OR ".join(f"{name} <> 0" for name in SPENT[1:])})"""
_MACHINES: Final = "SELECT 1 AS sign, w.account_id, w.pool_id, s.* FROM worker w CROSS JOIN LATERAL spend_of(w) AS s"
_COUNTERS: Final = f"SELECT {{sign}}, {_KEY}, {', '.join(SPENT)} FROM spend_usage"
# What machines say beyond the counters, of some pools.
_POOL_DRIFT: Final = _DRIFT.format(
    counted=f"""
    {_MACHINES} WHERE {{pools}} AND w.state NOT IN ({states(ENDED)})
    UNION ALL {_MACHINES}
    WHERE {{pools}} AND w.state IN ({states(ENDED)}) AND w.instance_id IS NOT NULL AND w.ended_at >= {_CUT}
    UNION ALL {_COUNTERS.format(sign=-1)} AS w WHERE {{pools}} AND w.pool_id <> ''"""
)
# What the counters of pools say beyond those of whole accounts.
_ACCOUNT_DRIFT: Final = _DRIFT.format(
    counted=f"""
    SELECT 1 AS sign, account_id, '' AS pool_id, price, at, {", ".join(SPENT)} FROM spend_usage
    WHERE pool_id <> '' AND {{pools}}
    UNION ALL {_COUNTERS.format(sign=-1)} WHERE pool_id = '' AND {{account}}"""
)
_REPAIR: Final = f"""
INSERT INTO spend_usage ({_KEY}, {", ".join(SPENT)}) {{drift}}
RETURNING greatest(abs(live), abs(began), abs(ended), 1) AS drift"""
# Of the pool $1, and of the account $1 with the pools $2. Each in one statement, since both sides have to be of one
# moment.
REPAIR_POOL: Final = _REPAIR.format(drift=_POOL_DRIFT.format(pools="w.pool_id = $1"))
REPAIR_ACCOUNT: Final = _REPAIR.format(
    drift=_ACCOUNT_DRIFT.format(account="account_id = $1", pools="account_id = $1 AND pool_id = ANY($2::text[])")
)
POOL_DRIFT: Final = _POOL_DRIFT.format(pools="true")
ACCOUNT_DRIFT: Final = _ACCOUNT_DRIFT.format(account="true", pools="true")
POOLS_IN: Final = "SELECT DISTINCT pool_id FROM launch_config WHERE account_id = $1"


async def read(
    db: Connection,
    accounts: Sequence[str],
    pool_id: str | None,
    *,
    since: datetime,
    now: datetime,
    lifetime: Decimal,
    default_price: Decimal | None,
    hour: Decimal,
    day: Decimal,
) -> Any:
    """Row of the spend of accounts, or of a pool in them: the amount, the machines without a price, and the earliest
    time whose spend leaves the day."""
    return await db.fetchrow(SPEND, accounts, pool_id, since, now, lifetime, default_price, hour, day)


async def fold(tx: Connection, accounts: Sequence[str], pool_ids: Sequence[str]) -> None:
    """Replace the counters of pools in accounts, or of whole accounts for the pool '', by their sums."""
    await tx.execute(FOLD, accounts, pool_ids)


async def repair(tx: Connection, pool_id: str) -> int:
    """Compare the counters of a pool with its machines, and those of the accounts whose first pool it is with the
    counters of their pools, and repair them; returns by how much they were wrong. The pool is locked."""
    scopes, drift = await tx.fetchrow(SCOPES, pool_id), await tx.fetch(REPAIR_POOL, pool_id)
    for account_id in scopes["first"] or ():
        pools = [row["pool_id"] for row in await tx.fetch(POOLS_IN, account_id)]
        drift += await tx.fetch(REPAIR_ACCOUNT, account_id, pools)
        await fold(tx, [account_id], [""])
    await fold(tx, scopes["accounts"] or (), [pool_id])
    return sum(row["drift"] for row in drift)


async def drift(db: Connection) -> int:
    """Number of counters that differ from the machines."""
    return len(await db.fetch(POOL_DRIFT)) + len(await db.fetch(ACCOUNT_DRIFT))
