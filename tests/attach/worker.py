"""Program of a worker with a plain queue: takes tasks from a list of Redis, reports them by hooks, and keeps its own
record of them there, by which a run is judged: `python -m tests.attach.worker PORT LIST TASKS SECONDS`."""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import redis

from slipway_client.worker.presets import HOOKS

sys.path.insert(0, str(HOOKS))
from slipway_hooks import report

RUNNING = "running"
RECORD = "record"


def main(port: str, queue: str, tasks: str, seconds: str) -> None:
    """Run tasks until there were so many, or until SIGTERM between two of them; 0: no limit."""
    leaving: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _: leaving.append(signum))
    client: Any = redis.Redis(port=int(port), decode_responses=True)
    done, limit = 0, int(tasks)
    while not leaving and not (limit and done >= limit):
        try:
            task = client.lmove(queue, RUNNING, "LEFT", "RIGHT")
        except redis.RedisError:
            task = None
        if task is None:
            time.sleep(0.05)
            continue
        report("claimed", task)
        _insist(client.rpush, RECORD, f"begin {task} {os.getpid()}")
        time.sleep(float(seconds))
        _insist(client.rpush, RECORD, f"end {task} {os.getpid()}")
        _insist(client.lrem, RUNNING, 1, task)
        report("idle", task)
        done += 1


def _insist(call: Callable[..., Any], *arguments: Any) -> None:
    """Make a call until the queue answers."""
    while True:
        try:
            call(*arguments)
        except redis.RedisError:
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
