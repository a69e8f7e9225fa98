"""Laws of safety limits: no interleaving of starts and plans exceeds them, by sums of their own."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import ceil
from typing import Any, Final

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from slipway_provisioner.domain import capping, planning
from slipway_provisioner.domain.limits import (
    PRICE,
    Downtime,
    Level,
    Limit,
    Tariff,
    Usage,
    amount,
    headroom,
    leaves_at,
    window_start,
)
from slipway_provisioner.domain.pool import Config, Stage
from slipway_provisioner.domain.prices import MachineKind
from slipway_provisioner.settings import prices_of
from tests.unit.provisioner.test_planning import NOW, config, launched, observed, plan, reasons

SMALL: Final = MachineKind("aws", "r", "small", "on-demand")
LARGE: Final = MachineKind("aws", "r", "large", "spot")
UNKNOWN: Final = MachineKind("aws", "r", "huge", "on-demand")
TARIFF: Final = Tariff(prices={SMALL: Decimal("0.1"), LARGE: Decimal("0.7")})
HOUR: Final = 3600.0
DAY: Final = 86_400.0
START: Final = datetime(2030, 1, 1, tzinfo=UTC)


class Machine(msgspec.Struct):
    """A machine of the model, in seconds."""

    kind: MachineKind
    started: float
    ends: float
    lifetime: float

    def estimate(self, now: float) -> float:
        """Seconds that count at a time, as documented."""
        begin = now - DAY
        if self.ends <= now:
            return max(60.0, self.ends - max(self.started, begin)) if self.ends > begin else 0.0
        age = now - self.started
        rest = max(1, ceil(age / self.lifetime)) * self.lifetime - age
        return min(DAY, now - max(self.started, begin) + rest)

    def within(self, begin: float) -> float:
        """Seconds that it runs in the day from a time on."""
        return max(0.0, min(self.ends, begin + DAY) - max(self.started, begin))


def level(limit: Limit, **usage: Any) -> Level:
    return Level(limit=limit, usage=Usage(**usage))


def configs(*kinds: MachineKind, account: str = "a") -> list[Config]:
    return [
        msgspec.structs.replace(config(f"{account}-{kind.instance_type}"), kind=kind, account_id=account)
        for kind in kinds
    ]


@given(
    limit=some.integers(0, 6),
    starts=some.lists(some.tuples(some.floats(0, 3 * HOUR), some.integers(1, 8), some.floats(0, 90)), max_size=30),
)
def test_no_hour_has_more_launches_than_its_limit(limit: int, starts: Sequence[tuple[float, int, float]]) -> None:
    """Starts of any size at any times, whose calls take effect at any moment until their outcome is known."""
    bound = Limit(scope="account", scope_id="a", launches_per_hour=limit)
    calls: list[tuple[float, int]] = []  # when the outcome is known, and the machines
    effects: list[float] = []
    for at, wanted, seconds in sorted(starts):
        counted = sum(units for known, units in calls if known > at - HOUR)
        units = min(wanted, headroom(level(bound, launches=counted), SMALL, [bound], TARIFF)[0])
        if units:
            calls.append((at + seconds, units))
            effects += [at + seconds / 2] * units
    for begin in effects:
        assert sum(begin <= at < begin + HOUR for at in effects) <= limit


@given(
    limit=some.integers(1, 20),
    lifetime=some.sampled_from([600.0, 7200.0, DAY]),
    starts=some.lists(
        some.tuples(some.floats(0, 3 * DAY), some.integers(1, 5), some.sampled_from([SMALL, LARGE]), some.floats(0, 1)),
        max_size=30,
    ),
)
def test_no_day_costs_more_than_its_limit(limit: int, lifetime: float, starts: Sequence[Any]) -> None:
    """For machines that live no longer than declared, in whatever day one looks."""
    bound = Limit(scope="account", scope_id="a", spend_per_day=Decimal(limit), lifetime_seconds=lifetime)
    machines: list[Machine] = []
    for at, wanted, kind, part in sorted(starts, key=lambda start: start[0]):
        spend = sum((TARIFF.cost(TARIFF.prices[each.kind], each.estimate(at)) for each in machines), Decimal())
        units = min(wanted, headroom(level(bound, spend=spend), kind, [bound], TARIFF)[0])
        machines += [Machine(kind, at, at + part * lifetime, lifetime)] * units
    for begin in [each.started for each in machines] + [each.ends - DAY for each in machines]:
        spent = sum((TARIFF.cost(TARIFF.prices[each.kind], each.within(begin)) for each in machines), Decimal())
        assert spent <= limit + Decimal("0.000001")


@given(
    launches=some.none() | some.integers(0, 20),
    spend=some.none() | some.decimals(0, 60, places=2),
    used=some.integers(0, 25),
    spent=some.decimals(0, 70, places=2),
    waiting=some.integers(0, 5),
    pending=some.integers(0, 40),
    of_pool=some.booleans(),
)
@example(launches=None, spend=Decimal("1.40"), used=0, spent=Decimal(), waiting=0, pending=2, of_pool=False)
def test_no_plan_exceeds_a_limit(
    launches: int | None,
    spend: Decimal | None,
    used: int,
    spent: Decimal,
    waiting: int,
    pending: int,
    of_pool: bool,
) -> None:
    """Plans with any mix of cheap and dear machines; if it launches less than is needed, a limit is the reason."""
    bound = Limit(
        scope="pool" if of_pool else "account",
        scope_id="linux" if of_pool else "a",
        launches_per_hour=launches,
        spend_per_day=spend,
        lifetime_seconds=2 * HOUR,
    )
    before = Level(limit=bound, usage=Usage(launches=used, spend=spent), waiting={SMALL: waiting})
    given_configs = configs(SMALL, LARGE) + configs(SMALL, account="b")
    made = plan(observed(pending, *given_configs, levels=[before], tariff=TARIFF, max_capacity=100))
    units = launched(made)
    limited = [each for each in given_configs if of_pool or each.account_id == "a"]
    mine = sum(units.get(each.id, 0) for each in limited)
    if launches is not None and mine:
        assert used + waiting + mine <= launches
    if spend is not None and mine:
        cost = sum(units.get(each.id, 0) * TARIFF.prices[each.kind] * 2 for each in limited)
        assert spent + waiting * Decimal("0.2") + cost <= spend
    if sum(units.values()) < pending and made.reached:
        assert all(each.scope_id in each.text for each in made.reached)


def test_a_reached_limit_is_the_reason() -> None:
    """In the decision and of each launch config, with the time of the next launch, and no reason of other accounts."""
    free_at = NOW + timedelta(seconds=90)
    limit = Limit(scope="account", scope_id="a", launches_per_hour=3)
    levels = [level(limit, launches=3, launches_free_at=free_at)]
    mixed = configs(SMALL) + configs(SMALL, account="b")
    mixed[1] = msgspec.structs.replace(mixed[1], launch=Stage(window=1))
    made = plan(observed(5, *mixed, levels=levels, tariff=TARIFF))
    assert launched(made) == {"b-small": 1}
    text = "account a has reached its limit of 3 launches per hour: 3; next launch at 2030-01-01 00:01:30 UTC"
    assert made.details["reason"] == f"5 needed, 1 launched: {text}"
    assert reasons(made)["a-small"] == text
    assert made.reconsider_after_seconds == 60


def test_a_probe_and_an_attempt_obey_limits() -> None:
    """A tripped config launches no probe beyond a limit, and a pool without a calculator makes no attempt."""
    limit = Limit(scope="pool", scope_id="linux", launches_per_hour=3)
    tripped = msgspec.structs.replace(config(), tripped=True, reason="tripped: 2 errors", permit=7, last_permit=7)
    assert launched(plan(observed(5, tripped, levels=[level(limit, launches=3)], tariff=TARIFF))) == {}
    assert launched(plan(observed(5, tripped, levels=[level(limit, launches=2)], tariff=TARIFF))) == {"a": 1}
    full = config(window=1, failures=1)
    without: Any = {"calculator_unavailable_seconds": 60.0, "tariff": TARIFF}
    assert launched(plan(observed(5, full, levels=[level(limit, launches=3)], **without))) == {}
    assert launched(plan(observed(5, full, levels=[level(limit, launches=2)], **without))) == {"a": 1}


def test_unknown_prices() -> None:
    """Refused where spend is limited, unless the limit has a default; free where it is not."""
    spend = Limit(scope="account", scope_id="a", spend_per_day=Decimal(10))
    made = plan(observed(5, *configs(UNKNOWN), levels=[level(spend)], tariff=TARIFF))
    assert launched(made) == {}
    assert [each.kind for each in made.reached] == [PRICE]
    default = msgspec.structs.replace(spend, default_price=Decimal("0.1"))
    assert launched(plan(observed(5, *configs(UNKNOWN), levels=[level(default)], tariff=TARIFF))) == {"a-huge": 4}
    launches = Limit(scope="account", scope_id="a", launches_per_hour=2)
    assert launched(plan(observed(5, *configs(UNKNOWN), levels=[level(launches)], tariff=TARIFF))) == {"a-huge": 2}
    observing = plan(observed(5, *configs(UNKNOWN), levels=[level(spend)], tariff=TARIFF, mode="observe"))
    limiting = [{"kind": each.kind, "text": each.text} for each in made.reached]
    assert (observing.reached, observing.details.get("limits")) == ([], limiting)
    assert reasons(observing) == reasons(made)  # what would stop launches, before they are made
    unpriced = level(spend, unpriced=3)
    assert launched(plan(observed(5, *configs(SMALL), levels=[unpriced], tariff=TARIFF))) == {}


@given(some.integers(1, 9), some.integers(1, 9) | some.none(), some.integers(0, 40))
def test_a_price_may_be_the_default_of_another_limit(of_account: int, of_pool: int | None, waiting: int) -> None:
    """Machines that wait count at the price that they are charged later: a limit whose room waits is reached."""
    account = Limit(scope="account", scope_id="a", spend_per_day=Decimal(1000), default_price=Decimal(of_account))
    pool = Limit(
        scope="pool",
        scope_id="linux",
        spend_per_day=Decimal(30),
        lifetime_seconds=HOUR,
        default_price=None if of_pool is None else Decimal(of_pool),
    )
    limits = [account, pool]
    room = headroom(Level(limit=pool, usage=Usage(), waiting={UNKNOWN: waiting}), UNKNOWN, limits, TARIFF)[0]
    assert room == max(0, 30 // of_account - waiting)
    full = Level(limit=pool, usage=Usage(), waiting={UNKNOWN: waiting + room})
    assert headroom(full, UNKNOWN, limits, TARIFF)[1] is not None
    levels = [level(account), Level(limit=pool, usage=Usage(), waiting={UNKNOWN: waiting})]
    made = plan(observed(40, *configs(UNKNOWN), levels=levels, tariff=TARIFF, max_capacity=100))
    assert sum(launched(made).values()) <= room


def test_amounts_are_exact() -> None:
    """Three machines at 0.1 fit into 0.3, which they do not in floats."""
    limit = Limit(scope="pool", scope_id="p", spend_per_day=Decimal("0.3"), lifetime_seconds=HOUR)
    assert headroom(level(limit), SMALL, [limit], TARIFF)[0] == 3
    assert headroom(level(limit, spend=Decimal("0.2")), SMALL, [limit], TARIFF)[0] == 1
    assert headroom(level(limit), SMALL, [limit], Tariff(prices={SMALL: Decimal()}))[0] > 1000
    assert [amount(Decimal(text)) for text in ("0.083200", "12.346", "100.00", "0")] == ["0.0832", "12.35", "100", "0"]


@given(some.lists(some.tuples(some.integers(1, 5000), some.integers(1, 5000)), max_size=5), some.integers(1, 9000))
def test_a_window_is_uptime(gaps: Sequence[tuple[int, int]], seconds: int) -> None:
    """A charge at its begin leaves it just then, and downtimes make it longer by their length."""
    at = START
    downtimes: list[Downtime] = []
    for up, down in gaps:
        begin = at + timedelta(seconds=up)
        at = begin + timedelta(seconds=down)
        downtimes.insert(0, Downtime(begin, at))
    now = at + timedelta(seconds=100)
    begin = window_start(seconds, now=now, downtimes=downtimes)
    inside = sum((d.until_at - max(d.from_at, begin) for d in downtimes if d.until_at > begin), timedelta())
    assert now - begin - inside == timedelta(seconds=seconds)
    assert leaves_at(begin, seconds, downtimes=downtimes) == now


def test_the_check_of_a_plan_names_the_limit() -> None:
    """A plan that launches beyond a limit is not committed."""
    limit = Limit(scope="account", scope_id="a", launches_per_hour=2, spend_per_day=Decimal(1), lifetime_seconds=HOUR)
    given_observed = observed(5, *configs(LARGE), levels=[level(limit, launches=1)], tariff=TARIFF)
    made = planning.plan(given_observed, now=NOW)
    (launch,) = made.launches
    beyond = msgspec.structs.replace(made, launches=[msgspec.structs.replace(launch, units=2)])
    assert planning.check_plan(given_observed, beyond) == [
        "3 launches exceed 2 per hour of account a",
        "1.4 exceeds 1 per day of account a",
    ]
    assert capping.exceeded(given_observed.configs, given_observed.levels, {"a-large": 1}, TARIFF) == []


def test_prices_of_a_file() -> None:
    row = {"provider": "aws", "region": "r", "instance_type": "small", "per_hour": 0.1}
    assert prices_of({"prices": [row]}) == {SMALL: Decimal("0.1")}
    with pytest.raises(ValueError, match="has two prices"):
        prices_of({"prices": [row, row]})
    with pytest.raises(ValueError, match="not an exact amount"):
        prices_of({"prices": [row | {"per_hour": "$3"}]})


def test_an_alert_waits_until_it_can_say_for_how_long() -> None:
    """Not for a limit of nothing, which no launch has used up."""
    limit = Limit(scope="account", scope_id="a", launches_per_hour=2)
    in_flight = headroom(level(limit, launches=2), SMALL, [limit], TARIFF)[1]
    known = headroom(level(limit, launches=2, launches_free_at=START), SMALL, [limit], TARIFF)[1]
    none = headroom(level(msgspec.structs.replace(limit, launches_per_hour=0)), SMALL, [limit], TARIFF)[1]
    assert [each.passing for each in (in_flight, known, none) if each is not None] == [True, False, False]
