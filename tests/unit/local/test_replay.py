"""Replays on a virtual clock under either rule, the limits that both obey, and the count of waste in a ledger."""

import re
from collections import Counter
from typing import Any

import msgspec
import pytest

from slipway_common.declaration.models import Declaration
from slipway_local.check.evidence import Evidence, Rows
from slipway_local.demo.program import comparison, parse_arguments
from slipway_local.demo.replay.comparison import compared, false_claims, limits
from slipway_local.demo.replay.cores import Slipway
from slipway_local.demo.replay.error_rates import Rfc191
from slipway_local.demo.replay.run import Rule, play
from slipway_local.demo.replay.waste import Waste, waste
from slipway_local.demo.rfc191 import ErrorRates
from slipway_simulator import facts
from slipway_simulator.faults import parse
from slipway_simulator.scenario import Image, Scenario

SPEED = 20.0
HOUR = 3600.0 / SPEED
BEGIN = 1_700_000_000.0
OK: Any = "OK"
RULES = pytest.mark.parametrize("rule", [Rfc191, Slipway])


def declared(
    *zones: str,
    tasks_per_worker: int = 1,
    limit: int = 1000,
    pacing: Any = "off",
    maxima: dict[str, int] | None = None,
    **pool: Any,
) -> Declaration:
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
            "max_capacity": (maxima or {}).get(zone),
        }
        for zone in zones
    ]
    pools = [{"id": "linux", "max_capacity": 100, "launch_configs": configs} | pool]
    leases = {"id": "acc", "limit": limit, "pacing": pacing}
    return Declaration.model_validate(
        {"version": 1, "lease_pools": [leases], "accounts": [account], "worker_pools": pools}
    )


def played(
    outside: list[facts.Fact], launching: Declaration, rule: type[Rule] = Rfc191, *, hours: float = 1.0
) -> list[facts.Fact]:
    return play(outside, launching, rule(), until=BEGIN + hours * HOUR)


