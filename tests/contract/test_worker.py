"""`slipway-worker` as its provisioner, its queue and its agent see it: real processes against the provisioner's real
routes on a real database. The queue is a stub that each test controls."""

import asyncio
import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest
import uvicorn
from fastapi import FastAPI, Response

from slipway_client.worker.machine import DISABLED, ENDPOINT
from slipway_common.base.clock import utc_now
from slipway_common.base.ids import hash_secret, new_id
from slipway_common.base.process import identities
from slipway_common.events.worker import WorkerClaimed, WorkerErrorReported, WorkerIdle, WorkerRegistered, WorkerStopped
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.cloud import Account, Instance, InstanceState
from slipway_provisioner.domain.identity import Attested, Proof
from slipway_provisioner.domain.registration import batch_secret
from slipway_provisioner.domain.workers import Worker
from tests.support.harness import PATIENCE_SECONDS, until
from tests.support.imds import INSTANCE_ID, FakeImds, fake_imds
from tests.support.provisioner import KEY, Provisioner, declared, provisioner_on, revision_id

AGENT: Final = [sys.executable, "-m", "slipway_client.worker"]
HOOK: Final = " ".join([*AGENT, "hook"])
TAG: Final = "SLIPWAY_TEST_WORKER"
EVENTS: Final[dict[Any, str]] = {
    WorkerRegistered: "registered",
    WorkerClaimed: "claimed",
    WorkerIdle: "idle",
    WorkerErrorReported: "error",
    WorkerStopped: "stopped",
}
# Tokens and secrets are of 43 and 64 of these.
SECRET_LIKE: Final = re.compile(r"[A-Za-z0-9_-]{43,64}")


class Queue:
    """Hands out `commands` in order and records its calls. `lost`: every claim is lost."""

    def __init__(self) -> None:
        self.commands: deque[list[str]] = deque()
        self.calls: list[tuple[str, Any]] = []
        self.lost = False
        self.claims = 0
        self.claim_seconds = 30.0
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}/queue"
        self.app = FastAPI()
        self.app.post("/queue/linux/claim")(self.claim)
        self.app.post("/queue/linux/tasks/{task_id}/{what}")(self.receive)

    async def claim(self, body: dict[str, Any]) -> Any:
        self.claims += 1
        if not self.commands:
            await asyncio.sleep(0.05)
            return Response(status_code=204)
        task_id = f"task-{sum(what == 'claim' for what, _ in self.calls) + 1}"
        self.calls.append(("claim", task_id))
        return {
            "task_id": task_id,
            "command": self.commands.popleft(),
            "source": "q",
            "claim_seconds": self.claim_seconds,
        }

    async def receive(self, task_id: str, what: str, body: dict[str, Any]) -> Any:
        if self.lost:
            return Response(status_code=409)
        if what == "finish":
            self.calls.append((task_id, body["exit_code"]))
        return {}


class Agent:
    """A `slipway-worker` in a session of its own, as a provider starts it."""

    def __init__(self, process: asyncio.subprocess.Process, tag: str) -> None:
        self.process = process
        self.tag = tag
        self.output = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    async def until_printed(self, text: str) -> None:
        """Read its output, and that of its children, until `text`; output is kept."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            while text.encode() not in self.output:
                line = await self.process.stdout.readline()
                assert line, f"it exited without {text!r}: {self.output.decode()}"
                self.output += line

    async def end(self) -> int:
        """Wait for its exit code; output is kept."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert self.process.stdout is not None
            self.output += await self.process.stdout.read()
            return await self.process.wait()

    def processes(self) -> list[int]:
        """Processes that carry its tag, itself included."""
        return [process.pid for process in identities.tagged(TAG, self.tag)]

    def groups(self) -> dict[int, int]:
        """Process group of each process that still exists."""
        found = {}
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                found[pid] = os.getpgid(pid)
        return found

    def task(self) -> int:
        """Leader of the task's process group once it runs the task's program; 0 before."""
        for pid, group in self.groups().items():
            if pid == group != self.pid and "SLIPWAY_TASK_ID" in environment(pid):
                return pid
        return 0


