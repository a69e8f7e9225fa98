"""Three services in one seeded history: duplicates, reordering, crashes at commits, skewed clocks, lost replies, a zone
that is out, throttles, slow boots, brakes and pauses. The invariants hold after every step, and when the faults stop
everything comes to rest.

Invariant 10 (one configuration per provider plugin process) has no plugin process here to speak of.
"""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from slipway_common.events.worker import Scope, WorkerLaunchFailed, WorkerRequested
from slipway_common.lifecycle import State, advance
from slipway_common.topics import LAUNCH_CONFIG_WEIGHT, WORKER_LIFECYCLE
from slipway_local.postgres import EmbeddedPostgres
from slipway_simulator.facts import Call, InstanceCreated, Reply
from slipway_simulator.scenario import Scenario, decode
from tests.simulation.deployment import SERVICES, Deployment, as_received, deployment_on

MAX_CAPACITY: Final = 12
LIMIT: Final = 8
SEEDS: Final = [int(line) for line in Path(__file__).with_name("seeds.txt").read_text().split()]
FAULTS: Final = (
    "lost-reply:0.3,zone-b:60s-240s,throttle:250s-330s,slow-boot:30:350s-450s,ignore-token:450s-600s,zone-a:600s-700s"
)
TASKS: Final = 45
COUNTS: Final = """
SELECT count(*) FILTER (WHERE state IN ('requested', 'launching', 'starting', 'running')) AS serving,
    count(*) FILTER (WHERE state = 'stopping') AS leaving FROM worker"""


def scenario(seed: int, faults: str) -> Scenario:
    return decode(
        b'{"seed": %d, "accounts": {"sim-a": {"capacity": {"zone-c": 4}, "latency_seconds": 2}}, '
        b'"boot_seconds_median": 40, "visibility_seconds": 5, "honours_tokens": %s, "faults": "%s"}'
        % (seed, b"true" if seed % 2 else b"false", faults.encode())
    )


class Checker:
    """What must hold after every step; keeps what it has to compare with."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.batches = 0
        self.held = 0
        self.calls = 0

    async def check(self) -> None:
        provisioner, broker = self.deployment.pools["provisioner"], self.deployment.pools["lease-broker"]
        serving, leaving = await provisioner.fetchrow(COUNTS)
        assert serving <= MAX_CAPACITY, "1: more serve than the maximum"
        assert serving + leaving <= MAX_CAPACITY, "1: more serve and leave than maximum + minimum"
        held = await broker.fetchval("SELECT coalesce(sum(units), 0) FROM leases WHERE ended_at IS NULL")
        assert held <= max(LIMIT, self.held), "1: granted above the limit"
        self.held = held
        for fact in self.deployment.cloud.facts[self.calls :]:
            if isinstance(fact, Call):
                intents = "SELECT count(*) FROM launch_batch WHERE id = $1::uuid AND token = $2"
                assert await provisioner.fetchval(intents, fact.batch, fact.token), "3: a call without an intent"
        self.calls = len(self.deployment.cloud.facts)
        batches = await provisioner.fetchval("SELECT count(*) FROM launch_batch")
        assert batches == self.batches or not self.deployment.braked, "8: a start under the brake"
        self.batches = batches


async def run(deployment: Deployment, steps: int) -> None:
    """So many steps by chance, with time passing between them."""
    checker = Checker(deployment)
    await deployment.declare(LIMIT)
    await deployment.pass_time(1)
    for _ in range(steps):
        await deployment.step()
        if deployment.chance.random() < 0.35:
            await deployment.pass_time(deployment.chance.uniform(0, 6))
        if deployment.crashing and deployment.chance.random() < (0.1 if deployment.braked else 0.01):
            await checker.check()
            await deployment.command()
        if deployment.braked or deployment.chance.random() < 0.25:
            await checker.check()


async def rest(deployment: Deployment, tasks: int) -> None:
    """Without faults all tasks are done, and nothing is left that costs anything."""
    await deployment.calm_down()
    checker = Checker(deployment)
    for _ in range(160):
        await deployment.everything()
        await deployment.pass_time(12)
        await checker.check()
        if len(deployment.cloud.done) == tasks and not deployment.cloud.machines:
            provisioner, broker = deployment.pools["provisioner"], deployment.pools["lease-broker"]
            live = await provisioner.fetchval("SELECT count(*) FROM worker WHERE state <> 'stopped'")
            held = await broker.fetchval("SELECT count(*) FROM leases WHERE ended_at IS NULL")
            waiting = sum([await deployment.pools[name].fetchval("SELECT count(*) FROM outbox") for name in SERVICES])
            if not (live or held or deployment.unread() or waiting):
                return
    cloud = deployment.cloud
    states = await deployment.pools["provisioner"].fetch("SELECT state, count(*) FROM worker GROUP BY state")
    raise AssertionError(
        f"no rest: {len(cloud.done)} of {tasks} tasks done, {len(cloud.pending)} pending, "
        f"{list(cloud.machines.values())}, workers {states}"
    )


async def judge(deployment: Deployment) -> None:
    """The whole history: the cloud's facts, every record of the log, and the rows."""
    provisioner = deployment.pools["provisioner"]
    for name in SERVICES:
        losses = "SELECT (SELECT count(*) FROM dead_letter) + (SELECT count(*) FROM gap)"
        assert await deployment.pools[name].fetchval(losses) == 0, f"9: {name} lost or buried a record"

    states: dict[str, State] = {}
    seen: set[tuple[int, int]] = set()
    refusals: list[WorkerLaunchFailed] = []
    decisions = {str(row["id"]): row["launched"] for row in await provisioner.fetch("SELECT * FROM decision")}
    for record in deployment.log.all(WORKER_LIFECYCLE.name):
        told = as_received(record)
        if (record.partition, told.number or 0) in seen:
            continue
        seen.add((record.partition, told.number or 0))
        event, word = told.event, told.type.split(".")[-2]
        if isinstance(event, WorkerRequested):
            assert event.worker_id not in states, "4: an intent that begins twice"
            assert decisions.get(event.decision_id, 0) > 0, "11: an intent without a why"
            states[event.worker_id] = State.REQUESTED
            continue
        before = states[event.worker_id]
        if before is State.REQUESTED and word not in ("delayed", "stopped"):
            before = advance(before, "calling")  # no event of its own
        states[event.worker_id] = advance(before, word)
        if isinstance(event, WorkerLaunchFailed):
            refusals.append(event)
    rows = {str(row["id"]): row["state"] for row in await provisioner.fetch("SELECT id, state FROM worker")}
    assert states == rows, "4: the events do not tell what the rows are"

    codes: dict[str, set[str]] = {}
    batch_of: dict[str, str] = {}
    for fact in deployment.cloud.facts:
        if isinstance(fact, Call):
            batch_of[fact.call_id] = fact.batch
        elif isinstance(fact, Reply):
            codes.setdefault(batch_of[fact.call_id], set()).add(fact.code)
    for refusal in refusals:
        assert refusal.outcome.scope not in (Scope.LIMITER, Scope.UNKNOWN), "7: a throttle was blamed on a config"
        code = "OK" if refusal.outcome.code == "PartialCapacity" else refusal.outcome.code
        assert code in codes[refusal.batch_id], "7: blamed for what the cloud never said"

    bound = Counter(row["instance_id"] for row in await provisioner.fetch("SELECT instance_id FROM worker"))
    bound.pop(None, None)
    assert set(bound.values()) <= {1}, "4: two intents with one instance"
    assert set(bound) <= {f.instance_id for f in deployment.cloud.facts if isinstance(f, InstanceCreated)}
    for record in deployment.log.all(LAUNCH_CONFIG_WEIGHT.name):
        event = as_received(record).event
        assert event is None or event.weight > 0, "5: a config without a share"


