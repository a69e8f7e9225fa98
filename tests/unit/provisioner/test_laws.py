"""The rules that a plan is made of: how many, within which windows, where, and which instance is whose."""

from collections import Counter
from datetime import UTC, datetime
from fractions import Fraction
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_common.lifecycle import State
from slipway_provisioner.domain.accounting import shortfall, surplus, tasks, wanted
from slipway_provisioner.domain.binding import bind
from slipway_provisioner.domain.choice import Candidate, choose
from slipway_provisioner.domain.pool import Config, Demand, Fleet, Pool, Shared, Stage
from slipway_provisioner.domain.windows import closure, may_attempt, room, rooms, trusted_weight
from slipway_provisioner.domain.workers import Worker


def pool(low: int, high: int, ratio: str = "1") -> Pool:
    return Pool(id="p", min_capacity=low, max_capacity=high, scaling_ratio=Fraction(ratio))


#    min max ratio   tasks serving leaving  launch
SHORT = [
    ((0, 5, "1"), 1, 0, 0, 1),
    ((0, 5, "1"), 1, 1, 0, 0),
    ((0, 5, "1"), 9, 2, 3, 0),  # those that leave still use up the maximum
    ((2, 5, "1"), 9, 0, 5, 2),  # the minimum is refilled beside them
    ((2, 5, "1"), 9, 0, 7, 0),  # but only once over
    ((0, 100, "0.07"), 100, 0, 0, 7),  # in floats ceil(100 * 0.07) is 8
    ((0, 5, "0.05"), 1, 0, 0, 1),
    ((0, 5, "0.05"), 0, 0, 0, 0),
    ((0, 5, "0"), 18, 0, 0, 0),
    ((3, 5, "1"), 0, 5, 0, 0),
]


@pytest.mark.parametrize(("limits", "count", "serving", "leaving", "launch"), SHORT)
def test_shortfall(limits: tuple[int, int, str], count: int, serving: int, leaving: int, launch: int) -> None:
    """Need rounds up, room rounds down, zero stays zero."""
    assert shortfall(pool(*limits), count, Fleet(serving=serving, leaving=leaving)) == launch


def test_never_over_the_maximum() -> None:
    """Deletes that hang cannot buy machines without end: serving + leaving <= maximum + minimum."""
    for low, high, count, serving, leaving in product(range(3), range(3, 6), range(8), range(6), range(9)):
        if serving <= high and serving + leaving <= high + low:
            got = shortfall(pool(low, high), count, Fleet(serving=serving, leaving=leaving))
            assert serving + got <= high
            assert serving + leaving + got <= high + low


@given(st.integers(0, 9), st.integers(0, 50), st.fractions(0, 3, max_denominator=100), st.integers(0, 200))
def test_the_ratio_is_exact(low: int, more: int, ratio: Fraction, count: int) -> None:
    """As many as the ratio asks for, not one more, within the limits; what is wanted is never surplus."""
    given_pool = pool(low, low + more, str(ratio))
    asked = wanted(given_pool, count)
    assert low <= asked <= low + more
    if low < asked < low + more:
        assert asked - 1 < count * ratio <= asked
    assert surplus(given_pool, count, Fleet(serving=asked, leaving=0)) == 0


def report(pending: int, claimed: int, gone: int, *, stale: bool = False) -> Demand:
    return Demand(source="q", pending=pending, claimed=claimed, gone=gone, stale=stale)


#        reports                                         tasks to launch for, tasks that protect workers
COUNTED = [
    ([report(1, 0, 0)], 1, 1),
    ([report(0, 1, 1)], 0, 0),  # its worker has ended since the sample: nothing to replace
    ([report(3, 2, 4)], 1, 1),
    ([report(0, 1, 5)], 0, 0),  # ends that the sample did not know of
    ([report(0, 1, 5), report(2, 0, 0)], 2, 2),  # one source's surplus is not another's
    ([report(4, 3, 0, stale=True), report(1, 0, 0)], 1, 8),  # silence is not zero, but launches nothing
]


@pytest.mark.parametrize(("reports", "launch", "protect"), COUNTED)
def test_tasks(reports: list[Demand], launch: int, protect: int) -> None:
    """A report is a sample and the fleet is now; what has gone since counts once, per source."""
    assert (tasks(reports, trust_stale=False), tasks(reports, trust_stale=True)) == (launch, protect)


