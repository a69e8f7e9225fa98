"""`python -m tests.e2e.planner URL SEED NUMBER`: planners in processes of their own, which are killed at their commits.

Each kills itself with SIGKILL just before it sends a commit, or just after, when the server may or may not have it yet,
and is started again. They are forked, since importing a service takes longer than planning hundreds of pools. Prints a
line for each process that has been killed; they end with this process.
"""

import asyncio
import os
import signal
import sys
from random import Random
from typing import Any, Final

from asyncpg.connection import Connection

from slipway_common.database import postgres
from slipway_provisioner.loops.plan import Planner
from slipway_provisioner.settings import Settings
from tests.support.provisioner import KEY, SERVICE

KILLED: Final = 0.01
"""Part of the commits before which, and as many after which, a process is killed."""
IDLE_SECONDS: Final = 0.02


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_commits(chance: Random) -> None:
    """Have this process killed at some of its commits."""
    execute = Connection.execute

    async def killed(connection: Any, query: str, *args: Any, **options: Any) -> Any:
        if query == "COMMIT;":
            point = chance.random()
            if point < KILLED:
                die()
            if point < 2 * KILLED:
                asyncio.get_running_loop().call_soon(die)  # by then the commit is sent
        return await execute(connection, query, *args, **options)

    Connection.execute = killed


async def plan(url: str, seed: str, parent: int) -> None:
    """Plan until this process is killed, or its parent has ended."""
    database = await postgres.connect(url, SERVICE, size=2)
    kill_at_commits(Random(seed))
    planner = Planner(
        settings=Settings(database_url="", kafka="", registration_keys=KEY),
        calculator_unavailable_seconds=lambda: 0.0,
        publish=lambda: None,
    )
    while os.getppid() == parent:
        if not await planner.step(database):
            await asyncio.sleep(IDLE_SECONDS)


def start(url: str, seed: str) -> int:
    """Fork a planner; returns its process ID."""
    parent = os.getpid()
    if process := os.fork():
        return process
    asyncio.run(plan(url, seed, parent))
    os._exit(0)


def main(url: str, seed: str, number: str) -> None:
    for planner in range(int(number)):
        start(url, f"{seed}/{planner}")
    killed = 0
    while True:
        os.wait()
        killed += 1
        print(killed, flush=True)
        start(url, f"{seed}/again/{killed}")


if __name__ == "__main__":
    main(*sys.argv[1:])
