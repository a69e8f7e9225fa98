"""Upper bounds for the cost of declared pools, and their launches that are refused for want of a price. Pure."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import msgspec

from slipway_api.http.provisioner.declaration import PoolCost, UnpricedPool
from slipway_common.base.text import listed
from slipway_provisioner.domain.limits import Limit, Tariff, amount, price
from slipway_provisioner.domain.prices import MachineKind

NAMED: Final = 5


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


class Estimates(msgspec.Struct, frozen=True, kw_only=True):
    """Estimates of a declaration. `costs` are those of changed pools whose machines cost money; `unpriced` includes
    unchanged pools in changed accounts."""

    costs: list[PoolCost]
    unpriced: list[UnpricedPool]


def cost(pool: PoolLaunches, tariff: Tariff) -> PoolCost:
    """Bound an hour of one pool, as if as many machines as it may have ran all the time, at the highest price; by its
    own limit of spend, if that is lower."""
    id_ = pool.pool
    if pool.mode == "observe":
        text = f"pool {id_} launches nothing in mode observe; `slipway pool promote {id_}` takes it to canary"
        return PoolCost(pool=id_, mode=pool.mode, cost=Decimal(), unknown=[], text=text)
    known, refused = pool.prices(tariff), {str(kind) for kind in pool.refused(tariff)}
    unknown = sorted({str(kind) for kind, account in pool.kinds if (kind, account) not in known})
    parts, bound = [], None
    if known:
        (dearest, _), per_hour = max(known.items(), key=lambda item: (item[1], item[0]))
        machines = 1 if pool.mode == "canary" else pool.machines
        bound = machines * per_hour
        parts.append(f"up to {amount(bound)} an hour, if {machines} × {dearest} run all the time at {amount(per_hour)}")
        spends = [limit.spend_per_day for limit in pool.limits if limit.scope == "pool" and limit.spend_per_day]
        if spends and spends[0] < bound:
            bound = spends[0]
            parts = [f"up to {amount(bound)} an hour, its limit of spend per day"]
    if not_refused := [kind for kind in unknown if kind not in refused]:
        parts.append(f"an unknown amount, since no price of {', '.join(not_refused)} is known")
    if refused:
        parts.append(f"nothing for {', '.join(sorted(refused))}, whose launches are refused, since no price is known")
    return PoolCost(
        pool=id_, mode=pool.mode, cost=bound, unknown=unknown, text=f"pool {id_} may cost {'; '.join(parts)}"
    )


def unpriced(pool: PoolLaunches, tariff: Tariff) -> UnpricedPool | None:
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
    return UnpricedPool(pool=pool.pool, kinds=kinds, text=text)
