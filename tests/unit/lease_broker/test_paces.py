"""Paces of a lease pool: their terms, as shown and from round to round, and the wait that they cause."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from slipway_lease_broker.domain.adaptive import Adaptive
from slipway_lease_broker.domain.limits import in_force
from slipway_lease_broker.domain.paces import SHARED, Paces, expected_wait, pacing_in_force, pacing_of
from slipway_lease_broker.domain.pacing import Pace, Pacing
from slipway_lease_broker.domain.terms import Bounds, Operation, Policy
from tests.support.lease_rows import NOW, POOL


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


BURST = Policy(pacing=Pacing(12, burst=2))
DECLARED = {"look": Operation(pacing="off"), "install": Operation(pacing=Pacing(7))}


def test_each_declared_operation_has_its_pacing_and_all_others_one() -> None:
    operations = DECLARED | {"launch": Operation(weight=2)}
    pool = msgspec.structs.replace(POOL, policy=Policy(operations=operations, max_interval_seconds=500))
    assert pacing_in_force(pool, 4) == {
        "default": Pacing(150),
        "operations": {"look": None, "install": Pacing(7), "launch": Pacing(150)},
    }
    stopped = msgspec.structs.replace(POOL, paces={SHARED: Pace(until=at(9), interval_seconds=14)})
    assert pacing_in_force(stopped, 0) == {"default": Pacing(14), "operations": {}}  # it goes on with that


def test_an_adaptive_limit_in_force_is_paced_by_the_duration_of_leases() -> None:
    """Any other limit of the pool by its hold."""
    policy = Policy(adaptive=Bounds(floor=1, ceiling=99))
    state = Adaptive(limit=50.0, changed_at=NOW, held_seconds=1050.0)
    pool = msgspec.structs.replace(POOL, policy=policy, adaptive=state)
    assert pacing_of(pool, "install", 50) == Pacing(20)
    assert pacing_of(pool, "install", 25) == Pacing(24)
    for other in ({"policy": Policy()}, {"adaptive": None}):
        assert pacing_of(msgspec.structs.replace(pool, **other), "install", 50) == Pacing(12)


def test_a_pace_is_converted_to_the_terms_of_its_operation() -> None:
    """As many starts lie ahead as before; of an operation that is not paced any more none do."""
    paces = {name: Pace(until=at(70), interval_seconds=14) for name in DECLARED}
    pool = msgspec.structs.replace(POOL, policy=Policy(operations=DECLARED), paces=paces)
    found = Paces(pool, in_force(pool), NOW)
    assert (found.until("install"), found.until("look")) == (at(35), None)
    assert found.after() == {"install": Pace(until=at(35), interval_seconds=7)}


#   paces, units that wait ahead, expected wait
WAITS: list[tuple[dict[str, Any], int, float]] = [
    ({}, 9, 0),
    ({"install": Pace(until=at(5), interval_seconds=12)}, 0, 5),
    ({"install": Pace(until=at(5), interval_seconds=12)}, 3, 41),
    ({"install": Pace(until=at(5), interval_seconds=12), "launch": Pace(until=at(9), interval_seconds=12)}, 0, 9),
    ({"install": Pace(until=at(0), interval_seconds=12)}, 3, 0),  # nothing lies ahead: the next one starts at once
    ({"look": Pace(until=at(99), interval_seconds=12), "install": Pace(until=at(5), interval_seconds=12)}, 0, 5),
]


@pytest.mark.parametrize(("paces", "waiting", "seconds"), WAITS)
def test_a_new_request_waits_for_the_slowest_pace(paces: dict[str, Pace], waiting: int, seconds: float) -> None:
    """And for one interval for each unit that waits ahead of it."""
    policy = Policy(pacing=Pacing(12), operations={"look": Operation(pacing="off")})
    pool = msgspec.structs.replace(POOL, policy=policy, paces=paces)
    assert expected_wait(pool, 4, waiting, NOW) == timedelta(seconds=seconds)


#   policy, seconds ahead, their interval, units that wait ahead, expected wait; of a limit of 4 and a hold of 1200 s
BY_TERMS: list[tuple[Policy, float, float, int, float]] = [
    (Policy(max_interval_seconds=500), 5, 150, 1, 155),
    (BURST, 20, 12, 0, 8),
]


@pytest.mark.parametrize(("policy", "ahead", "interval", "waiting", "seconds"), BY_TERMS)
def test_a_new_request_waits_by_the_pacing_in_force(
    policy: Policy, ahead: float, interval: float, waiting: int, seconds: float
) -> None:
    paces = {"install": Pace(until=at(ahead), interval_seconds=interval)}
    pool = msgspec.structs.replace(POOL, policy=policy, paces=paces)
    assert expected_wait(pool, 4, waiting, NOW) == timedelta(seconds=seconds)
