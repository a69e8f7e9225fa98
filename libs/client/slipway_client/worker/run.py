"""`slipway-worker run`: a worker that takes tasks from a queue. Performs the decisions of core.py and tasks.py."""

import asyncio
import signal
from collections.abc import Coroutine, Mapping
from random import Random
from typing import TypeVar

from slipway_client.transport.exchange import NoAnswer
from slipway_client.worker import tasks
from slipway_client.worker.core import Wait, Worker
from slipway_client.worker.log import log
from slipway_client.worker.loops import Loops
from slipway_client.worker.machine import Machine, this_machine
from slipway_client.worker.queue import Queue
from slipway_client.worker.tasks import Claim, Finish, Quit, Renew, Run, StartTask, Terminate, next_work
from slipway_client.worker.user_data import UserData
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.process.groups import describe_exit

Result = TypeVar("Result")


async def run(user_data: UserData, environment: Mapping[str, str]) -> int:
    """Run a worker until it leaves; returns the exit code. Raises NoIdentity."""
    rng = Random()  # noqa: S311 (spreads repetitions)
    return await _Running(user_data, await this_machine(environment, rng), rng).run_until_exit()


class _Running(Loops[Run]):
    def __init__(self, user_data: UserData, machine: Machine, rng: Random) -> None:
        state = Run(worker=Worker(settings=user_data.settings), free_since=monotonic_seconds())
        super().__init__(state, user_data, machine, rng)
        self._queue_url = user_data.queue_url

    async def run_until_exit(self) -> int:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._signalled, signum)
        return await self.beside(self._work())

    def worker_changed(self, worker: Worker) -> None:
        self.change(tasks.worker_changed(self.state, worker, monotonic_seconds()))

    def exited(self, code: int, reason: str) -> None:
        self.change(tasks.exited(self.state, code, monotonic_seconds()))

    def _signalled(self, signum: signal.Signals) -> None:
        log(f"got {signum.name}; {'terminating the task' if self.state.signals else 'leaving after the current task'}")
        self.change(tasks.signalled(self.state, f"got {signum.name}", monotonic_seconds()))

    async def _work(self) -> int:
        while (code := tasks.exit_code(self.state)) is None:
            now = monotonic_seconds()
            match next_work(self.state, now):
                case Wait(until):
                    await self.wait(until)
                case Claim(wait_seconds):
                    await self._claim(wait_seconds)
                case StartTask(task):
                    self.change(tasks.started(self.state))
                    self.start(task.command, {"SLIPWAY_TASK_ID": task.task_id})
                case Renew(task):
                    if (mine := await self._answer_of(self._queue().renew(task))) is not None:
                        if not mine:
                            log(f"task {task.task_id}: claim lost; terminating it")
                        self.change(tasks.renewed(self.state, monotonic_seconds(), lost=not mine))
                case Terminate(kill):
                    self.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
                    self.change(tasks.terminated(self.state, monotonic_seconds(), kill=kill))
                case Finish(task, exit_code):
                    if (mine := await self._answer_of(self._queue().finish(task, exit_code))) is not None:
                        lost = "" if mine else "; its claim had expired, the result was not accepted"
                        log(f"task {task.task_id} ended: {describe_exit(exit_code)}{lost}")
                        self.change(tasks.finished(self.state, monotonic_seconds()))
                case Quit():
                    log(f"leaving: no task for {self.state.worker.settings.idle_exit_seconds:g} s")
                    self.change(tasks.quitting(self.state, now))
        return code

    def _queue(self) -> Queue:
        known, instance_id = self.provisioner.known, self.machine.identity.instance_id
        return Queue(self._queue_url, pool_id=known.pool_id, worker_id=known.worker_id, instance_id=instance_id)

    async def _claim(self, wait_seconds: float) -> None:
        """Wait for a task for as long as one is wanted. A task granted after that is not run: its claim expires."""
        claiming = asyncio.create_task(self._answer_of(self._claimed(wait_seconds)))
        try:
            while not claiming.done() and isinstance(next_work(self.state, monotonic_seconds()), Claim):
                await asyncio.wait({self.changed, claiming}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            claiming.cancel()
            await asyncio.wait({claiming})

    async def _claimed(self, wait_seconds: float) -> bool:
        task = await self._queue().claim(wait_seconds)
        self.change(tasks.claimed(self.state, task, monotonic_seconds()))
        if self.state.task is not None:
            log(f"claimed task {self.state.task.task_id}")
        return True

    async def _answer_of(self, call: Coroutine[object, object, Result]) -> Result | None:
        """Answer of the queue; None if it is unavailable."""
        try:
            return await call
        except NoAnswer as error:
            if self.state.backoff.since is None:
                log(f"queue unavailable, retrying: {error}")
            self.change(tasks.queue_unanswered(self.state, monotonic_seconds(), self.rng.random()))
            return None
