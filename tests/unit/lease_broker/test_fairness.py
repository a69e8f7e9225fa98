"""Fair sharing: examples, and the shares that result from any order of arrival."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_lease_broker.domain.fairness import LEVEL_MAX, Contest, Shares, charged, level
from slipway_lease_broker.domain.ledger import Request
from tests.support.lease_rows import REQUEST

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
AGEING = 300.0

#   priority, waited, level
LEVELS = [
    (0, 0, 0),
    (0, 299, 0),
    (0, 300, 1),
    (4, 900, 7),
    (9, 0, 9),
    (9, 9000, 9),
    (0, 2700, 9),
    (0, 2699, 8),
    (3, -5, 3),
]


@pytest.mark.parametrize(("priority", "waited", "reached"), LEVELS)
def test_levels(priority: int, waited: float, reached: int) -> None:
    """One level more for each full step of waiting, 9 at most; a clock that goes back takes none away."""
    assert level(priority, waited, AGEING) == reached


@given(st.integers(0, 9), st.floats(0.1, 5000))
def test_nobody_starves(priority: int, ageing: float) -> None:
    """At any priority the highest level is reached after (9 − priority) steps."""
    assert level(priority, (LEVEL_MAX - priority) * ageing, ageing) in (LEVEL_MAX, LEVEL_MAX - 1)  # of a float's error
    assert level(priority, (LEVEL_MAX - priority + 1e-6) * ageing, ageing) == LEVEL_MAX


def head(tenant: str, priority: int = 0, waited: float = 0, place: int = 0) -> Request:
    since = NOW - timedelta(seconds=waited)
    return msgspec.structs.replace(REQUEST, tenant=tenant, priority=priority, since=since, place=place)


def next_head(heads: Iterable[Request], shares: Shares) -> Request | None:
    return Contest(heads, shares, NOW, AGEING).pop()


#   heads, finish of tenants, next head
NEXT = [
    ([], {}, None),
    ([head("a")], {"a": 9}, "a0"),
    ([head("a"), head("b")], {"a": 1}, "b0"),
    ([head("a", waited=5), head("b")], {}, "a5"),  # equally served: the oldest request
    ([head("a", waited=250), head("b", place=1)], {"a": 1}, "b0"),
    ([head("a", waited=2700), head("b")], {"a": 1}, "b0"),  # age gives no precedence within a priority
    ([head("a", 3), head("b", 2, 250)], {"a": 9}, "a0"),  # a higher level comes first, however much it was served
    ([head("a", 3), head("b", 2, 300)], {"a": 9}, "b300"),  # both at 3 now: by their shares
    ([head("a", 3), head("b", 2, 600)], {"a": 9}, "b600"),
    (
        [head("a", 3), head("b", 2, 600)],
        {"b": 1},
        "a0",
    ),  # aged to the top level, it shares with the requests it waited for
    ([head("a", 1), head("b", 2, 900), head("c", 5)], {"b": 1, "c": 0.5}, "c0"),
    ([head("a", 3), head("b", 2, 900), head("c", 5)], {"b": 1, "c": 1}, "a0"),  # it would be at level 5 as well
    ([head("a", 0, 600), head("a", 5)], {}, "a0"),  # of one tenant the higher level first
    ([head("a", 0, 2700), head("a", 9, 5)], {}, "a2700"),  # then the oldest request
    ([head("a", place=4), head("b", place=3)], {}, "b0"),
]


@pytest.mark.parametrize(("heads", "finish", "expected"), NEXT)
def test_next(heads: list[Request], finish: dict[str, float], expected: str | None) -> None:
    """One case per line; the order in which heads are given never matters."""
    for given_heads in (heads, heads[::-1]):
        found = next_head(given_heads, Shares(0, finish))
        name = None if found is None else f"{found.tenant}{(NOW - found.since).total_seconds():g}"
        assert name == expected


def by_the_rule(heads: Sequence[Request], shares: Shares) -> Request | None:
    """The next head as Contest describes it, computed from each head alone."""
    levels = {one: level(one.priority, (NOW - one.since).total_seconds(), AGEING) for one in heads}
    top = max(levels.values(), default=0)
    least = min((one.priority for one in heads if levels[one] == top), default=0)
    return min(
        (one for one in heads if one.priority >= least),
        key=lambda one: (shares.start(one.tenant), -levels[one], one.since, one.place),
        default=None,
    )


waiting = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.sampled_from([-100, 0, 100, 300, 600, 900, 3000])),
    max_size=8,
)


@given(waiting, st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)), st.integers(0, 2))
def test_next_head_follows_the_rule(
    waiting: list[tuple[str, int, float]], finish: dict[str, int], virtual_time: int
) -> None:
    """For each head in turn, also if one is added after the first."""
    heads = [head(*one, place=place) for place, one in enumerate(waiting)]
    shares = Shares(float(virtual_time), {tenant: float(at) for tenant, at in finish.items()})
    contest = Contest(heads[1:], shares, NOW, AGEING)
    left = heads[1:]
    while left or heads:
        expected = by_the_rule(left, shares)
        assert contest.pop() == expected
        left = [one for one in left if one is not expected]
        if heads[:1]:
            contest.add(heads[0])
            left, heads = [*left, heads[0]], []
    assert contest.pop() is None


def serve(
    waiting: Mapping[str, int],
    grants: int,
    weights: Mapping[str, float],
    shares: Shares | None = None,
    costs: Sequence[float] = (1.0,),
) -> tuple[list[str], Shares]:
    """Grant to the next head; every tenant has that many requests of priority 0, of all ages, in its own order."""
    shares, left, order = shares or Shares(), dict(waiting), []
    for number in range(grants):
        heads = [head(name, waited=left[name] * 40.0) for name in left if left[name]]
        if (found := next_head(heads, shares)) is None:
            break
        left[found.tenant] -= 1
        shares = charged(shares, found.tenant, costs[number % len(costs)], weights)
        order.append(found.tenant)
    return order, shares


@given(st.integers(0, 300))
def test_one_tenant_with_a_thousand_requests_delays_no_other(served_before: int) -> None:
    """Nine tenants with one request each are served within ten grants, whenever they arrive."""
    _, shares = serve({"many": 1000}, served_before, {})
    order, _ = serve({"many": 1000} | {f"t{i}": 1 for i in range(9)}, 10, {}, shares)
    assert {f"t{i}" for i in range(9)} <= set(order)


@given(st.integers(2, 12), st.integers(20, 200))
def test_equal_tenants_are_served_equally(tenants: int, grants: int) -> None:
    """Never more than one grant apart."""
    order, _ = serve({f"t{i}": 300 for i in range(tenants)}, grants, {})
    counts = Counter({f"t{i}": 0 for i in range(tenants)} | Counter(order))
    assert max(counts.values()) - min(counts.values()) <= 1


@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 5.0]), min_size=2, max_size=6),
    st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=1, max_size=7),
)
def test_shares_follow_weights(weights: list[float], costs: list[float]) -> None:
    """The weighted service of two backlogged tenants differs by at most the largest cost of both.

    The bound is that of the paper: cost / weight of one and of the other.
    """
    named = {f"t{i}": weight for i, weight in enumerate(weights)}
    got = dict.fromkeys(named, 0.0)
    order, _ = serve(dict.fromkeys(named, 400), 200, named, costs=costs)
    for number, name in enumerate(order):
        got[name] += costs[number % len(costs)]
    for a in named:
        for b in named:
            bound = max(costs) / named[a] + max(costs) / named[b]
            assert abs(got[a] / named[a] - got[b] / named[b]) <= bound + 1e-9


@given(st.integers(1, 100))
def test_an_idle_tenant_gathers_no_credit(pause: int) -> None:
    """However long it was idle, it alternates with the others from its first request on."""
    _, shares = serve({"a": 300, "b": 2}, 4, {})
    _, shares = serve({"a": 300}, pause, {}, shares)
    order, _ = serve({"a": 300, "b": 300}, 6, {}, shares)
    assert all(first != second for first, second in pairwise(order))


def test_a_grant_that_costs_nothing_is_no_turn() -> None:
    """And service beyond virtual time is dropped once the others have caught up."""
    shares = Shares(3.0, {"a": 5.0, "b": 4.0})
    assert charged(shares, "a", 0.0, {}) == shares
    assert charged(shares, "c", 1.0, {"c": 0.5}) == Shares(3.0, {"a": 5.0, "b": 4.0, "c": 5.0})
    assert charged(shares, "b", 1.0, {}) == Shares(4.0, {"a": 5.0, "b": 5.0})