def ledger(*, tasks: int, faults: str = "", seed: int = 1, **scenario: Any) -> list[facts.Fact]:
    """External facts of one hour: tasks at regular intervals, each two minutes long."""
    loaded = Scenario(seed=seed, speed=SPEED, faults=parse(faults, duration_seconds=3600.0), **scenario)
    return [
        facts.ScenarioLoaded(at=BEGIN, scenario=loaded),
        *(
            facts.TaskArrived(
                at=BEGIN + number * HOUR / tasks,
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


UNTIL = BEGIN + HOUR


@RULES
def test_a_healthy_cloud_wastes_nothing_and_runs_every_task(rule: type[Rule]) -> None:
    found = played(ledger(tasks=600), declared("zone-a", "zone-b"), rule)
    seen = waste(found, until=UNTIL)
    assert (seen.failed, seen.unused) == (0, 0)
    assert seen.launches > 500
    # 2 s of latency and 90 s of boot, and with RFC 191's rule a poll of 10 s.
    assert 60 < seen.waited_seconds < 150
    assert {f.config for f in found if isinstance(f, facts.Call)} == {"zone-a", "zone-b"}


def in_use(found: list[facts.Fact]) -> list[int]:
    """Units in use after each change: from the call until the machine registers, fails or is gone."""
    requested: dict[str, int] = {}
    units, seen, booting = 0, [0], set()
    for fact in found:
        match fact:
            case facts.Call():
                requested[fact.call_id] = fact.count
                units += fact.count
            case facts.Reply():
                units -= requested[fact.call_id] - len(fact.instance_ids)
                booting |= set(fact.instance_ids)
            case facts.Registered() | facts.Terminated() if fact.instance_id in booting:
                booting.remove(fact.instance_id)
                units -= 1
            case _:
                continue
        seen.append(units)
    return seen


@RULES
@pytest.mark.parametrize("faults", ["", "zone-b:5m-20m", "throttle:5m-15m", "bad-image:i:2m-5m", "lost-reply:0.5"])
def test_both_rules_obey_the_lease_limit_and_the_maxima(rule: type[Rule], faults: str) -> None:
    """The limit is reached, never exceeded, and every unit comes back: the last tasks still get machines."""
    limited = declared("zone-a", "zone-b", limit=12, max_capacity=30, maxima={"zone-a": 9})
    found = played(ledger(tasks=900, faults=faults), limited, rule, hours=0.5)
    assert max(in_use(found)) == 12
    live: Counter[str] = Counter()
    zones = {f.instance_id: f.zone for f in found if isinstance(f, facts.InstanceCreated)}
    for fact in found:
        if isinstance(fact, facts.InstanceCreated):
            live[fact.zone] += 1
        elif isinstance(fact, facts.Terminated):
            live[zones[fact.instance_id]] -= 1
        assert live["zone-a"] <= 9
        assert live.total() <= 30
    late = [f for f in found if isinstance(f, facts.Registered) and f.at > BEGIN + 1500 / SPEED]
    assert len(late) > 10


@RULES
def test_both_rules_obey_the_pacing(rule: type[Rule]) -> None:
    pacing = {"interval_seconds": 20 / SPEED, "burst": 5}
    found = played(ledger(tasks=600), declared("zone-a", pacing=pacing), rule, hours=0.5)
    starts = [f.at for f in found if isinstance(f, facts.Call) for _ in range(f.count)]
    assert len(starts) > 50
    for first, last in zip(starts, starts[20:], strict=False):
        assert last - first >= (21 - 5) * 20 / SPEED - 1e-3, "of 21 launches 5 are a burst"
    assert starts[-1] - starts[0] <= (len(starts) + 5) * 20 / SPEED, "nothing else delays them"


@RULES
def test_lost_replies_and_throttled_calls_lose_nothing(rule: type[Rule]) -> None:
    """A lost reply is looked up, a throttled call repeated: each task gets one machine."""
    faults = "lost-reply:0.5,throttle:10m-20m"
    found = played(ledger(tasks=600, faults=faults), declared("zone-a", "zone-b"), rule)
    replies = [f for f in found if isinstance(f, facts.Reply)]
    assert sum(reply.lost for reply in replies) > 100
    assert sum(reply.code == "RequestLimitExceeded" for reply in replies) > 0
    seen = waste(found, until=UNTIL)
    assert (seen.failed, seen.unused) == (0, 0)
    assert len({f.task_id for f in found if isinstance(f, facts.TaskStarted)}) > 560


def test_slipway_avoids_a_zone_without_capacity_and_returns_to_it() -> None:
    outside = ledger(tasks=600, faults="zone-b:10m-40m")
    found, theirs = (played(outside, declared("zone-a", "zone-b"), rule) for rule in (Slipway, Rfc191))
    assert 0 < waste(found, until=UNTIL).failed < 0.2 * waste(theirs, until=UNTIL).failed
    last = [f for f in found if isinstance(f, facts.Call) and f.at > BEGIN + 55 * 60 / SPEED]
    assert 0.3 < sum(f.count for f in last if f.zone == "zone-b") / sum(f.count for f in last) < 0.7


def test_slipway_stops_at_a_bad_image_and_recovers() -> None:
    outside = ledger(tasks=600, faults="bad-image:i:0m-30m")
    found = played(outside, declared("zone-a", "zone-b"), Slipway, hours=2.0)
    assert 0 < waste(found, until=UNTIL + HOUR).failed < 30
    assert len([f for f in found if isinstance(f, facts.TaskStarted)]) == 600


def test_a_zone_without_capacity_gets_launches_for_an_hour() -> None:
    found = played(ledger(tasks=600, faults="zone-b:10m-40m"), declared("zone-a", "zone-b"))
    requested: Counter[str] = Counter()
    for fact in found:
        if isinstance(fact, facts.Call) and 30 * 60 / SPEED <= fact.at - BEGIN < 40 * 60 / SPEED:
            requested[fact.config] += fact.count
    assert 0 < requested["zone-b"] < requested["zone-a"]
    assert waste(found, until=UNTIL).failed > 20


def test_while_everything_fails_all_count_as_healthy() -> None:
    """The rule only compares shares, so it never requests less in total."""
    found = played(ledger(tasks=600, faults="zone-a:10m-20m,zone-b:10m-20m"), declared("zone-a", "zone-b"))
    assert waste(found, until=UNTIL).failed > 1000


def test_a_machine_that_never_registers_is_a_failure_after_a_quarter_of_an_hour() -> None:
    found = played(ledger(tasks=60, images={"i": Image(bad="never_registers")}), declared("zone-a"))
    created = {f.instance_id: f.at for f in found if isinstance(f, facts.InstanceCreated)}
    ends = [f.at - created[f.instance_id] for f in found if isinstance(f, facts.Terminated)]
    assert ends
    assert all(seconds == pytest.approx(900 / SPEED) for seconds in ends)
    assert waste(found, until=UNTIL).failed == len(ends), "a machine that still boots is not wasted yet"


@RULES
def test_machines_that_find_no_task_leave_unused(rule: type[Rule]) -> None:
    kept = played(ledger(tasks=1), declared("zone-a", tasks_per_worker=0, min_capacity=0), rule)
    assert str(waste(kept, until=UNTIL)).startswith("0 failed and 0 unused of 1 launches (0.0%)")
    assert isinstance(kept[-1], facts.Terminated)
    assert kept[-1].at > BEGIN + 300 / SPEED, "it waited for more tasks"
    twice = played(ledger(tasks=1), declared("zone-a", scaling_ratio="2"), rule)
    assert waste(twice, until=UNTIL).unused >= 1


@RULES
def test_the_same_seed_gives_the_same_facts(rule: type[Rule]) -> None:
    def of(seed: int) -> list[facts.Fact]:
        return played(ledger(tasks=100, seed=seed), declared("zone-a", "zone-b"), rule)

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


def test_waits_are_product_time() -> None:
    outside = ledger(tasks=1)
    begun = msgspec.structs.replace(started("i-1"), at=BEGIN + 3.0, task_id="t0")
    assert waste([*outside, begun], until=UNTIL).waited_seconds == pytest.approx(3.0 * SPEED)


def test_the_comparison_has_both_rules_and_what_they_obey() -> None:
    """The run is a replay itself, so that none of its wait is latency of processes."""
    pacing = {"interval_seconds": 1 / SPEED, "burst": 20}
    launching = declared("zone-a", "zone-b", limit=45, pacing=pacing)
    text = compared(played(ledger(tasks=53), launching, Slipway), launching, until=UNTIL).text
    assert "same limits: in acc 45 launches at a time, 20 at once and then one per 1 s; 100 workers in linux." in text
    ours, theirs, cores = re.findall(r"0 failed and 0 unused of 5\d launches \(0.0%\); tasks waited (\d+) s", text)
    assert ours == cores != theirs
    relative = re.search(r"and (\d\.\d\d) × its wait", text)
    assert relative is not None
    assert float(relative[1]) == pytest.approx(int(ours) / int(theirs), abs=0.02)
    assert "  0 s of its wait are latency of real processes" in text
    assert "until\n  demand ended" in text


def figures(failed: int, waited_seconds: float) -> Waste:
    return Waste(launches=1000, failed=failed, unused=0, waited_seconds=waited_seconds)


@pytest.mark.parametrize(
    ("run", "cores", "rule", "false"),
    [
        ((60, 900), (60, 140), (100, 100), []),
        ((61, 900), (10, 100), (100, 100), ["waste ≤ 0.6 × the rule's"]),
        ((10, 100), (10, 141), (100, 100), ["wait of Slipway's cores ≤ 1.4 × the rule's"]),
        ((29, 900), (29, 900), (29, 100), []),
    ],
)
def test_more_waste_or_wait_than_claimed_is_named(
    run: tuple[int, int], cores: tuple[int, int], rule: tuple[int, int], false: list[str]
) -> None:
    """The wait of the run itself includes the latency of real processes; few failures of the rule show nothing."""
    assert list(false_claims(figures(*run), figures(*cores), figures(*rule))) == false


def test_limits_name_equal_lease_pools_together() -> None:
    one = declared("zone-a").model_dump(mode="json")
    other = one["lease_pools"][0] | {"id": "other"}
    unused, paced = other | {"id": "unused"}, other | {"id": "paced", "pacing": None, "limit": 5}
    accounts = [one["accounts"][0] | {"id": name, "lease_pool": name} for name in ("acc", "other", "paced")]
    given = one | {"lease_pools": [*one["lease_pools"], other, unused, paced], "accounts": accounts}
    assert limits(Declaration.model_validate(given), SPEED) == (
        "in acc and in other 1000 launches at a time; in paced 5 launches at a time, paced; 100 workers in linux"
    )


def test_real_processes_are_not_compared() -> None:
    rows = Rows(workers=[], batches=[], dead=0, gaps=[], sent={}, limits={}, pools={}, pool_of={})
    nothing = Evidence(settled_before=0.0, ledger=[], published=[], dead_records=0, rows=rows)
    text, false = comparison(parse_arguments({"PROVIDER": "process"}), nothing, declared("zone-a"), 0.0, busy=0.95)
    assert not false
    assert text == "Not compared with RFC 191's rule, which cannot be replayed on real processes."


def test_comparison_notes_a_busy_machine() -> None:
    """A busy machine delays the run, but not the replay of RFC 191's rule."""
    rows = Rows(workers=[], batches=[], dead=0, gaps=[], sent={}, limits={}, pools={}, pool_of={})
    found = Evidence(settled_before=0.0, ledger=ledger(tasks=60), published=[], dead_records=0, rows=rows)
    for busy, noted in ((0.95, True), (0.5, False)):
        text = comparison(parse_arguments({"DURATION": "180s"}), found, declared("zone-a"), BEGIN, busy=busy).text
        assert ("NOTE the machine was 95% busy" in text) is noted
