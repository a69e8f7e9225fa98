"""Real workers of the provider `process` through their whole lifecycle, on the whole system: the rows, the topic, the
queue's ledger and the kernel agree on each. All stories run at the same time, so that none waits for another.
"""

import asyncio
import inspect
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import asyncpg
import msgspec
import pytest
from aiokafka import AIOKafkaConsumer

from slipway_api.percent import encoded
from slipway_common.base.clock import utc_now
from slipway_common.base.process import identities
from slipway_common.base.process.guard import guard
from slipway_common.base.process.identities import INSTANCE_TAG, Process
from slipway_common.declaration.models import Declaration
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.supervisor import Supervisor
from slipway_simulator import facts, ledger
from tests.support.folders import temporary_folder
from tests.support.harness import until
from tests.support.linux import needs_linux

pytestmark = needs_linux

AGENT: Final = [sys.executable, "-m", "slipway_client.worker"]
HOOK: Final = " ".join([*AGENT, "hook"])
JOB: Final = f"{HOOK} claimed job-1 --source mine && sleep 0.3 && {HOOK} idle"
LONG_SECONDS: Final = 40.0  # longer than an idle worker stays
# The source of both jobs is that of the launch config's settings.
JOBS: Final = (
    f"{HOOK} claimed long && {HOOK} claimed short && sleep 0.3 && {HOOK} idle && {HOOK} idle short"
    f" && sleep {LONG_SECONDS} && {HOOK} idle long"
)
# Account → its command. Each has a pool of its name.
COMMANDS: Final = {
    "killed-agent": [*AGENT, "run"],
    "killed-machine": [*AGENT, "run"],
    "drained": [*AGENT, "run"],
    "never-claims": [*AGENT, "wrap", "--", "sleep", "1000"],
    "fails": [*AGENT, "wrap", "--", "sh", "-c", "exit 3"],
    "works": [*AGENT, "wrap", "--", "sh", "-c", JOB],
    "two-jobs": [*AGENT, "wrap", "--", "sh", "-c", JOBS],
}
TASK_SECONDS: Final = 10.0
CLAIM_SECONDS: Final = 6.0
LOOK_SECONDS: Final = 0.1
SEEN_SECONDS: Final = 120.0
# Product timeouts for these stories; the graceful shutdown period covers the length of a task.
SECONDS: Final = {
    "call_timeout_seconds": 5.0,
    "visibility_seconds": 0.2,
    "boot_timeout_seconds": 60.0,
    "idle_timeout_seconds": 30.0,
    "give_up_idle_seconds": 10.0,
    "stop_grace_seconds": 40.0,
    "clock_skew_seconds": 0.5,
    "resend_seconds": 2.0,
    "reap_seconds": 0.5,
}
SETTINGS: Final = {"heartbeat_seconds": 0.5, "poll_seconds": 0.5, "stop_seconds": 5.0, "idle_exit_seconds": 60.0}


def declared(queue_url: str) -> Declaration:
    accounts = [
        {
            "id": name,
            "provider": "process",
            "region": "here",
            "credential": "none",
            "identity": socket.gethostname(),
            "lease_pool": "here",
            "settings": {"entry": name, "queue_url": queue_url, "processes_max": 3},
        }
        for name in COMMANDS
    ]
    pools = [
        {
            "id": name,
            "max_capacity": 1,
            "launch_configs": [
                {
                    "name": f"{name}-here",
                    "account": name,
                    "zone": "here",
                    "instance_type": "process",
                    "image": name,
                    "settings": SETTINGS | {"source": "mine"},
                    "task_slots": 2 if name == "two-jobs" else 1,
                }
            ],
        }
        for name in COMMANDS
    ]
    lease_pool = {
        "id": "here",
        "limit": 20,
        "hold_seconds": 60.0,
        "ttl_seconds": 30.0,
        "reserve_seconds": 20.0,
        "pacing": "off",
    }
    return Declaration.model_validate(
        {"version": 1, "lease_pools": [lease_pool], "accounts": accounts, "worker_pools": pools}
    )


class Busy(msgspec.Struct, frozen=True):
    """A worker with a task: its row, and its processes, the agent first."""

    worker: dict[str, Any]
    processes: list[Process]