def enough(deployment: Deployment) -> None:
    """A history in which nothing went wrong would prove nothing."""
    assert set(deployment.deaths) == set(SERVICES)
    replies = [fact for fact in deployment.cloud.facts if isinstance(fact, Reply)]
    assert any(reply.lost for reply in replies)
    assert len({reply.code for reply in replies}) > 1
    numbers = Counter(
        (record.partition, as_received(record).number) for record in deployment.log.all(WORKER_LIFECYCLE.name)
    )
    assert max(numbers.values()) > 1


def arrivals(chance: Random, number: int, over_seconds: float) -> list[float]:
    return sorted(chance.uniform(1, over_seconds) for _ in range(number))


@pytest.mark.parametrize("seed", SEEDS)
async def test_history(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Run one by its seed, or add a seed that failed to seeds.txt."""
    pool: dict[str, Any] = {"max_capacity": MAX_CAPACITY, "honours_tokens": bool(seed % 2)}
    async with deployment_on(postgres, monkeypatch, seed, scenario(seed, FAULTS), **pool) as deployment:
        deployment.crashing, deployment.log.lost_acknowledgements = 0.1, 0.1
        deployment.tasks_at = arrivals(deployment.chance, TASKS, 600)
        try:
            await run(deployment, 1100)
            await rest(deployment, TASKS)
            await judge(deployment)
            enough(deployment)
        except AssertionError as error:
            raise AssertionError(f"seed {seed} at {deployment.elapsed:.1f} s: {error}") from error


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
    """Nothing fails: as many machines as tasks, however late reports, boots and events are (invariant 2)."""
    pool: dict[str, Any] = {"max_capacity": MAX_CAPACITY, "honours_tokens": False}
    async with deployment_on(postgres, monkeypatch, 7, scenario(7, ""), **pool) as deployment:
        deployment.tasks_at = arrivals(deployment.chance, 20, 200)
        await run(deployment, 250)
        await rest(deployment, 20)
        created = sum(isinstance(fact, InstanceCreated) for fact in deployment.cloud.facts)
        assert created == 20
        await judge(deployment)
