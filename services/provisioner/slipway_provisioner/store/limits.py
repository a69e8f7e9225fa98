"""Safety limits: their rows, what counts towards them, and their alerts."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from slipway_api.events.lifecycle import WAITING
from slipway_api.events.scopes import ON_DEMAND, SPOT
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, names
from slipway_provisioner.domain.launching import BatchState
from slipway_provisioner.domain.limits import (
    KINDS,
    Downtime,
    Level,
    Limit,
    Reached,
    Tariff,
    Usage,
    leaves_at,
    window_start,
)
from slipway_provisioner.domain.prices import MachineKind
from slipway_provisioner.store import spending
from slipway_provisioner.store.clock import NOW
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.tables import launch_limit
from slipway_provisioner.store.usage import FOLDED_ROWS

L: Final = launch_limit.c
FIELDS: Final = L[Limit.__struct_fields__]
_VALUES: Final = ("launches_per_hour", "spend_per_day", "lifetime_seconds", "default_price")
# Limits of a pool and an account. Their keys come before the pairs of these, which are alternatives: a plan without
# bitmap scans finds no row by such, and reads all limits.
OF_BOTH: Final = """scope IN ('pool', 'account') AND scope_id IN ({pool}, {account})
    AND (scope, scope_id) IN (('pool', {pool}), ('account', {account}))"""
# Locked by every start under the limit, in the common order, so that replicas decide in turn.
LOCK: Final = f"""
SELECT {names(FIELDS)} FROM launch_limit WHERE {OF_BOTH.format(pool="$1", account="$2")}
ORDER BY scope, scope_id FOR UPDATE"""
OF_POOL: Final = f"""
SELECT {names(FIELDS)} FROM launch_limit WHERE scope = 'pool' AND scope_id = $1
UNION ALL SELECT {names(FIELDS)} FROM launch_limit WHERE scope = 'account' AND scope_id = ANY(ARRAY(
    SELECT account_id FROM launch_config WHERE pool_id = $1 AND state <> 'archived'))
ORDER BY scope, scope_id"""
LISTED: Final = f"SELECT {names(FIELDS)}, alerted FROM launch_limit ORDER BY scope, scope_id"
# Time up to the newest pass over deadlines counts, as for deadlines: later it is not known what was downtime.
CLOCK: Final = """
SELECT slipway_clock() AS now, (SELECT at FROM deadline_pass) AS passed_at,
    ARRAY(SELECT from_at FROM downtime ORDER BY until_at DESC LIMIT 1000) AS from_at,
    ARRAY(SELECT until_at FROM downtime ORDER BY until_at DESC LIMIT 1000) AS until_at"""
ACCOUNTS_OF: Final = "SELECT DISTINCT account_id FROM launch_config WHERE pool_id = $1"
# Batches of the scope: $1 are its accounts, $2 its pool or NULL.
_SCOPE: Final = "account_id = ANY($1::text[]) AND ($2::text IS NULL OR pool_id = $2)"
_OPEN: Final = f"{_SCOPE} AND state = '{BatchState.CALLING}'"
_CHARGED: Final = f"{_SCOPE} AND state = '{BatchState.KNOWN}' AND charged > 0 AND known_at > $3"
LAUNCHES_IN: Final = f"""
SELECT (SELECT coalesce(sum(charged), 0) FROM launch_batch WHERE {_OPEN})::int
    + (SELECT coalesce(sum(charged), 0) FROM launch_batch WHERE {_CHARGED})::int AS launches"""
# The charge whose end leaves room for a launch, where $4 launches are too many by now.
FREES: Final = f"""
SELECT known_at FROM (
    SELECT known_at, sum(charged) OVER (ORDER BY known_at, id) AS freed FROM launch_batch WHERE {_CHARGED}) AS c
WHERE freed >= $4 ORDER BY known_at LIMIT 1"""
FORGOTTEN: Final = """
SELECT forgotten_at, forgotten_launches, forgotten_spend FROM launch_limit
WHERE scope = $1 AND scope_id = $2 AND forgotten_at IS NOT NULL"""
LIFECYCLE: Final = f"CASE c.settings ->> 'lifecycle' WHEN '{SPOT}' THEN '{SPOT}' ELSE '{ON_DEMAND}' END"
WAITING_UNITS: Final = f"""
SELECT a.provider, c.region, c.instance_type, {LIFECYCLE} AS lifecycle,
    count(*)::int AS units
