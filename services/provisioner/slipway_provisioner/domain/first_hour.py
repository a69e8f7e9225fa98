"""Cost of the first hour of a declared pool: an upper bound for its new machines, whatever its demand. Pure."""

from collections.abc import Mapping, Sequence
from decimal import Decimal

import msgspec

from slipway_provisioner.domain.limits import Limit, Tariff, amount, price
from slipway_provisioner.domain.prices import MachineKind


class FirstHour(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bounds for a pool's first hour: launches, None if no limit bounds them, and cost, None if no price is
    known. `unknown`: machines without a price. `text` says all of it."""

    pool: str
    mode: str
    launches: int | None
    cost: Decimal | None
    unknown: list[str]
    text: str


def first_hour(
    pool_id: str,
    mode: str,
    *,
    machines: int,
    kinds: Mapping[MachineKind, str],
    limits: Sequence[Limit],
    tariff: Tariff,
) -> FirstHour:
    """Bound of a pool that has up to `machines` at a time, each running for the whole hour at the dearest price.

    `kinds`: its kinds of machines, with the account of each; `limits`: those of the pool and its accounts.
    """
    if mode == "observe":
        text = f"pool {pool_id} launches nothing in mode observe: `slipway pool promote {pool_id}` goes on"
        return FirstHour(pool=pool_id, mode=mode, launches=0, cost=Decimal(), unknown=[], text=text)
    accounts = set(kinds.values())
    launches = _bound(limits, accounts, "launches_per_hour")
    spend = _bound(limits, accounts, "spend_per_day")
    found = {kind: _price(kind, account, limits, tariff) for kind, account in kinds.items()}
    unknown = sorted(str(kind) for kind, per_hour in found.items() if per_hour is None)
    known = {kind: per_hour for kind, per_hour in found.items() if per_hour is not None}
    hours = min(1 if mode == "canary" else machines, machines if launches is None else int(launches))
    parts, cost = [], None
    if known:
        dearest = max(known, key=lambda kind: (known[kind], kind))
        cost = hours * known[dearest]
        parts.append(f"up to {amount(cost)}: {hours} × {amount(known[dearest])} of {dearest}")
        if spend is not None and spend < cost:
            cost = Decimal(spend)
            parts = [f"up to {amount(cost)}, the spend per day that is allowed"]
    if unknown:
        refused = ", which is refused" if spend is not None else ""
        parts.append(f"an unknown amount, without a price of {', '.join(unknown)}{refused}")
    limited = "no limit on launches" if launches is None else f"at most {launches} launches"
    text = f"the first hour of pool {pool_id} may cost {'; '.join(parts)}; {limited}"
    bound = None if launches is None else int(launches)
    return FirstHour(pool=pool_id, mode=mode, launches=bound, cost=cost, unknown=unknown, text=text)


def _bound(limits: Sequence[Limit], accounts: set[str], name: str) -> Decimal | None:
    """The pool's own limit, or that of all its accounts together if each has one, whatever is lower."""
    values = {(limit.scope, limit.scope_id): getattr(limit, name) for limit in limits}
    own = [value for (scope, _), value in values.items() if scope == "pool" and value is not None]
    of_accounts = [values.get(("account", account)) for account in sorted(accounts)]
    together = [value for value in of_accounts if value is not None]
    if together and len(together) == len(of_accounts):
        own.append(sum(together))
    return min(map(Decimal, own), default=None)


def _price(kind: MachineKind, account_id: str, limits: Sequence[Limit], tariff: Tariff) -> Decimal | None:
    own = [limit for limit in limits if limit.scope == "pool" or limit.scope_id == account_id]
    return price(kind, sorted(own, key=lambda limit: limit.scope), tariff)
