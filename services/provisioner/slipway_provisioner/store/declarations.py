"""Applies a declaration (slipway.yaml) to the rows, in one transaction with its events, and lists the changes."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from slipway_common.database.postgres import Connection
from slipway_common.declaration.identity import config_id
from slipway_common.declaration.models import Account, Declaration, LaunchConfig, LeasePool, WorkerPool
from slipway_common.events import launch_config as config_events
from slipway_common.events import pool as pool_events
from slipway_common.events.alert import AlertResolved
from slipway_common.events.scopes import FORGOTTEN_AFTER_SECONDS
from slipway_common.messaging import outbox
from slipway_provisioner.domain import freezing
from slipway_provisioner.store import configs, marks

POOL_STATE: Final = """
SELECT id AS pool_id, min_capacity, max_capacity, scaling_ratio, mode, paused, frozen, revision
FROM worker_pool WHERE id = $1"""
ONE_AT_A_TIME: Final = "SELECT pg_advisory_xact_lock(hashtext('slipway.apply'), hashtext(current_schema()))"
LOCK_POOLS: Final = "SELECT FROM worker_pool ORDER BY id FOR UPDATE"
# One statement, in the common lock order.
SHARED: Final = """
INSERT INTO shared_window (key, stage, size)
SELECT DISTINCT k.key, k.stage, k.size FROM launch_config c CROSS JOIN LATERAL shared_keys(c) AS k
WHERE c.state <> 'archived' ORDER BY 1, 2 ON CONFLICT DO NOTHING"""
# The weight-calculator forgets an archived config after the same time, and then shares without other configs. Both
# services then count from zero, and a share that is tripped at that time would never recover.
DELETE_OUTCOMES: Final = """
DELETE FROM launch_config_outcomes WHERE launch_config_id IN (
    SELECT id FROM launch_config WHERE archived_at < slipway_clock() - $1 * interval '1 s')"""
DELETE_SHARED: Final = """
DELETE FROM shared_window WHERE (key, stage) IN (
    SELECT key, stage FROM shared_window WHERE key NOT IN (
        SELECT unnest(ARRAY[image_key, quota_key, credential_key]) FROM launch_config
        WHERE archived_at IS NULL OR archived_at >= slipway_clock() - $1 * interval '1 s')
    ORDER BY key, stage FOR UPDATE)"""
BODY: Final = ("account_id", "region", "zone", "instance_type", "image_revision", "settings", "pool_id")
PUT_POOL: Final = """
INSERT INTO worker_pool AS p (id, min_capacity, max_capacity, scaling_ratio, mode, profile, boot_evidence,
    claim_evidence, on_bad_image, freeze_after, deleted)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (id) DO UPDATE SET min_capacity = $2, max_capacity = $3, scaling_ratio = $4, mode = $5, profile = $6,
    boot_evidence = $7, claim_evidence = $8, on_bad_image = $9, freeze_after = $10, deleted = $11,
    revision = p.revision + 1"""
# A freeze for a bad image ends with the pool: a pool that is declared again is judged anew.
DELETE_POOLS: Final = """
WITH removed AS (
    SELECT id, frozen AND frozen_by = $2 AS was_frozen FROM worker_pool WHERE id <> ALL($1::text[]) AND NOT deleted)
UPDATE worker_pool p SET deleted = true, min_capacity = 0, max_capacity = 0, revision = revision + 1,
    frozen = frozen AND NOT was_frozen, frozen_reason = CASE WHEN was_frozen THEN '' ELSE frozen_reason END,
    frozen_by = CASE WHEN was_frozen THEN '' ELSE frozen_by END
FROM removed r WHERE p.id = r.id RETURNING p.id, r.was_frozen"""
PUT_CONFIG: Final = f"""
INSERT INTO launch_config AS c (id, account_id, region, zone, instance_type, image_revision, settings, pool_id,
    base_weight, price_factor, profile, boot_evidence, claim_evidence, on_bad_image, freeze_after, state)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, 'active')
ON CONFLICT (id) DO UPDATE SET base_weight = $9, price_factor = $10, profile = $11, boot_evidence = $12,
    claim_evidence = $13, on_bad_image = $14, freeze_after = $15, revision = c.revision + 1,
    state = CASE c.state WHEN 'archived' THEN 'active' ELSE c.state END,
    declared_at = CASE c.state WHEN 'archived' THEN slipway_clock() ELSE c.declared_at END, archived_at = NULL