class Stories:
    """The deployment, and four sources of facts about its workers."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.tag = ""  # of the deployment's instances, once it is known
        self.events: list[dict[str, Any]] = []
        self.seen: dict[str, asyncio.Task[Busy]] = {}
        self.reading: asyncio.Task[None] | None = None

    # Actions

    async def killed_agent(self) -> "Busy":
        """kill -9 of the agent alone in the middle of a task."""
        await self.tasks("killed-agent", 1)
        busy = await self.until_busy("killed-agent")
        os.kill(busy.processes[0].pid, signal.SIGKILL)
        return busy

    async def killed_machine(self) -> "Busy":
        """kill -9 of the whole instance at once, as when a machine dies."""
        await self.tasks("killed-machine", 1)
        busy = await self.until_busy("killed-machine")
        for process in busy.processes:
            identities.send(process.identity, signal.SIGKILL)
        return busy

    async def drained(self) -> "Busy":
        """Terminate the worker in the middle of a task."""
        await self.tasks("drained", 2)
        busy = await self.until_busy("drained")
        path = f"/workers/{busy.worker['id']}/terminate"
        answer = await self.deployment.call("POST", "provisioner", path, {"reason": "the drill"})
        assert answer["state"] == "stopping"
        return busy

    async def tasks(self, pool: str, count: int) -> None:
        body = {"pool_id": pool, "count": count, "duration_seconds": TASK_SECONDS}
        await self.deployment.call("POST", "simulator", "/tasks", body)

    async def demand(self, pool: str, pending: int) -> None:
        """Report demand for tasks that the queue does not hand out: those of agents with a queue of their own."""
        body = {"pending": pending, "claimed": 0, "source": "mine", "observed_at": utc_now().isoformat()}
        await self.deployment.call("PUT", "provisioner", f"/pools/{pool}/demand", body)

    # Observations

    async def read(self) -> None:
        """Consume the lifecycle topic forever."""
        topic = self.deployment.prefix + "slipway.worker.lifecycle.v1"
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=self.deployment.kafka, auto_offset_reset="earliest", group_id=None
        )
        await consumer.start()
        try:
            async for record in consumer:
                kind = dict(record.headers)["ce_type"].decode().split(".")[-2]
                self.events.append({"event": kind} | msgspec.json.decode(record.value))
        finally:
            await consumer.stop()

    def events_of(self, worker_id: str) -> list[str]:
        """Published events of a worker, in order, without delays of its launch: a busy machine adds some."""
        kinds = [event["event"] for event in self.events if event["worker_id"] == worker_id]
        return [kind for kind in kinds if kind != "delayed"]

    def event(self, worker_id: str, kind: str) -> dict[str, Any]:
        (found,) = [event for event in self.events if (event["worker_id"], event["event"]) == (worker_id, kind)]
        return found

    async def until_published(self, worker_id: str, last: str) -> list[str]:
        """Published events of a worker, once `last` is among them; a launch always after its request."""

        def published() -> bool:
            if self.reading and self.reading.done():
                self.reading.result()
            return last in self.events_of(worker_id)

        await see(published, f"{last} of {worker_id}")
        events = self.events_of(worker_id)
        if "launched" in events:  # the machine may be faster than the answer of its provider
            events.remove("launched")
            events.insert(1, "launched")
        return events

    async def rows(self, pool: str) -> list[dict[str, Any]]:
        """The workers of a pool, the oldest first."""
        answer = await self.deployment.call("GET", "provisioner", f"/workers?pool={pool}")
        return sorted(answer["items"], key=lambda worker: str(worker["id"]))

    async def first(self, pool: str) -> dict[str, Any]:
        """A pool's first worker, once it has an instance."""

        async def launched() -> dict[str, Any] | None:
            rows = await self.rows(pool)
            return rows[0] if rows and rows[0]["instance_id"] else None

        found: dict[str, Any] = await see(launched, f"an instance in {pool}")
        return found

    async def until_stopped(self, worker: dict[str, Any]) -> dict[str, Any]:
        """The worker's row, once it has stopped."""

        async def ended() -> dict[str, Any] | None:
            row: dict[str, Any] = await self.deployment.call("GET", "provisioner", f"/workers/{worker['id']}")
            return row if row["state"] == "stopped" else None

        found: dict[str, Any] = await see(ended, f"{worker['id']} ends")
        return found

    async def claims(self, worker: dict[str, Any]) -> list[tuple[str, str, bool]]:
        """Claims of a worker, by the provisioner's rows: (source, task, ended)."""
        db = await asyncpg.connect(self.deployment.database_url)
        try:
            rows = await db.fetch(
                "SELECT source, task_id, ended_at IS NOT NULL AS over FROM provisioner.claim WHERE worker_id = $1 "
                "ORDER BY started_at",
                worker["id"],
            )
            return [(row["source"], row["task_id"], row["over"]) for row in rows]
        finally:
            await db.close()

    def processes(self, worker: dict[str, Any]) -> list[Process]:
        """Processes of a worker's instance, the leader first, by the kernel."""
        return identities.tagged(INSTANCE_TAG, self.tag + encoded(worker["account_id"], worker["batch_id"]) + "/")

    def ledger(self, pool: str) -> list[facts.TaskClaimed | facts.TaskEnded]:
        """Claims and ends of a pool's tasks, by the queue's ledger."""
        return [
            fact
            for fact in ledger.read(self.deployment.ledger)
            if isinstance(fact, facts.TaskClaimed | facts.TaskEnded) and fact.pool_id == pool
        ]

    async def until_ended(self, pool: str, results: Sequence[str]) -> list[facts.TaskClaimed | facts.TaskEnded]:
        """The queue's ledger, once tasks of the pool have ended with these results."""

        def ends() -> list[str]:
            return [fact.result for fact in self.ledger(pool) if isinstance(fact, facts.TaskEnded)]

        await see(lambda: ends()[: len(results)] == list(results), f"tasks of {pool} end: {results}")
        return self.ledger(pool)

    async def second_run(self, pool: str, *, first: dict[str, Any]) -> str:
        """The worker on which the pool's task was done, after it was interrupted on its first."""
        claims_ended = await self.until_ended(pool, ["interrupted", "done"])
        claims = [(fact.task_id, fact.worker_id) for fact in claims_ended if isinstance(fact, facts.TaskClaimed)]
        (task_id, worker_id), (again_id, other_id) = claims
        assert (task_id, worker_id) == (again_id, first["id"])
        assert other_id in {row["id"] for row in await self.rows(pool)} - {worker_id}
        return other_id

    async def until_busy(self, pool: str) -> Busy:
        """A pool's first worker, once its task runs and the provisioner knows the claim."""
        worker = await self.first(pool)

        async def busy() -> Busy | None:
            now = self.processes(worker)
            return Busy(worker, now) if len(now) == 2 and await self.claims(worker) else None

        found: Busy = await see(busy, f"a task runs on {worker['id']}")
        return found

    async def exit_code(self, worker: dict[str, Any]) -> int:
        """Exit code of a worker's process, from the log of its parent, the provisioner."""
        pid = int(worker["instance_id"].partition("-")[0])
        log = self.deployment.folder / "provisioner.log"

        def logged() -> list[int]:
            ends = (line for line in log.read_bytes().splitlines() if b"process ended" in line)
            return [end["exit_code"] for end in map(msgspec.json.decode, ends) if end["pid"] == pid]

        (code,) = await see(logged, f"the end of {pid} is logged")
        return int(code)


