"""Laws of the turns on a shared window: no pool takes more than an even part, none is passed by, nothing is left."""

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.scopes import image_key
from slipway_provisioner.domain import fairness
from slipway_provisioner.domain.fairness import WOKEN, Wait
from slipway_provisioner.domain.pool import Config, Shared, Stage

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE: Final = NOW - timedelta(minutes=1)
FIRST: Final = NOW - timedelta(seconds=2)
SHARE: Final = (image_key("linux"), "boot")
OTHER: Final = (image_key("windows"), "boot")
STAGE: Final = Stage(window=64)


def known(**changes: object) -> Shared:
    return Shared(key=SHARE[0], stage=SHARE[1], window=64, **changes)  # type: ignore[arg-type]


def config(*shares: tuple[object, str]) -> Config:
    names = {"id": "c@1", "name": "c", "current_id": "c@1", "account_id": "a", "lease_pool_id": "a"}
    stages = {"launch": STAGE, "boot": STAGE, "claim": STAGE}
    return Config(image_revision="i", weight=1.0, prior_weight=1.0, shares=shares, **names, **stages)  # type: ignore[arg-type]


@given(headroom=st.integers(0, 100), rivals=st.integers(0, 200))
def test_pools_that_are_dirty_have_a_part(headroom: int, rivals: int) -> None:
    assert fairness.part(headroom, known(rivals=rivals)) == -(-headroom // (rivals + 1))


@given(headroom=st.integers(0, 100))
def test_a_pool_takes_all_while_no_other_waits(headroom: int) -> None:
    assert fairness.part(headroom, known()) == headroom


@given(headroom=st.integers(0, 100), others=st.integers(1, 2000), ahead=st.integers(0, 2000))
def test_a_pool_takes_an_even_part_once_it_is_woken(headroom: int, others: int, ahead: int) -> None:
    units = fairness.part(headroom, known(others=others, ahead=min(ahead, others)))
    assert units == (0 if min(ahead, others) >= WOKEN * headroom else -(-headroom // (others + 1)))


def test_only_the_pools_that_are_woken_for_a_window_take_of_it() -> None:
    """Two for each unit that is free."""
    parts = [fairness.part(2, known(others=5, ahead=ahead)) for ahead in range(6)]
    assert parts == [1, 1, 1, 1, 0, 0]


def test_windows_are_in_the_order_of_their_texts() -> None:
    """In which their keys are locked; and the units of all configs of one are taken together."""
    colon, dash = ((image_key(name), "boot") for name in ("a:b", "a-b"))
    assert fairness.in_order([dash, colon]) == [colon, dash]
    configs = [msgspec.structs.replace(config(colon), id=name) for name in ("c1", "c2", "c3")]
    assert fairness.taken(configs, {"c1": 2, "c2": 1}) == {colon: 3}


@given(st.integers(1, 60), st.lists(st.integers(1, 20), min_size=1, max_size=30))
def test_pools_in_turn_use_all_headroom_evenly(headroom: int, needs: list[int]) -> None:
    """Woken again and again for what is left, they take it all; of two that need more, none gets two parts before the
    other has had one."""
    waiting = list(range(len(needs)))
    parts = [0] * len(needs)
    got = [0] * len(needs)
    while headroom and waiting:
        for pool in waiting[: WOKEN * headroom]:
            place = waiting.index(pool)
            units = min(fairness.part(headroom, known(others=len(waiting) - 1, ahead=place)), needs[pool] - got[pool])
            if units:
                waiting.remove(pool)
                got[pool], headroom, parts[pool] = got[pool] + units, headroom - units, parts[pool] + 1
                waiting += [pool] if got[pool] < needs[pool] else []
        unmet = [parts[pool] for pool in waiting]
        assert not unmet or max(unmet) - min(unmet) <= 1
    assert not headroom or not waiting


def test_a_plan_waits_for_the_windows_that_have_cut_it() -> None:
    """Since it became dirty before the first plan that was cut; if it has taken a part, anew."""
    rooms, shared = {SHARE: 0, OTHER: 5}, {SHARE: known(waiting_since=BEFORE)}
    able = [config(SHARE, OTHER)]

    def waits(units: int, room: int = 0) -> list[Wait]:
        taken = fairness.taken(able, {"c@1": units})
        return fairness.waits(able, shared, rooms | {SHARE: room}, taken, missing=3, since=FIRST, now=NOW)

    assert waits(0) == [Wait(SHARE, 3, BEFORE)]
    assert waits(2, room=2) == [Wait(SHARE, 3, NOW)]
    assert waits(2, room=3) == []
    shared[SHARE] = known()
    assert waits(0) == [Wait(SHARE, 3, FIRST)]
    assert fairness.waits(able, shared, rooms, fairness.taken(able, {}), missing=0, since=FIRST, now=NOW) == []
    assert fairness.waits([], shared, rooms, {}, missing=3, since=FIRST, now=NOW) == []
