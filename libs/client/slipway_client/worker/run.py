"""`slipway-worker run`: a worker that takes tasks from a queue, in motion. Performs what core.py and tasks.py decide.

Two loops share one state: one speaks with the provisioner, the other works. Neither waits for the other.
"""

import asyncio
import signal
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

from slipway_client.worker import tasks
from slipway_client.worker.core import Worker
from slipway_client.worker.http import NoAnswer
from slipway_client.worker.log import say
from slipway_client.worker.process import CannotStart, Group, words
from slipway_client.worker.provisioner import Provisioner, converse
from slipway_client.worker.queue import Queue
from slipway_client.worker.rest import Rests
from slipway_client.worker.tasks import Claim, Cut, Finish, Quit, Renew, Rest, Run, Start, Task, next_work
from slipway_client.worker.user_data import UserData
from slipway_common.clock import monotonic_seconds
from slipway_common.processes import own_identity

Result = TypeVar("Result")


async def run(user_data: UserData) -> int:
    """A whole life; the exit code."""
    return await _Running(user_data, own_identity(), Random()).live()  # noqa: S311 (spreads repetitions)


class _Running:
    def __init__(self, user_data: UserData, instance_id: str, rng: Random) -> None:
        self.state = Run(worker=Worker(settings=user_data.settings), free_since=monotonic_seconds())
        self.provisioner = Provisioner(user_data, instance_id)
        self.rests = Rests()
        self.rng = rng
        self._queue_url = user_data.queue_url
        self._instance_id = instance_id
        self._group: Group | None = None
        self._exit: asyncio.Task[None] | None = None

    async def live(self) -> int:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._signalled, signum)
        try:
            async with asyncio.TaskGroup() as both:
                speaking = both.create_task(
                    converse(self.provisioner, lambda: self.state.worker, self._talked, self.rests.rest, self.rng)
                )
                code = await self._work()
                speaking.cancel()
            return code
        finally:
            if self._group is not None:
                self._group.send(signal.SIGKILL)  # if we fail, nobody will renew its task's claim

    def _change(self, state: Run) -> None:
        self.state = state
        self.rests.end()

    def _talked(self, worker: Worker) -> None:
        self._change(tasks.talked(self.state, worker, monotonic_seconds()))

    def _signalled(self, signum: signal.Signals) -> None:
        say(f"got {signum.name}; {'ending the task' if self.state.signals else 'leaving'}")
        self._change(tasks.signalled(self.state, f"got {signum.name}", monotonic_seconds()))

    async def _work(self) -> int:
        while (code := tasks.exit_code(self.state)) is None:
            now = monotonic_seconds()
            match next_work(self.state, now):
                case Rest(until):
                    await self.rests.rest(until)
                case Claim(wait_seconds):
                    await self._claim(wait_seconds)
                case Start(task):
                    await self._start(task)
                case Renew(task):
                    if (mine := await self._heard(self._queue().renew(task))) is not None:
                        if not mine:
                            say(f"{task.task_id} is not this worker's any more; ending it")
                        self._change(tasks.renewed(self.state, monotonic_seconds(), lost=not mine))
                case Cut(kill):
                    self._cut(kill=kill)
                case Finish(task, exit_code):
                    if (mine := await self._heard(self._queue().finish(task, exit_code))) is not None:
                        say(f"{task.task_id} ended: {words(exit_code)}{'' if mine else ', which nobody waits for'}")
                        self._change(tasks.finished(self.state, monotonic_seconds()))
                case Quit():
                    say("leaving: no task for too long")
                    self._change(tasks.quitting(self.state, now))
        return code

    def _queue(self) -> Queue:
        known = self.provisioner
        return Queue(self._queue_url, pool_id=known.pool_id, worker_id=known.worker_id, instance_id=self._instance_id)

    async def _claim(self, wait_seconds: float) -> None:
        """Wait for a task for as long as one is wanted. What is granted just then runs out, and waits again."""
        claiming = asyncio.create_task(self._heard(self._claimed(wait_seconds)))
        try:
            while not claiming.done() and isinstance(next_work(self.state, monotonic_seconds()), Claim):
                await self.rests.rest_beside(claiming)
        finally:
            claiming.cancel()
            await asyncio.wait({claiming})

    async def _claimed(self, wait_seconds: float) -> bool:
        task = await self._queue().claim(wait_seconds)
        self._change(tasks.claimed(self.state, task, monotonic_seconds()))
        if self.state.task is not None:
            say(f"claimed {self.state.task.task_id}")
        return True

    async def _heard(self, call: Coroutine[Any, Any, Result]) -> Result | None:
        """The queue's answer; None when it gave none."""
        try:
            return await call
        except NoAnswer as error:
            if self.state.silence.since is None:
                say(f"the queue does not answer ({error}); will go on trying")
            self._change(tasks.queue_unheard(self.state, monotonic_seconds(), self.rng.random()))
            return None

    async def _start(self, task: Task) -> None:
        self._change(tasks.started(self.state))
        try:
            self._group = Group.start(task.command, {"SLIPWAY_TASK_ID": task.task_id})
        except CannotStart as error:
            say(str(error))
            self._change(tasks.exited(self.state, error.exit_code, monotonic_seconds()))
        else:
            self._exit = asyncio.create_task(self._exited(self._group))

    async def _exited(self, group: Group) -> None:
        code = await group.wait()
        self._change(tasks.exited(self.state, code, monotonic_seconds()))

    def _cut(self, *, kill: bool) -> None:
        if self._group is not None:
            self._group.send(signal.SIGKILL if kill else signal.SIGTERM)
        self._change(tasks.cut(self.state, monotonic_seconds(), kill=kill))
