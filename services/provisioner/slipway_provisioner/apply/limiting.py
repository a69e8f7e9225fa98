"""Safety limits in force: admission of a call under the locks of its limits, their alerts, and their declaration."""

from collections.abc import Collection, Sequence
from decimal import Decimal
from typing import Final

import msgspec

from slipway_common.database.postgres import Connection
from slipway_common.messaging import outbox
from slipway_provisioner.domain.limits import Level, Limit, Reached, Tariff, Usage, headroom, price, raised, resolved
from slipway_provisioner.domain.prices import MachineKind
from slipway_provisioner.store import limits, marks

OVER_HOURS: Final = 1 / 4
"""Part of an hour after which an alert is resolved whose limit has stopped no launch since. Planning sees a limit that
stops launches once a sixtieth of an hour."""
FRESH_HOURS: Final = 1 / 360


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """Machines that a call may launch now, at their price, and the limit that stops any others."""

    units: int
    price: Decimal | None
    reached: Reached | None


async def admit(tx: Connection, locked: Sequence[Limit], kind: MachineKind, units: int, tariff: Tariff) -> Admitted:
    """How many of these machines of a kind may launch now. The limits are locked, so that the caller's call is charged
    before another one is admitted."""
    reached = None
    for limit, usage in await _used(tx, locked, tariff):
        room, _ = headroom(Level(limit=limit, usage=usage), kind, locked, tariff)
        if room < units:
            units = room
            _, reached = headroom(Level(limit=limit, usage=usage, waiting={kind: units}), kind, locked, tariff)
    return Admitted(units=units, price=price(kind, locked, tariff), reached=reached)


async def may_repeat(tx: Connection, locked: Sequence[Limit], tariff: Tariff) -> bool:
    """True unless a limit is exceeded, since it was lowered. A call counts until its outcome is known, so that its
    repeat counts already. The limits are locked."""
    return not any(_exceeded(limit, usage) for limit, usage in await _used(tx, locked, tariff))


async def record(tx: Connection, levels: Sequence[Level], reached: Sequence[Reached], tariff: Tariff) -> None:
    """Record limits that stop launches, and raise their alerts, which say for how long."""
    by_scope = {(level.limit.scope, level.limit.scope_id): level.limit for level in levels}
    for each in sorted(reached, key=lambda one: (one.scope, one.scope_id)):
        limit = by_scope[each.scope, each.scope_id]
        if await limits.seen(tx, limit, each, fresh_seconds=tariff.hour_seconds * FRESH_HOURS):
            at = await limits.clock(tx)
            by = await limits.by_pool(tx, limit, tariff, at)
            await outbox.enqueue(tx, [raised(limit, each, now=at.now, by=by)])


async def settle(tx: Connection, tariff: Tariff) -> bool:
    """Resolve alerts of limits that stop launches no longer; False if there are none."""
    over = await limits.take_over(tx, after_seconds=tariff.hour_seconds * OVER_HOURS)
    await outbox.enqueue(tx, [resolved(limit, f"{limit.subject} launches within its limits again") for limit in over])
    return bool(over)


async def declare(tx: Connection, *, accounts: Collection[str], pools: Collection[str]) -> None:
    """Store the limits of declared and removed accounts and pools. The alert of a changed limit is resolved; if the new
    one is reached as well, the next decision raises another."""
    alerted = await limits.lock_declared(tx, accounts, pools)
    changed = await limits.declare(tx, accounts, pools)
    ended = [Limit(scope=scope, scope_id=id_) for scope, id_ in sorted(alerted.keys() & changed)]
    await outbox.enqueue(tx, [resolved(limit, f"the limits of {limit.subject} were changed") for limit in ended])
    moved = {id_ for scope, id_ in changed if scope == "account"}
    await marks.dirty(tx, await limits.pools_in(tx, moved) if moved else (), reason="limits")


async def _used(tx: Connection, locked: Sequence[Limit], tariff: Tariff) -> list[tuple[Limit, Usage]]:
    """The limits with what counts towards them, by the clock after they were locked."""
    if not locked:
        return []
    at = await limits.clock(tx)
    return [(limit, await limits.usage(tx, limit, tariff, at, locked=True)) for limit in locked]


def _exceeded(limit: Limit, usage: Usage) -> bool:
    launches = limit.launches_per_hour is not None and usage.launches > limit.launches_per_hour
    return launches or (limit.spend_per_day is not None and usage.spend > limit.spend_per_day)
