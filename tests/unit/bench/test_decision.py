"""Figures of `make bench-decision`: each change is matched with a machine of its own."""

import pytest

from bench.decision import __main__ as program
from bench.decision import figures, load
from bench.decision.load import Change
from slipway_simulator.facts import Call

CHANGES = [Change("a", 0, 1.0), Change("b", 1, 2.0), Change("a", 0, 3.0)]


def call(at: float, *, token: str, count: int = 1) -> Call:
    ids = {"call_id": token, "account": "x", "deployment": "d", "batch": "b", "zone": "z", "instance_type": "m5.large"}
    return Call(at=at, token=token, config="config-a", count=count, image="i", request="", **ids)


def test_changes_of_a_pool_take_its_machines_in_order() -> None:
    requested = [("a", 1.5), ("a", 3.5), ("b", 2.5)]
    found = load.traced(CHANGES, requested, [("a", 3.75), ("a", 1.75)])
    assert [(change.decided_at, change.received_at) for change in found] == [(1.5, 1.75), (2.5, None), (3.5, 3.75)]
    assert figures.lost(found) == 1
    assert figures.latency(found).changes == 2
    assert figures.latency(found).received_p99 == 750


def test_a_call_asks_for_several_machines_and_its_repeat_for_none() -> None:
    played = [call(2.0, token="t", count=2), call(4.0, token="t", count=2)]
    assert load.machines(played, {"config-a": "a"}) == [("a", 2.0), ("a", 2.0)]


def test_machines_that_no_change_asks_for_are_doubled() -> None:
    assert load.doubled(CHANGES, [("a", 1.5), ("a", 3.5), ("b", 2.5)]) == 0
    assert load.doubled(CHANGES, [("b", 2.5), ("b", 2.75), ("c", 3.0)]) == 2


def test_changes_wait_on_partitions_of_the_killed_process() -> None:
    found = load.traced(CHANGES, [("a", 1.5), ("a", 9.0), ("b", 8.0)], [])
    taken = figures.take_over(found, {"slipway.pool.demand.v1/0"}, killed_at=2.5, owned_seconds=5.0)
    assert (taken.waited, taken.decided_seconds) == (1, 1.5)


def test_arguments_have_defaults_by_size() -> None:
    assert program.arguments_of({}).command == (
        "make bench-decision POOLS=2000 WORKERS=100000 IMAGES=50 RATE=70 SECONDS=15 SEED=1"
    )
    assert program.arguments_of({"POOLS": "20", "WORKERS": "1000", "PROCESSES": "3"}).rate == 140
    with pytest.raises(ValueError, match="positive"):
        program.arguments_of({"POOLS": "-1"})
