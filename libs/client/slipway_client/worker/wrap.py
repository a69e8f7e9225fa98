"""`slipway-worker wrap`: any agent as a worker, in motion. Performs what core.py and agent.py decide.

The agent brings its own queue and says through its job hooks what it does; it never sees secret or token.
"""

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final, Literal

import msgspec

from slipway_client.worker import agent, core
from slipway_client.worker.agent import Drain, Kill, Leave, Rest, Start, Wrapped, next_step
from slipway_client.worker.core import Worker
from slipway_client.worker.hooks import SOCKET
from slipway_client.worker.log import say
from slipway_client.worker.process import CannotStart, Group, words
from slipway_client.worker.provisioner import Provisioner, converse
from slipway_client.worker.rest import Rests
from slipway_client.worker.user_data import UserData
from slipway_common.clock import monotonic_seconds
from slipway_common.processes import own_identity

PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# Who asks whether to leave gets what is known after this.
FRESH_SECONDS: Final = 5.0


class Said(msgspec.Struct, frozen=True):
    """What a hook says."""

    hook: Literal["claimed", "idle", "draining"]
    task_id: Annotated[str, msgspec.Meta(max_length=200)] = ""
    source: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] = "agent"


async def wrap(user_data: UserData, command: Sequence[str], drain_signal: signal.Signals) -> int:
    """A whole life; the exit code."""
    wrapping = _Wrapping(user_data, command, drain_signal, Random())  # noqa: S311 (spreads repetitions)
    wrapping.catch_signals()
    # mkdtemp makes folders that nobody else can enter.
    with tempfile.TemporaryDirectory(prefix="slipway-worker-", ignore_cleanup_errors=True) as folder:
        return await wrapping.live(Path(folder, "hooks"))


class _Wrapping:
    def __init__(self, user_data: UserData, command: Sequence[str], drain_signal: signal.Signals, rng: Random) -> None:
        self.state = Wrapped(worker=Worker(settings=user_data.settings))
        self.provisioner = Provisioner(user_data, own_identity())
        self.rests = Rests()
        self.rng = rng
        self._command = command
        self._drain_signal = drain_signal
        self._group: Group | None = None
        self._exit: asyncio.Task[None] | None = None

    def catch_signals(self) -> None:
        """Before there is anything that has to be removed."""
        for signum in PASSED_ON:
            asyncio.get_running_loop().add_signal_handler(signum, self._pass_on, signum)

    async def live(self, path: Path) -> int:
        server = await asyncio.start_unix_server(self._answer, path)
        try:
            async with asyncio.TaskGroup() as both:
                speaking = both.create_task(
                    converse(self.provisioner, lambda: self.state.worker, self._talked, self.rests.rest, self.rng)
                )
                code = await self._work(path)
                speaking.cancel()
            return code
        finally:
            server.close()
            self._signal(signal.SIGKILL)  # if we fail, nobody speaks for the agent

    def _change(self, state: Wrapped) -> None:
        self.state = state
        self.rests.end()

    def _talked(self, worker: Worker) -> None:
        self._change(agent.talked(self.state, worker, monotonic_seconds()))

    def _pass_on(self, signum: signal.Signals) -> None:
        if self._group is not None:
            self._group.send(signum)
        self._change(agent.passed_on(self.state, signum, monotonic_seconds()))

    async def _work(self, path: Path) -> int:
        while (code := agent.exit_code(self.state)) is None:
            now = monotonic_seconds()
            match next_step(self.state, now):
                case Rest(until):
                    await self.rests.rest(until)
                case Start():
                    await self._start(path)
                case Drain():
                    self._signal(self._drain_signal)
                    self._change(agent.drained(self.state, now))
                case Kill():
                    say(f"the agent did not leave within {self.state.worker.settings.stop_seconds:g} s; ending it")
                    self._signal(signal.SIGKILL)
                    self._change(agent.killed(self.state))
                case Leave():
                    say("the provisioner has not heard that the agent has ended; leaving")
                    self._change(agent.left(self.state))
        return code

    async def _start(self, path: Path) -> None:
        self._change(agent.started(self.state))
        try:
            self._group = Group.start(self._command, {SOCKET: str(path)})
        except CannotStart as error:
            say(str(error))
            self._change(agent.exited(self.state, error.exit_code, str(error), monotonic_seconds()))
        else:
            self._exit = asyncio.create_task(self._exited(self._group))

    async def _exited(self, group: Group) -> None:
        code = await group.wait()
        say(f"the agent has ended: {words(code)}")
        self._change(agent.exited(self.state, code, words(code), monotonic_seconds()))

    def _signal(self, signum: signal.Signals) -> None:
        if self._group is not None:
            self._group.send(signum)

    # Hooks

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):  # a hook that went away, or said too much
            try:
                said = msgspec.json.decode(await reader.readline(), type=Said)
            except msgspec.MsgspecError as error:
                answer: dict[str, Any] = {"error": str(error)}
            else:
                answer = await self._heed(said)
            writer.write(msgspec.json.encode(answer) + b"\n")
            await writer.drain()
        writer.close()

    async def _heed(self, said: Said) -> dict[str, Any]:
        worker, now = self.state.worker, monotonic_seconds()
        match said.hook:
            case "claimed" if not said.task_id:
                return {"error": "a job needs an id"}
            case "claimed":
                worker = core.took(worker, said.task_id, said.source, now)
            case "idle":
                worker = core.done(worker, now)
            case "draining":
                await self._ask_now()
                return {"leave": self.state.worker.leaving or self.state.worker.refused}
        self._talked(worker)
        return {}

    async def _ask_now(self) -> None:
        self._talked(core.wondering(self.state.worker))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FRESH_SECONDS):
                while self.state.worker.asking:
                    await self.rests.rest(None)
