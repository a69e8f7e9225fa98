"""Estimates of a declaration: what its pools may cost, and launches refused for want of a price."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from slipway_api.events.scopes import lifecycle_of
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply.provider_keys import Providers
from slipway_provisioner.apply.reading import Declared
from slipway_provisioner.domain.comparison import Writes
from slipway_provisioner.domain.costs import Estimates, PoolLaunches, cost, unpriced
from slipway_provisioner.domain.limits import Limit, Tariff
from slipway_provisioner.domain.prices import MachineKind
from slipway_provisioner.store import declarations


class Locations(msgspec.Struct, frozen=True):
    """Provider and region of each account, as declared."""

    providers: Mapping[str, str]
    regions: Mapping[str, str]

    def kind(self, account_id: str, instance_type: str, settings: Mapping[str, Any]) -> tuple[MachineKind, str]:
        """Kind of the machines of a launch config, with its account."""
        location = self.providers[account_id], self.regions[account_id]
        return MachineKind(*location, instance_type, lifecycle_of(settings)), account_id


async def estimate(
    db: Connection, declared: Declared, writes: Writes, locations: Locations, providers: Providers, tariff: Tariff
) -> Estimates:
    """Estimate what the changes of a declaration cost, and which of its launches would be refused."""
    changed = _changed_pools(declared, writes, locations)
    unchanged = await _in_changed_accounts(db, writes, locations, changed)
    stored = await declarations.account_limits(db, locations.providers) if changed or unchanged else {}
    of_accounts = stored | {row.id: row.limits for row in declared.accounts.values()}
    pools = [_with_account_limits(pool, of_accounts) for pool in (*changed, *unchanged)]
    paid = [each for pool in pools[: len(changed)] if (each := _paid(pool, providers)).kinds]
    return Estimates(
        costs=[cost(pool, tariff) for pool in paid],
        unpriced=[found for pool in pools if (found := unpriced(pool, tariff)) is not None],
    )


def _changed_pools(declared: Declared, writes: Writes, locations: Locations) -> list[PoolLaunches]:
    changed = {row.id: row for row in (*writes.new_pools, *writes.pools) if row.id in declared.pools}
    return [
        PoolLaunches(
            pool=id_,
            mode=row.mode,
            machines=row.max_capacity,
            kinds=_distinct(
                locations.kind(config.account, config.instance_type, config.settings)
                for config in declared.pools[id_].pool.launch_configs
            ),
            limits=[Limit.of("pool", id_, row.limits)],
        )
        for id_, row in sorted(changed.items())
    ]


async def _in_changed_accounts(
    db: Connection, writes: Writes, locations: Locations, changed: Iterable[PoolLaunches]
) -> list[PoolLaunches]:
    """Unchanged pools, with their machines in changed accounts that have limits."""
    limited = [row.id for row in (*writes.new_accounts, *writes.accounts) if row.limits]
    seen = {*(pool.pool for pool in changed), *writes.removed_pools}
    found: dict[str, PoolLaunches] = {}
    for row in await declarations.launching(db, limited) if limited else ():
        if row["pool_id"] not in seen:
            kind = locations.kind(row["account_id"], row["instance_type"], row["settings"])
            limits = [Limit.of("pool", row["pool_id"], row["limits"])]
            before = found.get(row["pool_id"])
            kinds = _distinct((*(before.kinds if before else ()), kind))
            found[row["pool_id"]] = PoolLaunches(
                pool=row["pool_id"], mode=row["mode"], machines=0, kinds=kinds, limits=limits
            )
    return list(found.values())


def _with_account_limits(pool: PoolLaunches, of_accounts: Mapping[str, Mapping[str, Any]]) -> PoolLaunches:
    accounts = sorted({account for _, account in pool.kinds})
    limits = [Limit.of("account", account, of_accounts.get(account, {})) for account in accounts]
    return msgspec.structs.replace(pool, limits=[*limits, *pool.limits])


def _paid(pool: PoolLaunches, providers: Providers) -> PoolLaunches:
    """The same pool without the kinds of machines that cost nothing."""
    kinds = [each for each in pool.kinds if (found := providers.get(each[0].provider)) is not None and found.real]
    accounts = {account for _, account in kinds}
    limits = [limit for limit in pool.limits if limit.scope == "pool" or limit.scope_id in accounts]
    return msgspec.structs.replace(pool, kinds=kinds, limits=limits)


def _distinct(kinds: Iterable[tuple[MachineKind, str]]) -> list[tuple[MachineKind, str]]:
    return list(dict.fromkeys(kinds))