RETURNING {configs.COLUMNS}"""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between the declaration and the rows. `action` is create, update or remove."""

    kind: str
    id: str
    action: str
    detail: str = ""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Time settings of this service that constrain a declaration."""

    call_timeout_seconds: float
    clock_skew_seconds: float

    def problem(self, pool: LeasePool) -> str:
        """Problem if no call could ever start under a grant of the lease pool; empty if calls can start.

        A call needs its timeout plus the clock skew left of the grant, which may arrive that much late.
        """
        needed = self.call_timeout_seconds + 2 * self.clock_skew_seconds
        if pool.reserve_seconds > needed:
            return ""
        return (
            f"lease pool {pool.id}: reserve_seconds {pool.reserve_seconds:g} must be above {needed:g}, which is "
            f"call_timeout_seconds {self.call_timeout_seconds:g} + 2 × clock_skew_seconds {self.clock_skew_seconds:g} "
            f"of the provisioner, or no call could start before a grant ends; write reserve_seconds: {needed * 2.5:g}"
        )


class DeclarationRefused(Exception):
    """The declaration contradicts existing rows. The transaction must be rolled back."""


async def pool_state(db: Connection, pool_id: str) -> dict[str, Any]:
    return dict(await db.fetchrow(POOL_STATE, pool_id))


async def apply(
    tx: Connection, declared: Declaration, *, providers: Mapping[str, Callable[[Mapping[str, Any]], str]], times: Times
) -> list[Change]:
    """Make the rows match the declaration; returns the differences. Roll back for a dry run.

    `providers`: function per provider that returns the problem with an account's settings. Raises
    DeclarationRefused for an unknown provider or settings that it cannot use, a changed body under the same config id,
    a config that would move to another pool, or a lease pool whose grants expire before a call can start.
    """
    changes: list[Change] = []
    await tx.execute(ONE_AT_A_TIME)
    await tx.execute(LOCK_POOLS)
    await tx.execute(configs.LOCK_ALL)
    await tx.execute(DELETE_OUTCOMES, FORGOTTEN_AFTER_SECONDS)
    await tx.execute(DELETE_SHARED, FORGOTTEN_AFTER_SECONDS)
    for lease_pool in declared.lease_pools:
        if problem := times.problem(lease_pool):
            raise DeclarationRefused(problem)
    for place, account in enumerate(declared.accounts):
        if account.provider not in providers:
            raise DeclarationRefused(
                f"account {account.id}: unknown provider {account.provider}; use one of {', '.join(sorted(providers))}"
            )
        if problem := providers[account.provider](account.settings):
            raise DeclarationRefused(f"accounts/{place}/settings: account {account.id}: {problem}")
        changes += await _account(tx, account)
    regions = {account.id: account.region for account in declared.accounts}
    for pool in declared.worker_pools:
        pool_changes, inherited = await _pool(tx, pool)
        changes += pool_changes
        for config in pool.launch_configs:
            changes += await _config(tx, pool, config, regions[config.account], inherited)
    changes += await _remove(tx, declared)
    await tx.execute(SHARED)
    return changes


async def _account(tx: Connection, account: Account) -> list[Change]:
    row = await tx.fetchrow(
        "SELECT provider, region, identity, lease_pool_id, settings FROM account WHERE id = $1", account.id
    )
    wanted = {
        "provider": account.provider,
        "region": account.region,
        "identity": account.identity,
        "lease_pool_id": account.lease_pool,
        "settings": dict(account.settings),
    }
    if row is not None and dict(row) == wanted:
        return []
    await tx.execute(
        "INSERT INTO account (id, provider, region, identity, lease_pool_id, settings) VALUES ($1, $2, $3, $4, $5, $6) "
        "ON CONFLICT (id) DO UPDATE SET provider = $2, region = $3, identity = $4, lease_pool_id = $5, settings = $6",
        account.id,
        *wanted.values(),
    )
    return [_change("account", account.id, row, wanted)]


async def _pool(tx: Connection, pool: WorkerPool) -> tuple[list[Change], set[str]]:
    """Changes of the pool, and the settings of its configs that change with it."""
    row = await tx.fetchrow("SELECT * FROM worker_pool WHERE id = $1", pool.id)
    wanted = {
        "min_capacity": pool.min_capacity,
        "max_capacity": pool.max_capacity,
        "scaling_ratio": str(pool.scaling_ratio),
        "mode": pool.mode,
        **_judged(pool),
        "deleted": False,
    }
    if row is not None and all(row[name] == value for name, value in wanted.items()):
        return [], set()
    await tx.execute(PUT_POOL, pool.id, *wanted.values())
    event = pool_events.PoolCreated if row is None or row["deleted"] else pool_events.PoolUpdated
    await outbox.enqueue(tx, [event(**await pool_state(tx, pool.id))])
    await marks.dirty(tx, {pool.id}, reason="declared")
    inherited = {name for name, value in _judged(pool).items() if row is not None and row[name] != value}
    return [_change("pool", pool.id, row, wanted)], inherited


async def _config(
    tx: Connection, pool: WorkerPool, config: LaunchConfig, region: str, inherited: set[str]
) -> list[Change]:
    """Changes of a config, without the `inherited` settings, which the pool's own change lists."""
    id_ = config_id(pool, config)
    row = await tx.fetchrow("SELECT * FROM launch_config WHERE id = $1", id_)
    wanted: dict[str, Any] = {
        "account_id": config.account,
        "region": region,
        "zone": config.zone,
        "instance_type": config.instance_type,
        "image_revision": config.image,
        "settings": dict(config.settings),
        "pool_id": pool.id,
        "base_weight": config.base_weight,
        "price_factor": config.price_factor,
        **_judged(pool, config.profile),
    }
    changed: list[str] = []
    if row is not None:
        changed = [name for name, value in wanted.items() if row[name] != value]
        if fixed := [name for name in changed if name in BODY]:
            raise DeclarationRefused(
                f"launch config {id_}: {', '.join(fixed)} cannot change under the same id, since its history "
                "belongs to the old values; give the new config a new id"
            )
        if row["state"] != "archived" and not changed:
            return []
    stored = await tx.fetchrow(PUT_CONFIG, id_, *wanted.values())
    new = row is None or row["state"] == "archived"
    event = config_events.LaunchConfigCreated if new else config_events.LaunchConfigUpdated
    await outbox.enqueue(tx, [event(**configs.state(stored))])
    await marks.dirty(tx, {pool.id}, reason="declared")
    known = inherited - {"profile"} if config.profile else inherited
    if not new and known.issuperset(changed):
        return []
    own = {name: value for name, value in wanted.items() if name not in known}
    return [_change("launch config", id_, None if new else row, own)]


