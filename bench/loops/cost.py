"""Cost of a piece of work on a database: CPU time of this process and of its sessions, which waits on a busy machine do
not change."""

import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from slipway_common.database.postgres import Database

# The type of a backend is shown to other roles only with further rights; those that the server starts have no user.
SESSIONS: Final = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND usesysid IS NOT NULL"
PLAIN: Final = "CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text NOT NULL)"
COMMIT: Final = "INSERT INTO plain (body) VALUES ('a row as short as an event')"
COMMITS: Final = 100


@contextlib.contextmanager
def one_processor(*pids: int) -> Iterator[None]:
    """Have this process, 0, and others run on the same processor: where two that take turns are on two, each round trip
    wakes an idle one, which on a virtual machine may cost more than the work. What they start stays there. Without
    Linux they run as before."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    for pid in pids:
        os.sched_setaffinity(pid, {max(allowed)})
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(pid, allowed)


async def cpu_seconds(database: Database, work: Callable[[], Awaitable[Any]]) -> float:
    """CPU seconds that `work` takes, in this process and in all sessions of its database."""
    before = await _used(database)
    await work()
    return await _used(database) - before


async def commit_seconds(database: Database) -> float:
    """CPU seconds of a plain commit: one row of one column, the yardstick of the same run. Creates its table `plain`
    at first."""
    if await database.fetchval("SELECT to_regclass('plain') IS NULL"):
        await database.execute(PLAIN)

    async def commits() -> None:
        for _ in range(COMMITS):
            await database.execute(COMMIT)

    return await cpu_seconds(database, commits) / COMMITS


async def _used(database: Database) -> float:
    rows = await database.fetch(SESSIONS)
    return time.process_time() + sum(_of_process(row["pid"]) for row in rows)


def _of_process(pid: int) -> float:
    """CPU seconds of a process. Linux knows them to the nanosecond, others in ticks."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system
