"""RFC 191's rule on a virtual clock, and the count of wasted launches in a ledger."""

from collections import Counter
from typing import Any

import pytest

from slipway_common.declaration.models import Declaration
from slipway_local.check.evidence import Evidence, Rows
from slipway_local.demo.program import comparison, parse_arguments
from slipway_local.demo.rfc191 import ErrorRates
from slipway_local.demo.rfc191_replay import compared, play, waste
from slipway_simulator import facts
from slipway_simulator.faults import parse
from slipway_simulator.scenario import Image, Scenario

SPEED = 20.0
HOUR = 3600.0 / SPEED
OK: Any = "OK"


def declared(*zones: str, tasks_per_worker: int = 1, **pool: Any) -> Declaration:
    account = {
        "id": "acc",
        "provider": "simulated",
        "region": "r",
        "credential": "none",
        "identity": "acc",
        "lease_pool": "acc",
        "settings": {},
    }
    configs = [
        {
            "name": zone,
            "account": "acc",
            "zone": zone,
            "instance_type": "m5",
            "image": "i",
            "settings": {"tasks_per_worker": tasks_per_worker} if tasks_per_worker else {},
        }
        for zone in zones
    ]
    pools = [{"id": "linux", "max_capacity": 100, "launch_configs": configs} | pool]
    return Declaration.model_validate(
        {"version": 1, "lease_pools": [{"id": "acc", "limit": 9}], "accounts": [account], "worker_pools": pools}
    )


def ledger(*, tasks: int, faults: str = "", seed: int = 1, **scenario: Any) -> list[facts.Fact]:
    """External facts of one hour: tasks at regular intervals, each two minutes long."""
    loaded = Scenario(seed=seed, speed=SPEED, faults=parse(faults, duration_seconds=3600.0), **scenario)
    return [
        facts.ScenarioLoaded(at=0.0, scenario=loaded),
        *(
            facts.TaskArrived(
                at=number * HOUR / tasks,
                task_id=f"t{number}",
                pool_id="linux",
                source_id="s",
                duration_seconds=120 / SPEED,
            )
            for number in range(tasks)
        ),
    ]


def test_health_is_the_share_of_non_failures_in_the_last_hour() -> None:
    rates, all_bad = ErrorRates([2.0, 1.0, 1.0]), ErrorRates([2.0, 1.0])
    for each in (rates, all_bad):
        each.add(10.0, 0, others=3)
        each.add(20.0, 0, failures=1)
        each.add(20.0, 1, failures=7)
    assert rates.weights(0.0) == [1.5, 0.0, 1.0], "a config without events is healthy"
    assert rates.weights(15.0) == [0.0, 0.0, 1.0], "older events do not count"
    assert rates.weights(21.0) == [2.0, 1.0, 1.0]
    assert all_bad.weights(0.0) == [1.5, 0.0]
    assert all_bad.weights(15.0) == [2.0, 1.0], "all at zero count as healthy"


def test_a_healthy_cloud_wastes_nothing_and_runs_every_task() -> None:
    played = play(ledger(tasks=600), declared("zone-a", "zone-b"), until=HOUR)
    seen = waste(played, until=HOUR)
    assert (seen.failed, seen.unused) == (0, 0)
    assert seen.launches > 500
    # A poll of 10 s, 2 s of latency, 90 s of boot.
    assert 60 < seen.waited_seconds * SPEED < 150
    assert {f.config for f in played if isinstance(f, facts.Call)} == {"zone-a", "zone-b"}


def test_a_zone_without_capacity_gets_launches_for_an_hour() -> None:
    played = play(ledger(tasks=600, faults="zone-b:10m-40m"), declared("zone-a", "zone-b"), until=HOUR)
    requested: Counter[str] = Counter()
    for fact in played:
        if isinstance(fact, facts.Call) and 30 * 60 / SPEED <= fact.at < 40 * 60 / SPEED:
            requested[fact.config] += fact.count
    assert 0 < requested["zone-b"] < requested["zone-a"]
    assert waste(played, until=HOUR).failed > 20


def test_while_everything_fails_all_count_as_healthy() -> None:
    """The rule only compares shares, so it never requests less in total."""
    played = play(ledger(tasks=600, faults="zone-a:10m-20m,zone-b:10m-20m"), declared("zone-a", "zone-b"), until=HOUR)
    assert waste(played, until=HOUR).failed > 1000


def test_a_machine_that_never_registers_is_a_failure_after_a_quarter_of_an_hour() -> None:
    bad = ledger(tasks=60, images={"i": Image(bad="never_registers")})
    played = play(bad, declared("zone-a"), until=HOUR)
    created = {f.instance_id: f.at for f in played if isinstance(f, facts.InstanceCreated)}
    ends = [f.at - created[f.instance_id] for f in played if isinstance(f, facts.Terminated)]
    assert ends
    assert all(seconds == pytest.approx(900 / SPEED) for seconds in ends)
    assert waste(played, until=HOUR).failed == len(ends), "a machine that still boots is not wasted yet"