class Scene:
    """One worker whose launch call is in progress, with the provisioner and the queue that it will call."""

    def __init__(self, provisioner: Provisioner, queue: Queue, folder: Path) -> None:
        self.provisioner = provisioner
        self.queue = queue
        self.folder = folder
        (self.port,) = free_ports(1)
        self.batch_id = ""
        self.agents: list[Agent] = []

    @contextlib.asynccontextmanager
    async def serving(self, network: Callable[[Any], Any] = lambda app: app) -> AsyncIterator[None]:
        """Serve the provisioner through that network."""
        config = uvicorn.Config(network(self.provisioner.app), port=self.port, log_config=None, lifespan="off")
        async with serving(config):
            yield

    async def start(self, *arguments: str, secret: str = "", imds: FakeImds | None = None, **settings: Any) -> Agent:
        user_data = {
            "register_url": f"http://127.0.0.1:{self.port}",
            "batch_id": self.batch_id,
            "secret": secret or batch_secret(KEY, self.batch_id),
            "queue_url": self.queue.url,
            "settings": {"poll_seconds": 0.2, "heartbeat_seconds": 0.2} | settings,
        }
        tag = new_id()
        process = await asyncio.create_subprocess_exec(
            *AGENT,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {TAG: tag, "TMPDIR": str(self.folder)} | imds_environment(imds),
        )
        self.agents.append(Agent(process, tag))
        assert process.stdin is not None
        process.stdin.write(json.dumps(user_data).encode())
        process.stdin.close()
        return self.agents[-1]

    async def worker(self) -> Worker:
        return await self.provisioner.worker()

    async def state(self) -> str:
        return str((await self.worker()).state)

    async def state_is(self, state: str) -> bool:
        return await self.state() == state

    async def published(self) -> list[str]:
        """Events that the provisioner published for the worker's reports, in order."""
        rows = await self.provisioner.database.fetch("SELECT type FROM outbox ORDER BY id")
        names = {kind.type: name for kind, name in EVENTS.items()}
        return [names[row["type"]] for row in rows if row["type"] in names]

    async def replace_revision(self) -> None:
        """Declare another image: the worker's revision drains."""
        body = declared()
        body["worker_pools"][0]["launch_configs"][0]["image"] = "linux-2"
        await self.provisioner.declare(body, strategy="now")

    async def drain_worker(self) -> None:
        await self.provisioner.database.execute("UPDATE worker SET state = 'stopping', reason = 'test'")


def imds_environment(imds: FakeImds | None) -> dict[str, str]:
    return {} if imds is None else {ENDPOINT: imds.url, DISABLED: "false"}


@contextlib.asynccontextmanager
async def serving(config: uvicorn.Config) -> AsyncIterator[None]:
    server = uvicorn.Server(config)
    server.capture_signals = no_signals  # type: ignore[method-assign] # the test's own
    serve = asyncio.create_task(server.serve())
    await until(lambda: server.started, "the server has started")
    try:
        yield
    finally:
        server.should_exit = True
        await serve


def losing_answers(app: Any) -> Any:
    """A network that loses the first of two answers to the same kind of request."""
    seen: Counter[str] = Counter()

    async def lossy(scope: Any, receive: Any, send: Any) -> None:
        seen[scope["path"]] += 1
        lost = seen[scope["path"]] % 2

        async def answer(message: Any) -> None:
            if lost and message["type"] == "http.response.start":
                message = message | {"status": 503}
            await send(message)

        await app(scope, receive, answer)

    return lossy


@contextlib.contextmanager
def no_signals() -> Iterator[None]:
    yield


