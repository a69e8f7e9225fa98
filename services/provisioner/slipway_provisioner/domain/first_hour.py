"""Upper bounds for the cost of the first hour of declared pools, whatever their demand. Pure."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

import msgspec

from slipway_common.base.text import listed
from slipway_provisioner.domain.limits import Limit, Tariff, amount, price
from slipway_provisioner.domain.min_cut import Group, min_cut
from slipway_provisioner.domain.prices import MachineKind

NAMED: Final = 5
GROUPS_MAX: Final = 200
"""Distinct sets of accounts up to which the total is exact. With more of them the costs of the pools are added up."""


class PoolLaunches(msgspec.Struct, frozen=True, kw_only=True):
    """Machines that a pool may launch: up to `machines` at a time, of these kinds, each with its account. `limits` are
    those of the pool and of its accounts."""

    pool: str
    mode: str
    machines: int
    kinds: Sequence[tuple[MachineKind, str]]
    limits: Sequence[Limit]

    def limits_in(self, account_id: str) -> list[Limit]:
        """Limits that apply to a machine in an account."""
        own = [limit for limit in self.limits if limit.scope == "pool" or limit.scope_id == account_id]
        return sorted(own, key=lambda limit: limit.scope)

    def prices(self, tariff: Tariff) -> dict[tuple[MachineKind, str], Decimal]:
        """Known prices of its kinds."""
        found = {(kind, account): price(kind, self.limits_in(account), tariff) for kind, account in self.kinds}
        return {each: per_hour for each, per_hour in found.items() if per_hour is not None}

    def refused(self, tariff: Tariff) -> dict[MachineKind, list[Limit]]:
        """Kinds without a price, with the spend limits that refuse their launches."""
        known, found = self.prices(tariff), dict[MachineKind, list[Limit]]()
        for kind, account in self.kinds:
            limits = [limit for limit in self.limits_in(account) if limit.spend_per_day is not None]
            if (kind, account) not in known and limits:
                found.setdefault(kind, []).extend(limit for limit in limits if limit not in found.get(kind, ()))
        return found


class FirstHour(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bounds for the first hour of a pool. `launches` is None if no limit bounds them, `cost` if no price is
    known. `unknown` lists the kinds of machines without a price."""

    pool: str
    mode: str
    launches: int | None
    cost: Decimal | None
    unknown: list[str]
    text: str


