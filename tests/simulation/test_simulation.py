"""Simulation of three services in one seeded history.

Faults are duplicates, reordering, crashes at commits, skewed clocks, lost replies, a zone outage, throttles, slow
boots, launch stops and pauses. The invariants hold after every step, and all work completes once the faults end.
Invariant 10 (one configuration per provider plugin process) is not covered, since there is no plugin process.
"""

import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from slipway_common.events.lifecycle import LEAVING, LIVE, SERVING, State, advance
from slipway_common.events.topics import LAUNCH_CONFIG_WEIGHT, WORKER_LIFECYCLE
from slipway_common.events.worker import Scope, WorkerLaunchFailed, WorkerRequested
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.store.tables import states
from slipway_simulator.facts import Call, InstanceCreated, Reply
from slipway_simulator.scenario import Scenario, decode
from tests.simulation.deployment import SERVICES, Deployment, as_received, deployment_on
from tests.simulation.seeds import seeds

MAX_CAPACITY: Final = 12
LIMIT: Final = 8
# Selected seeds: each of their histories has all faults of ALL_FAULTS.
SELECTED: Final = [int(line) for line in Path(__file__).with_name("seeds.txt").read_text().split()]
SEEDS: Final = seeds(os.environ, SELECTED)
ALL_FAULTS: Final = frozenset({*(f"{name} killed" for name in SERVICES), "reply lost", "call refused", "repeated"})
FAULTS: Final = (
    "lost-reply:0.3,zone-b:60s-240s,throttle:250s-330s,slow-boot:30:350s-450s,ignore-token:450s-600s,zone-a:600s-700s"
)
TASKS: Final = 45
COUNTS: Final = f"""
SELECT count(*) FILTER (WHERE state IN ({states(SERVING)})) AS serving,
    count(*) FILTER (WHERE state IN ({states(LEAVING)})) AS leaving FROM worker"""


def scenario(seed: int, faults: str) -> Scenario:
    return decode(
        b'{"seed": %d, "accounts": {"sim-a": {"capacity": {"zone-c": 4}, "latency_seconds": 2}}, '
        b'"boot_seconds_median": 40, "visibility_seconds": 5, "honours_tokens": %s, "faults": "%s"}'
        % (seed, b"true" if seed % 2 else b"false", faults.encode())
    )


