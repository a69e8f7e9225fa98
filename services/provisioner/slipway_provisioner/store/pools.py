"""Input of planning decisions: dirty pools, and configs with their weights and starts in flight."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Any, Final

import msgspec

from slipway_api.events.lifecycle import REGISTERED, WAITING
from slipway_api.events.scopes import NEW_SHARED_WINDOWS, NEW_WINDOWS, Key
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import names
from slipway_provisioner.domain import accounting, roll_out
from slipway_provisioner.domain.ageing import Life
from slipway_provisioner.domain.deadlines import DEFAULT_PROFILE, DefaultDeadlines
from slipway_provisioner.domain.limits import Tariff
from slipway_provisioner.domain.pool import Busy, Config, Fleet, Idle, Observed, Pool, Share, Shared, Stage, Waiting
from slipway_provisioner.store import ageing, balance, demand, launch_stops, limits, marks, restores, usage
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.deadlines import SEEN_SINCE_DOWNTIME, seconds
from slipway_provisioner.store.functions import shared_of_pool
from slipway_provisioner.store.tables import launch_config, worker_pool

POOL: Final = f"""
SELECT {names(worker_pool.c[name] for name in Pool.__struct_fields__)},
    coalesce(extract(epoch FROM attempted_at + $3 * interval '1 s' - slipway_clock())::float8, 0)
        AS attempt_in_seconds, b.surplus, b.missing_since, coalesce(b.short, false) AS short, (
        SELECT max({seconds("idle_seconds", "$2")}) FROM launch_config c JOIN launch_config_name n ON n.name = c.name
        WHERE c.pool_id = $1 AND c.state <> 'archived') AS idle_seconds
FROM worker_pool LEFT JOIN pool_balance b ON b.pool_id = id WHERE id = $1"""
# Machines of an account that refuses to terminate its instances are not stuck.
FLEET: Final = """
SELECT coalesce(sum(u.serving), 0)::int AS serving, coalesce(sum(u.leaving), 0)::int AS leaving,
    coalesce(sum(u.stuck) FILTER (WHERE NOT coalesce(a.refuses_terminations, false)), 0)::int AS stuck,
    coalesce(sum(u.stranded), 0)::int AS stranded, coalesce(sum(u.marked), 0)::int AS marked
FROM config_usage u LEFT JOIN launch_config c ON c.id = u.launch_config_id LEFT JOIN account a ON a.id = c.account_id
WHERE u.pool_id = $1"""
# Shares of a config `c`, in the order in which they trip it.
SHARES: Final = "ARRAY(SELECT ARRAY[k.key, k.stage] FROM shared_keys(c) AS k)"
# Replacement of a revision of the name `n` that goes on: its strategy, and the boots of the current revision.
REPLACEMENT: Final = """
SELECT r.replaced_by AS strategy, coalesce((rg.record -> 'stages' -> 'boot' ->> 'succeeded')::int, 0) AS booted
FROM launch_config r LEFT JOIN weight rg ON rg.launch_config_id = n.current_id
WHERE r.name = n.name AND r.state = 'active' AND r.replaced_by <> '' AND r.id <> n.current_id LIMIT 1"""
CONFIG: Final = launch_config.c[
    "id",
    "name",
    "account_id",
    "image_revision",
    "state_reason",
    "replaced_by",
    "drain_terminate",
    "claim_evidence",
]
# One statement, so that a worker that fails at this moment counts either as in flight or as failed. Archived
# revisions have no live workers.
CONFIGS: Final = f"""
SELECT {names(CONFIG, "c.")}, n.current_id, n.max_capacity, n.task_slots, a.lease_pool_id,
    a.provider, c.region, c.instance_type, {limits.LIFECYCLE} AS lifecycle,
    CASE WHEN c.state = 'active' AND n.paused THEN 'paused' ELSE c.state END AS state,
    n.base_weight * n.price_factor AS prior_weight, g.record, o.unfolded,
    g.record IS NOT NULL AND (g.record ->> 'probe_ready')::boolean AND NOT EXISTS (
        SELECT FROM worker p WHERE p.launch_config_id = c.id
        AND p.probe_permit = (g.record ->> 'probe_permit')::bigint) AS permitted,
    (SELECT reason FROM launch_stop WHERE scope = 'account' AND scope_id = c.account_id
        AND {launch_stops.IN_FORCE}) AS launch_stop, a.unreachable, a.retired, a.refuses_terminations,
    {SHARES} AS shares, {usage.OF_CONFIG}, coalesce(u.counter_rows, 0) AS counter_rows, r.strategy, r.booted
