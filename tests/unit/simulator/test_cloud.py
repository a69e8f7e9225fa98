"""Answers of the simulated accounts, and reconstruction of their state from the ledger."""

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_simulator import machines, queue, scenario
from slipway_simulator.cloud import Cloud, decide_create
from slipway_simulator.fact_file import ENCODER
from slipway_simulator.facts import (
    Call,
    DemandSet,
    Fact,
    InstanceCreated,
    Registered,
    Reply,
    ScenarioLoaded,
    TaskArrived,
)
from slipway_simulator.faults import Effects
from slipway_simulator.ledger import DECODER
from slipway_simulator.world import World, end_instance, rebuild, set_level

NONE = Effects()


def world_of(**rules: Any) -> World:
    return rebuild([ScenarioLoaded(at=0.0, scenario=scenario.decode(msgspec.json.encode(rules)))])


def a_call(world: World, *, token: str = "t1", count: int = 1, **fields: Any) -> Call:
    given = {
        "account": "acc",
        "deployment": "d",
        "batch": f"batch-{token}",
        "config": "lc",
        "zone": "zone-a",
        "instance_type": "m5.large",
        "image": "linux-1",
        "request": f"{token}/{count}",
    } | fields
    return Call(at=0.0, call_id=f"call-{world.cloud.calls + 1}", token=token, count=count, **given)


def perform(world: World, call: Call, *, effects: Effects = NONE, now: float = 1.0, seed: int = 1) -> Reply:
    """Decide and record a create call, as the process does; returns the reply."""
    world.fold(call)
    facts = decide_create(world.cloud, call, {}, effects=effects, now=now, rng=Random(seed))
    for fact in facts:
        world.fold(fact)
    reply = facts[-1]
    assert isinstance(reply, Reply)
    return reply


CASES: list[tuple[str, dict[str, Any], dict[str, Any], Effects, str, int]] = [
    ("plain", {}, {"count": 3}, NONE, "OK", 3),
    ("account unknown", {"accounts": {"other": {}}}, {}, NONE, "AuthFailure", 0),
    ("none asked", {}, {"count": 0}, NONE, "InvalidRequest", 0),
    ("zone unknown", {"zones": {"zone-b": {}}}, {}, NONE, "InvalidRequest", 0),
    ("image unknown", {"images": {"linux-1": {"bad": "not_found"}}}, {}, NONE, "ImageNotFound", 0),
    ("capacity ends", {"accounts": {"acc": {"capacity": {"zone-a": 2}}}}, {"count": 3}, NONE, "OK", 2),
    ("capacity shared", {"zones": {"zone-a": {"capacity": 1}}}, {"count": 3}, NONE, "OK", 1),
    ("no capacity", {"accounts": {"acc": {"capacity": {"zone-a": 0}}}}, {}, NONE, "InsufficientCapacity", 0),
    ("capacity later", {"zones": {"zone-a": {"capacity": [[0, 0], [9, 5]]}}}, {}, NONE, "InsufficientCapacity", 0),
    ("capacity until", {"zones": {"zone-a": {"capacity": [[0.5, 4], [9, 0]]}}}, {"count": 9}, NONE, "OK", 4),
    ("zone out", {}, {}, Effects(zones_out=frozenset({"zone-a"})), "InsufficientCapacity", 0),
    ("other zone out", {}, {}, Effects(zones_out=frozenset({"zone-b"})), "OK", 1),
    ("quota ends", {"accounts": {"acc": {"quota": {"m5": 2}}}}, {"count": 3}, NONE, "OK", 2),
    ("other family", {"accounts": {"acc": {"quota": {"c5": 0}}}}, {"count": 3}, NONE, "OK", 3),
    ("no quota", {"accounts": {"acc": {"quota": {"m5": 0}}}}, {}, NONE, "QuotaExceeded", 0),
    ("credential fault", {}, {}, Effects(refused_credentials=frozenset({"acc"})), "AuthFailure", 0),
    ("quota fault", {}, {}, Effects(quota_used_up=frozenset({"acc"})), "QuotaExceeded", 0),
]


