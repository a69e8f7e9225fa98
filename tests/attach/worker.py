"""Program of a worker with a plain queue, which reports its tasks by hooks and keeps a ledger of them in the queue, by
which a run is judged: `python -m tests.attach.worker KIND ADDRESS QUEUE TASKS SECONDS`."""

import asyncio
import importlib
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from slipway_client.worker.presets import HOOKS
from slipway_common.base.clock import utc_now

sys.path.insert(0, str(HOOKS))
from slipway_hooks import report

RECORD: Final = "record"
POLL_SECONDS: Final = 0.05
RETRY_SECONDS: Final = 0.2


class Client(Protocol):
    """A worker's view of a queue. Every call may raise any exception while the queue is away."""

    async def take(self) -> str | None:
        """Take a task, so that no other worker gets it; None if none waits."""

    async def write(self, entry: str) -> None:
        """Add an entry to the ledger."""

    async def done(self, task: str) -> None:
        """Acknowledge the task that was taken."""

    async def close(self) -> None: ...


def running_key(queue: str) -> str:
    """Redis list of the tasks that run."""
    return f"running:{queue}"


def line(what: str, task: str) -> str:
    """An entry of the ledger."""
    return json.dumps({"what": what, "task": task, "at": utc_now().timestamp()})


class RedisClient:
    """Lists of Redis."""

    def __init__(self, port: str, queue: str) -> None:
        import redis.asyncio as redis

        self.queue = queue
        self.redis: Any = redis.Redis(port=int(port), decode_responses=True)

    async def take(self) -> str | None:
        task: str | None = await self.redis.lmove(self.queue, running_key(self.queue), "LEFT", "RIGHT")
        return task

    async def write(self, entry: str) -> None:
        await self.redis.rpush(RECORD, entry)

    async def done(self, task: str) -> None:
        await self.redis.lrem(running_key(self.queue), 1, task)

    async def close(self) -> None:
        await self.redis.aclose()


async def work(client: Client, limit: int, seconds: float) -> None:
    """Run tasks until there were so many, or until SIGTERM between two of them; 0: no limit."""
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    done = 0
    while not leaving.is_set() and not (limit and done >= limit):
        try:
            task = await client.take()
        except Exception as error:
            print(f"no task: {error!r}", file=sys.stderr, flush=True)
            await asyncio.sleep(RETRY_SECONDS)
            continue
        if task is None:
            await asyncio.sleep(POLL_SECONDS)
            continue
        report("claimed", task)
        await _insist(client.write, line("begin", task))
        await asyncio.sleep(seconds)
        await _insist(client.write, line("end", task))
        await _insist(client.done, task)
        report("idle", task)
        done += 1
    await client.close()


async def _insist(call: Callable[[str], Awaitable[None]], argument: str) -> None:
    """Make a call until the queue answers."""
    while True:
        try:
            await call(argument)
        except Exception as error:
            print(f"again: {error!r}", file=sys.stderr, flush=True)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


def main(kind: str, address: str, queue: str, tasks: str, seconds: str) -> None:
    made = RedisClient if kind == "redis" else importlib.import_module("tests.attach.clients").CLIENTS[kind]
    asyncio.run(work(made(address, queue), int(tasks), float(seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