FROM launch_config c JOIN launch_config_name n ON n.name = c.name JOIN account a ON a.id = c.account_id
LEFT JOIN weight g ON g.launch_config_id = c.id
LEFT JOIN ({usage.CONFIGS}) AS u ON u.launch_config_id = c.id LEFT JOIN LATERAL ({REPLACEMENT}) AS r ON true
LEFT JOIN LATERAL (
    SELECT jsonb_object_agg(stage, unfolded) AS unfolded FROM launch_config_outcomes
    WHERE launch_config_id = c.id) AS o ON true
WHERE c.pool_id = $1 AND c.state <> 'archived' ORDER BY c.id"""
SHARED: Final = shared_of_pool("NULL")
# A call may start at any moment for workers with a lease, unless their revision drains or nobody calls their account.
WAITING_WORKERS: Final = f"""
SELECT w.id::text AS worker_id, w.launch_config_id AS config_id, w.probe_permit AS permit
FROM worker w JOIN launch_config c ON c.id = w.launch_config_id JOIN account a ON a.id = w.account_id
WHERE w.pool_id = $1 AND w.state IN ({states(WAITING)}) AND (w.lease_id IS NULL OR c.state <> 'active'
    OR a.unreachable OR a.retired OR a.refuses_terminations)
ORDER BY w.id"""
IDLE_MAX: Final = 500
# Idle for its uptime only.
_IDLE: Final = f"""
SELECT w.id::text AS worker_id, w.launch_config_id AS config_id, w.idle_since, c.state = 'draining' AS draining,
    {seconds("idle_seconds", "$2")} AS timeout_seconds
FROM worker w JOIN launch_config c ON c.id = w.launch_config_id JOIN launch_config_name n ON n.name = c.name
WHERE w.pool_id = $1 AND w.state IN ({states(REGISTERED)}) AND w.idle_since IS NOT NULL AND {SEEN_SINCE_DOWNTIME}"""
# Those of draining revisions first. Apart, so that either are read in the order of their index.
IDLE_WORKERS: Final = f"""
SELECT worker_id, config_id, timeout_seconds,
    slipway_clock() - greatest(0, uptime_since(idle_since)) * interval '1 s' AS since
FROM ((SELECT * FROM ({_IDLE}) AS i WHERE draining ORDER BY idle_since LIMIT {IDLE_MAX})
    UNION ALL (SELECT * FROM ({_IDLE}) AS i WHERE NOT draining ORDER BY idle_since LIMIT {IDLE_MAX})) AS i
ORDER BY draining DESC, idle_since LIMIT {IDLE_MAX}"""
# The marked ones, and as many more as may be marked.
BUSY: Final = f"""
SELECT w.id::text AS worker_id, c.state = 'draining' OR w.drain_until IS NOT NULL AS draining,
    w.leave_after_task AS marked
