"""Loops of one worker: they run side by side, share its state, and notify each other of changes."""

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from random import Random
from typing import Generic, TypeVar

from slipway_client.transport.exchange import NoAnswer
from slipway_client.worker import core
from slipway_client.worker.agent import Wrapped
from slipway_client.worker.core import Call, GiveUp, Wait, Worker, next_call
from slipway_client.worker.log import log
from slipway_client.worker.machine import Machine
from slipway_client.worker.provisioner import Provisioner, Refusal, UnknownWorker
from slipway_client.worker.tasks import Run
from slipway_client.worker.user_data import UserData, handed_on
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.process.groups import CannotStart, Group, describe_exit

State = TypeVar("State", bound=Run | Wrapped)


class Loops(ABC, Generic[State]):
    """A worker on its machine: one loop calls the provisioner, on an EC2 instance one polls for notices, and a subclass
    has that of its work. A loop reads the state before it waits, so none misses a change."""

    def __init__(self, state: State, user_data: UserData, machine: Machine, rng: Random) -> None:
        self.state = state
        self.provisioner = Provisioner(user_data, machine.identity, machine.state)
        self.machine = machine
        self.rng = rng
        self.changed = asyncio.get_running_loop().create_future()
        self._group: Group | None = None
        self._exit: asyncio.Task[None] | None = None

    # What a subclass does

    @abstractmethod
    def worker_changed(self, worker: Worker) -> None:
        """Apply a change of the worker."""

    @abstractmethod
    def exited(self, code: int, reason: str) -> None:
        """Apply the exit of the process, or its failure to start."""

    # Changes

    @property
    def worker(self) -> Worker:
        return self.state.worker

    def change(self, state: State) -> None:
        """Set the state, and wake all loops that wait."""
        self.state = state
        self.changed.set_result(None)
        self.changed = asyncio.get_running_loop().create_future()

    async def wait(self, until: float | None) -> None:
        """Wait until a change, or until that time (monotonic seconds)."""
        seconds = None if until is None else max(0.0, until - monotonic_seconds())
        await asyncio.wait({self.changed}, timeout=seconds)

    # The process of a task, or of an agent

    def start(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start the process, with more variables in its environment."""
        try:
            self._group = Group.start(command, handed_on(variables))
        except CannotStart as error:
            log(str(error))
            self.exited(error.exit_code, str(error))
        else:
            self._exit = asyncio.create_task(self._until_exit(self._group))

    async def _until_exit(self, group: Group) -> None:
        code = await group.end()
        self.exited(code, describe_exit(code))

    def send_signal(self, signum: signal.Signals, *, leader_alone: bool = False) -> None:
        """Send a signal to the process and its children, if it has started."""
        if self._group is not None:
            self._group.send(signum, leader_alone=leader_alone)

    # The loops

    async def beside(self, work: Coroutine[object, object, int]) -> int:
        """Run the other loops until the work is done; returns its result. A failure of one ends them all."""
        watching = self.machine.watch(lambda: self.worker, self.worker_changed, self.wait)
        try:
            async with asyncio.TaskGroup() as group:
                others = [group.create_task(other) for other in (self._call_provisioner(), watching)]
                code = await work
                for other in others:
                    other.cancel()
            return code
        finally:
            # After a crash of ours nothing reports for the process, or renews its claim.
            self.send_signal(signal.SIGKILL)

    async def _call_provisioner(self) -> None:
        """Perform the calls that core.py decides, one after another, until there are no more."""
        while True:
            match next_call(self.worker, monotonic_seconds()):
                case Wait(None) if self.worker.refused or self.worker.stopped:
                    return
                case Wait(until):
                    await self.wait(until)
                case GiveUp():
                    reason = f"the provisioner has not answered for {self.worker.settings.give_up_seconds:g} s"
                    log(f"giving up: {reason}")
                    self.worker_changed(core.gave_up(self.worker, reason))
                case call:
                    await self._perform(call)

    async def _perform(self, call: Call) -> None:
        try:
            reply = await self.provisioner.perform(call)
        except NoAnswer as error:
            if self.worker.backoff.since is None:
                log(f"provisioner {'busy' if error.is_limited else 'unavailable'}, retrying: {error}")
            is_available = error.is_limited or error.problem == "unconfirmed"
            after = core.postponed if is_available else core.unanswered
            chance = self.rng.random()
            self.worker_changed(after(self.worker, monotonic_seconds(), chance, error.retry_after_seconds))
        except Refusal as error:
            log(str(error))
            self.worker_changed(core.refused(self.worker, str(error)))
        except UnknownWorker as error:
            log(f"registering again: {error}")
            self.worker_changed(core.unknown(self.worker, str(error)))
        else:
            if reply.terminate and not self.worker.leaving:
                log(f"leaving, as requested by the provisioner: {reply.reason or 'no reason given'}")
            self.worker_changed(core.answered(self.worker, call, monotonic_seconds(), reply))
