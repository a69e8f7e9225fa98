"""Processes of a weight-calculator on a seed's log, each killed at the boundary of a commit.

The calculator runs unchanged except for time: the reader advances the clocks of database and process together.
"""

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import msgspec
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord
from asyncpg.transaction import Transaction

from slipway_common.database import postgres
from slipway_common.database.postgres import Database
from slipway_common.messaging import leader_loop, leadership
from slipway_common.messaging.leader_loop import RENEW_SECONDS, LeaderLoop
from slipway_weight_calculator.work import Calculation
from tests.simulation.reader import Reader, Records, reading
from tests.simulation.weights_log import READ_BY_SECONDS, History
from tests.support.harness import PATIENT
from tests.support.worlds import T0

SERVICE: Final = "weight-calculator"
START: Final = datetime.fromtimestamp(T0, UTC)
PROCESS_SECONDS: Final = 60  # real time after which a process counts as hanging
TAIL_SECONDS: Final = 400.0  # after the end of the log, so that late boots and permits time out
SET_CLOCK: Final = "UPDATE test_clock SET at = $1"
CLOCK: Final = "SELECT at FROM test_clock"
TRANSACTION: Final = "SELECT pg_current_xact_id()::text"

BEFORE, SENT, AFTER = "before", "sent", "after"
WHERE: Final = (BEFORE, SENT, AFTER)
"""Points of a crash: before COMMIT is sent, between COMMIT and its answer, or before the answer is handled."""


class Crash(msgspec.Struct, frozen=True):
    """A planned crash at the commit of a top-level transaction of a process; `commit` is counted from 1."""

    where: str
    commit: int


class ErraticReader(Reader):
    """Reader of random portions, sometimes with records read before; it advances time."""

    def __init__(
        self, records: Records, chance: Random, database: Database, end: float, finish: Callable[[], None]
    ) -> None:
        super().__init__(records)
        self.chance = chance
        self.database = database
        self.end = end
        self.finish = finish
        self.elapsed = 0.0
        self.over = 0

    async def start(self) -> None:
        self.elapsed = (await self.database.fetchval(CLOCK) - START).total_seconds()

    async def getmany(
        self, *, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, Sequence[ConsumerRecord[bytes, bytes]]]:
        chance = self.chance
        if not any(map(self.waiting, self.positions)):
            until_next = max(0.0, self.next_written() - self.elapsed)
            await self.pass_time(chance.choice([timeout_ms / 1000, until_next, chance.uniform(0, 60)]))
        elif chance.random() < 0.2:
            await self.pass_time(chance.uniform(0, 5))
        if self.elapsed > self.end + TAIL_SECONDS:
            await self.pass_time(RENEW_SECONDS)  # for one more turn, which publishes everything
            self.over += 1
            if self.over > 1:
                self.finish()
        found: dict[TopicPartition, Sequence[ConsumerRecord[bytes, bytes]]] = {}
        for tp, position in self.positions.items():
            if not (waiting := self.waiting(tp)):
                continue
            overdue = self.elapsed - self.written(self.records[tp][position]) > READ_BY_SECONDS / 2
            if overdue or chance.random() < 0.7:
                again = chance.choice([0, 0, 0, 2])
                self.positions[tp] = max(0, position - again)
                number = waiting if overdue else chance.randint(1, waiting)
                found[tp] = self.take(tp, position - self.positions[tp] + number)
        return found

    def highwater(self, tp: TopicPartition) -> int:
        """End offset of the records written so far."""
        return self.positions[tp] + self.waiting(tp)

    def waiting(self, tp: TopicPartition) -> int:
        """Number of unread records written so far."""
        number = 0
        for record in self.records[tp][self.positions[tp] :]:
            if self.written(record) > self.elapsed:
                break
            number += 1
        return number

    def next_written(self) -> float:
        """Time at which the next record is written; the end of the history if there is none."""
        unread = [records[self.positions[tp]] for tp, records in self.records.items() if records[self.positions[tp] :]]
        return min(map(self.written, unread), default=self.end + TAIL_SECONDS)

    def written(self, record: ConsumerRecord[bytes, bytes]) -> float:
        written_at: int = record.timestamp
        return round(written_at / 1000 - T0, 3)

    async def pass_time(self, seconds: float) -> None:
        self.elapsed = round(self.elapsed + seconds, 6)  # rounded as in the database, where the next process reads it
        await self.database.execute(SET_CLOCK, START + timedelta(seconds=self.elapsed))


class Exit(msgspec.Struct, frozen=True):
    """Exit of a process: code 0 by itself, -9 if killed at the end of `transaction` (its ID)."""

    code: int
    transaction: str


def run_process(url: str, history: History, name: str, chance: Random, crash: Crash | None) -> Exit:
    """Run the calculator in a forked process until it exits or crashes."""
    sys.stdout.flush()
    reading_end, writing_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing_end)
        with os.fdopen(reading_end) as pipe:
            transaction = pipe.read()
        return Exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), transaction)
    try:
        signal.alarm(PROCESS_SECONDS)
        if crash is not None:
            crash_at(crash, writing_end)
        asyncio.run(_run(url, history, name, chance))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


async def _run(url: str, history: History, name: str, chance: Random) -> None:
    database = await postgres.connect(url, SERVICE, size=2, settings=PATIENT)
    loop = LeaderLoop(Calculation(), service=SERVICE, kafka="", prefix="", instance=name, wake=lambda: None)
    reader = ErraticReader(history.records, chance, database, history.end, loop.stop)
    leader_loop.monotonic_seconds = leadership.monotonic_seconds = lambda: reader.elapsed  # type: ignore[attr-defined]
    leader_loop.BROKER_TIMEOUT_SECONDS = float("inf")  # type: ignore[misc] # the broker is always available, only time jumps
    leader_loop.TURN_SECONDS = 0.0  # type: ignore[misc] # no records arrive that are worth waiting for
    with reading(reader):
        await loop.run(database)


def crash_at(crash: Crash, pipe: int) -> None:
    """Kill this process at the planned commit; the ID of the transaction is written to `pipe` before."""
    commit: Callable[[Transaction], Awaitable[None]] = Transaction._Transaction__commit
    commits = 0

    async def dying(self: Any) -> None:
        nonlocal commits
        commits += not self._nested
        if self._nested or commits < crash.commit:
            await commit(self)
            return
        os.write(pipe, (await self._connection.fetchval(TRANSACTION)).encode())
        if crash.where == SENT:
            sending = asyncio.ensure_future(commit(self))
            await asyncio.sleep(0)  # COMMIT is sent and its answer not read
            assert not sending.done()
        elif crash.where == AFTER:
            await commit(self)
        os.kill(os.getpid(), signal.SIGKILL)

    Transaction._Transaction__commit = dying
