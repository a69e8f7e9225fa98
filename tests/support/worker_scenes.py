"""A worker, its queue and its provisioner, as processes and servers."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import uvicorn
from fastapi import FastAPI, Response

from slipway_api.events.worker import WorkerClaimed, WorkerErrorReported, WorkerIdle, WorkerRegistered, WorkerStopped
from slipway_client.worker.machine import DISABLED, ENDPOINT
from slipway_common.base.ids import new_id
from slipway_common.base.process import identities
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.registration import RegistrationKeys
from slipway_provisioner.domain.workers import Worker
from tests.support.harness import PATIENCE_SECONDS
from tests.support.imds import FakeImds
from tests.support.provisioner import KEY, Provisioner, declared, provisioner_on
from tests.support.serving import serving

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
            "secret": secret or RegistrationKeys(KEY).secret(self.batch_id),
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
async def scene_on(postgres: EmbeddedPostgres, folder: Path) -> AsyncIterator[Scene]:
    """A scene on an empty database; its agents are killed in the end."""
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
        scene = Scene(provisioner, queue, folder)
        scene.batch_id = (await scene.worker()).batch_id or ""
        yield scene
        for agent in scene.agents:
            for process in identities.tagged(TAG, agent.tag):
                identities.send(process.identity, signal.SIGKILL)
            await agent.process.wait()


def environment(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(variable.partition("=")[::2] for variable in text.split("\0") if variable)