def _judged(pool: WorkerPool, profile: str | None = None) -> dict[str, Any]:
    """Health settings of a config: its own profile if it has one, the rest from its pool."""
    return {
        "profile": profile or pool.profile,
        "boot_evidence": pool.evidence.boot,
        "claim_evidence": pool.evidence.claim,
        "on_bad_image": pool.on_bad_image,
        "freeze_after": pool.freeze_after,
    }


async def _remove(tx: Connection, declared: Declaration) -> list[Change]:
    """Remove what is no longer declared: archive configs, delete pools, and remove accounts once they are unused."""
    declared_ids = [config_id(pool, config) for pool in declared.worker_pools for config in pool.launch_configs]
    changes = []
    for row in await tx.fetch(
        "UPDATE launch_config SET state = 'archived', archived_at = slipway_clock(), revision = revision + 1 "
        f"WHERE id <> ALL($1::text[]) AND state <> 'archived' RETURNING {configs.COLUMNS}",
        declared_ids,
    ):
        await outbox.enqueue(tx, [config_events.LaunchConfigArchived(**configs.state(row))])
        await marks.dirty(tx, {row["pool_id"]}, reason="archived")
        changes.append(Change(kind="launch config", id=row["id"], action="remove"))
    for row in await tx.fetch(DELETE_POOLS, [pool.id for pool in declared.worker_pools], freezing.BY):
        events: list[Any] = [pool_events.PoolDeleted(**await pool_state(tx, row["id"]))]
        if row["was_frozen"]:
            events.append(AlertResolved(**freezing.alert(row["id"]), summary=f"pool {row['id']} is deleted"))
        await outbox.enqueue(tx, events)
        await marks.dirty(tx, {row["id"]}, reason="deleted")
        changes.append(Change(kind="pool", id=row["id"], action="remove"))
    removed = await tx.fetch(
        "DELETE FROM account a WHERE id <> ALL($1::text[]) "
        "AND NOT EXISTS (SELECT FROM launch_config c WHERE c.account_id = a.id) "
        "AND NOT EXISTS (SELECT FROM worker w WHERE w.account_id = a.id AND w.state <> 'stopped') RETURNING id",
        [account.id for account in declared.accounts],
    )
    return changes + [Change(kind="account", id=row["id"], action="remove") for row in removed]


def _change(kind: str, id_: str, row: Any, wanted: dict[str, Any]) -> Change:
    if row is None:
        return Change(kind=kind, id=id_, action="create")
    changed = [f"{name}: {row[name]} → {value}" for name, value in wanted.items() if row[name] != value]
    return Change(kind=kind, id=id_, action="update", detail=", ".join(changed))