@pytest.fixture
async def scene(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[Scene]:
    queue = Queue()
    async with (
        provisioner_on(postgres) as provisioner,
        serving(uvicorn.Config(queue.app, port=queue.port, log_config=None, lifespan="off")),
    ):
        provisioner.cloud.hold = (
            asyncio.Event()
        )  # no reply of the provider: the worker that registers names its instance
        await provisioner.admitted()
        await provisioner.launcher.launch_next(provisioner.database)
        await provisioner.follow_the_host(ahead_seconds=60)
        scene = Scene(provisioner, queue, tmp_path)
        scene.batch_id = (await scene.worker()).batch_id or ""
        yield scene
        for agent in scene.agents:
            for process in identities.tagged(TAG, agent.tag):
                identities.send(process.identity, signal.SIGKILL)
            await agent.process.wait()


def environment(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(variable.partition("=")[::2] for variable in text.split("\0") if variable)


async def test_a_worker_with_two_tasks(scene: Scene) -> None:
    """Registers under its own identity, runs one task after the other in a group of its own, reports in order, leaves.
    Its tasks' output is its own; secret and token stand in no environment, no argument and no output."""
    scene.queue.commands += [
        ["sh", "-c", "echo out of $SLIPWAY_TASK_ID; sleep 600 & read line; echo read $?; exit 3"],
        ["sh", "-c", "until [ -e $0/go ]; do sleep 0.02; done", str(scene.folder)],
    ]
    async with scene.serving():
        agent = await scene.start("run", tasks_per_worker=2)
        own = identities.identity(agent.pid)
        await until(lambda: ("claim", "task-2") in scene.queue.calls, "the second task runs")
        task = await until(agent.task)
        assert (os.getsid(task), environment(task)["SLIPWAY_TASK_ID"]) == (agent.pid, "task-2")
        await until(
            lambda: {pid for pid, group in agent.groups().items() if group != task} == {agent.pid}, "it is alone"
        )
        seen = "".join(
            Path(f"/proc/{pid}/{what}").read_text() for pid in (agent.pid, task) for what in ("environ", "cmdline")
        )
        worker = await scene.worker()
        assert (worker.instance_id, worker.state) == (own, "running")
        (scene.folder / "go").touch()
        assert await agent.end() == 0
    assert scene.queue.calls == [("claim", "task-1"), ("task-1", 3), ("claim", "task-2"), ("task-2", 0)]
    assert await scene.published() == ["registered", "claimed", "idle", "claimed", "stopped"]
    assert (await scene.worker()).state == "stopped"
    output = agent.output.decode()
    assert "out of task-1\nread 1\n" in output
    secrets = {batch_secret(KEY, scene.batch_id), worker.token_sha256}
    for word in SECRET_LIKE.findall(seen + output):
        assert not {word, hash_secret(word)} & secrets


async def test_reports_are_sent_when_the_provisioner_is_back(scene: Scene) -> None:
    """The provisioner is unavailable before the registration, and again while the task begins and ends: the task
    continues, and the reports arrive in order with the times at which they were true."""
    agent = await scene.start("run", tasks_per_worker=2)
    async with scene.serving():
        await until(lambda: scene.queue.claims, "it has registered and claims tasks")
    scene.queue.commands.append(["true"])
    await until(lambda: ("task-1", 0) in scene.queue.calls)
    assert await scene.published() == ["registered"]
    scene.queue.commands.append(["true"])
    calls_at: list[datetime] = []

    def timed(app: Any) -> Any:
        async def call(scope: Any, receive: Any, send: Any) -> None:
            calls_at.append(utc_now())
            await app(scope, receive, send)

        return call

    async with scene.serving(timed):
        assert await agent.end() == 0
    assert await scene.published() == ["registered", "claimed", "idle", "claimed", "stopped"]
    first, second = await scene.provisioner.database.fetch("SELECT started_at, ended_at FROM claim ORDER BY started_at")
    assert first["started_at"] < first["ended_at"] < calls_at[0]
    assert first["ended_at"] < second["started_at"] <= second["ended_at"]
    assert b"provisioner unavailable" in agent.output


async def test_lost_answers_double_nothing(scene: Scene) -> None:
    """Every call takes effect, and every first answer is lost: a retry changes nothing."""
    scene.queue.commands += [["true"], ["true"]]
    async with scene.serving(losing_answers):
        agent = await scene.start("run", tasks_per_worker=2)
        assert await agent.end() == 0
    assert await scene.published() == ["registered", "claimed", "idle", "claimed", "stopped"]
    tasks = await scene.provisioner.database.fetch("SELECT task_id FROM claim ORDER BY started_at")
    assert [row["task_id"] for row in tasks] == ["task-1", "task-2"]


async def test_a_lost_claim_ends_the_task(scene: Scene) -> None:
    """The claim was given to another worker: the task's whole group is terminated, and the worker continues."""
    scene.queue.commands.append(["sh", "-c", "trap '' TERM; sleep 600 & wait; sleep 600"])
    scene.queue.claim_seconds = 6.0
    async with scene.serving():
        agent = await scene.start("run", tasks_per_worker=1, stop_seconds=0.3)
        await until(lambda: len(agent.processes()) == 3, "the task and its child run")
        scene.queue.lost = True
        await until(lambda: agent.processes() == [agent.pid], "the task's group has ended")
        scene.queue.lost = False
        scene.queue.commands.append(["true"])
        assert await agent.end() == 0
    assert await scene.published() == ["registered", "claimed", "idle", "claimed", "stopped"]
    assert scene.queue.calls == [("claim", "task-1"), ("claim", "task-2"), ("task-2", 0)]


async def test_a_draining_worker_finishes_its_task_first(scene: Scene) -> None:
    """No other task is claimed, although one waits."""
    os.mkfifo(scene.folder / "go")
    scene.queue.commands += [["cat", str(scene.folder / "go")], ["sleep", "600"]]
    async with scene.serving():
        agent = await scene.start("run")
        await until(lambda: len(agent.processes()) == 2)
        await scene.drain_worker()
        await agent.until_printed("leaving, as requested by the provisioner: test")
        assert len(agent.processes()) == 2
        (scene.folder / "go").write_text("")
        assert await agent.end() == 0
    assert scene.queue.calls == [("claim", "task-1"), ("task-1", 0)]
    assert await scene.published() == ["registered", "claimed", "stopped"]


@pytest.mark.parametrize("arguments", [("run",), ("wrap",)], ids=["run", "wrap"])
async def test_a_worker_of_a_replaced_revision_leaves_after_its_task(scene: Scene, arguments: tuple[str, ...]) -> None:
    """Its revision drains: it finishes its task, takes no other one, and names the revision as the reason."""
    os.mkfifo(scene.folder / "go")
    task = ["cat", str(scene.folder / "go")]
    scene.queue.commands += [task, ["sleep", "600"]]
    script = (
        f"{HOOK} claimed --task task-1; {' '.join(task)}; {HOOK} draining; {HOOK} idle; while :; do sleep 0.05; done"
    )
    wrapped = ("--", "sh", "-c", script) if arguments == ("wrap",) else ()
    async with scene.serving():
        agent = await scene.start(*arguments, *wrapped)
        await until(lambda: scene.provisioner.database.fetchval("SELECT count(*) FROM claim"))
        await scene.replace_revision()
        await agent.until_printed(f"leaving, as requested by the provisioner: {revision_id()} drains")
        (scene.folder / "go").write_text("")
        assert await agent.end() == (128 + signal.SIGTERM if wrapped else 0)
    assert wrapped or scene.queue.calls == [("claim", "task-1"), ("task-1", 0)]
    assert not wrapped or f"leave: {revision_id()} drains".encode() in agent.output
    assert (await scene.published())[-1] == "stopped"


@pytest.mark.parametrize("arguments", [("run",), ("wrap",)], ids=["run", "wrap"])
async def test_a_machine_that_its_provider_takes_back(scene: Scene, arguments: tuple[str, ...]) -> None:
    """It registers by the id of its instance. After a notice it finishes its task, takes no other one, and leaves: the
    provisioner knows the reason."""
    os.mkfifo(scene.folder / "go")
    task = ["cat", str(scene.folder / "go")]
    scene.queue.commands += [task, ["sleep", "600"]]
    script = f"{HOOK} claimed --task task-1; {' '.join(task)}; {HOOK} idle; while :; do sleep 0.05; done"
    wrapped = ("--", "sh", "-c", script) if arguments == ("wrap",) else ()
    async with fake_imds() as imds, scene.serving():
        agent = await scene.start(*arguments, *wrapped, imds=imds)
        await until(lambda: scene.provisioner.database.fetchval("SELECT count(*) FROM claim"))
        assert (await scene.worker()).instance_id == INSTANCE_ID
        imds.recommend_rebalance()
        await agent.until_printed("leaving after the current task: the provider recommends replacing the machine")
        await until(lambda: scene.state_is("stopping"))
        (scene.folder / "go").write_text("")
        assert await agent.end() == (128 + signal.SIGTERM if wrapped else 0)
    worker = await scene.worker()
    assert (worker.state, worker.notice) == ("stopped", "rebalance")
    assert worker.reason == "its provider recommends replacing the machine in zone euw1-az2"
    assert wrapped or scene.queue.calls == [("claim", "task-1"), ("task-1", 0)]
    assert (await scene.published())[-1] == "stopped"


async def test_a_task_ends_with_its_machine(scene: Scene) -> None:
    """The machine ends at once: its task is terminated, and not finished at the queue, where it waits again."""
    scene.queue.commands.append(["sleep", "600"])
    async with fake_imds() as imds, scene.serving():
        agent = await scene.start("run", imds=imds)
        await until(lambda: scene.provisioner.database.fetchval("SELECT count(*) FROM claim"))
        imds.interrupt(utc_now().strftime("%Y-%m-%dT%H:%M:%SZ"))
        assert await agent.end() == 0
    assert scene.queue.calls == [("claim", "task-1")]
    assert await scene.published() == ["registered", "claimed", "stopped"]
    assert (await scene.worker()).notice == "interruption"


async def test_a_second_signal_ends_the_task(scene: Scene) -> None:
    """The first signal lets the task go on. A terminated task is not finished at the queue, so that it waits again."""
    scene.queue.commands.append(["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done"])
    async with scene.serving():
        agent = await scene.start("run", stop_seconds=60)
        await until(lambda: len(agent.processes()) > 1)
        agent.process.send_signal(signal.SIGTERM)
        await agent.until_printed("got SIGTERM; leaving after the current task")
        await until(lambda: scene.provisioner.database.fetchval("SELECT count(*) FROM claim"))
        assert len(agent.processes()) > 1
        agent.process.send_signal(signal.SIGTERM)
        assert await agent.end() == 0
    assert scene.queue.calls == [("claim", "task-1")]
    assert await scene.published() == ["registered", "claimed", "stopped"]
    assert agent.processes() == []


@pytest.mark.parametrize(
    ("break_it", "text"),
    [("secret", "401 The secret does not match the batch"), ("orphan", "409 The instance is an orphan")],
)
async def test_a_refused_worker_leaves(scene: Scene, break_it: str, text: str) -> None:
    """The output holds the provisioner's refusal and no secret."""
    if break_it == "orphan":
        await scene.provisioner.database.execute("UPDATE worker SET instance_id = 'another'")
    async with scene.serving():
        agent = await scene.start("run", secret="not-this-one" if break_it == "secret" else "")
        assert await agent.end() == 1
    assert text in agent.output.decode()
    assert b"not-this-one" not in agent.output
    assert batch_secret(KEY, scene.batch_id).encode() not in agent.output


async def test_a_worker_that_was_stopped_by_the_provisioner_terminates_its_task(scene: Scene) -> None:
    """410: the worker's row has stopped."""
    scene.queue.commands.append(["sleep", "600"])
    async with scene.serving():
        agent = await scene.start("run")
        await until(lambda: len(agent.processes()) == 2)
        await scene.provisioner.database.execute("UPDATE worker SET state = 'stopped', reason = 'given up'")
        assert await agent.end() == 1
    assert "410 The worker has stopped: given up" in agent.output.decode()
    assert agent.processes() == []


async def test_without_a_provisioner_it_gives_up(scene: Scene) -> None:
    agent = await scene.start("run", give_up_seconds=0.5)
    assert await agent.end() == 1
    assert b"giving up: the provisioner has not answered for 0.5 s" in agent.output


async def test_without_tasks_it_leaves(scene: Scene) -> None:
    async with scene.serving():
        agent = await scene.start("run", idle_exit_seconds=0.3)
        assert await agent.end() == 0
    assert await scene.published() == ["registered", "stopped"]


async def test_a_task_that_cannot_be_started_has_ended(scene: Scene) -> None:
    """Exit codes as in a shell: 127 if it is not found, 126 if it is not executable."""
    scene.queue.commands += [["no-such-program"], ["/"], []]
    async with scene.serving():
        agent = await scene.start("run", tasks_per_worker=3)
        assert await agent.end() == 0
    ends = [("task-1", 127), ("task-2", 126), ("task-3", 126)]
    assert [call for call in scene.queue.calls if call[0] != "claim"] == ends
    assert b"cannot start no-such-program: No such file or directory" in agent.output


# wrap


async def test_an_agent_and_its_hooks(scene: Scene) -> None:
    """Claims and ends of the hooks are reported in order, and `draining` answers; no secret reaches the agent, its
    socket is accessible to its user only, and is removed."""
    script = (
        f"{HOOK} draining; echo draining $?; {HOOK} claimed --task job-1 --source mine; {HOOK} idle; {HOOK} idle; "
        f"{HOOK} claimed --task ''; echo empty $?; read line; echo read $?; env | sort; "
        "until [ -e $0/go ]; do sleep 0.02; done"
    )
    async with scene.serving():
        agent = await scene.start("wrap", "--", "sh", "-c", script, str(scene.folder))
        await until(lambda: len(agent.processes()) > 1)
        (folder,) = await until(lambda: list(scene.folder.glob("slipway-worker-*")))
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        await until(
            lambda: scene.provisioner.database.fetchval("SELECT count(*) FROM claim WHERE ended_at IS NOT NULL")
        )
        worker = await scene.worker()
        (scene.folder / "go").touch()
        assert await agent.end() == 0
    assert await scene.published() == ["registered", "claimed", "idle", "stopped"]
    claim = await scene.provisioner.database.fetchrow("SELECT source, task_id FROM claim")
    assert claim is not None
    assert tuple(claim) == ("mine", "job-1")
    output = agent.output.decode()
    assert "continue\ndraining 1\n" in output
    assert "the job id is empty\nempty 1\nread 1\n" in output
    assert f"SLIPWAY_WORKER_SOCKET={folder}/" in output
    assert list(scene.folder.glob("slipway-worker-*")) == []
    secrets = {batch_secret(KEY, scene.batch_id), worker.token_sha256}
    for word in SECRET_LIKE.findall(output):
        assert not {word, hash_secret(word)} & secrets


async def test_two_jobs_at_once(scene: Scene) -> None:
    """Each ends by its name, with the source of the settings; without one neither does, and the hook says so. The hooks
    get pool and source in their environment, and no task of another agent."""
    await scene.provisioner.database.execute("UPDATE worker SET task_slots = 2")
    script = (
        f"{HOOK} claimed long; {HOOK} claimed short --source other; {HOOK} idle; echo unnamed $?; "
        f"SLIPWAY_TASK_ID=short {HOOK} idle; echo ended $?; env | sort; "
        f"until [ -e $0/go ]; do sleep 0.02; done; {HOOK} idle"
    )
    ended = (
        "SELECT string_agg(task_id || ' of ' || source, ', ' ORDER BY task_id) FROM claim WHERE ended_at IS NOT NULL"
    )
    async with scene.serving():
        agent = await scene.start("wrap", "--", "sh", "-c", script, str(scene.folder), source="mine")
        assert await until(lambda: scene.provisioner.database.fetchval(ended)) == "short of other"
        assert (await scene.worker()).idle_since is None
        (scene.folder / "go").touch()
        assert await agent.end() == 0
    assert await scene.provisioner.database.fetchval(ended) == "long of mine, short of other"
    assert await scene.published() == ["registered", "claimed", "claimed", "idle", "stopped"]
    output = agent.output.decode()
    assert "several jobs run, so name the one that has ended: long, short\nunnamed 0\nended 0\n" in output
    for variable in ("SLIPWAY_POOL_ID=linux", "SLIPWAY_SOURCE=mine", "SLIPWAY_TASK_ID="):
        assert f"\n{variable}\n" in output


async def test_a_hook_without_its_environment(scene: Scene) -> None:
    """A job that runs in a clean environment counts under the worker's source, not another one."""
    script = f'env -i SLIPWAY_WORKER_SOCKET="$SLIPWAY_WORKER_SOCKET" {HOOK} claimed --task a; exit 0'
    async with scene.serving():
        agent = await scene.start("wrap", "--", "sh", "-c", script, source="mine")
        assert await agent.end() == 0
    assert await scene.provisioner.database.fetchval("SELECT source FROM claim") == "mine"


async def test_two_jobs_on_one_task_slot(scene: Scene) -> None:
    """The second ends the first, and its hook says so, since the worker may be stopped in the middle of the first."""
    script = f"{HOOK} claimed --task a; {HOOK} claimed --task a; echo again; {HOOK} claimed --task b; {HOOK} idle"
    async with scene.serving():
        agent = await scene.start("wrap", "--", "sh", "-c", script, str(scene.folder))
        assert await agent.end() == 0
    warning = "job a counts as ended: this worker runs one at a time; for more, declare task_slots of its launch config"
    _, _, after = agent.output.decode().partition("again\n")
    assert f"slipway-worker hook: {warning}\n" in after
    assert agent.output.count(b"counts as ended") == 1
    assert await scene.published() == ["registered", "claimed", "idle", "claimed", "idle", "stopped"]


async def test_a_killed_agent_comes_back_as_its_worker(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the token that it keeps; without it, its identity document is one that anybody may have copied."""
    proofs: list[Proof | None] = []

    def attested(account: Account, image: str, proof: Proof | None) -> Attested:
        proofs.append(proof)
        return Attested(INSTANCE_ID, utc_now())

    cloud = scene.provisioner.cloud
    monkeypatch.setattr(cloud, "attested", attested)
    cloud.live[INSTANCE_ID] = Instance(
        id=INSTANCE_ID, batch_id=scene.batch_id, created_at=utc_now(), state=InstanceState.RUNNING
    )
    folder = scene.folder / "state"
    monkeypatch.setenv("SLIPWAY_STATE_DIRECTORY", str(folder))
    async with fake_imds() as imds, scene.serving():
        imds.attest()
        first = await scene.start("run", imds=imds)
        await first.until_printed("registered as")
        first.process.kill()
        await first.end()
        again = await scene.start("run", imds=imds)
        await again.until_printed(f"registered as {(await scene.worker()).id}")
        again.process.kill()
        await again.end()
        (folder / "worker.json").unlink()
        copy = await scene.start("run", imds=imds)
        assert await copy.end() == 1
    assert b"identity: the document has enrolled worker" in copy.output
    assert await scene.published() == ["registered"]
    assert proofs == [Proof(f'{{"instanceId": "{INSTANCE_ID}"}}\n', "c2ln", "cGtjczc=")] * 3


async def test_an_agent_is_drained_between_jobs(scene: Scene) -> None:
    """After its job, by the drain signal to its whole group; if it does not exit, it is killed."""
    script = (
        f"trap 'echo drained' USR1; trap '' TERM; {HOOK} claimed --task job-1; until [ -e $0/drain ]; do sleep 0.02; "
        f"done; {HOOK} draining; echo draining $?; until [ -e $0/done ]; do sleep 0.02; done; {HOOK} idle; "
        "while :; do sleep 0.05; done"
    )
    async with scene.serving():
        agent = await scene.start(
            "wrap", "--drain-signal", "USR1", "--", "sh", "-c", script, str(scene.folder), stop_seconds=2
        )
        await until(lambda: scene.provisioner.database.fetchval("SELECT count(*) FROM claim"))
        await scene.drain_worker()
        await agent.until_printed("leaving, as requested by the provisioner: test")
        (scene.folder / "drain").touch()
        await agent.until_printed("leave: test\ndraining 0\n")
        assert b"drained" not in agent.output
        (scene.folder / "done").touch()
        assert await agent.end() == 128 + signal.SIGKILL
    assert await scene.published() == ["registered", "claimed", "idle", "stopped"]
    output = agent.output.decode()
    assert "drained\n" in output
    assert "the agent did not exit within 2 s" in output
    assert list(scene.folder.glob("slipway-worker-*")) == []


FAILURES = [
    (["sh", "-c", "exit 3"], 3, "exit code 3"),
    (["sh", "-c", "kill -SEGV $$"], 128 + signal.SIGSEGV, "killed by SIGSEGV"),
    (["no-such-agent"], 127, "cannot start no-such-agent: No such file or directory"),
    (["/"], 126, "cannot start /: Permission denied"),
]


@pytest.mark.parametrize(("command", "code", "detail"), FAILURES)
async def test_an_agent_that_fails(scene: Scene, command: list[str], code: int, detail: str) -> None:
    """The failure is reported, then that the worker has stopped; the wrap exits with its code."""
    async with scene.serving():
        agent = await scene.start("wrap", "--", *command)
        assert await agent.end() == code
    assert await scene.published() == ["registered", "error", "stopped"]
    (error,) = await scene.provisioner.published(WorkerErrorReported)
    assert (error.kind, error.detail) == ("agent_exited", detail)


async def test_signals_are_passed_on(scene: Scene) -> None:
    """The agent decides what they mean; exiting by a stop signal is no failure."""
    script = "trap 'echo got HUP' HUP; trap 'echo got USR2' USR2; touch $0/up; while :; do sleep 0.05; done"
    async with scene.serving():
        agent = await scene.start("wrap", "--", "sh", "-c", script, str(scene.folder))
        await until((scene.folder / "up").exists)
        for signum in (signal.SIGHUP, signal.SIGUSR2):
            agent.process.send_signal(signum)
            await agent.until_printed(f"got {signum.name[3:]}\n")
        agent.process.send_signal(signal.SIGTERM)
        assert await agent.end() == 128 + signal.SIGTERM
    assert await scene.published() == ["registered", "stopped"]


def test_hooks_without_a_wrap_fail(tmp_path: Path) -> None:
    """Exit code 2 and a message, without a wrap and after its exit."""
    for variables in ({}, {"SLIPWAY_WORKER_SOCKET": str(tmp_path / "gone")}):
        ran = subprocess.run(
            [*AGENT, "hook", "idle"], env=os.environ | variables, capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr.startswith("slipway-worker hook: ")) == (2, True)
        assert ("is not set" if not variables else "does not answer") in ran.stderr


def test_imports_are_limited_to_what_is_needed() -> None:
    """No library of the other commands is imported: each would double the time that a worker takes to start."""
    heavy = ("rich", "aiokafka", "pydantic", "fastapi", "httpx2", "jsonschema", "yaml", "asyncpg", "structlog")
    script = f"""
import sys
import slipway_client.worker.cli, slipway_client.worker.run, slipway_client.worker.wrap
print([name for name in {heavy!r} if name in sys.modules])"""
    imported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert imported.strip() == "[]"