FROM worker w JOIN launch_config c ON c.id = w.launch_config_id
WHERE w.pool_id = $1 AND w.state IN ({states(REGISTERED)}) AND w.idle_since IS NULL
ORDER BY marked DESC, draining DESC, w.id LIMIT $2"""
LAUNCH_STOPS: Final = f"""
SELECT reason, scope = '{restores.SCOPE}' AS restored FROM launch_stop
WHERE (scope IN ('all', '{restores.SCOPE}') OR (scope = 'pool' AND scope_id = $1)) AND {launch_stops.IN_FORCE}
ORDER BY scope = '{restores.SCOPE}' DESC LIMIT 1"""


def _row(statement: str) -> str:
    """Subquery for the row of a statement as an object, NULL if there is none."""
    return f"(SELECT row_to_json(r) FROM ({statement}) AS r)"


def _rows(statement: str) -> str:
    """Subquery for the rows of a statement as a list of objects."""
    return f"(SELECT coalesce(json_agg(r), '[]') FROM ({statement}) AS r)"


# One statement, so that all of it is of one moment. A start that fails, or a worker that ends, counts in exactly one of
# those that a decision compares: starts in flight and failures, workers and claimed tasks. $2 are the deadlines, $3 the
# seconds between two attempts, $4 those of a day. Of each of the pools $1, which have been dirty since $5.
_OBSERVE: Final = f"""
SELECT slipway_clock() AS now, {_row(POOL)} AS pool, {_row(LAUNCH_STOPS)} AS launch_stop,
    {_rows(CONFIGS)} AS configs, {_rows(shared_of_pool("$5"))} AS shared,
    {_row(FLEET)} AS fleet, {_rows(demand.OBSERVE)} AS demands,
    {_rows(WAITING_WORKERS)} AS waiting, {_rows(IDLE_WORKERS)} AS idle, {_rows(ageing.LIVES)} AS lives,
    EXISTS ({limits.OF_POOL}) AS is_limited"""
OBSERVE: Final = f"""{_OBSERVE.replace("$1", "claimed.pool_id").replace("$5", "claimed.since")}
FROM unnest($1::text[], $5::timestamptz[]) WITH ORDINALITY AS claimed (pool_id, since, place) ORDER BY claimed.place"""
KNOWN: Final = """
SELECT slipway_clock() AS now, ARRAY(SELECT id FROM worker_pool WHERE id = ANY($1) AND NOT deleted) AS ids"""
COPIED: Final = (
    "id",
    "name",
    "current_id",
    "account_id",
    "lease_pool_id",
    "image_revision",
    "state",
    "state_reason",
    "replaced_by",
    "drain_terminate",
    "max_capacity",
    "task_slots",
    "live",
    "prior_weight",
)
"""Columns of CONFIGS that a decision takes as they are."""


class Dirty(msgspec.Struct, frozen=True):
    """A dirty pool, the reasons of its marks, and since when the first of them has been due; None if another planner
    has just put them behind. `more`: other pools are due as well."""

    pool_id: str
    reasons: frozenset[str]
    since: datetime | None = None
    more: bool = False


async def claim_dirty(
    tx: Connection, lock_seconds: float, most: int = 1, *, launching_seconds: float = 0.0
) -> list[Dirty]:
    """Lock the pools that have been dirty longest and that no planner holds, `most` of them at most, without those with
    a launch of the last `launching_seconds` whose call has not begun. After that no statement of the transaction waits
    for a lock longer than `lock_seconds`."""
    timeout = f"{lock_seconds * 1000:.0f}ms"
    rows = await tx.fetch("SELECT * FROM claim_dirty($1, $2, $3)", timeout, most, launching_seconds)
    return [Dirty(row["claimed_id"], frozenset(row["reasons"]), row["since"], row["more"]) for row in rows]


async def observe(
    tx: Connection,
    *,
    deadlines: DefaultDeadlines,
    unavailable_seconds: float,
    weight_half_life_seconds: float,
    attempt_seconds: float,
    dirty: Sequence[Dirty],
    tariff: Tariff = Tariff(),
) -> list[tuple[Observed, datetime]]:
    """Read the input of a decision on each of the `dirty` pools, and the time. The caller holds their locks."""
    ids, since = [each.pool_id for each in dirty], [each.since for each in dirty]
    rows = await tx.fetch(OBSERVE, ids, deadlines, attempt_seconds, tariff.day_seconds, since)
    idle_seconds = deadlines[DEFAULT_PROFILE]["idle_seconds"]
    known = {
        "calculator_unavailable_seconds": unavailable_seconds,
        "weight_half_life_seconds": weight_half_life_seconds,
        "tariff": tariff,
    }
    return [
        (await _observed(tx, row, each, idle_seconds, known), row["now"]) for row, each in zip(rows, dirty, strict=True)
    ]


async def _observed(
    tx: Connection, read: Any, dirty: Dirty, idle_timeout_seconds: float, known: Mapping[str, Any]
) -> Observed:
    """Input of a decision on a pool, from a row of OBSERVE, and what is `known` besides."""
    pool_id = dirty.pool_id
    row, counts, launch_stop = dict(read["pool"]), dict(read["fleet"]), read["launch_stop"]
    attempt_in_seconds, idle_seconds = row.pop("attempt_in_seconds"), row.pop("idle_seconds")
    missing_since = _time(row.pop("missing_since"))
    surplus, short = balance.surplus_of(row.pop("surplus")), row.pop("short")
    pool = Pool(**row | {"scaling_ratio": Fraction(row["scaling_ratio"])})
    marked = counts.pop("marked")
    fleet = Fleet(**counts)
    demands = demand.observed(read["demands"])
    # After a restore, workers may have claimed tasks that this database knows nothing of.
    idle: Sequence[Any] = ()
    busy: Sequence[Any] = ()
    if launch_stop is None or not launch_stop["restored"]:
        idle = read["idle"]
        most = marked + accounting.surplus(pool, accounting.protected(demands), fleet)
        busy = await tx.fetch(BUSY, pool_id, most) if most else ()
    if sum(max(0, row["counter_rows"] - 1) for row in read["configs"]) > usage.FOLDED_ROWS:
        await usage.fold_pool(tx, pool_id)
    return Observed(
        **known,
        pool=pool,
        demands=demands,
        fleet=fleet,
        configs=[_config(row) for row in read["configs"]],
        shared=[_shared(row) for row in read["shared"]],
        waiting=[Waiting(**row) for row in read["waiting"]],
        idle=msgspec.convert(idle, list[Idle]),
        lives=msgspec.convert(read["lives"], list[Life]),
        busy=[Busy(**row) for row in busy],
        surplus=surplus,
        missing_since=missing_since,
        short=short,
        dirty_since=dirty.since,
        registered=marks.REGISTERED in dirty.reasons,
        idle_timeout_seconds=idle_timeout_seconds if idle_seconds is None else idle_seconds,
        attempt_in_seconds=attempt_in_seconds,
        stopped=f"launching is stopped: {launch_stop['reason']}" if launch_stop is not None else "",
        levels=await limits.levels(tx, pool_id, known["tariff"]) if read["is_limited"] else (),
    )


async def shared(tx: Connection, pool_id: str) -> list[Shared]:
    """Shares of a pool's revisions."""
    return [_shared(row) for row in await tx.fetch(SHARED, pool_id)]


