"""A run: tasks in bursts, then the queue's server away for ten product minutes, or the leading one of two monitors
killed; judged by the ledger that the workers keep in the queue, by the topic, and by the rows."""

import asyncio
import contextlib
import os
import sys
from collections import Counter
from functools import partial
from itertools import pairwise
from math import inf
from random import Random
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer

from slipway_api.events.pool import DemandReported
from slipway_api.events.topics import POOL_DEMAND
from slipway_api.percent import encoded
from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.base.process.guard import guard
from slipway_common.base.process.identities import INSTANCE_TAG
from slipway_common.declaration.strict_yaml import write
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.child import StartFailed
from slipway_local.servers.supervisor import Supervisor, run
from tests.attach import agents, brokers, queues
from tests.attach.deployed import Monitors, declaration, entries
from tests.attach.judge import Entry, Machine, Sample, Task, is_right, surplus
from tests.attach.queues import AGAIN, ONCE, POOLS, AttachedQueue
from tests.contract.sources.worlds import NotAvailable
from tests.drills.harness import Harness, NotReached, fetch
from tests.support.folders import temporary_folder

KINDS: Final[dict[str, tuple[str, type[AttachedQueue]]]] = {
    "redis": ("redis", queues.Lists),
    "celery": ("redis", agents.CeleryQueue),
    "rq": ("redis", agents.RqQueue),
    "rabbitmq": ("rabbitmq", brokers.RabbitQueue),
    "prometheus": ("prometheus", queues.Scraped),
    "http": ("http", queues.Shown),
    "exec": ("exec", queues.Command),
    "sql": ("sql", brokers.SqlQueue),
    "kafka_lag": ("kafka_lag", brokers.KafkaQueue),
    "sqs": ("sqs", brokers.SqsQueue),
    "keda": ("keda", queues.Scaled),
}
"""Kind of source and class of each QUEUE."""
SPEED: Final = 40.0
INTERVAL_SECONDS: Final = 1.0
VALID_SECONDS: Final = 7.5  # 5 product minutes
AWAY_SECONDS: Final = 600.0  # product
DECISION_SECONDS: Final = 1.0
"""Time from a report's receipt to its launches that counts for no surplus, beside the interval of the reports."""
SAMPLE_SECONDS: Final = 0.1
STEP_SECONDS: Final = 240.0
# Real processes take real time to be created, to boot and to take a task, however fast product time passes.
SECONDS: Final = {"call_timeout_seconds": 400.0, "boot_timeout_seconds": 2_400.0, "give_up_idle_seconds": 1_200.0}
STARTED: Final = """
SELECT id, state, reason, extract(epoch FROM requested_at)::float8 AS requested_at,
    extract(epoch FROM least(stopping_at, failed_at, ended_at))::float8 AS finished_at,
    (SELECT array_agg(task_id) FROM provisioner.claim c WHERE c.worker_id = w.id) AS tasks
FROM provisioner.worker w WHERE pool_id = $1 AND launched_at IS NOT NULL"""


