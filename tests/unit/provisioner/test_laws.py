"""Rules behind a plan: number of launches, windows, distribution, and binding of instances."""

from collections import Counter
from datetime import UTC, datetime
from fractions import Fraction
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.lifecycle import State
from slipway_api.events.scopes import Key
from slipway_api.events.weight import BOUNDLESS
from slipway_provisioner.domain.accounting import protected, shortfall, surplus, tasks, wanted
from slipway_provisioner.domain.binding import bind
from slipway_provisioner.domain.choice import Candidate, choose
from slipway_provisioner.domain.pool import Config, Demand, Fleet, Pool, Shared, Stage
from slipway_provisioner.domain.windows import may_attempt, room, shared_rooms, trip_reason, trusted_weight
from slipway_provisioner.domain.workers import Worker


def pool(low: int, high: int, ratio: str = "1") -> Pool:
    return Pool(id="p", min_capacity=low, max_capacity=high, scaling_ratio=Fraction(ratio))


#    min max ratio   tasks serving leaving  launch
SHORT = [
    ((0, 5, "1"), 1, 0, 0, 1),
    ((0, 5, "1"), 1, 1, 0, 0),
    ((0, 5, "1"), 9, 2, 3, 0),  # leaving workers still count towards the maximum
    ((2, 5, "1"), 9, 0, 5, 2),  # the minimum is refilled beside them
    ((2, 5, "1"), 9, 0, 7, 0),  # but only once
    ((2, 10, "1"), 5, 1, 9, 1),
    ((0, 100, "0.07"), 100, 0, 0, 7),  # in floats ceil(100 * 0.07) is 8
    ((0, 5, "0.05"), 1, 0, 0, 1),
    ((0, 5, "0.05"), 0, 0, 0, 0),
    ((0, 5, "0"), 18, 0, 0, 0),
    ((3, 5, "1"), 0, 5, 0, 0),
]


@pytest.mark.parametrize(("limits", "count", "serving", "leaving", "launch"), SHORT)
def test_shortfall(limits: tuple[int, int, str], count: int, serving: int, leaving: int, launch: int) -> None:
    """Need rounds up, and zero tasks need no worker."""
    assert shortfall(pool(*limits), count, Fleet(serving=serving, leaving=leaving)) == launch


def test_never_over_the_maximum() -> None:
    """Deletes that hang cannot launch more and more machines: serving + leaving <= maximum + minimum."""
    for low, high, count, serving, leaving in product(range(3), range(3, 6), range(8), range(6), range(9)):
        if serving <= high and serving + leaving <= high + low:
            got = shortfall(pool(low, high), count, Fleet(serving=serving, leaving=leaving))
            assert serving + got <= high
            assert serving + leaving + got <= high + low


@given(st.integers(0, 9), st.integers(0, 50), st.fractions(0, 3, max_denominator=100), st.integers(0, 200))
def test_the_ratio_is_exact(low: int, more: int, ratio: Fraction, count: int) -> None:
    """Exactly count × ratio workers are wanted, rounded up and within the limits, and none of them is surplus."""
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
    ([report(0, 1, 1)], 0, 1),  # its worker has ended since the sample: nothing to replace
    ([report(3, 2, 4)], 1, 5),
    ([report(0, 1, 1), report(2, 0, 0)], 2, 3),
    ([report(4, 3, 0, stale=True), report(1, 0, 0)], 1, 8),  # stale tasks protect workers but launch none
]


@pytest.mark.parametrize(("reports", "launch", "protect"), COUNTED)
def test_tasks(reports: list[Demand], launch: int, protect: int) -> None:
    """Tasks that ended after the sample need no launch, and protect workers until the next one."""
    assert (tasks(reports, trust_stale=False), protected(reports)) == (launch, protect)


COUNT = st.integers(0, 20)
REPORTS = st.lists(st.builds(report, COUNT, COUNT, COUNT, stale=st.booleans()), max_size=5)