Counts = tuple[int, int, int]


def config(launch: Counts, boot: Counts = (0, 0, 0), claim: Counts = (0, 0, 0), **changes: Any) -> Config:
    """Stages as (in flight, failures, folded), each with a window of 10."""
    stages = {
        name: Stage(in_flight=stage[0], failures=stage[1], folded=stage[2], window=10)
        for name, stage in (("launch", launch), ("boot", boot), ("claim", claim))
    }
    usual: dict[str, Any] = {
        "id": "c",
        "account_id": "a",
        "lease_pool_id": "a",
        "image_revision": "i",
        "active": True,
        "weight": 0.2,
        "prior_weight": 1.0,
    }
    return Config(**(usual | stages | changes))


def unjudged(given: Config) -> Config:
    """Nothing confirms its claims."""
    return msgspec.structs.replace(given, claim=msgspec.structs.replace(given.claim, window=None))


#          config                                          room, the window that limits it
ROOMS = [
    (config((0, 0, 0)), (10, "boot window")),
    (config((4, 0, 0)), (6, "boot window")),
    (config((4, 3, 0)), (3, "launch window")),  # failures that no weight has taken in hold their units
    (config((4, 3, 3)), (6, "boot window")),  # folded: the weight speaks for them now
    (config((4, 3, 9)), (6, "boot window")),  # a counter behind the record frees nothing twice
    (config((0, 12, 0)), (0, "launch window")),
    (config((4, 0, 0), (5, 0, 0)), (1, "boot window")),  # what launches will boot
    (config((4, 0, 0), (4, 0, 0), (3, 1, 0)), (0, "claim window")),
    (unjudged(config((4, 0, 0), (2, 0, 0), (9, 1, 0))), (4, "boot window")),
    (config((4, 0, 0), shares=[("image/i", "boot"), ("image/i", "claim")]), (5, "boot window of image/i")),
    (config((7, 0, 0), shares=[("image/i", "boot"), ("image/i", "claim")]), (3, "boot window")),
    (config((4, 0, 0), shares=[("image/other", "boot")]), (6, "boot window")),
]
IMAGE = Shared(key="image/i", stage="boot", in_flight=6, unfolded=3, window=14)


@pytest.mark.parametrize(("given_config", "expected"), ROOMS)
def test_windows_are_levels(given_config: Config, expected: tuple[int, str]) -> None:
    """In flight plus failures not folded yet stay within every stage's window, and within those that it shares."""
    together = rooms({IMAGE.share: IMAGE}, calculator_silent=False)
    assert room(given_config, together, calculator_silent=False) == expected


def test_what_bounds_nothing_has_no_room() -> None:
    """A share that only closes; and a level above a window that has shrunk."""
    over = Shared(key="quota/a", stage="launch", in_flight=5, unfolded=0, window=2)
    credential = Shared(key="credential/a", stage="launch", closed=True)
    known = {shared.share: shared for shared in (IMAGE, over, credential)}
    assert rooms(known, calculator_silent=False) == {IMAGE.share: 5, over.share: 0}
    assert rooms(known, calculator_silent=True) == {IMAGE.share: 0, over.share: 0}


def test_a_silent_calculator_narrows_windows_and_fades_weights() -> None:
    """Nobody would tell that a config has gone bad: four at a time, and less belief in the last word."""
    assert room(config((3, 0, 0)), {}, calculator_silent=True)[0] == 1
    for seconds, weight in ((0, 0.2), (30, 0.6), (1e6, 1.0)):
        trusted = trusted_weight(config((0, 0, 0)), calculator_silent_seconds=seconds, half_life_seconds=30)
        assert trusted == pytest.approx(weight)


CREDENTIAL = Shared(key="credential/a", stage="launch", closed=True, reason="closed, 2 credential errors (AuthFailure)")
#           config                                             why nothing but a probe may launch
CLOSURES = [
    (config((0, 0, 0)), ""),
    (config((0, 0, 0), shares=[("image/i", "boot"), ("credential/b", "launch")]), ""),
    (config((0, 0, 0), closed=True), "closed"),
    (config((0, 0, 0), closed=True, reason="closed, by signal"), "closed, by signal"),
    (
        config((0, 0, 0), shares=[("image/i", "boot"), ("credential/a", "launch")]),
        "closed, 2 credential errors (AuthFailure), by credential/a",
    ),
]


