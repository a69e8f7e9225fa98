"""Distribution of launches by the golden-ratio sequence."""

from collections import Counter
from itertools import accumulate
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.scopes import Key
from slipway_provisioner.domain.choice import Candidate, choose
from slipway_provisioner.domain.pool import Share


@pytest.mark.parametrize("configs", [2, 3, 5, 8])
def test_equal_weights_give_equal_shares(configs: int) -> None:
    """Shares are equal at any position of the sequence and for any size of the weights."""
    for drawn, weight in ((0, 1.0), (17, 0.02), (123_456, 40.0)):
        got = choose([Candidate(f"c{n}", weight, 1000) for n in range(configs)], 100 * configs, drawn=drawn)
        assert sum(got.values()) == 100 * configs
        assert all(abs(share - 100) <= 4 for share in got.values()), got


@given(st.lists(st.floats(0.05, 5), min_size=2, max_size=5), st.integers(0, 10**6), st.integers(1, 400))
def test_shares_stay_close_to_weights(weights: list[float], drawn: int, units: int) -> None:
    """Discrepancy: over any n draws a share is off by O(log n) launches, where random draws would be by O(√n)."""
    got = choose([Candidate(f"c{n}", weight, units) for n, weight in enumerate(weights)], units, drawn=drawn)
    for n, weight in enumerate(weights):
        assert abs(got.get(f"c{n}", 0) - units * weight / sum(weights)) <= 2 + 2 * log2(units + 1)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(0, 1000))
def test_a_decision_in_parts_is_the_same_decision(parts: list[int], drawn: int) -> None:
    """`drawn` continues the sequence, so many small decisions are as even as a large one."""
    candidates = [Candidate("a", 1.0, 10_000), Candidate("b", 0.3, 10_000), Candidate("c", 2.5, 10_000)]
    got: Counter[str] = Counter()
    for before, units in zip(accumulate(parts, initial=0), parts, strict=False):
        got.update(choose(candidates, units, drawn=drawn + before))
    assert got == choose(candidates, sum(parts), drawn=drawn)


def test_full_configs_leave_their_share_to_the_others() -> None:
    """The others share it in proportion to their weights."""
    got = choose([Candidate("full", 5.0, 2), Candidate("a", 1.0, 900), Candidate("b", 2.0, 900)], 302, drawn=0)
    assert got["full"] == 2
    assert abs(got["b"] - 200) <= ceil(log2(302))
    assert choose([Candidate("none", 1.0, 0)], 5, drawn=0) == {}


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["i", "j"])), min_size=1, max_size=6),
    st.integers(0, 60),
    st.integers(0, 1000),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_shared_windows_bound_their_configs_together(
    rooms: list[tuple[int, str]], units: int, drawn: int, first: int, second: int
) -> None:
    """Configs of one image get at most its room, each at most its own, and no unit is left while there is room."""
    candidates = [
        Candidate(f"c{n}", 1.0 + n, room, [(Key("image", image), "boot")]) for n, (room, image) in enumerate(rooms)
    ]
    shared: dict[Share, int] = {(Key("image", "i"), "boot"): first, (Key("image", "j"), "boot"): second}
    got = choose(candidates, units, drawn=drawn, shared_room=shared)
    most = 0
    for share, room in shared.items():
        mine = [c for c in candidates if c.shares == [share]]
        assert sum(got.get(c.config_id, 0) for c in mine) <= room
        most += min(room, sum(c.room for c in mine))
    assert all(got.get(c.config_id, 0) <= c.room for c in candidates)
    assert sum(got.values()) == min(units, most)