@given(REPORTS, REPORTS)
def test_demand_is_the_sum_over_sources(some: list[Demand], others: list[Demand]) -> None:
    """A source that is added or ends changes nothing about the others, and one that becomes stale launches nothing, but
    protects as many workers as before."""
    for trust_stale in (False, True):
        both = tasks(some + others, trust_stale=trust_stale)
        assert both == tasks(some, trust_stale=trust_stale) + tasks(others, trust_stale=trust_stale)
    assert protected(some + others) == protected(some) + protected(others)
    gone_stale = [msgspec.structs.replace(each, stale=True) for each in some]
    assert tasks(gone_stale, trust_stale=False) == 0
    assert protected(gone_stale) == protected(some)


Counts = tuple[int, int, int]


def config(launch: Counts, boot: Counts = (0, 0, 0), claim: Counts = (0, 0, 0), **changes: Any) -> Config:
    """Stages as (in flight, failures, folded), each with a window of 10."""
    stages = {
        name: Stage(in_flight=stage[0], unfolded=max(0, stage[1] - stage[2]), window=10)
        for name, stage in (("launch", launch), ("boot", boot), ("claim", claim))
    }
    usual: dict[str, Any] = {
        "id": "c",
        "name": "c",
        "current_id": "c",
        "account_id": "a",
        "lease_pool_id": "a",
        "image_revision": "i",
        "weight": 0.2,
        "prior_weight": 1.0,
    }
    return Config(**(usual | stages | changes))


def without_windows(given: Config, *stages: str) -> Config:
    """The config without the windows of these stages."""
    unlimited = {name: msgspec.structs.replace(getattr(given, name), window=None) for name in stages}
    return msgspec.structs.replace(given, **unlimited)


LINUX = Key("image", "i")
#          config                                          room, the window that limits it
ROOMS = [
    (config((0, 0, 0)), (10, "boot window")),
    (config((4, 0, 0)), (6, "boot window")),
    (config((4, 3, 0)), (3, "launch window")),  # unfolded failures hold their units
    (config((4, 3, 3)), (6, "boot window")),  # folded failures do not
    (config((4, 3, 9)), (6, "boot window")),  # a counter behind the record frees no unit twice
    (config((0, 12, 0)), (0, "launch window")),
    (config((4, 0, 0), (5, 0, 0)), (1, "boot window")),  # starts in flight will boot
    (config((4, 0, 0), (4, 0, 0), (3, 1, 0)), (0, "claim window")),
    (without_windows(config((4, 0, 0), (2, 0, 0), (9, 1, 0)), "claim"), (4, "boot window")),
    (without_windows(config((9, 3, 0), (2, 0, 0), (1, 0, 0)), "launch", "boot", "claim"), (BOUNDLESS, "no window")),
    (
        config((4, 0, 0), shares=[(Key("image", "i"), "boot"), (Key("image", "i"), "claim")]),
        (5, "boot window of image i"),
    ),
    (config((7, 0, 0), shares=[(Key("image", "i"), "boot"), (Key("image", "i"), "claim")]), (3, "boot window")),
    (config((4, 0, 0), shares=[(Key("image", "other"), "boot")]), (6, "boot window")),
]
IMAGE = Shared(key=Key("image", "i"), stage="boot", in_flight=6, unfolded=3, window=14)


@pytest.mark.parametrize(("given_config", "expected"), ROOMS)
def test_windows_are_levels(given_config: Config, expected: tuple[int, str]) -> None:
    """Starts in flight plus unfolded failures stay within the windows of every stage and of every share."""
    shared_room = shared_rooms({IMAGE.share: IMAGE}, calculator_unavailable=False)
    assert room(given_config, shared_room, calculator_unavailable=False) == expected


def test_shared_rooms() -> None:
    """A share without a window is left out; a level above a shrunken window leaves no room."""
    shrunken = Shared(key=Key("quota", "a"), stage="launch", in_flight=5, unfolded=0, window=2)
    credential = Shared(key=Key("credential", "a"), stage="launch", tripped=True)
    known = {shared.share: shared for shared in (IMAGE, shrunken, credential)}
    assert shared_rooms(known, calculator_unavailable=False) == {IMAGE.share: 5, shrunken.share: 0}
    assert shared_rooms(known, calculator_unavailable=True) == {IMAGE.share: 0, shrunken.share: 0}


