"""Estimates of a declaration: what its pools may cost, and launches refused for want of a price."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from slipway_api.http.provisioner.declaration import PoolCost
from slipway_provisioner.domain.costs import PoolLaunches, cost, unpriced
from slipway_provisioner.domain.limits import Limit, Tariff
from slipway_provisioner.domain.prices import MachineKind
from tests.unit.provisioner.test_limits import LARGE, SMALL, TARIFF, UNKNOWN


def pool(
    id_: str,
    *kinds: MachineKind,
    accounts: str = "a",
    mode: str = "enforce",
    machines: int = 10,
    limits: Sequence[Limit] = (),
) -> PoolLaunches:
    pairs = [(kind, account) for kind in kinds for account in accounts]
    return PoolLaunches(pool=id_, mode=mode, machines=machines, kinds=pairs, limits=limits)


def of_account(id_: str, **limits: Any) -> Limit:
    return Limit.of("account", id_, limits)


def of_pool(id_: str, **limits: Any) -> Limit:
    return Limit.of("pool", id_, limits)


SEVEN = "pool p may cost up to 7 an hour, if 10 × large (aws, r, spot) run all the time at 0.7"
BOUND = "pool p may cost up to 1.5 an hour, its limit of spend per day"
ONE = "pool p may cost up to 0.7 an hour, if 1 × large (aws, r, spot) run all the time at 0.7"
NOTHING = "pool p launches nothing in mode observe; `slipway pool promote p` takes it to canary"
#    mode, limits, bound of an hour, text
COSTS: list[tuple[str, Sequence[Limit], str, str]] = [
    ("observe", [], "0", NOTHING),
    ("canary", [], "0.7", ONE),
    ("enforce", [], "7", SEVEN),
    ("enforce", [of_pool("p", spend_per_day=1.5)], "1.5", BOUND),
    ("enforce", [of_account("a", spend_per_day=1.5)], "7", SEVEN),  # which other pools may spend, too
    ("enforce", [of_pool("p", launches_per_hour=1)], "7", SEVEN),
]


@pytest.mark.parametrize(("mode", "limits", "bound", "text"), COSTS)
def test_costs(mode: str, limits: Sequence[Limit], bound: str, text: str) -> None:
    expected = PoolCost(pool="p", mode=mode, cost=Decimal(bound), unknown=[], text=text)
    assert cost(pool("p", SMALL, LARGE, mode=mode, limits=limits), TARIFF) == expected


def test_the_later_of_two_kinds_of_one_price_is_named() -> None:
    """So that the text does not depend on their order."""
    tariff = Tariff(prices={SMALL: Decimal(1), LARGE: Decimal(1)})
    for kinds in ((SMALL, LARGE), (LARGE, SMALL)):
        assert "10 × small (aws, r, on-demand)" in cost(pool("p", *kinds), tariff).text


def test_a_cost_without_a_price() -> None:
    found = cost(pool("p", UNKNOWN), TARIFF)
    assert (found.cost, found.unknown) == (None, ["huge (aws, r, on-demand)"])
    assert found.text.endswith("may cost an unknown amount, since no price of huge (aws, r, on-demand) is known")


def test_a_default_price_of_its_account_is_a_price() -> None:
    assert cost(pool("p", UNKNOWN, limits=[of_account("a", default_price=1)]), TARIFF).cost == Decimal(10)


def test_a_limit_that_refuses_a_kind_in_two_accounts_is_named_once() -> None:
    limit = of_pool("p", spend_per_day=60)
    assert pool("p", UNKNOWN, accounts="ab", limits=[limit]).refused(TARIFF) == {UNKNOWN: [limit]}


def test_launches_without_a_price_are_named_where_spend_is_limited() -> None:
    """With the limit that refuses them, in any mode; a listed price or a default of either limit is a price."""
    limit = of_account("a", spend_per_day=60)
    for mode in ("observe", "canary", "enforce"):
        found = unpriced(pool("p", SMALL, UNKNOWN, mode=mode, limits=[limit, of_pool("p")]), TARIFF)
        assert found is not None
        assert (found.pool, found.kinds) == ("p", ["huge (aws, r, on-demand)"])
        assert found.text == (
            "pool p: launches of huge (aws, r, on-demand) would be refused: no price is known, and account a limits "
            "its spend; list the price in prices_file of the provisioner and restart it, or declare "
            "limits.default_price of account a"
        )
    assert unpriced(pool("p", SMALL, limits=[limit]), TARIFF) is None
    assert unpriced(pool("p", UNKNOWN, limits=[limit, of_pool("p", default_price=1)]), TARIFF) is None
    assert unpriced(pool("p", UNKNOWN, limits=[of_account("a", launches_per_hour=1)]), TARIFF) is None
    assert unpriced(pool("p", UNKNOWN, accounts="b", limits=[limit]), TARIFF) is None


def test_what_is_refused_costs_nothing() -> None:
    limits = [of_account("a", spend_per_day=60)]
    text = cost(pool("p", SMALL, UNKNOWN, limits=limits), TARIFF).text
    assert "run all the time at 0.1; nothing for huge (aws, r, on-demand), whose launches are refused" in text