FROM launch_config c JOIN account a ON a.id = c.account_id
JOIN worker w ON w.pool_id = c.pool_id AND w.launch_config_id = c.id AND w.state IN ({states(WAITING)})
WHERE c.state <> 'archived' AND CASE $1 WHEN 'pool' THEN c.pool_id = $2 ELSE c.account_id = $2 END
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"""
BY_POOL: Final = f"""
SELECT pool_id, sum(charged)::int AS launches FROM (
    SELECT pool_id, charged FROM launch_batch WHERE {_OPEN}
    UNION ALL SELECT pool_id, charged FROM launch_batch WHERE {_CHARGED}) AS c
GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5"""

# Declared limits of changed accounts and pools. Whatever stopped launches before is judged anew.
_DECLARED: Final = """
SELECT 'account' AS scope, id, limits FROM account WHERE id = ANY($1::text[]) AND NOT removed
UNION ALL SELECT 'pool', id, limits FROM worker_pool WHERE id = ANY($2::text[]) AND NOT deleted"""
_GIVEN: Final = f"""
SELECT scope, id AS scope_id, (limits ->> 'launches_per_hour')::int AS launches_per_hour,
    (limits ->> 'spend_per_day')::numeric AS spend_per_day,
    (limits ->> 'lifetime_seconds')::float8 AS lifetime_seconds,
    (limits ->> 'default_price')::numeric AS default_price
FROM ({_DECLARED}) AS d WHERE limits <> '{{}}'"""
LOCK_DECLARED: Final = """
SELECT scope, scope_id, alerted FROM launch_limit
WHERE (scope = 'account' AND scope_id = ANY($1::text[])) OR (scope = 'pool' AND scope_id = ANY($2::text[]))
ORDER BY scope, scope_id FOR UPDATE"""
DELETE_UNDECLARED: Final = f"""
DELETE FROM launch_limit l
WHERE ((scope = 'account' AND scope_id = ANY($1::text[])) OR (scope = 'pool' AND scope_id = ANY($2::text[])))
    AND NOT EXISTS (SELECT FROM ({_DECLARED}) AS d WHERE d.scope = l.scope AND d.id = l.scope_id AND limits <> '{{}}')
RETURNING scope, scope_id"""
DECLARE: Final = f"""
INSERT INTO launch_limit AS l (scope, scope_id, {", ".join(_VALUES)})
SELECT scope, scope_id, {", ".join(_VALUES)} FROM ({_GIVEN}) AS g ORDER BY 1, 2
ON CONFLICT (scope, scope_id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _VALUES)}, alerted = ''
WHERE ({", ".join(f"l.{name}" for name in _VALUES)}) IS DISTINCT FROM ({", ".join(f"excluded.{n}" for n in _VALUES)})
RETURNING scope, scope_id"""
POOLS_IN: Final = """
SELECT DISTINCT pool_id FROM launch_config WHERE account_id = ANY($1::text[]) AND state <> 'archived'"""

_ONE: Final = sa.and_(L.scope == sa.bindparam("in_scope"), L.scope_id == sa.bindparam("in_scope_id"))
# Not at each decision, of which there may be many a second: the row is locked by starts. Nor if the decision saw
# another limit than this one.
SEEN: Final = Statement(
    sa.update(launch_limit)
    .where(
        _ONE,
        *(L[name].is_not_distinct_from(sa.bindparam(f"seen_{name}", type_=L[name].type)) for name in _VALUES),
        sa.or_(
            L.alerted == sa.any_(array("replaced", L.alerted)),
            L.limited_at.is_(None),
            ~L.limited_at.between(
                sa.func.slipway_clock() - sa.text("make_interval(secs => :fresh)"), sa.func.slipway_clock()
            ),
        ),
    )
    .values(limited_at=sa.func.slipway_clock())
    .returning(L.alerted)
)
ALERT: Final = Statement(sa.update(launch_limit).where(_ONE).values(alerted=sa.bindparam("kind")))
# What was seen in the future was seen before the clock was set back.
OVER: Final = f"""
UPDATE launch_limit SET alerted = '' WHERE (scope, scope_id) IN (
    SELECT scope, scope_id FROM launch_limit
    WHERE alerted <> '' AND limited_at NOT BETWEEN slipway_clock() - $1 * interval '1 s' AND slipway_clock()
    ORDER BY scope, scope_id FOR UPDATE SKIP LOCKED)