def test_an_unavailable_calculator_caps_windows_and_decays_weights() -> None:
    """Windows are capped at four, and weights decay to the weight without evidence."""
    assert room(config((3, 0, 0)), {}, calculator_unavailable=True)[0] == 1
    for seconds, weight in ((0, 0.2), (30, 0.6), (1e6, 1.0)):
        trusted = trusted_weight(config((0, 0, 0)), calculator_unavailable_seconds=seconds, half_life_seconds=30)
        assert trusted == pytest.approx(weight)


QUOTA = Shared(key=Key("quota", "a"), stage="launch", tripped=True)
CREDENTIAL = Shared(
    key=Key("credential", "a"), stage="launch", tripped=True, reason="2 credential errors (AuthFailure)"
)
#           config                                             reason why only probes may launch
TRIPS = [
    (config((0, 0, 0)), ""),
    (config((0, 0, 0), shares=[(Key("image", "i"), "boot"), (Key("credential", "b"), "launch")]), ""),
    (config((0, 0, 0), tripped=True), "tripped"),
    (config((0, 0, 0), tripped=True, reason="tripped: by signal"), "tripped: by signal"),
    (
        config((0, 0, 0), shares=[(Key("image", "i"), "boot"), (Key("credential", "a"), "launch")]),
        "tripped: credential a: 2 credential errors (AuthFailure)",
    ),
    (config((0, 0, 0), shares=[(Key("quota", "a"), "launch"), (Key("credential", "a"), "launch")]), "tripped: quota a"),
]


@pytest.mark.parametrize(("given_config", "reason"), TRIPS)
def test_a_tripped_share_trips_each_of_its_configs(given_config: Config, reason: str) -> None:
    """A config trips with its share even before its own record says so; configs without the share do not."""
    assert trip_reason(given_config, {shared.share: shared for shared in (IMAGE, CREDENTIAL, QUOTA)}) == reason


#           config, may the attempt use it?
ATTEMPTS = [
    (config((0, 99, 0), (0, 99, 0)), True),  # unfolded failures are ignored
    (config((0, 0, 0), tripped=True), True),  # trips are ignored
    (config((4, 0, 0)), False),  # starts in flight count
    (config((0, 0, 0), (4, 0, 0)), False),
    (config((3, 0, 0), shares=[(Key("quota", "a"), "launch")]), True),
    (config((3, 0, 0), shares=[(Key("image", "i"), "boot")]), False),
    (config((0, 0, 0), state="paused"), False),
    (config((0, 0, 0), stopped="drill"), False),
]


@pytest.mark.parametrize(("given_config", "may"), ATTEMPTS)
def test_attempts_while_the_calculator_is_unavailable(given_config: Config, may: bool) -> None:
    """Attempts ignore unfolded failures and trips, and nothing else."""
    quota = Shared(key=Key("quota", "a"), stage="launch", in_flight=3, unfolded=50, window=64, tripped=True)
    assert may_attempt(given_config, {shared.share: shared for shared in (IMAGE, quota)}) is may


weights = st.lists(st.floats(0.01, 10), min_size=1, max_size=6)


def test_shares_follow_weights() -> None:
    """Over 1000 launches each share equals its weight within 4 launches, however many decisions there are."""
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
    """All units for which there is room are distributed, at most its room per config."""
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


#        instances of the intents in order, the reply     bound instances, unbound intents, orphans
BIND = [
    ([None, None], ["y", "x"], ["x", "y"], 0, []),
    (["y", None], ["x", "y"], ["y", "x"], 0, []),  # one that registered before the reply keeps its own
    ([None, None], ["x"], ["x"], 1, []),
    (["x", None], ["x"], ["x"], 1, []),
    ([None], ["x", "y", "x"], ["x"], 0, ["y"]),
    ([None], [], [], 1, []),
]


@pytest.mark.parametrize(("known", "reply", "bound", "unbound", "orphans"), BIND)
def test_each_instance_is_bound_once(
    known: list[str | None], reply: list[str], bound: list[str], unbound: int, orphans: list[str]
) -> None:
    """The reply's ids, sorted, are bound to intents without an instance, and none is bound twice."""
    workers = [intent(f"w{n}", instance_id) for n, instance_id in enumerate(known)]
    binding = bind(workers, reply)
    assert sorted((w.id, i) for w, i in binding.bound) == [(f"w{n}", i) for n, i in enumerate(bound)]
    assert (len(binding.unbound), list(binding.orphans)) == (unbound, orphans)
