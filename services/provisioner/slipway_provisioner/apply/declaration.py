"""Applies a declaration (slipway.yaml) to the rows, in one transaction with its events, and lists the changes."""

from collections.abc import Callable, Mapping
from typing import Any

from slipway_common.database.postgres import Connection
from slipway_common.declaration.identity import config_id
from slipway_common.declaration.models import Account, Declaration, LaunchConfig, WorkerPool
from slipway_common.events.scopes import FORGOTTEN_AFTER_SECONDS
from slipway_common.messaging import outbox
from slipway_provisioner.domain import freezing
from slipway_provisioner.domain.declaration import Change, DeclarationRefused, Times, change, check_body, different
from slipway_provisioner.store import declarations

Problems = Mapping[str, Callable[[Mapping[str, Any]], str]]
"""Provider → function that returns the problem with an account's settings."""


async def apply(tx: Connection, declared: Declaration, *, providers: Problems, times: Times) -> list[Change]:
    """Make the rows match the declaration; returns the differences. Roll back for a dry run.

    Raises DeclarationRefused for an unknown provider or settings that it cannot use, a changed body under the same
    config id, a config that would move to another pool, or a lease pool whose grants expire before a call can start.
    """
    changes: list[Change] = []
    await declarations.lock(tx)
    await declarations.forget_archived(tx, FORGOTTEN_AFTER_SECONDS)
    for lease_pool in declared.lease_pools:
        if problem := times.problem(lease_pool.id, lease_pool.reserve_seconds):
            raise DeclarationRefused(problem)
    for index, account in enumerate(declared.accounts):
        _check_settings(index, account, providers)
        changes += await _account(tx, account)
    regions = {account.id: account.region for account in declared.accounts}
    for pool in declared.worker_pools:
        pool_changes, inherited = await _pool(tx, pool)
        changes += pool_changes
        for config in pool.launch_configs:
            changes += await _config(tx, pool, config, regions[config.account], inherited)
    changes += await _remove(tx, declared)
    await declarations.insert_shares(tx)
    return changes


def _check_settings(index: int, account: Account, providers: Problems) -> None:
    if account.provider not in providers:
        raise DeclarationRefused(
            f"account {account.id}: unknown provider {account.provider}; use one of {', '.join(sorted(providers))}"
        )
    if problem := providers[account.provider](account.settings):
        raise DeclarationRefused(f"accounts/{index}/settings: account {account.id}: {problem}")


async def _account(tx: Connection, account: Account) -> list[Change]:
    stored = await declarations.account(tx, account.id)
    wanted = {
        "provider": account.provider,
        "region": account.region,
        "identity": account.identity,
        "lease_pool_id": account.lease_pool,
        "settings": dict(account.settings),
    }
    if stored is not None and not different(stored, wanted):
        return []
    await declarations.put_account(tx, account.id, wanted)
    return [change("account", account.id, stored, wanted)]


async def _pool(tx: Connection, pool: WorkerPool) -> tuple[list[Change], set[str]]:
    """Changes of the pool, and the settings of its configs that change with it."""
    stored = await declarations.pool(tx, pool.id)
    wanted = {
        "min_capacity": pool.min_capacity,
        "max_capacity": pool.max_capacity,
        "scaling_ratio": str(pool.scaling_ratio),
        "mode": pool.mode,
        **_health_settings(pool),
        "deleted": False,
    }
    changed = different(stored, wanted)
    if stored is not None and not changed:
        return [], set()
    await declarations.put_pool(tx, pool.id, wanted, new=stored is None or stored["deleted"])
    return [change("pool", pool.id, stored, wanted)], set(changed).intersection(_health_settings(pool))


async def _config(
    tx: Connection, pool: WorkerPool, config: LaunchConfig, region: str, inherited: set[str]
) -> list[Change]:
    """Changes of a config, without the `inherited` settings, which the pool's own change lists."""
    id_ = config_id(pool, config)
    stored = await declarations.config(tx, id_)
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
        **_health_settings(pool, config.profile),
    }
    changed = different(stored, wanted)
    check_body(id_, changed)
    new = stored is None or stored["state"] == "archived"
    if not new and not changed:
        return []
    await declarations.put_config(tx, id_, wanted, new=new)
    known = inherited - {"profile"} if config.profile else inherited
    if not new and known.issuperset(changed):
        return []
    return [change("launch config", id_, None if new else stored, wanted, inherited=known)]


def _health_settings(pool: WorkerPool, profile: str | None = None) -> dict[str, Any]:
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
    configs = [config_id(pool, config) for pool in declared.worker_pools for config in pool.launch_configs]
    removed = [("launch config", id_) for id_ in await declarations.archive_others(tx, configs)]
    pools = [pool.id for pool in declared.worker_pools]
    deleted = await declarations.delete_other_pools(tx, pools, frozen_by=freezing.BY)
    unfrozen = [pool_id for pool_id, was_frozen in deleted.items() if was_frozen]
    await outbox.enqueue(tx, [freezing.resolved(pool_id, f"pool {pool_id} is deleted") for pool_id in unfrozen])
    removed += [("pool", id_) for id_ in deleted]
    accounts = [account.id for account in declared.accounts]
    removed += [("account", id_) for id_ in await declarations.delete_other_accounts(tx, accounts)]
    return [Change(kind=kind, id=id_, action="remove") for kind, id_ in removed]