RETURNING {names(FIELDS)}"""
FORGET: Final = """
UPDATE launch_limit SET forgotten_at = slipway_clock(), forgotten_launches = coalesce(launches_per_hour, 0),
    forgotten_spend = coalesce(spend_per_day, 0)
WHERE (scope, scope_id) IN (SELECT scope, scope_id FROM launch_limit ORDER BY scope, scope_id FOR UPDATE)"""
# Charges ahead of the clock were recorded before it was set back: their hour begins anew.
REDATE: Final = f"""
UPDATE launch_batch SET known_at = slipway_clock() WHERE id = ANY (ARRAY(
    SELECT id FROM launch_batch WHERE state = '{BatchState.KNOWN}' AND known_at > {NOW}
    ORDER BY known_at, id LIMIT 5000 FOR UPDATE SKIP LOCKED))"""


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """Time of the database, and the downtimes before it, from the newest to the oldest."""

    now: datetime
    passed_at: datetime | None
    downtimes: Sequence[Downtime]

    def window_start(self, seconds: float) -> datetime:
        """Begin of the window of this many seconds of uptime that ends now."""
        at = self.now if self.passed_at is None else min(self.now, self.passed_at)
        return window_start(seconds, now=at, downtimes=self.downtimes)


async def lock(tx: Connection, pool_id: str, account_id: str) -> list[Limit]:
    """Lock the limits of a pool and an account; until the transaction ends, nothing else starts under them."""
    return [_limit(row) for row in await tx.fetch(LOCK, pool_id, account_id)]


async def clock(db: Connection) -> Clock:
    """Read the clock after the locks are held."""
    row = await db.fetchrow(CLOCK)
    pairs = zip(row["from_at"], row["until_at"], strict=True)
    return Clock(now=row["now"], passed_at=row["passed_at"], downtimes=[Downtime(*pair) for pair in pairs])


async def usage(
    db: Connection, limit: Limit, tariff: Tariff, at: Clock, *, waiting: int = 0, locked: bool = False
) -> Usage:
    """Launches and spend that count towards a limit; the time at which launches are free again is that with those
    `waiting`. Counters of a `locked` limit are folded."""
    scope = await _scope(db, limit)
    hour, day = at.window_start(tariff.hour_seconds), at.window_start(tariff.day_seconds)
    launches: int = await db.fetchval(LAUNCHES_IN, *scope, hour)
    spend, unpriced, spend_free_at = Decimal(), 0, None
    if limit.spend_per_day is not None:
        row = await spending.read(
            db,
            *scope,
            since=day,
            now=at.now,
            lifetime=_numeric(limit.lifetime_seconds),
            default_price=limit.default_price,
            hour=_numeric(tariff.hour_seconds),
            day=_numeric(tariff.day_seconds),
        )
        if locked and row["foldable"] > FOLDED_ROWS:
            await spending.fold(db, scope[0], [scope[1] or ""])
        spend, unpriced = row["spend"], row["unpriced"]
        if row["leaves"] is not None:
            spend_free_at = leaves_at(row["leaves"], tariff.day_seconds, downtimes=at.downtimes)
    forgotten = await db.fetchrow(FORGOTTEN, limit.scope, limit.scope_id)
    free_at = None
    if forgotten is not None and forgotten["forgotten_at"] > hour:
        launches += forgotten["forgotten_launches"]
    if forgotten is not None and forgotten["forgotten_at"] > day:
        spend += forgotten["forgotten_spend"]
    if limit.launches_per_hour is not None and launches + waiting >= limit.launches_per_hour:
        known_at = await db.fetchval(FREES, *scope, hour, launches + waiting - limit.launches_per_hour + 1)
        if known_at is None and forgotten is not None and forgotten["forgotten_at"] > hour:
            known_at = forgotten["forgotten_at"]
        if known_at is not None:
            free_at = leaves_at(known_at, tariff.hour_seconds, downtimes=at.downtimes)
    return Usage(
        launches=launches, spend=spend, unpriced=unpriced, launches_free_at=free_at, spend_free_at=spend_free_at
    )


async def levels(db: Connection, pool_id: str, tariff: Tariff) -> list[Level]:
    """Limits of a pool and of the accounts that it launches in, with what counts towards them."""
    return await _levels(db, [_limit(row) for row in await db.fetch(OF_POOL, pool_id)], tariff)


async def listed(db: Connection, tariff: Tariff) -> list[tuple[Level, str]]:
    """All limits with what counts towards them, and what their alerts say was reached, empty for none."""
    rows = await db.fetch(LISTED)
    found = await _levels(db, [_limit(row) for row in rows], tariff)
    return [(level, row["alerted"]) for level, row in zip(found, rows, strict=True)]


async def by_pool(db: Connection, limit: Limit, tariff: Tariff, at: Clock) -> list[tuple[str, int]]:
    """The pools with the most launches that count towards a limit, and how many."""
    rows = await db.fetch(BY_POOL, *await _scope(db, limit), at.window_start(tariff.hour_seconds))
    return [(row["pool_id"], row["launches"]) for row in rows]


async def lock_declared(
    tx: Connection, accounts: Collection[str], pools: Collection[str]
) -> dict[tuple[str, str], str]:
    """Lock the limits of accounts and pools; returns what their alerts say was reached, for those that have one."""
    rows = await tx.fetch(LOCK_DECLARED, sorted(accounts), sorted(pools))
    return {(row["scope"], row["scope_id"]): row["alerted"] for row in rows if row["alerted"]}


async def declare(tx: Connection, accounts: Collection[str], pools: Collection[str]) -> set[tuple[str, str]]:
    """Store the limits that accounts and pools declare; returns the scope and id of those that have changed."""
    given = sorted(accounts), sorted(pools)
    changed = [*await tx.fetch(DELETE_UNDECLARED, *given), *await tx.fetch(DECLARE, *given)]
    return {(row["scope"], row["scope_id"]) for row in changed}


async def pools_in(db: Connection, accounts: Iterable[str]) -> set[str]:
    """Pools that launch in these accounts."""
    return {row["pool_id"] for row in await db.fetch(POOLS_IN, sorted(accounts))}


async def seen(tx: Connection, limit: Limit, reached: Reached, *, fresh_seconds: float) -> bool:
    """Record that a limit stops launches; True if an alert has to say so now. The row is locked then."""
    one = {"in_scope": reached.scope, "in_scope_id": reached.scope_id}
    replaced = ["", *KINDS[: KINDS.index(reached.kind)]]
    values = {f"seen_{name}": getattr(limit, name) for name in _VALUES}
    alerted = await tx.fetchval(SEEN.text, *SEEN.arguments(**one, **values, replaced=replaced, fresh=fresh_seconds))
    if alerted is None or alerted not in replaced or reached.passing:
        return False
    await tx.execute(ALERT.text, *ALERT.arguments(**one, kind=reached.kind))
    return True


async def take_over(tx: Connection, *, after_seconds: float) -> list[Limit]:
    """End the alerts of limits that have stopped no launch for a while; returns these limits."""
    return [_limit(row) for row in await tx.fetch(OVER, after_seconds)]


async def forget(tx: Connection) -> None:
    """Record that the database has lost launches: up to now each limit counts as reached by them."""
    await tx.execute(FORGET)


async def redate(db: Connection) -> None:
    """Date charges ahead of the clock to now."""
    await db.execute(REDATE)


async def _levels(db: Connection, limits: Sequence[Limit], tariff: Tariff) -> list[Level]:
    if not limits:
        return []
    at, found = await clock(db), []
    for limit in limits:
        waiting = await _waiting(db, limit)
        used = await usage(db, limit, tariff, at, waiting=sum(waiting.values()))
        found.append(Level(limit=limit, usage=used, waiting=waiting))
    return found


async def _waiting(db: Connection, limit: Limit) -> dict[MachineKind, int]:
    rows = await db.fetch(WAITING_UNITS, limit.scope, limit.scope_id)
    return {kind(row): row["units"] for row in rows}


async def _scope(db: Connection, limit: Limit) -> tuple[list[str], str | None]:
    """Accounts of a limit, and its pool."""
    if limit.scope == "account":
        return [limit.scope_id], None
    return [row["account_id"] for row in await db.fetch(ACCOUNTS_OF, limit.scope_id)], limit.scope_id


def kind(row: Any) -> MachineKind:
    """MachineKind of a machine, from a row with its provider, region, instance type and lifecycle."""
    return MachineKind(**{name: row[name] for name in MachineKind._fields})


def _limit(row: Any) -> Limit:
    return Limit(**{name: row[name] for name in Limit.__struct_fields__})


def _numeric(number: float) -> Decimal:
    return Decimal(str(number))
