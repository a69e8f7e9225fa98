"""`slipway-worker wrap`: any agent as a worker. Performs the decisions of core.py and agent.py.

The agent has its own queue and reports its jobs through hooks; it never sees the secret or the token.
"""

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple

import msgspec

from slipway_api.limits import NAME, Name
from slipway_client.worker import agent, core
from slipway_client.worker.agent import Drain, Kill, Leave, StartAgent, Wrapped, next_step
from slipway_client.worker.core import Wait, Worker
from slipway_client.worker.hooks import POOL, SOCKET, SOURCE, TASK
from slipway_client.worker.log import log
from slipway_client.worker.loops import Loops
from slipway_client.worker.machine import Machine, this_machine
from slipway_client.worker.user_data import UserData
from slipway_common.base.clock import monotonic_seconds

FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# Limit for a fresh answer of the provisioner; after it the draining hook gets the last known one.
FRESH_SECONDS: Final = 5.0


class HookCall(msgspec.Struct, frozen=True):
    """Call of a job hook."""

    hook: Literal["claimed", "idle", "draining"]
    task_id: Name = ""
    source: Name = ""

    def __post_init__(self) -> None:
        """Refuse names that the provisioner refuses: it would refuse the worker, too, whose jobs are then killed."""
        for what, name in (("job id", self.task_id), ("source", self.source)):
            if wrong := NAME.problem(name):
                raise ValueError(f"the {what} {wrong}")


class Program(NamedTuple):
    """Program of an agent, and the signal that drains it. `leader_alone`: its own children get no signals that ask it
    to leave."""

    command: Sequence[str]
    drain_signal: signal.Signals
    leader_alone: bool


async def wrap(user_data: UserData, environment: Mapping[str, str], program: Program) -> int:
    """Run the agent until it exits; returns the exit code. Raises NoIdentity."""
    rng = Random()  # noqa: S311 (spreads repetitions)
    wrapping = _Wrapping(user_data, await this_machine(environment, rng), program, rng)
    wrapping.catch_signals()
    # mkdtemp makes directories that only their owner can enter.
    with tempfile.TemporaryDirectory(prefix="slipway-worker-", ignore_cleanup_errors=True) as folder:
        return await wrapping.run_until_exit(Path(folder, "hooks"))


class _Wrapping(Loops[Wrapped]):
    def __init__(self, user_data: UserData, machine: Machine, program: Program, rng: Random) -> None:
        super().__init__(Wrapped(worker=Worker(settings=user_data.settings)), user_data, machine, rng)
        self._source = user_data.task_source
        self._program = program

    def catch_signals(self) -> None:
        """Install signal handlers; called before there is anything to clean up."""
        for signum in FORWARDED:
            asyncio.get_running_loop().add_signal_handler(signum, self._forward, signum)

    async def run_until_exit(self, path: Path) -> int:
        with contextlib.closing(await asyncio.start_unix_server(self._answer, path)):
            return await self.beside(self._work(path))

    def worker_changed(self, worker: Worker) -> None:
        self.change(agent.worker_changed(self.state, worker, monotonic_seconds()))

    def exited(self, code: int, reason: str) -> None:
        if self._group is not None:
            log(f"the agent exited: {reason}")
        self.change(agent.exited(self.state, code, reason, monotonic_seconds()))

    def _forward(self, signum: signal.Signals) -> None:
        self.send_signal(signum, leader_alone=self._program.leader_alone)
        self.change(agent.forwarded(self.state, signum, monotonic_seconds()))

    async def _work(self, path: Path) -> int:
        while (code := agent.exit_code(self.state)) is None:
            now = monotonic_seconds()
            match next_step(self.state, now):
                case Wait(until):
                    await self.wait(until)
                case StartAgent():
                    self.change(agent.started(self.state))
                    self.start(self._program.command, self._environment(path))
                case Drain():
                    self.send_signal(self._program.drain_signal, leader_alone=self._program.leader_alone)
                    self.change(agent.drained(self.state, now))
                case Kill():
                    log(f"the agent did not exit within {self.state.worker.settings.stop_seconds:g} s; killing it")
                    self.send_signal(signal.SIGKILL)
                    self.change(agent.killed(self.state))
                case Leave():
                    log("leaving; the provisioner has not acknowledged the agent's exit")
                    self.change(agent.left(self.state))
        return code

    def _environment(self, path: Path) -> dict[str, str]:
        """Variables for the agent and its job hooks."""
        given = {POOL: self.provisioner.known.pool_id, SOURCE: self._source}
        return given | {SOCKET: str(path), TASK: ""}  # without the task that this process may be part of

    # Hooks

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):  # the hook disconnected, or its line is too long
            try:
                call = msgspec.json.decode(await reader.readline(), type=HookCall)
            except msgspec.MsgspecError as error:
                answer: dict[str, object] = {"error": str(error)}
            else:
                answer = await self._handle(call)
            writer.write(msgspec.json.encode(answer) + b"\n")
            await writer.drain()
        writer.close()

    async def _handle(self, call: HookCall) -> dict[str, object]:
        worker, now = self.state.worker, monotonic_seconds()
        answer: dict[str, object] = {}
        match call.hook:
            case "claimed" if not call.task_id:
                return {"error": "the job id is empty"}
            case "claimed":
                before, worker = worker, core.task_started(worker, call.task_id, call.source or self._source, now)
                if ended := [claim.task_id for claim in before.claims if claim not in worker.claims]:
                    slots = "this worker runs one at a time; for more, declare task_slots of its launch config"
                    answer = {"warning": f"job {ended[0]} counts as ended: {slots}"}
            case "idle" if not call.task_id and len(worker.claims) > 1:
                running = ", ".join(claim.task_id for claim in worker.claims)
                return {"warning": f"several jobs run, so name the one that has ended: {running}"}
            case "idle":
                worker = core.task_ended(worker, now, call.task_id)
            case "draining":
                await self._poll_now()
                return {"leave": self.state.worker.leaving or self.state.worker.refused}
        self.worker_changed(worker)
        return answer

    async def _poll_now(self) -> None:
        self.worker_changed(core.request_poll(self.state.worker))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FRESH_SECONDS):
                while self.state.worker.poll_requested:
                    await self.wait(None)