class Unpriced(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds of machines of a pool whose launches would be refused, since spend is limited and no price is known."""

    pool: str
    kinds: list[str]
    text: str


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bound for the first hour of several pools, in which each limit counts once."""

    pools: list[str]
    cost: Decimal
    text: str


class Estimates(msgspec.Struct, frozen=True, kw_only=True):
    """Estimates of a declaration. `first_hours` and their `total` are those of changed pools whose machines cost money;
    `unpriced` includes unchanged pools in changed accounts."""

    first_hours: list[FirstHour]
    total: Total | None
    unpriced: list[Unpriced]


def first_hour(pool: PoolLaunches, tariff: Tariff) -> FirstHour:
    """Bound the first hour of one pool, as if each machine ran for the whole hour at the highest price."""
    id_ = pool.pool
    if pool.mode == "observe":
        text = f"pool {id_} launches nothing in mode observe; `slipway pool promote {id_}` takes it to canary"
        return FirstHour(pool=id_, mode=pool.mode, launches=0, cost=Decimal(), unknown=[], text=text)
    launches, spend = _bound(pool, "launches_per_hour"), _bound(pool, "spend_per_day")
    known, refused = pool.prices(tariff), {str(kind) for kind in pool.refused(tariff)}
    unknown = sorted({str(kind) for kind, account in pool.kinds if (kind, account) not in known})
    machine_hours = _machine_hours(pool)
    parts, cost = [], None
    if known:
        (dearest, _), per_hour = max(known.items(), key=lambda item: (item[1], item[0]))
        cost = machine_hours * per_hour
        parts.append(f"up to {amount(cost)}: {machine_hours} × {amount(per_hour)} of {dearest}")
        if spend is not None and spend < cost:
            cost = Decimal(spend)
            parts = [f"up to {amount(cost)}, its limit of spend per day"]
    if not_refused := [kind for kind in unknown if kind not in refused]:
        parts.append(f"an unknown amount, since no price of {', '.join(not_refused)} is known")
    if refused:
        parts.append(f"nothing for {', '.join(sorted(refused))}, whose launches are refused, since no price is known")
    limited = "no limit on launches" if launches is None else f"at most {launches} launches"
    text = f"the first hour of pool {id_} may cost {'; '.join(parts)}; {limited}"
    bound = None if launches is None else int(launches)
    return FirstHour(pool=id_, mode=pool.mode, launches=bound, cost=cost, unknown=unknown, text=text)


def unpriced(pool: PoolLaunches, tariff: Tariff) -> Unpriced | None:
    """Find the kinds of machines of a pool whose launches would be refused for want of a price; None without any."""
    refused = pool.refused(tariff)
    if not refused:
        return None
    kinds = sorted(map(str, refused))
    subjects = sorted({limit.subject for limits in refused.values() for limit in limits})
    text = (
        f"pool {pool.pool}: launches of {listed(kinds, NAMED)} would be refused: no price is known, and "
        f"{listed(subjects, NAMED)} limits its spend; list the price in prices_file of the provisioner and "
        f"restart it, or declare limits.default_price of {subjects[0]}"
    )
    return Unpriced(pool=pool.pool, kinds=kinds, text=text)


def total(pools: Sequence[PoolLaunches], tariff: Tariff) -> Total | None:
    """Bound the known cost of the pools that launch, with each limit counted once; None for fewer than two of them.

    Any set of accounts and pools bounds it that contains each pool, or all accounts of that pool. The minimum cut is
    the set with the lowest sum.
    """
    costs = {pool.pool: cost for pool in pools if (cost := first_hour(pool, tariff).cost)}
    launching = [pool for pool in pools if pool.pool in costs]
    if len(launching) < 2:
        return None
    accounts = _of_accounts(launching, tariff)
    groups: dict[Group, list[str]] = {}
    for pool in launching:
        groups.setdefault(frozenset(account for _, account in pool.prices(tariff)), []).append(pool.pool)
    supplies = {group: sum((costs[id_] for id_ in ids), Decimal()) for group, ids in groups.items()}
    cut_groups, cut_accounts = set(groups), set[str]()
    if len(groups) <= GROUPS_MAX:
        cut = min_cut(supplies, accounts)
        cut_groups, cut_accounts = set(cut.groups), set(cut.members)
    parts = [f"{amount(accounts[account])} in account {account}" for account in sorted(cut_accounts)]
    rest = sorted(id_ for group in cut_groups for id_ in groups[group])
    of_rest = sum((supplies[group] for group in cut_groups), Decimal())
    parts += [f"{amount(of_rest)} of pool {listed(rest, NAMED)}"] if rest else []
    cost = of_rest + sum((accounts[account] for account in cut_accounts), Decimal())
    names = sorted(costs)
    text = f"the first hour of these {len(names)} pools together may cost up to {amount(cost)}: {' + '.join(parts)}"
    return Total(pools=names, cost=cost, text=text)


def _of_accounts(pools: Sequence[PoolLaunches], tariff: Tariff) -> dict[str, Decimal]:
    """Bound of the cost in each account: the lowest of its limits. Accounts without a limit are left out."""
    dearest: dict[str, Decimal] = {}
    for pool in pools:
        for (_, account), per_hour in pool.prices(tariff).items():
            dearest[account] = max(per_hour, dearest.get(account, Decimal()))
    bounds: dict[str, Decimal] = {}
    for limit in (limit for pool in pools for limit in pool.limits if limit.scope == "account"):
        found = [] if limit.spend_per_day is None else [limit.spend_per_day]
        if limit.launches_per_hour is not None and limit.scope_id in dearest:
            found.append(limit.launches_per_hour * dearest[limit.scope_id])
        if found:
            bounds[limit.scope_id] = min(found)
    return bounds


def _machine_hours(pool: PoolLaunches) -> int:
    launches = _bound(pool, "launches_per_hour")
    at_once = 1 if pool.mode == "canary" else pool.machines
    return min(at_once, pool.machines if launches is None else int(launches))


def _bound(pool: PoolLaunches, name: str) -> Decimal | None:
    """The pool's own limit or the sum of those of its accounts, if each of them has one: whichever is lower."""
    values: Mapping[tuple[str, str], Decimal | None] = {
        (limit.scope, limit.scope_id): getattr(limit, name) for limit in pool.limits
    }
    own = [value for (scope, _), value in values.items() if scope == "pool" and value is not None]
    of_accounts = [values.get(("account", account)) for account in sorted({account for _, account in pool.kinds})]
    known = [value for value in of_accounts if value is not None]
    if known and len(known) == len(of_accounts):
        own.append(sum(known, Decimal()))
    return min(map(Decimal, own), default=None)