async def lock_shared(
    tx: Connection,
    pool_id: str,
    keys: Collection[str],
    *,
    lock: Sequence[str],
    dirty_since: datetime | None,
    units: int,
    window_max: int,
) -> list[Shared]:
    """Lock the keys `lock`, then read the shares of a pool's revisions, with the rivals for those on which `units`
    launches might not fit beside them. Counters of the `keys`, all of which are locked by then, are folded where they
    have many rows. No window is larger than `window_max`."""
    rows = await tx.fetch(
        "SELECT * FROM lock_shared($1, $2, $3, $4, $5)", pool_id, dirty_since, units, window_max, lock
    )
    many = {row["key"] for row in rows if row["counter_rows"] > usage.FOLDED_ROWS}
    if foldable := sorted(many & set(keys)):
        await usage.fold_shared(tx, foldable)
    return [_shared(row) for row in rows]


def share(row: Any) -> float:
    """Share of a revision of its name's launches, from REPLACEMENT."""
    return roll_out.share(row["strategy"] or "", row["booted"] or 0, current=row["id"] == row["current_id"])


def _config(row: Any) -> Config:
    record: dict[str, Any] = row["record"] or {}
    reason = record.get("reason", "")
    counted = stages(row)
    return Config(
        **{name: row[name] for name in COPIED},
        share=share(row),
        kind=limits.kind(row),
        stopped=_stopped(row),
        launch_stop=bool(row["launch_stop"]) or row["retired"],
        weight=record.get("weight", row["prior_weight"]),
        tripped=record.get("state", "healthy") != "healthy",
        reason=reason.removeprefix(f"{row['id']} "),
        permit=record.get("probe_permit") if row["permitted"] and record.get("state", "healthy") != "healthy" else None,
        last_permit=record.get("probe_permit"),
        shares=shares(row),
        launch=counted["launch"],
        boot=counted["boot"],
        claim=counted["claim"],
    )


def _stopped(row: Any) -> str:
    """Reason why nothing may start in the config's account; empty if it may."""
    if row["retired"]:
        return f"account {row['account_id']} is retired"
    if row["unreachable"]:
        return f"account {row['account_id']} does not answer"
    if row["refuses_terminations"]:
        return f"account {row['account_id']} refuses to terminate its instances"
    return f"launching is stopped in {row['account_id']}: {row['launch_stop']}" if row["launch_stop"] else ""


def _shared(row: Any) -> Shared:
    values = dict(row)
    del values["counter_rows"]
    window = shared_window_size(values.pop("kind"), row["stage"], values.pop("size"))
    known = {"key": Key.of(row["key"]), "window": window, "waiting_since": _time(row["waiting_since"])}
    return Shared(**values | known)


def _time(read: datetime | str | None) -> datetime | None:
    """A time, of a row or of one in JSON. A conversion by type takes as long as the rest of such a row."""
    return datetime.fromisoformat(read) if isinstance(read, str) else read


def shared_window_size(kind: str, stage: str, published: int | None) -> int | None:
    """Window of a share, the one of new keys before its first weight record; None if the share is unlimited."""
    new = NEW_SHARED_WINDOWS.get((kind, stage))
    return new if new is None or published is None else published


def shares(row: Any) -> list[Share]:
    """Shares of a config, from SHARES."""
    return [(Key.of(key), stage) for key, stage in row["shares"]]


def stages(row: Any) -> dict[str, Stage]:
    """Stages of a config, from its weight record and our own counts.

    Without claim evidence the claim stage has no window.
    """
    published = (row["record"] or {}).get("stages", {})
    unfolded = row["unfolded"] or {}
    windows: dict[str, int | None] = {
        name: published.get(name, {}).get("window", window) for name, window in NEW_WINDOWS.items()
    }
    if row["claim_evidence"] == "none":
        windows["claim"] = None
    return {
        name: Stage(in_flight=row[name], unfolded=unfolded.get(name, 0), window=window)
        for name, window in windows.items()
    }


async def known(db: Connection, pool_ids: Sequence[str]) -> tuple[set[str], datetime]:
    """Ids of the given pools that exist, and the time by the database's clock."""
    row = await db.fetchrow(KNOWN, pool_ids)
    return set(row["ids"]), row["now"]


async def now(db: Connection) -> datetime:
    """Time by the database's clock. Read it after the transaction's locks are taken."""
    at: datetime = await db.fetchval("SELECT slipway_clock()")
    return at