async def see(condition: Callable[[], Any], what: str = "") -> Any:
    """Like `until` with a longer interval: each check costs CPU that the workers need."""

    async def look() -> Any:
        answer = condition()
        answer = await answer if inspect.isawaitable(answer) else answer
        if not answer:
            await asyncio.sleep(LOOK_SECONDS)
        return answer

    return await until(look, what, seconds=SEEN_SECONDS)


@pytest.fixture(scope="module")
async def stories() -> AsyncIterator[Stories]:
    """Everything is started, and each pool has its tasks."""
    with temporary_folder() as folder:
        async with Supervisor() as supervisor:
            deployment = Deployment(supervisor, folder, speed=1.0, seconds=SECONDS)
            entries = {name: {"command": command} for name, command in COMMANDS.items()}
            deployment.providers["process"] = {"entries": entries}
            stories = Stories(deployment)
            await deployment.start()
            stories.tag = encoded(deployment.id) + "/"
            guard().tagged(f"{INSTANCE_TAG}={stories.tag}")
            await deployment.call(
                "POST", "simulator", "/scenario", {"speed": 1.0, "report_seconds": 1.0, "claim_seconds": CLAIM_SECONDS}
            )
            await deployment.apply(declared(deployment.url("simulator") + "/queue"))
            stories.reading = asyncio.create_task(stories.read())
            deeds = [stories.killed_agent, stories.killed_machine, stories.drained]
            stories.seen = {deed.__name__: asyncio.create_task(deed()) for deed in deeds}
            for pool in ("never-claims", "fails", "works", "two-jobs"):
                await stories.demand(pool, 1)
            yield stories
            tasks: list[asyncio.Task[Any]] = [stories.reading, *stories.seen.values()]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            # The provisioner first, or it would launch others.
            await supervisor.kill("provisioner")
            for process in identities.tagged(INSTANCE_TAG, stories.tag):
                identities.send(process.identity, signal.SIGKILL)
            await deployment.remove()


async def test_killed_agent(stories: Stories) -> None:
    """The worker is lost and its claim closed; its task's process is found by the tag and terminated, and the task runs
    again on another worker."""
    busy = await stories.seen["killed_agent"]
    worker, (agent, task) = busy.worker, busy.processes
    assert (agent.identity, task.session) == (worker["instance_id"], agent.pid)
    row = await stories.until_stopped(worker)
    assert row["reason"] == "instance is gone"
    assert await stories.until_published(worker["id"], "lost") == [
        "requested",
        "launched",
        "registered",
        "claimed",
        "lost",
    ]
    assert await stories.claims(worker) == [("simulator", "killed-agent-1", True)]
    await see(lambda: stories.processes(worker) == [], "the task's process is gone too")
    assert not identities.alive(task.identity)
    again = await stories.second_run("killed-agent", first=worker)
    assert (await stories.until_published(again, "claimed"))[:4] == ["requested", "launched", "registered", "claimed"]
    assert await stories.exit_code(worker) == -signal.SIGKILL