class Checker:
    """Checks the invariants that must hold after every step."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.batches = 0
        self.held = 0
        self.calls = 0

    async def check(self) -> None:
        provisioner, broker = self.deployment.databases["provisioner"], self.deployment.databases["lease-broker"]
        serving, leaving = await provisioner.fetchrow(COUNTS)
        assert serving <= MAX_CAPACITY, "1: serving workers exceed the maximum"
        assert serving + leaving <= MAX_CAPACITY, "1: serving and stopping workers exceed maximum + minimum"
        held = await broker.fetchval("SELECT coalesce(sum(units), 0) FROM leases WHERE ended_at IS NULL")
        assert held <= max(LIMIT, self.held), "1: granted above the limit"
        self.held = held
        for fact in self.deployment.cloud.facts[self.calls :]:
            if isinstance(fact, Call):
                intents = "SELECT count(*) FROM launch_batch WHERE id = $1::uuid AND token = $2"
                assert await provisioner.fetchval(intents, fact.batch, fact.token), "3: a call without an intent"
        self.calls = len(self.deployment.cloud.facts)
        batches = await provisioner.fetchval("SELECT count(*) FROM launch_batch")
        assert batches == self.batches or not self.deployment.launches_stopped, "8: a launch during a launch stop"
        self.batches = batches


async def run(deployment: Deployment, steps: int) -> None:
    """Execute `steps` random steps, with time passing between them."""
    checker = Checker(deployment)
    await deployment.declare(LIMIT)
    await deployment.pass_time(1)
    for _ in range(steps):
        await deployment.step()
        if deployment.chance.random() < 0.35:
            await deployment.pass_time(deployment.chance.uniform(0, 6))
        if deployment.crashing and deployment.chance.random() < (0.1 if deployment.launches_stopped else 0.01):
            await checker.check()
            await deployment.command()
        if deployment.launches_stopped or deployment.chance.random() < 0.25:
            await checker.check()


async def settle(deployment: Deployment, tasks: int) -> None:
    """End all faults and run until all tasks are done and no worker, lease or record is left."""
    await deployment.calm_down()
    checker = Checker(deployment)
    for _ in range(160):
        await deployment.everything()
        await deployment.pass_time(12)
        await checker.check()
        if len(deployment.cloud.done) == tasks and not deployment.cloud.machines:
            provisioner, broker = deployment.databases["provisioner"], deployment.databases["lease-broker"]
            live = await provisioner.fetchval(f"SELECT count(*) FROM worker WHERE state IN ({states(LIVE)})")
            held = await broker.fetchval("SELECT count(*) FROM leases WHERE ended_at IS NULL")
            waiting = sum(
                [await deployment.databases[name].fetchval("SELECT count(*) FROM outbox") for name in SERVICES]
            )
            if not (live or held or deployment.unread() or waiting):
                return
    cloud = deployment.cloud
    counts = await deployment.databases["provisioner"].fetch("SELECT state, count(*) FROM worker GROUP BY state")
    raise AssertionError(
        f"not settled: {len(cloud.done)} of {tasks} tasks done, {len(cloud.pending)} pending, "
        f"{list(cloud.machines.values())}, workers {counts}"
    )


async def judge(deployment: Deployment) -> None:
    """Check the whole history: the cloud's facts, every record of the log, and the rows."""
    provisioner = deployment.databases["provisioner"]
    for name in SERVICES:
        losses = "SELECT (SELECT count(*) FROM dead_letter) + (SELECT count(*) FROM gap)"
        assert await deployment.databases[name].fetchval(losses) == 0, f"9: {name} lost or dead-lettered a record"

    by_topic: dict[str, State] = {}
    seen: set[tuple[int, int]] = set()
    refusals: list[WorkerLaunchFailed] = []
    decisions = {str(row["id"]): row["launched"] for row in await provisioner.fetch("SELECT * FROM decision")}
    for record in deployment.log.all(WORKER_LIFECYCLE.name):
        received = as_received(record)
        if (record.partition, received.sequence_number or 0) in seen:
            continue
        seen.add((record.partition, received.sequence_number or 0))
        event, word = received.event, received.type.split(".")[-2]
        if isinstance(event, WorkerRequested):
            assert event.worker_id not in by_topic, "4: an intent started twice"
            assert decisions.get(event.decision_id, 0) > 0, "11: an intent without a decision"
            by_topic[event.worker_id] = State.REQUESTED
            continue
        before = by_topic[event.worker_id]
        if before is State.REQUESTED and word not in ("delayed", "stopped"):
            before = advance(before, "calling")  # this transition has no event
        by_topic[event.worker_id] = advance(before, word)
        if isinstance(event, WorkerLaunchFailed):
            refusals.append(event)
    rows = {str(row["id"]): row["state"] for row in await provisioner.fetch("SELECT id, state FROM worker")}
    assert by_topic == rows, "4: events and rows differ"

    codes: dict[str, set[str]] = {}
    batch_of: dict[str, str] = {}
    for fact in deployment.cloud.facts:
        if isinstance(fact, Call):
            batch_of[fact.call_id] = fact.batch
        elif isinstance(fact, Reply):
            codes.setdefault(batch_of[fact.call_id], set()).add(fact.code)
    for refusal in refusals:
        assert refusal.outcome.scope not in (Scope.LIMITER, Scope.UNKNOWN), "7: a throttle counted against a config"
        code = "OK" if refusal.outcome.code == "PartialCapacity" else refusal.outcome.code
        assert code in codes[refusal.batch_id], "7: a failure that the cloud never returned"

    bound = Counter(row["instance_id"] for row in await provisioner.fetch("SELECT instance_id FROM worker"))
    bound.pop(None, None)
    assert set(bound.values()) <= {1}, "4: two intents with one instance"
    assert set(bound) <= {f.instance_id for f in deployment.cloud.facts if isinstance(f, InstanceCreated)}
    for record in deployment.log.all(LAUNCH_CONFIG_WEIGHT.name):
        event = as_received(record).event
        assert event is None or event.weight > 0, "5: a config with a weight of 0"


