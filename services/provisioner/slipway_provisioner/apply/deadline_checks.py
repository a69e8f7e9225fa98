"""Checks of the deadlines of launch configs against the defaults of this service and against spend limits."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from slipway_common.database.postgres import Connection
from slipway_common.declaration.deadlines import Deadlines
from slipway_common.declaration.identity import config_name
from slipway_provisioner.apply.reading import Declared
from slipway_provisioner.domain.comparison import Writes
from slipway_provisioner.domain.deadlines import DefaultDeadlines, problem
from slipway_provisioner.domain.declaration import DeclarationRefused
from slipway_provisioner.store import declarations


class Timed(msgspec.Struct, frozen=True):
    """Launch config with its declared deadlines, and the limits of its pool."""

    pool_id: str
    name: str
    account_id: str
    profile: str
    deadlines: Deadlines
    limits: Mapping[str, Any]


async def check(db: Connection, declared: Declared, writes: Writes, defaults: DefaultDeadlines) -> None:
    """Raise DeclarationRefused for the first declared launch config, or the first one in an account that changes, whose
    deadlines contradict each other."""
    limited = [row.id for row in (*writes.new_accounts, *writes.accounts) if row.limits]
    stored = await declarations.timed(db, limited, except_pools=[*declared.pools, *writes.removed_pools])
    configs = [*_declared(declared), *(Timed(**row) for row in stored)]
    accounts = {config.account_id for config in configs}
    of_accounts = await declarations.account_limits(db, sorted(accounts)) if accounts else {}
    of_accounts |= {row.id: row.limits for row in declared.accounts.values()}
    for config in configs:
        lifetimes = {
            f"limits of {owner}": limits["lifetime_seconds"]
            for owner, limits in (
                (f"pool {config.pool_id}", config.limits),
                (f"account {config.account_id}", of_accounts.get(config.account_id, {})),
            )
            if limits.get("spend_per_day") is not None
        }
        if reason := problem(config.deadlines, defaults.get(config.profile, {}), lifetimes):
            raise DeclarationRefused(f"worker pool {config.pool_id}: launch config {config.name}: deadlines: {reason}")


def _declared(declared: Declared) -> Iterator[Timed]:
    for given in declared.pools.values():
        pool, limits = given.pool, given.pool.limits
        for config in pool.launch_configs:
            yield Timed(
                pool.id,
                config_name(pool, config),
                config.account,
                config.profile or pool.profile,
                pool.deadlines_of(config),
                limits.model_dump(mode="json") if limits is not None else {},
            )