@pytest.mark.parametrize(
    ("rules", "call", "effects", "code", "created"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_create(rules: dict[str, Any], call: dict[str, Any], effects: Effects, code: str, created: int) -> None:
    """Each limit has its error code; only instances within all limits are created."""
    world = world_of(**rules)
    reply = perform(world, a_call(world, **call), effects=effects)
    assert (reply.code, len(reply.instance_ids), world.cloud.count().live) == (code, created, created)


def test_throttle_admits_burst_then_refill() -> None:
    """The bucket admits the burst and refills with time; a refusal has the time to wait."""
    world = world_of(accounts={"acc": {"throttle": {"burst": 2, "refill_per_second": 0.5}}})
    replies = [perform(world, a_call(world, token=f"t{n}"), now=at) for n, at in enumerate([1.0, 1.0, 1.0, 2.0, 3.0])]
    assert [reply.code for reply in replies] == ["OK", "OK", "RequestLimitExceeded", "RequestLimitExceeded", "OK"]
    assert [replies[2].retry_after_seconds, replies[3].retry_after_seconds] == [2.0, 1.0]


def test_throttle_fault_binds_an_unthrottled_account() -> None:
    """The fault throttles every account."""
    world = world_of()
    codes = [perform(world, a_call(world, token=f"t{n}"), effects=Effects(throttled=True)).code for n in range(2)]
    assert codes == ["OK", "RequestLimitExceeded"]


def test_token_is_honoured() -> None:
    """A repeated token returns the same instances, or is refused with another body; a failed call does not use it."""
    world = world_of()
    assert (
        perform(world, a_call(world), effects=Effects(zones_out=frozenset({"zone-a"}))).code == "InsufficientCapacity"
    )
    first = perform(world, a_call(world, count=2))
    assert perform(world, a_call(world, count=2)) == msgspec.structs.replace(first, call_id="call-3", repeated=True)
    assert perform(world, a_call(world, count=3)).code == "InvalidRequest"
    assert world.cloud.count().live == 2


@pytest.mark.parametrize(("rules", "effects"), [({"honours_tokens": False}, NONE), ({}, Effects(ignore_token=True))])
def test_token_is_ignored(rules: dict[str, Any], effects: Effects) -> None:
    """An account that ignores tokens creates instances twice."""
    world = world_of(**rules)
    ids = [perform(world, a_call(world), effects=effects).instance_ids for _ in range(2)]
    assert ids == [("i-000001",), ("i-000002",)]


def test_lost_reply_takes_effect() -> None:
    """The reply is lost, but the instances exist; a refusal is never lost."""
    world = world_of()
    lost = Effects(lost_reply_ratio=1.0, zones_out=frozenset({"zone-b"}))
    assert perform(world, a_call(world, count=2), effects=lost).lost
    assert not perform(world, a_call(world, token="t2", zone="zone-b"), effects=lost).lost
    assert (world.cloud.count().live, world.cloud.lost_replies) == (2, 1)


def test_listed_when_visible_and_until_gone() -> None:
    """Lists have live instances of the deployment and batch, new ones after the visibility delay."""
    world = world_of(visibility_seconds=10)
    perform(world, a_call(world, count=2))
    perform(world, a_call(world, token="t2", deployment="another"))

    def ids(batch: str | None, now: float) -> list[str]:
        return [instance.instance_id for instance in world.cloud.listed("acc", "d", batch, now=now)]

    assert (ids(None, 10.9), ids("batch-t1", 11.0), ids("batch-t2", 11.0)) == ([], ["i-000001", "i-000002"], [])
    for fact in end_instance(world, "i-000001", "api", now=12.0):
        world.fold(fact)
    assert ids(None, 13.0) == ["i-000002"]
    assert list(end_instance(world, "i-000001", "api", now=13.0)) == []


BOOTS = [
    ({}, NONE, True, True),
    ({"images": {"linux-1": {"bad": "never_registers"}}}, NONE, False, True),
    ({}, Effects(bad_images=frozenset({"linux-1"})), False, True),
    ({"images": {"linux-1": {"bad": "never_claims"}}}, NONE, True, False),
]


@pytest.mark.parametrize(("rules", "effects", "registers", "claims"), BOOTS)
def test_bad_images(rules: dict[str, Any], effects: Effects, registers: bool, claims: bool) -> None:
    """The provider accepts a bad image; its machines fail."""
    world = world_of(**rules)
    perform(world, a_call(world), effects=effects)
    machine = world.machines["i-000001"]
    assert (machine.boots_at is not None, machine.claims) == (registers, claims)


def test_slow_boot() -> None:
    """Boots take longer by the factor, with the same random numbers."""
    boots = []
    for factor in (1.0, 3.0):
        world = world_of()
        perform(world, a_call(world), effects=Effects(boot_factor=factor))
        boots.append((world.machines["i-000001"].boots_at or 0.0) - 1.0)
    assert boots[1] == pytest.approx(3 * boots[0])


# The laws, over any history.

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(0, 4), st.integers(1, 4), st.sampled_from(["zone-a", "zone-b"])),
        st.tuples(st.just("end"), st.integers(1, 20), st.just(0), st.just("")),
        st.tuples(st.just("task"), st.integers(1, 3), st.just(0), st.just("")),
        st.tuples(st.just("level"), st.integers(0, 3), st.just(0), st.just("")),
        st.tuples(st.just("live"), st.integers(1, 20), st.just(0), st.just("")),
        st.tuples(st.just("finish"), st.just(0), st.just(0), st.just("")),
    ),
    max_size=40,
)
RULES = {
    "accounts": {"acc": {"capacity": {"zone-a": 5}, "quota": {"m5": 8}, "throttle": {"burst": 9}}},
    "zones": {"zone-a": {}, "zone-b": {"capacity": [[0, 3], [20, 1], [30, 6]]}},
}