def faults_of(deployment: Deployment) -> frozenset[str]:
    """Faults of a history, of ALL_FAULTS: killed services, lost replies, refused calls, repeated records."""
    replies = [fact for fact in deployment.cloud.facts if isinstance(fact, Reply)]
    numbers = Counter(
        (record.partition, as_received(record).sequence_number) for record in deployment.log.all(WORKER_LIFECYCLE.name)
    )
    found = {f"{name} killed" for name in deployment.deaths}
    found |= {"reply lost"} if any(reply.lost for reply in replies) else set()
    found |= {"call refused"} if len({reply.code for reply in replies}) > 1 else set()
    found |= {"repeated"} if max(numbers.values()) > 1 else set()
    return frozenset(found)


def arrivals(chance: Random, number: int, over_seconds: float) -> list[float]:
    return sorted(chance.uniform(1, over_seconds) for _ in range(number))


FAULTS_SEEN: Final[dict[int, frozenset[str]]] = {}  # seed → faults of its history


@pytest.mark.parametrize("seed", SEEDS)
async def test_history(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Histories of the seeds in seeds.txt, to which a failed seed is added, or of SEEDS=N or SEED=n."""
    pool: dict[str, Any] = {"max_capacity": MAX_CAPACITY, "honours_tokens": bool(seed % 2)}
    async with deployment_on(postgres, monkeypatch, seed, scenario(seed, FAULTS), **pool) as deployment:
        deployment.crashing, deployment.log.lost_acknowledgements = 0.1, 0.1
        deployment.tasks_at = arrivals(deployment.chance, TASKS, 600)
        try:
            await run(deployment, 1100)
            await settle(deployment, TASKS)
            await judge(deployment)
            FAULTS_SEEN[seed] = faults_of(deployment)
            assert seed not in SELECTED or FAULTS_SEEN[seed] == ALL_FAULTS
        except AssertionError as error:
            raise AssertionError(f"seed {seed} at {deployment.elapsed:.1f} s: {error}") from error


def test_histories_have_all_faults() -> None:
    """Some history of several seeds has each fault: a run without faults proves nothing."""
    seen = frozenset[str]().union(*FAULTS_SEEN.values())
    assert len(FAULTS_SEEN) < 2 or seen == ALL_FAULTS


async def test_a_seed_is_one_history(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed gives the same calls to the cloud, at the same times and with the same replies."""
    histories = []
    for _ in range(2):
        with monkeypatch.context() as patch:
            pool: dict[str, Any] = {"max_capacity": MAX_CAPACITY, "honours_tokens": False}
            async with deployment_on(postgres, patch, 11, scenario(11, FAULTS), **pool) as deployment:
                deployment.crashing, deployment.log.lost_acknowledgements = 0.1, 0.1
                deployment.tasks_at = arrivals(deployment.chance, 10, 30)
                await run(deployment, 400)
                facts = deployment.cloud.facts
                histories.append([(f.at, f.config, f.batch) for f in facts if isinstance(f, Call)])
    assert histories[0] == histories[1] != []


async def test_one_task_one_machine(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without faults there are as many machines as tasks, however late reports, boots and events are (invariant 2)."""
    pool: dict[str, Any] = {"max_capacity": MAX_CAPACITY, "honours_tokens": False}
    async with deployment_on(postgres, monkeypatch, 7, scenario(7, ""), **pool) as deployment:
        deployment.tasks_at = arrivals(deployment.chance, 20, 200)
        await run(deployment, 250)
        await settle(deployment, 20)
        created = sum(isinstance(fact, InstanceCreated) for fact in deployment.cloud.facts)
        assert created == 20
        await judge(deployment)
