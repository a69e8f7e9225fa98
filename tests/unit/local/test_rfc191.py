"""RFC 191's rule on a virtual clock, and what counts as waste in anybody's ledger."""

from collections import Counter
from typing import Any

import pytest

from slipway_common.declaration import Declaration
from slipway_local.demo import comparison, wish
from slipway_local.evidence import Evidence, Rows
from slipway_local.rfc191 import Health, compared, play, waste, weights
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
            "id": zone,
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
    """What came from outside in an hour: a task at regular intervals, each two minutes long."""
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


def test_health_is_the_share_of_the_last_hours_events_that_are_no_failures() -> None:
    good, bad, new = Health(), Health(), Health()
    good.heard(10.0, others=3)
    good.heard(20.0, failures=1)
    bad.heard(20.0, failures=7)
    known = {"good": good, "bad": bad, "new": new}
    assert weights({"good": 2.0, "bad": 1.0, "new": 1.0}, known, 0.0) == [1.5, 0.0, 1.0]
    assert weights({"good": 2.0, "bad": 1.0}, known, 15.0) == [2.0, 1.0], "all at zero count as healthy"
    assert weights({"good": 2.0, "bad": 1.0}, known, 21.0) == [2.0, 1.0], "what is older is forgotten"


def test_a_healthy_cloud_wastes_nothing_and_runs_every_task() -> None:
    played = play(ledger(tasks=600), declared("zone-a", "zone-b"), until=HOUR)
    seen = waste(played, until=HOUR)
    assert (seen.failed, seen.unused) == (0, 0)
    assert seen.launches > 500
    # A poll of 10 s, 2 s of latency, 90 s of boot.
    assert 60 < seen.waited_seconds < 150
    assert {f.config for f in played if isinstance(f, facts.Call)} == {"zone-a", "zone-b"}


def test_a_zone_that_is_out_keeps_being_asked_for_an_hour() -> None:
    played = play(ledger(tasks=600, faults="zone-b:10m-40m"), declared("zone-a", "zone-b"), until=HOUR)
    asked: Counter[str] = Counter()
    for fact in played:
        if isinstance(fact, facts.Call) and 30 * 60 / SPEED <= fact.at < 40 * 60 / SPEED:
            asked[fact.config] += fact.count
    assert 0 < asked["zone-b"] < asked["zone-a"]
    assert waste(played, until=HOUR).failed > 20


def test_while_everything_fails_all_count_as_healthy() -> None:
    """The rule divides shares by shares, so that nothing tells it to ask for less."""
    played = play(ledger(tasks=600, faults="zone-a:10m-20m,zone-b:10m-20m"), declared("zone-a", "zone-b"), until=HOUR)
    assert waste(played, until=HOUR).failed > 1000


def test_a_machine_that_never_registers_is_a_failure_after_a_quarter_of_an_hour() -> None:
    bad = ledger(tasks=60, images={"i": Image(bad="never_registers")})
    played = play(bad, declared("zone-a"), until=HOUR)
    created = {f.instance_id: f.at for f in played if isinstance(f, facts.InstanceCreated)}
    ends = [f.at - created[f.instance_id] for f in played if isinstance(f, facts.Terminated)]
    assert ends
    assert all(seconds == pytest.approx(900 / SPEED) for seconds in ends)
    assert waste(played, until=HOUR).failed == len(ends), "who still boots is no waste yet"


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


def counted(*told: facts.Fact) -> tuple[int, int, int]:
    seen = waste(told, until=10.0)
    return seen.launches, seen.failed, seen.unused


def test_what_counts_as_waste() -> None:
    assert counted(call("1", 3), reply("1", code="InsufficientCapacity")) == (3, 3, 0)
    assert counted(call("1", 3), reply("1", "i-1")) == (3, 2, 0), "what was not given was refused"
    assert counted(call("1", 3), reply("1", code="RequestLimitExceeded")) == (0, 0, 0), "it will ask again"
    assert counted(call("1", 1), reply("1", "i-1"), call("2", 1), reply("2", "i-1", repeated=True)) == (1, 0, 0)
    assert counted(call("1", 1)) == (0, 0, 0), "nobody knows yet"
    assert counted(call("1", 1), reply("1", code="QuotaExceeded", at=11.0)) == (0, 0, 0), "later than `until`"
    one = (call("1", 1), reply("1", "i-1"))
    assert counted(*one, ended("i-1")) == (1, 1, 0), "it never registered"
    assert counted(*one, registered("i-1"), ended("i-1")) == (1, 0, 1), "it never had a task"
    assert counted(*one, registered("i-1"), started("i-1"), ended("i-1")) == (1, 0, 0)


def test_the_demo_tells_both_side_by_side() -> None:
    told = compared(ledger(tasks=60), declared("zone-a"), until=HOUR)
    assert told.startswith("waste: Slipway 0 failed and 0 unused of 0 launches (0.0%), tasks waited 1")
    assert "RFC 191's rule 0 failed and 0 unused of 6" in told
    assert "until the demand ended" in told


def test_real_processes_are_not_compared() -> None:
    rows = Rows(workers=[], batches=[], dead=0, gaps=[], sent={}, limits={}, pools={}, pool_of={})
    nothing = Evidence(settled_before=0.0, ledger=[], published=[], dead_records=0, rows=rows)
    told = comparison(wish({"PROVIDER": "process"}), nothing, declared("zone-a"), 0.0, busy=0.95)
    assert told == "waste: not compared with RFC 191's rule, which could not be played on real processes"


def test_a_machine_that_held_it_up_is_told_beside_the_waste() -> None:
    """RFC 191's rule is played in no time: the machine held up one of the two."""
    rows = Rows(workers=[], batches=[], dead=0, gaps=[], sent={}, limits={}, pools={}, pool_of={})
    found = Evidence(settled_before=0.0, ledger=ledger(tasks=60), published=[], dead_records=0, rows=rows)
    for busy, is_told in ((0.95, True), (0.5, False)):
        told = comparison(wish({"DURATION": "1h"}), found, declared("zone-a"), 0.0, busy=busy)
        assert ("NOTE the machine was 95% busy" in told) is is_told
