"""Safety limits: launches in any hour, and estimated spend in any day, of an account or a pool. Pure.

A call is charged with all of its machines before it is made, and stays so until its outcome proves that there are
fewer. The hour of a charge begins when its outcome is known, since it may take effect up to then.

The spend of a day is what its machines have cost, and what those that run may still cost:

    machine that has ended   price × time that it ran within the day, at least a minute
    machine that may run     price × min(a day, time that it has run within the day + rest of its lifetime)
    launch                   price × min(a day, lifetime)

A machine that outlives its lifetime begins another one. So no day costs more than the limit if machines live no
longer than declared: after the last launch of a day, what runs costs at most its rests, which that launch has counted.
With the default lifetime, a day, this holds however long they live.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from slipway_api.events.alert import AlertIdentity, AlertRaised, AlertResolved, alert_key
from slipway_api.events.weight import BOUNDLESS
from slipway_provisioner.domain.prices import MachineKind, Prices

KINDS = LAUNCHES, SPEND, PRICE = "launches", "spend", "price"
"""What stops launches: either limit, or a price that is unknown although spend is limited. An alert on one of them is
replaced by one on a later one, which lasts longer."""


class Tariff(msgspec.Struct, frozen=True, kw_only=True):
    """Prices, and the lengths of the hour and the day of every limit, which only a demo shortens."""

    prices: Prices = {}
    hour_seconds: float = 3600.0
    day_seconds: float = 86_400.0

    def cost(self, price: Decimal, seconds: float) -> Decimal:
        """Cost of a machine at a price per hour."""
        return price * Decimal(str(seconds)) / Decimal(str(self.hour_seconds))


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an account or a pool, by its scope and id."""

    scope: str
    scope_id: str
    launches_per_hour: int | None = None
    spend_per_day: Decimal | None = None
    lifetime_seconds: float = 86_400.0
    default_price: Decimal | None = None

    @classmethod
    def of(cls, scope: str, scope_id: str, declared: Mapping[str, Any]) -> "Limit":
        """Limit as declared, empty for none."""
        return msgspec.convert(dict(declared) | {"scope": scope, "scope_id": scope_id}, cls)

    @property
    def subject(self) -> str:
        return f"{self.scope} {self.scope_id}"

    def commitment(self, price: Decimal, tariff: Tariff) -> Decimal:
        """Spend that a launch commits."""
        return tariff.cost(price, min(self.lifetime_seconds, tariff.day_seconds))


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts that count towards limits: launches in the hour, spend in the day, machines of the day without a price.

    `launches_free_at` and `spend_free_at` are the earliest times at which some of each no longer counts by time alone;
    None if only the outcome of a call, or the end of a machine, changes it.
    """

    launches: int = 0
    spend: Decimal = Decimal()
    unpriced: int = 0
    launches_free_at: datetime | None = None
    spend_free_at: datetime | None = None


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A limit and what counts towards it. `waiting` machines have an intent whose call has not started, by kind."""

    limit: Limit
    usage: Usage
    waiting: Mapping[MachineKind, int] = {}


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that stops launches: its scope, LAUNCHES, SPEND or PRICE, the reason, and when time lifts it, if so.

    `passing`: launches that wait or are in flight have used it up, so that it is not known yet when it lifts.
    """

    scope: str
    scope_id: str
    kind: str
    text: str
    free_at: datetime | None = None
    passing: bool = False


class Downtime(msgspec.Struct, frozen=True):
    """Time between two passes over deadlines: an outage, or a jump of the clock."""

    from_at: datetime
    until_at: datetime


def window_start(seconds: float, *, now: datetime, downtimes: Iterable[Downtime]) -> datetime:
    """Begin of the window of this many seconds of uptime up to `now`. Downtimes are given from newest to oldest.

    Without them a clock that is set forward would empty the window.
    """
    left, at = timedelta(seconds=seconds), now
    for downtime in downtimes:
        up = max(timedelta(), at - downtime.until_at)
        if up >= left:
            break
        left, at = left - up, min(at, downtime.from_at)
    return at - left


def leaves_at(at: datetime, seconds: float, *, downtimes: Iterable[Downtime]) -> datetime:
    """Time at which what was counted `at` a time leaves the window of this many seconds of uptime."""
    since = [(down.until_at - max(down.from_at, at)) for down in downtimes if down.until_at > at]
    return at + timedelta(seconds=seconds) + sum(since, timedelta())


def price(kind: MachineKind, limits: Sequence[Limit], tariff: Tariff) -> Decimal | None:
    """Price of a machine: by the table, else the first default of its limits; None if it is unknown."""
    defaults = (limit.default_price for limit in limits if limit.default_price is not None)
    return tariff.prices.get(kind, next(defaults, None))


def headroom(level: Level, kind: MachineKind, limits: Sequence[Limit], tariff: Tariff) -> tuple[int, Reached | None]:
    """Machines of a kind that may still launch under a limit, and the limit as reached if there are none. `limits` are
    all that hold for such a machine: its price may be the default of another one."""
    limit, usage, per_hour = level.limit, level.usage, price(kind, limits, tariff)
    units = BOUNDLESS
    if limit.launches_per_hour is not None:
        counted = usage.launches + sum(level.waiting.values())
        units = max(0, limit.launches_per_hour - counted)
        if not units:
            return 0, _launches_reached(level, counted)
    if limit.spend_per_day is not None:
        if per_hour is None:
            return 0, _price_unknown(level, kind)
        if usage.unpriced and limit.default_price is None:
            return 0, _unpriced(level)
        each, counted_spend = limit.commitment(per_hour, tariff), usage.spend + waiting_spend(level, limits, tariff)
        left = limit.spend_per_day - counted_spend
        affordable = BOUNDLESS if not each else max(0, int(left / each)) if left > 0 else 0
        units = min(units, affordable)
        if not units:
            return 0, _spend_reached(level, counted_spend, each, kind)
    return units, None


def waiting_spend(level: Level, limits: Sequence[Limit], tariff: Tariff) -> Decimal:
    """Spend that the waiting launches will commit. Those without a price will be refused."""
    spend = Decimal()
    for kind, units in level.waiting.items():
        if (per_hour := price(kind, limits, tariff)) is not None:
            spend += units * level.limit.commitment(per_hour, tariff)
    return spend


def _launches_reached(level: Level, counted: int) -> Reached:
    limit, free_at = level.limit, level.usage.launches_free_at
    waiting = sum(level.waiting.values())
    parts = f", {waiting} of them waiting to start" if waiting else ""
    after = "an hour after one that is in flight" if free_at is None else f"at {clock(free_at)}"
    return _reached(
        level,
        LAUNCHES,
        f"{limit.subject} has reached its limit of {limit.launches_per_hour} launches per hour: {counted}{parts}; "
        f"next launch {after}",
        free_at,
    )


def _spend_reached(level: Level, counted: Decimal, each: Decimal, kind: MachineKind) -> Reached:
    limit, free_at = level.limit, level.usage.spend_free_at
    after = "" if free_at is None else f", or at {clock(free_at)} at the earliest"
    return _reached(
        level,
        SPEND,
        f"{limit.subject} has reached its limit of {amount(limit.spend_per_day)} per day: {amount(counted)} is spent "
        f"or committed, and {kind} commits {amount(each)} more; next launch when machines end{after}",
        free_at,
    )


def _price_unknown(level: Level, kind: MachineKind) -> Reached:
    return _reached(level, PRICE, f"the price of {kind} is unknown, and {level.limit.subject} limits its spend", None)


def _unpriced(level: Level) -> Reached:
    machines = f"{level.usage.unpriced} of its machines of the last day"
    return _reached(level, PRICE, f"{level.limit.subject} limits its spend, and no price is known of {machines}", None)


def _reached(level: Level, kind: str, text: str, free_at: datetime | None) -> Reached:
    open_launches = sum(level.waiting.values()) + (level.usage.launches if kind == LAUNCHES else 0)
    passing = kind != PRICE and free_at is None and open_launches > 0
    scope, scope_id = level.limit.scope, level.limit.scope_id
    return Reached(scope=scope, scope_id=scope_id, kind=kind, text=text, free_at=free_at, passing=passing)


def clock(at: datetime) -> str:
    """Time for people, which never suggests one that is too early."""
    whole = at if not at.microsecond else at.replace(microsecond=0) + timedelta(seconds=1)
    return f"{whole.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def amount(money: Decimal | None) -> str:
    """Amount for people: cents, and more digits below one."""
    if money is None:
        return "none"
    text = f"{money:.2f}" if abs(money) >= 1 else f"{money:.4f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def raised(limit: Limit, reached: Reached, *, now: datetime, by: Sequence[tuple[str, int]]) -> AlertRaised:
    """Alert on a limit that stops launches; `by`: the pools with the most launches in the last hour."""
    field = {LAUNCHES: "launches_per_hour", SPEND: "spend_per_day", PRICE: "default_price"}[reached.kind]
    remedy = (
        f"if this is meant, raise limits.{field} of {limit.subject} in slipway.yaml"
        if reached.kind != PRICE
        else "list the price in prices_file of the provisioner and restart it, or declare limits.default_price of "
        f"{limit.subject}"
    )
    return AlertRaised(
        **_identity(limit),
        summary=reached.text,
        effect="nothing more is launched under the limit; running workers are not affected",
        doing="launches again by itself once the limit allows it, or is raised",
        command="slipway account limits",
        since=now,
        cause=remedy + ", and apply it; if not, pause the pool that launches so much",
        evidence=tuple(f"pool {pool_id}: {launches} launches in the last hour" for pool_id, launches in by),
    )


def resolved(limit: Limit, summary: str) -> AlertResolved:
    """Resolution of the alert on a limit."""
    return AlertResolved(**_identity(limit), summary=summary)


def _identity(limit: Limit) -> AlertIdentity:
    key = alert_key("provisioner", "launch-limit", limit.scope, limit.scope_id)
    return {"dedup_key": key, "subject_kind": limit.scope, "subject_id": limit.scope_id, "kind": "launch-limit"}