@pytest.mark.parametrize(("given_config", "why"), CLOSURES)
def test_what_is_shared_closes_each_config_of_its_scope(given_config: Config, why: str) -> None:
    """Also one whose own record does not say so, or that has none; and no config beside the scope."""
    assert closure(given_config, {shared.share: shared for shared in (IMAGE, CREDENTIAL)}) == why


#           config, may the attempt of a silent time be made there?
ATTEMPTS = [
    (config((0, 99, 0), (0, 99, 0)), True),  # nobody folds failures
    (config((0, 0, 0), closed=True), True),  # nor opens circuits
    (config((4, 0, 0)), False),  # what is under way ends by itself
    (config((0, 0, 0), (4, 0, 0)), False),
    (config((3, 0, 0), shares=[("quota/a", "launch")]), True),
    (config((3, 0, 0), shares=[("image/i", "boot")]), False),
    (config((0, 0, 0), active=False), False),
    (config((0, 0, 0), stopped="drill"), False),
]


@pytest.mark.parametrize(("given_config", "may"), ATTEMPTS)
def test_attempts_of_a_silent_time(given_config: Config, may: bool) -> None:
    """They look away from failures and closures alone."""
    quota = Shared(key="quota/a", stage="launch", in_flight=3, unfolded=50, window=64, closed=True)
    assert may_attempt(given_config, {shared.share: shared for shared in (IMAGE, quota)}) is may


weights = st.lists(st.floats(0.01, 10), min_size=1, max_size=6)


def test_shares_follow_weights() -> None:
    """Over a thousand launches each share is its weight to a few launches, however they are cut into decisions."""
    candidates = [Candidate("a", 1.0, 10_000), Candidate("b", 2.0, 10_000), Candidate("c", 0.06, 10_000)]
    got: Counter[str] = Counter()
    drawn = 0
    for units in [1, 7, 92, 400, 3, 497]:
        got.update(choose(candidates, units, drawn=drawn))
        drawn += units
    for candidate in candidates:
        assert abs(got[candidate.config_id] - 1000 * candidate.weight / 3.06) <= 4


@given(weights, st.lists(st.integers(0, 20), min_size=6, max_size=6), st.integers(0, 60), st.integers(0, 10**6))
def test_choice_stays_within_every_room(given_weights: list[float], rooms: list[int], units: int, drawn: int) -> None:
    """Everything that has a place is chosen, nothing beyond a config's room."""
    candidates = [Candidate(f"c{n}", weight, rooms[n]) for n, weight in enumerate(given_weights)]
    got = choose(candidates, units, drawn=drawn)
    assert sum(got.values()) == min(units, sum(candidate.room for candidate in candidates))
    assert all(0 < got[c.config_id] <= c.room for c in candidates if c.config_id in got)


def intent(name: str, instance_id: str | None = None) -> Worker:
    return Worker(
        id=name,
        pool_id="p",
        launch_config_id="c",
        account_id="a",
        image_revision="i",
        state=State.LAUNCHING,
        decision_id="d",
        instance_id=instance_id,
        requested_at=datetime(2030, 1, 1, tzinfo=UTC),
    )


#        instances of the intents in order, the reply     who has what afterwards, intents left, surplus
BIND = [
    ([None, None], ["y", "x"], ["x", "y"], 0, []),
    (["y", None], ["x", "y"], ["y", "x"], 0, []),  # one that registered before the reply keeps its own
    ([None, None], ["x"], ["x"], 1, []),
    (["x", None], ["x"], ["x"], 1, []),
    ([None], ["x", "y", "x"], ["x"], 0, ["y"]),
    ([None], [], [], 1, []),
]


@pytest.mark.parametrize(("known", "reply", "bound", "left", "extra"), BIND)
def test_each_instance_is_bound_once(
    known: list[str | None], reply: list[str], bound: list[str], left: int, extra: list[str]
) -> None:
    """The reply's ids, sorted, go to the intents without an instance; no instance goes to two."""
    workers = [intent(f"w{n}", instance_id) for n, instance_id in enumerate(known)]
    binding = bind(workers, reply)
    assert sorted((w.id, i) for w, i in binding.bound) == [(f"w{n}", i) for n, i in enumerate(bound)]
    assert (len(binding.left), list(binding.surplus)) == (left, extra)