class History:
    """A world, and the facts that were folded into it."""

    def __init__(self) -> None:
        self.world = World()
        self.facts: list[Fact] = []
        self.record(ScenarioLoaded(at=0.0, scenario=scenario.decode(msgspec.json.encode(RULES))))

    def record(self, *facts: Fact) -> None:
        self.facts += facts
        for fact in facts:
            self.world.fold(fact)

    def step(self, kind: str, number: int, count: int, zone: str, now: float) -> None:
        world = self.world
        match kind:
            case "create":
                call = a_call(world, token=f"t{number}", count=count, zone=zone, request=f"{count}/{zone}")
                self.record(call)
                rng = Random(number)
                self.record(
                    *decide_create(
                        world.cloud, call, {"settings": {"tasks_per_worker": 2}}, effects=NONE, now=now, rng=rng
                    )
                )
            case "end":
                self.record(*end_instance(world, f"i-{number:06d}", "api", now=now))
            case "task":
                pool = world.queue.pools.get("p")
                task_id = f"p-{pool.arrived + 1 if pool else 1}"
                self.record(
                    TaskArrived(at=now, task_id=task_id, pool_id="p", source_id="", duration_seconds=float(number))
                )
            case "level":
                self.record(*set_level(world, DemandSet(at=now, pool_id="p", pending=number)))
            case "live":
                self._live(f"i-{number:06d}", now)
            case _:
                runs = [run for pool in world.queue.pools.values() for run in pool.running.values() if run.ends_at]
                self.record(*(queue.end(run, now=now) for run in runs[:1]))

    def _live(self, instance_id: str, now: float) -> None:
        """Let a machine register, take a task, or have a report answered."""
        machine = self.world.machines.get(instance_id)
        if machine and not machine.pool_id:
            self.record(
                Registered(at=now, instance_id=instance_id, worker_id=f"w-{instance_id}", pool_id="p", token="x")
            )
        elif machine and machine.free and (started := queue.take(self.world.queue, "p", instance_id, now=now)):
            self.record(started)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_laws(steps: list[tuple[str, int, int, str]]) -> None:
    """Capacity and quota are never exceeded, a token has one set of instances, ids are unique, every running
    task is on a live machine that has it, and the ledger rebuilds the same world."""
    history = History()
    for index, (kind, number, count, zone) in enumerate(steps):
        history.step(kind, number, count, zone, now=float(index))
        cloud: Cloud = history.world.cloud
        assert cloud.count(zone="zone-a").live <= 5
        assert cloud.count(zone="zone-b").live <= 6
        assert cloud.count(account="acc", family="m5").live <= 8
    ids = [fact.instance_id for fact in history.facts if isinstance(fact, InstanceCreated)]
    replies: dict[str, set[tuple[str, ...]]] = {}
    tokens = {fact.call_id: fact.token for fact in history.facts if isinstance(fact, Call)}
    for fact in history.facts:
        if isinstance(fact, Reply) and fact.code == "OK":
            replies.setdefault(tokens[fact.call_id], set()).add(fact.instance_ids)
    assert len(ids) == len(set(ids))
    assert all(len(answers) == 1 for answers in replies.values())
    for pool in history.world.queue.pools.values():
        for task_id, run in pool.running.items():
            assert history.world.machines[run.instance_id].task_id == task_id
    again = rebuild(DECODER.decode(ENCODER.encode(fact)) for fact in history.facts)
    assert again == history.world
    assert all(isinstance(machine, machines.Machine) for machine in again.machines.values())