async def reports(deployment: Deployment) -> list[DemandReported]:
    """All reports on the topic, those of a pool in their order."""
    name, found = deployment.prefix + POOL_DEMAND.name, []
    async with AIOKafkaConsumer(name, bootstrap_servers=deployment.kafka, auto_offset_reset="earliest") as consumer:
        ends = await consumer.end_offsets(consumer.assignment())
        while any([await consumer.position(partition) < end for partition, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += [msgspec.json.decode(record.value, type=DemandReported) for record in records if record.value]
    return found


class Run:
    """One run: the queue, the deployment and what is found."""

    def __init__(self, harness: Harness, deployment: Deployment, queue: AttachedQueue) -> None:
        self.harness, self.deployment, self.queue = harness, deployment, queue
        self.added: dict[str, tuple[str, float]] = {}
        """Pool and time of each task."""
        self.numbers: Counter[str] = Counter()
        self.samples: list[Sample] = []
        self.problems: list[str] = []
        self.is_sampled = True
        self.access = asyncio.Lock()  # clients of brokers have one channel

    async def add(self, pool: str, number: int) -> None:
        for _ in range(number):
            self.numbers[pool] += 1
            task = f"{pool}-{self.numbers[pool]:03}"
            self.added[task] = pool, utc_now().timestamp()
            async with self.access:
                await self.queue.put(pool, task)

    async def sample(self) -> None:
        """Let the queue count itself whenever it answers, while `is_sampled`."""
        while self.is_sampled:
            asked_at = utc_now().timestamp()
            with contextlib.suppress(Exception):
                async with self.access:
                    counts = await self.queue.counted()
                self.samples.append(Sample(asked_at, utc_now().timestamp(), counts))
            await asyncio.sleep(SAMPLE_SECONDS)

    async def ledger(self) -> list[Entry]:
        async with self.access:
            return await self.queue.ledger()

    async def all_done(self) -> bool:
        return len({entry.task for entry in await self.ledger() if entry.what == "end"}) == len(self.added)

    async def launched(self, pool: str) -> int:
        return len(await fetch(self.deployment, "SELECT FROM provisioner.worker WHERE pool_id = $1", pool))

    async def is_counted(self) -> bool:
        """True if the newest reports are what the queue counts."""
        async with self.access:
            counts = await self.queue.counted()
        rows = await fetch(
            self.deployment,
            "SELECT pool_id, coalesce(total, pending) AS tasks FROM provisioner.demand WHERE ended_at IS NULL",
        )
        return {row["pool_id"]: row["tasks"] for row in rows} == {pool: tasks for pool, (tasks, _) in counts.items()}

    async def has_alert(self) -> bool:
        answer = await self.deployment.call("GET", "provisioner", "/alerts?open=true")
        return any(each["kind"] == "demand-source-stale" for each in answer["items"])

    async def tasks(self) -> None:
        """Add tasks in bursts, and wait until all were run."""
        rng, left = self.harness.rng, Counter(self.queue.tasks)
        while left.total():
            pool = rng.choice([name for name in sorted(left) if left[name]])
            number = min(left[pool], rng.randint(1, 4))
            left[pool] -= number
            await self.add(pool, number)
            await asyncio.sleep(rng.uniform(0.0, 2.0))
        await self.harness.until(self.all_done, f"{len(self.added)} tasks are done", within_seconds=STEP_SECONDS)

    async def outage(self) -> None:
        """Take the server away for ten product minutes, while tasks wait for machines that boot."""
        idle = self.queue.idle
        live = "SELECT FROM provisioner.worker WHERE pool_id = $1 AND state <> 'stopped'"

        async def is_quiet() -> bool:
            return await self.is_counted() and not await fetch(self.deployment, live, ONCE)

        await self.harness.until(
            is_quiet, "empty queues are counted, and no machine waits", within_seconds=STEP_SECONDS
        )
        before = await self.launched(ONCE)
        await self.add(ONCE, idle)

        async def are_launched() -> bool:
            return await self.launched(ONCE) >= before + idle

        await self.harness.until(are_launched, "machines are launched for tasks that wait", within_seconds=STEP_SECONDS)
        await self.queue.away()
        self.harness.log("the server is away")
        began = utc_now().timestamp()
        alive = "SELECT id FROM provisioner.worker WHERE pool_id = $1 AND state = 'running'"

        async def have_booted() -> bool:
            return len(await fetch(self.deployment, alive, ONCE)) >= idle

        await self.harness.until(have_booted, "idle machines wait for the queue", within_seconds=STEP_SECONDS)
        kept = {row["id"] for row in await fetch(self.deployment, alive, ONCE)}
        await self.harness.until(self.has_alert, "the stale source has its alert", within_seconds=STEP_SECONDS)
        await self.harness.product_seconds(max(0.0, AWAY_SECONDS - (utc_now().timestamp() - began) * SPEED))
        if lost := kept - {row["id"] for row in await fetch(self.deployment, alive, ONCE)}:
            self.problems.append(f"{len(lost)} idle workers were stopped while the server was away")
        ended = utc_now().timestamp()
        await self.queue.back()
        self.harness.log("the server is back")
        seen = [event.observed_at.timestamp() for event in await reports(self.deployment)]
        late = [at for at in seen if began + 2 * INTERVAL_SECONDS < at < ended]
        if late:
            self.problems.append(f"{len(late)} reports while the server was away")
        await self.harness.until(self.all_done, "all tasks are done", within_seconds=STEP_SECONDS)

        async def is_over() -> bool:
            return not await self.has_alert()

        await self.harness.until(is_over, "the alert is over, by itself", within_seconds=STEP_SECONDS)

    async def kill(self, monitors: Monitors) -> str:
        """Kill the leader of two monitors, and wait for the other one."""
        epoch = max(event.epoch or 0 for event in await reports(self.deployment))
        await asyncio.sleep(self.harness.rng.uniform(0, 2 * INTERVAL_SECONDS))
        monitors.processes[0].kill()
        self.harness.log("the leading monitor is killed")

        async def reports_again() -> bool:
            return any((event.epoch or 0) > epoch for event in await reports(self.deployment))

        await self.harness.until(reports_again, "the other monitor reports", within_seconds=STEP_SECONDS)
        found = [event for event in await reports(self.deployment) if event.pool_id == ONCE]
        again = next(event.observed_at for event in found if (event.epoch or 0) > epoch)
        last = max(event.observed_at for event in found if event.epoch == epoch)
        twice = sum((later.epoch or 0) < (earlier.epoch or 0) for earlier, later in pairwise(found))
        gap = (again - last).total_seconds() / INTERVAL_SECONDS
        if gap > 3:
            self.problems.append(f"no report for {gap:.1f} intervals")
        if twice:
            self.problems.append(f"{twice} reports of a deposed leader after those of its successor")
        return f", again after {gap:.1f} intervals, twice-led {twice}"

    async def stood(self) -> str:
        """Number of workers of each pool, state and reason, for a step that was not reached."""
        rows = await fetch(self.deployment, "SELECT pool_id, state, reason FROM provisioner.worker")
        return ", ".join(f"{number} {' '.join(each)}" for each, number in Counter(map(tuple, rows)).items())

    async def judge_reports(self) -> str:
        """Compare each report with what the queue counted itself; adds problems. Returns the figures."""
        within = INTERVAL_SECONDS + self.queue.behind_seconds
        right = wrong = unknown = 0
        for event in await reports(self.deployment):
            tasks = event.pending if event.total is None else event.total
            added_at = [at for of, at in self.added.values() if of == event.pool_id]
            count = tasks, event.claimed
            verdict = is_right(event.pool_id, count, event.observed_at, self.samples, within, added_at)
            right, wrong, unknown = right + (verdict is True), wrong + (verdict is False), unknown + (verdict is None)
            if verdict is False:
                at = event.observed_at.timestamp()
                near = [(s.asked_at - at, s.counts[event.pool_id]) for s in self.samples if abs(s.asked_at - at) < 3]
                self.problems.append(f"pool {event.pool_id} was reported to have {tasks} tasks; it had {near}")
        if right < 2 * len(POOLS):
            self.problems.append(f"only {right} reports could be compared with the queue's own counts")
        return f"reports {right + wrong + unknown}, right within an interval {right}, wrong {wrong}"

    async def surplus(self, pool: str, ended: dict[str, float]) -> int:
        """Number of surplus launches of a pool; adds problems."""
        tasks = [Task(name, at, ended.get(name, inf)) for name, (of, at) in self.added.items() if of == pool]
        rows = await fetch(self.deployment, STARTED, pool)
        machines = [
            Machine(
                str(row["id"]),
                row["requested_at"],
                min(
                    row["finished_at"] or inf,
                    min((ended.get(task, inf) for task in row["tasks"] or ()), default=inf) if pool == ONCE else inf,
                ),
            )
            for row in rows
        ]
        allowance = INTERVAL_SECONDS + self.queue.behind_seconds + DECISION_SECONDS
        found = surplus(machines, tasks, allowance)
        for machine in found:
            (row,) = (row for row in rows if str(row["id"]) == machine.worker_id)
            self.problems.append(
                f"pool {pool} needed no machine at {machine.requested_at:.1f}: {dict(row)}; "
                f"machines {[(m.requested_at, m.finished_at) for m in machines]}; "
                f"tasks {[(t.name, t.added_at, t.ended_at) for t in tasks]}"
            )
        return len(found)

    async def verdict(self) -> str:
        """The printed line; adds problems."""
        ledger, total = await self.ledger(), len(self.added)
        begun = Counter(entry.task for entry in ledger if entry.what == "begin")
        ended = {entry.task: entry.at for entry in ledger if entry.what == "end"}
        async with self.access:
            finished = await self.queue.finished()
        twice = sum(number > 1 for number in begun.values())
        lost, interrupted = total - len(ended), len(begun.keys() - ended.keys())
        more = sum([await self.surplus(pool, ended) for pool in POOLS])
        for what, number in (("twice", twice), ("lost", lost), ("interrupted", interrupted), ("surplus", more)):
            if number:
                self.problems.append(f"{what} {number}")
        if finished is not None and finished != total:
            self.problems.append(f"the queue itself has {finished} of {total} tasks as done")
        machines = {pool: len(await fetch(self.deployment, STARTED, pool)) for pool in POOLS}
        self.harness.log(
            f"machines {machines[ONCE]} for {self.numbers[ONCE]} tasks of one-task workers, "
            f"{machines[AGAIN]} for {self.numbers[AGAIN]} of reusable ones; {await self.judge_reports()}"
        )
        return (
            f"tasks {total}, run {len(ended)}, twice {twice}, lost {lost}, interrupted {interrupted}, "
            f"surplus launches {more}"
        )


async def attach(supervisor: Supervisor, name: str, seed: int, kills_monitor: bool) -> int:
    """Play a run; returns the exit code."""
    talk = partial(print, flush=True)
    began = monotonic_seconds()
    async with Harness(supervisor, seed=seed, speed=SPEED, log=talk) as harness, contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        kind, make = KINDS[name]
        queue = make(kind, folder, Random(seed))
        stack.push_async_callback(queue.close)
        deployment = harness.new_deployment(seconds=SECONDS)
        await queue.start()
        deployment.providers["process"] = {"entries": entries(deployment, queue)}
        await deployment.start()
        guard().tagged(f"{INSTANCE_TAG}={encoded(deployment.id)}/")
        await deployment.apply(declaration())
        file = folder / "sources.yaml"
        file.write_text(write({"sources": sources(queue)}))
        monitors = Monitors(deployment, queue, file, 2 if kills_monitor else 1)
        await stack.enter_async_context(monitors.running())
        playing = Run(harness, deployment, queue)
        sampling = asyncio.create_task(playing.sample())
        harness.log("started")
        set_up = monotonic_seconds()
        more = ""
        try:
            if kills_monitor:
                await harness.until(playing.is_counted, "the queues are counted", within_seconds=STEP_SECONDS)
                more = await playing.kill(monitors)
                await playing.tasks()
            else:
                await playing.tasks()
                await playing.outage()
        except NotReached as error:
            playing.problems.append(f"{error}; {await playing.stood()}")
        playing.is_sampled = False
        await sampling
        line = await playing.verdict()
        for problem in playing.problems:
            print(f"PROBLEM {problem}")
        now = monotonic_seconds()
        harness.log(f"ended after {now - began:.0f} s, {now - set_up:.0f} s of them since everything was started")
        print(line + more, flush=True)
        return 1 if playing.problems else 0


def sources(queue: AttachedQueue) -> list[dict[str, Any]]:
    """The sources of a file."""
    usual = {"kind": queue.kind, "counts": queue.counts, "interval_seconds": INTERVAL_SECONDS}
    usual |= {"claims": "hooks", "timeout_seconds": 2.0, "valid_for_seconds": VALID_SECONDS}
    return [usual | {"name": f"queue-{n}"} | settings for n, settings in enumerate(queue.sources())]


def main() -> int:
    """Run with the arguments of the environment; returns the exit code."""
    kind, kill = os.environ.get("QUEUE", "redis"), os.environ.get("KILL", "")
    if kind not in KINDS or kill not in ("", "monitor"):
        print(f"QUEUE={kind} KILL={kill}: expected QUEUE={'|'.join(KINDS)} and KILL=monitor or none", file=sys.stderr)
        return 2
    try:
        return run(lambda supervisor: attach(supervisor, kind, int(os.environ.get("SEED", "1")), kill == "monitor"))
    except NotAvailable as error:
        print(f"not run: {error}")
        return 3
    except StartFailed as error:
        print(error, file=sys.stderr)
        return 1