async def test_killed_machine(stories: Stories) -> None:
    """The worker is lost, and the task runs again on another."""
    worker = (await stories.seen["killed_machine"]).worker
    await stories.until_stopped(worker)
    assert await stories.until_published(worker["id"], "lost") == [
        "requested",
        "launched",
        "registered",
        "claimed",
        "lost",
    ]
    assert await stories.claims(worker) == [("simulator", "killed-machine-1", True)]
    assert stories.processes(worker) == []
    await stories.second_run("killed-machine", first=worker)


async def test_drain_between_jobs(stories: Stories) -> None:
    """The task ends normally, no other is taken although one waits, and the worker exits with 0."""
    worker = (await stories.seen["drained"]).worker
    row = await stories.until_stopped(worker)
    assert "the drill" in row["reason"]
    events = await stories.until_published(worker["id"], "stopped")
    # A worker drained during its task reports no idle; one drained by the answer to that report has sent it.
    assert [event for event in events if event != "idle"] == [
        "requested",
        "launched",
        "registered",
        "claimed",
        "stopping",
        "stopped",
    ]
    assert await stories.exit_code(worker) == 0
    ended = await stories.until_ended("drained", ["done", "done"])
    mine = [fact for fact in ended if fact.instance_id == worker["instance_id"]]
    assert [(type(fact), fact.task_id) for fact in mine] == [
        (facts.TaskClaimed, "drained-1"),
        (facts.TaskEnded, "drained-1"),
    ]
    (end,) = [fact for fact in mine if isinstance(fact, facts.TaskEnded)]
    assert (end.exit_code, end.at - mine[0].at >= TASK_SECONDS) == (0, True)
    assert stories.processes(worker) == []


async def test_an_agent_that_never_claims(stories: Stories) -> None:
    """Idle while tasks wait: terminated as a failed claim; its agent exits, and no process is left."""
    worker = await stories.first("never-claims")
    await stories.until_stopped(worker)
    await stories.demand("never-claims", 0)
    events = await stories.until_published(worker["id"], "stopped")
    assert events == ["requested", "launched", "registered", "stopping", "stopped"]
    stopping = stories.event(worker["id"], "stopping")
    outcome = {name: stopping["outcome"][name] for name in ("stage", "result", "code")}
    assert outcome == {"stage": "claim", "result": "failed", "code": "never_claimed"}
    assert await stories.exit_code(worker) == 128 + signal.SIGTERM
    assert stories.processes(worker) == []


async def test_an_agent_that_fails(stories: Stories) -> None:
    """The failure is published, and the worker exits with the agent's code."""
    worker = await stories.first("fails")
    await stories.demand("fails", 0)
    await stories.until_stopped(worker)
    events = await stories.until_published(worker["id"], "stopped")
    assert events == ["requested", "launched", "registered", "error_reported", "stopped"]
    error = stories.event(worker["id"], "error_reported")
    assert (error["kind"], error["detail"]) == ("agent_exited", "exit code 3")
    assert await stories.exit_code(worker) == 3


async def test_hooks_of_an_agent_are_reported(stories: Stories) -> None:
    """Calls of its hooks become events."""
    worker = await stories.first("works")
    await stories.demand("works", 0)
    await stories.until_stopped(worker)
    events = await stories.until_published(worker["id"], "stopped")
    assert events == ["requested", "launched", "registered", "claimed", "idle", "stopped"]
    claimed = stories.event(worker["id"], "claimed")
    assert (claimed["task_id"], claimed["source"]) == ("job-1", "mine")
    assert await stories.claims(worker) == [("mine", "job-1", True)]
    assert await stories.exit_code(worker) == 0


async def test_two_jobs_at_once(stories: Stories) -> None:
    """The end of the short one leaves the long one: the worker is busy, although nothing waits, and leaves at its end
    at the earliest. By then it is surplus, and may have been asked to."""
    worker = await stories.first("two-jobs")
    await stories.demand("two-jobs", 0)
    await stories.until_stopped(worker)
    events = await stories.until_published(worker["id"], "stopped")
    assert events[:6] == ["requested", "launched", "registered", "claimed", "claimed", "idle"]
    assert events[6:] in (["stopped"], ["stopping", "stopped"])
    assert await stories.claims(worker) == [("mine", "long", True), ("mine", "short", True)]
    assert await stories.exit_code(worker) == 0