def test_machines_that_find_no_task_leave_unused() -> None:
    played = play(ledger(tasks=1), declared("zone-a", tasks_per_worker=0, min_capacity=0), until=HOUR)
    assert str(waste(played, until=HOUR)).startswith("0 failed and 0 unused of 1 launches (0.0%)")
    twice = [*play(ledger(tasks=1), declared("zone-a", scaling_ratio="2"), until=HOUR)]
    assert waste(twice, until=HOUR).unused >= 1


def test_the_same_seed_gives_the_same_facts() -> None:
    def of(seed: int) -> list[facts.Fact]:
        return play(ledger(tasks=100, seed=seed), declared("zone-a", "zone-b"), until=HOUR)

    assert of(3) == of(3)
    assert of(3) != of(4)


def call(call_id: str, count: int) -> facts.Call:
    return facts.Call(
        at=1.0,
        call_id=call_id,
        account="acc",
        token=call_id,
        deployment="d",
        batch="b",
        config="c",
        count=count,
        zone="z",
        instance_type="m5",
        image="i",
        request="r",
    )


def reply(call_id: str, *instances: str, code: Any = OK, at: float = 2.0, repeated: bool = False) -> facts.Reply:
    return facts.Reply(at=at, call_id=call_id, account="acc", code=code, instance_ids=instances, repeated=repeated)


def ended(instance_id: str) -> facts.Terminated:
    return facts.Terminated(at=9.0, instance_id=instance_id, account="acc", by="api")


def registered(instance_id: str) -> facts.Registered:
    return facts.Registered(at=3.0, instance_id=instance_id, worker_id="w", pool_id="linux", token="")


def started(instance_id: str) -> facts.TaskStarted:
    return facts.TaskStarted(at=4.0, task_id="t", pool_id="linux", instance_id=instance_id, ends_at=5.0)


def counted(*ledger: facts.Fact) -> tuple[int, int, int]:
    seen = waste(ledger, until=10.0)
    return seen.launches, seen.failed, seen.unused


def test_what_counts_as_waste() -> None:
    assert counted(call("1", 3), reply("1", code="InsufficientCapacity")) == (3, 3, 0)
    assert counted(call("1", 3), reply("1", "i-1")) == (3, 2, 0), "instances that were not created count as refused"
    assert counted(call("1", 3), reply("1", code="RequestLimitExceeded")) == (0, 0, 0), "the call is repeated"
    assert counted(call("1", 1), reply("1", "i-1"), call("2", 1), reply("2", "i-1", repeated=True)) == (1, 0, 0)
    assert counted(call("1", 1)) == (0, 0, 0), "not answered yet"
    assert counted(call("1", 1), reply("1", code="QuotaExceeded", at=11.0)) == (0, 0, 0), "later than `until`"
    one = (call("1", 1), reply("1", "i-1"))
    assert counted(*one, ended("i-1")) == (1, 1, 0), "it never registered"
    assert counted(*one, registered("i-1"), ended("i-1")) == (1, 0, 1), "it never had a task"
    assert counted(*one, registered("i-1"), started("i-1"), ended("i-1")) == (1, 0, 0)


def test_comparison_has_both() -> None:
    text = compared(ledger(tasks=60), declared("zone-a"), until=HOUR)
    assert "  Slipway         0 failed and 0 unused of 0 launches (0.0%); tasks waited " in text
    assert "  RFC 191's rule  0 failed and 0 unused of 6" in text
    assert "until demand ended" in text


def test_real_processes_are_not_compared() -> None:
    rows = Rows(workers=[], batches=[], dead=0, gaps=[], sent={}, limits={}, pools={}, pool_of={})
    nothing = Evidence(settled_before=0.0, ledger=[], published=[], dead_records=0, rows=rows)
    text = comparison(parse_arguments({"PROVIDER": "process"}), nothing, declared("zone-a"), 0.0, busy=0.95)
    assert text == "Not compared with RFC 191's rule, which cannot be replayed on real processes."


def test_comparison_notes_a_busy_machine() -> None:
    """A busy machine delays the run, but not the replay of RFC 191's rule."""
    rows = Rows(workers=[], batches=[], dead=0, gaps=[], sent={}, limits={}, pools={}, pool_of={})
    found = Evidence(settled_before=0.0, ledger=ledger(tasks=60), published=[], dead_records=0, rows=rows)
    for busy, noted in ((0.95, True), (0.5, False)):
        text = comparison(parse_arguments({"DURATION": "1h"}), found, declared("zone-a"), 0.0, busy=busy)
        assert ("NOTE the machine was 95% busy" in text) is noted
