"""Keys and problems of revisions of launch configs, as their providers see them: keys of capacity, quotas and image."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from slipway_api.events.scopes import capacity_key, lifecycle_of
from slipway_common.database.postgres import Connection
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.comparison import AccountRow, Writes
from slipway_provisioner.domain.declaration import DeclarationRefused, NewLaunch
from slipway_provisioner.domain.revisions import PROVIDER_KEYS, RevisionKeys, RevisionRow, StoredKeys, StoredUser
from slipway_provisioner.providers.port import Provider
from slipway_provisioner.store import accounts, deployment, provider_keys
from slipway_provisioner.store.roll_outs import Name

Providers = Mapping[str, Provider]
REVISIONS_PER_TURN: Final = 10
"""New revisions whose keys are filled in before other tasks of this process get their turn."""


async def fill_in(db: Connection, writes: Writes, declared: Mapping[str, AccountRow], providers: Providers) -> None:
    """Fill in the keys of new revisions. `declared` accounts are as they will be. Raises DeclarationRefused if the
    provider of one cannot use its settings."""
    if not writes.new_revisions:
        return
    known = await _accounts(db, {revision.account_id for revision in writes.new_revisions}, declared)
    filled = {}
    for number, revision in enumerate(writes.new_revisions):
        account = known[revision.account_id]
        _check(revision, account.provider, account.settings, providers)
        filled[revision.id] = _filled(revision, account, providers)
        if number % REVISIONS_PER_TURN == 0:
            await asyncio.sleep(0)
    writes.new_revisions = list(filled.values())
    writes.replacements = [
        replace(made, target=filled.get(made.target.id, made.target)) for made in writes.replacements
    ]


async def check_users(db: Connection, writes: Writes, providers: Providers) -> None:
    """Check declared launch configs that stay as they are while their accounts change, since the settings of an account
    and its provider decide which of theirs are usable. Raises DeclarationRefused."""
    changed = {row.id: row for row in writes.accounts}
    for user in await _users(db, writes):
        row = changed[user.account_id]
        _check(user, row.provider, row.settings, providers)


async def launches(db: Connection, writes: Writes, declared: Mapping[str, AccountRow]) -> list[NewLaunch]:
    """Launches of the new revisions, and of those that stay as they are while their accounts change."""
    revisions: list[RevisionRow | StoredUser] = [*writes.new_revisions, *await _users(db, writes)]
    known = await _accounts(db, {revision.account_id for revision in revisions}, declared)
    return [NewLaunch(known[revision.account_id], _config(revision)) for revision in revisions]


async def refresh(db: Connection, pool_id: str, providers: Providers) -> int:
    """Change the keys of a pool's revisions that their providers give otherwise by now; returns their number.

    A provider may learn later which zone it is that an account calls by a name.
    """
    stored = await provider_keys.of_pool(db, pool_id)
    known = await _accounts(db, {each.account_id for each in stored}, {})
    changed: dict[str, list[RevisionKeys]] = {}
    for each in stored:
        keys = _keys(each, known[each.account_id], providers)
        if any(getattr(keys, name) != getattr(each, name) for name in PROVIDER_KEYS):
            changed.setdefault(each.name, []).append(keys)
    for name, of_name in sorted(changed.items()):
        async with db.transaction():
            await provider_keys.put(db, Name(pool_id=pool_id, name=name), of_name)
    return sum(map(len, changed.values()))


async def _users(db: Connection, writes: Writes) -> list[StoredUser]:
    """Declared launch configs that stay as they are while their accounts change."""
    if not writes.accounts:
        return []
    gone = {*writes.removed_names, *(revision.name for revision in writes.new_revisions)}
    users = await provider_keys.of_accounts(db, [row.id for row in writes.accounts])
    return [user for user in users if user.name not in gone and user.pool_id not in writes.removed_pools]


async def _accounts(db: Connection, ids: Iterable[str], declared: Mapping[str, AccountRow]) -> dict[str, Account]:
    found = {}
    for id_ in sorted(ids):
        row = declared.get(id_)
        if row is None:
            found[id_] = await accounts.get(db, id_)
        else:
            fields = {name: getattr(row, name) for name in Account.__struct_fields__ if name != "deployment"}
            found[id_] = Account(deployment=(await deployment.get(db)).id, **fields)
    return found


def _check(
    revision: RevisionRow | StoredUser, provider_name: str, settings: Mapping[str, Any], providers: Providers
) -> None:
    """`settings` are those of the account."""
    provider = providers.get(provider_name)
    problem = provider.config_problem(settings, revision.settings) if provider is not None else ""
    if problem:
        place = f"worker pool {revision.pool_id}: launch config {revision.name} in account {revision.account_id}"
        raise DeclarationRefused(f"{place}: settings: {problem}")


def _filled(revision: RevisionRow, account: Account, providers: Providers) -> RevisionRow:
    keys = _keys(revision, account, providers)
    return replace(revision, **{name: getattr(keys, name) for name in PROVIDER_KEYS})


def _keys(revision: RevisionRow | StoredKeys, account: Account, providers: Providers) -> RevisionKeys:
    """Keys that the provider gives now; the present ones where it does not know."""
    provider, type_ = providers.get(account.provider), revision.instance_type
    if provider is None:
        return RevisionKeys(id=revision.id, **{name: getattr(revision, name) for name in PROVIDER_KEYS})
    config = _config(revision)
    capacity, family = provider.capacity_key(account, config), provider.quota_family(account, config)
    usual = capacity_key(account.id, revision.region, revision.zone, type_, lifecycle_of(revision.settings)).id
    return RevisionKeys(
        id=revision.id,
        capacity="" if capacity == usual else capacity or revision.capacity,
        quota_family="" if family == type_.split(".")[0] else family or revision.quota_family,
        subnet=provider.subnet(account, config),
        image=provider.image_key(account, config) or revision.image,
    )


def _config(revision: RevisionRow | StoredKeys | StoredUser) -> dict[str, Any]:
    """Launch config as providers are given it."""
    return {
        "id": revision.id,
        "zone": revision.zone,
        "instance_type": revision.instance_type,
        "image": revision.image_revision,
        "settings": revision.settings,
    }
