"""A broker that is killed in the middle of a grant: `python -m tests.requirements.victim DATABASE_URL`.

Request r1 is sent and decided by a process that dies before its first statement to the database; r2, and r1 again if it
was not committed, as Kafka would redeliver it, by one that dies before its second statement, and so on, until one
survives. Finally prints how many died.
"""

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final

from asyncpg.connection import Connection

from slipway_common.database import postgres
from tests.support import harness
from tests.support.lease_broker import SERVICE, Broker, acquire_request

METHODS: Final = ("execute", "executemany", "fetch", "fetchrow", "fetchval")


def die_at(word: int) -> None:
    """Have this process killed at its nth statement to the database."""
    words = count(1)

    def dying(execute: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def execute_or_die(self: Any, *arguments: Any, **options: Any) -> Any:
            if next(words) == word:
                os.kill(os.getpid(), signal.SIGKILL)
            return await execute(self, *arguments, **options)

        return execute_or_die

    for name in METHODS:
        setattr(Connection, name, dying(getattr(Connection, name)))


async def grant(url: str, word: int) -> None:
    broker = Broker(await postgres.connect(url, SERVICE, settings=harness.PATIENT))
    committed = {row["id"] for row in await broker.pool.fetch("SELECT id FROM requests")}
    names = [name for name in (f"r{number}" for number in range(1, word + 1)) if name not in committed]
    die_at(word)
    await broker.send(*(acquire_request(name) for name in names))
    await broker.decide()
    await broker.stop()
    await broker.pool.close()


def live(url: str, word: int) -> int:
    """One run in a process of its own; its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        asyncio.run(grant(url, word))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(url: str) -> int:
    for word in count(1):
        code = live(url, word)
        if code == 0:
            print(word - 1)
        if code != -signal.SIGKILL:
            return code
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
