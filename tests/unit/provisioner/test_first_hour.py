"""Estimates of a declaration: what the first hour of its pools may cost, and launches refused for want of a price."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import combinations
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipway_provisioner.domain.first_hour import PoolLaunches, first_hour, total, unpriced
from slipway_provisioner.domain.limits import Limit
from slipway_provisioner.domain.min_cut import Group, min_cut
from slipway_provisioner.domain.prices import MachineKind
from tests.unit.provisioner.test_limits import LARGE, SMALL, TARIFF, UNKNOWN

ACCOUNTS: Final = "abcd"


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


@pytest.mark.parametrize(
    ("mode", "limits", "text"),
    [
        ("observe", [], "pool p launches nothing in mode observe; `slipway pool promote p` takes it to canary"),
        (
            "canary",
            [],
            "the first hour of pool p may cost up to 0.7: 1 × 0.7 of large (aws, r, spot); no limit on launches",
        ),
        (
            "enforce",
            [Limit(scope="account", scope_id="a", launches_per_hour=4)],
            "the first hour of pool p may cost up to 2.8: 4 × 0.7 of large (aws, r, spot); at most 4 launches",
        ),
        (
            "enforce",
            [Limit(scope="pool", scope_id="p", spend_per_day=Decimal("1.5"))],
            "the first hour of pool p may cost up to 1.5, its limit of spend per day; no limit on launches",
        ),
    ],
)
def test_first_hours(mode: str, limits: Sequence[Limit], text: str) -> None:
    assert first_hour(pool("p", SMALL, LARGE, mode=mode, limits=limits), TARIFF).text == text


def test_a_first_hour_without_a_price() -> None:
    found = first_hour(pool("p", UNKNOWN), TARIFF)
    assert (found.cost, found.unknown) == (None, ["huge (aws, r, on-demand)"])
    assert (
        "may cost an unknown amount, since no price of huge (aws, r, on-demand) is known; no limit on launches"
        in found.text
    )


def test_each_account_of_a_kind_counts() -> None:
    """Two accounts with equal machines allow what both limits allow."""
    limits = [of_account("a", launches_per_hour=2), of_account("b", launches_per_hour=3)]
    assert first_hour(pool("p", LARGE, accounts="ab", limits=limits), TARIFF).launches == 5


def test_the_total_counts_each_limit_once() -> None:
    """Two pools share an account that allows 4 launches an hour; a third one has an account without limits."""
    shared = [of_account("a", launches_per_hour=4)]
    pools = [pool("p", LARGE, limits=shared), pool("q", SMALL, LARGE, limits=shared), pool("r", SMALL, accounts="b")]
    assert [first_hour(each, TARIFF).cost for each in pools] == [Decimal("2.8"), Decimal("2.8"), Decimal(1)]
    found = total(pools, TARIFF)
    assert found is not None
    assert (found.cost, found.text) == (
        Decimal("3.8"),
        "the first hour of these 3 pools together may cost up to 3.8: 2.8 in account a + 1 of pool r",
    )


def test_the_limit_of_a_pool_counts_where_it_is_lower() -> None:
    """The account would allow more."""
    account = of_account("a", spend_per_day=5)
    capped = [account, of_pool("p", spend_per_day=1)]
    found = total([pool("p", LARGE, limits=capped), pool("q", SMALL, limits=[account])], TARIFF)
    assert found is not None
    assert found.text.endswith("may cost up to 2: 2 of pool p, q")


def test_one_pool_needs_no_total() -> None:
    """One in mode observe launches nothing, and one without a price has no known cost."""
    others = [pool("q", SMALL, mode="observe"), pool("r", UNKNOWN)]
    assert total([pool("p", LARGE), *others], TARIFF) is None


supplies = some.dictionaries(
    some.frozensets(some.sampled_from(ACCOUNTS), min_size=1), some.integers(0, 20).map(Decimal), max_size=6
)
capacities = some.dictionaries(some.sampled_from(ACCOUNTS), some.integers(0, 20).map(Decimal))


def cuts(supplies: Mapping[Group, Decimal], capacities: Mapping[str, Decimal]) -> Iterator[Decimal]:
    """Sums of all cuts, by the accounts in them."""
    for number in range(len(capacities) + 1):
        for chosen in combinations(capacities, number):
            rest = [units for group, units in supplies.items() if not group <= set(chosen)]
            yield sum((capacities[account] for account in chosen), Decimal()) + sum(rest, Decimal())


@given(supplies, capacities)
def test_no_other_cut_is_lower(supplies: Mapping[Group, Decimal], capacities: Mapping[str, Decimal]) -> None:
    cut = min_cut(supplies, capacities)
    assert all(group in cut.groups or group <= cut.members for group in supplies)
    lowest = sum((supplies[group] for group in cut.groups), Decimal())
    lowest += sum((capacities[account] for account in cut.members), Decimal())
    assert lowest == min(cuts(supplies, capacities))


def test_launches_without_a_price_are_named_where_spend_is_limited() -> None:
    """With the limit that refuses them, in any mode; a listed price or a default of either limit is a price."""
    limit = of_account("a", spend_per_day=60)
    for mode in ("observe", "canary", "enforce"):
        found = unpriced(pool("p", SMALL, UNKNOWN, mode=mode, limits=[limit, of_pool("p")]), TARIFF)
        assert found is not None
        assert found.text == (
            "pool p: launches of huge (aws, r, on-demand) would be refused: no price is known, and account a limits "
            "its spend; list the price in prices_file of the provisioner and restart it, or declare "
            "limits.default_price of account a"
        )
    assert unpriced(pool("p", SMALL, limits=[limit]), TARIFF) is None
    assert unpriced(pool("p", UNKNOWN, limits=[limit, of_pool("p", default_price=1)]), TARIFF) is None
    assert unpriced(pool("p", UNKNOWN, limits=[of_account("a", launches_per_hour=1)]), TARIFF) is None
    assert unpriced(pool("p", UNKNOWN, accounts="b", limits=[limit]), TARIFF) is None


def test_a_first_hour_costs_nothing_for_what_is_refused() -> None:
    """By the limit of one of two accounts; the launches in the other one cost an unknown amount."""
    limits = [of_account("a", spend_per_day=60)]
    text = first_hour(pool("p", SMALL, UNKNOWN, limits=limits), TARIFF).text
    assert "may cost up to 1: 10 × 0.1 of small (aws, r, on-demand); nothing for huge (aws, r, on-demand)" in text
