"""Pace of unleased starts on a host."""

from itertools import pairwise
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.http.lease_pools import LeasePool
from slipway_client.leases import pace
from slipway_client.leases.pace import Pace, slot
from tests.support import recorded

TWELVE = {"interval_seconds": 12.0, "burst": 1}
POOL = {
    "id": "aws-ci",
    "limit": 50,
    "hold_seconds": 1200.0,
    "pacing_in_force": {"default": TWELVE, "operations": {}},
    "waiting": 30,
}


def seen(row: dict[str, Any], before: Pace | None = None) -> Pace:
    return pace.seen(recorded.row(LeasePool, {"limit_in_force": row["limit"]}, row), "install", before)


def test_the_safe_rate_is_the_sustained_rate_of_the_limit() -> None:
    """Pacing is for bursts: at twice limit ÷ hold, launches in progress would exceed the limit in the end."""
    assert seen(POOL).start_seconds == 24.0
    slow = {"default": TWELVE, "operations": {"install": {"interval_seconds": 60.0, "burst": 3}}}
    assert seen(POOL | {"pacing_in_force": slow}).start_seconds == 60.0
    off = {"default": TWELVE, "operations": {"install": None}}
    assert seen(POOL | {"pacing_in_force": off}).start_seconds == 24.0


def test_the_pace_is_that_of_the_operation() -> None:
    """As the broker serves it: the default of a pool is computed in one place."""
    row = POOL | {"pacing_in_force": {"default": TWELVE, "operations": {"launch": {"interval_seconds": 0.5}}}}
    pool = recorded.row(LeasePool, row)
    assert pace.seen(pool, "launch", None).interval_seconds == 0.5
    assert pace.seen(pool, "install", None).interval_seconds == 12


def test_a_pool_that_was_never_seen_admits_one_at_a_time() -> None:
    assert pace.unknown(1200.0).start_seconds == 1200.0


def test_a_drained_pool_lets_nothing_start() -> None:
    drained = seen(POOL | {"limit_in_force": 0})
    assert slot(drained, 1, 0.0, 0.5) == (inf, drained)


def test_the_first_start_is_random_within_the_time_of_the_whole_queue() -> None:
    """All hosts begin at the same moment: an outage must not cause a thundering herd."""
    known = seen(POOL)
    assert [slot(known, 1, 1000.0, chance)[0] for chance in (0.0, 0.5)] == [1000.0, 1000.0 + 15 * 24.0]


def test_seeing_the_pool_again_keeps_the_place_of_the_next_start() -> None:
    _, after = slot(seen(POOL), 2, 1000.0, 0.0)
    assert after.next_start_at == 1048.0
    assert seen(POOL | {"limit": 10}, after).next_start_at == 1048.0


@given(
    limit=st.integers(1, 100),
    hold=st.floats(1.0, 3600.0),
    waiting=st.integers(0, 100),
    seed=st.integers(0, 99),
    arrivals=st.lists(st.floats(0.0, 600.0), min_size=2, max_size=30),
)
def test_starts_of_one_host_keep_their_distance(
    limit: int, hold: float, waiting: int, seed: int, arrivals: list[float]
) -> None:
    """However they arrive, no two starts are closer than the pace allows, and none is before its arrival."""
    rng, known = Random(seed), Pace(limit_units=limit, hold_seconds=hold, waiting_units=waiting)
    starts, now = [], 0.0
    for arrival in arrivals:
        now += arrival
        start_at, known = slot(known, 1, now, rng.random())
        assert start_at >= now
        starts.append(start_at)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert min(gaps) >= known.start_seconds - 1e-6


def test_hosts_together_keep_the_rate() -> None:
    """A hundred hosts with one start each, all at the same moment, spread over what a hundred starts may take."""
    rng, known = Random(7), seen(POOL | {"waiting": 100})
    starts = sorted(slot(known, 1, 0.0, rng.random())[0] for _ in range(100))
    assert starts[-1] - starts[0] == pytest.approx(100 * 24.0, rel=0.1)
    assert max(sum(at <= start < at + 240.0 for start in starts) for at in starts) <= 20  # twice the safe 10
