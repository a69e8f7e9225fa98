"""A weight-calculator that lives on a seed's log until it is killed at the boundary of a commit, and its successors.

All of it runs as it is, but for time: the database's clock and the process's move together, in the reader's hand.
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

from slipway_common import exclusive, owner, postgres
from slipway_common.exclusive import RENEW_SECONDS, Exclusive
from slipway_common.postgres import Pool
from slipway_weight_calculator.work import Calculation
from tests.harness import PATIENT
from tests.simulation.reader import Reader, Records, reading
from tests.simulation.weights_log import READ_BY_SECONDS, History
from tests.worlds import T0

SERVICE: Final = "weight-calculator"
START: Final = datetime.fromtimestamp(T0, UTC)
LIFE_SECONDS: Final = 60  # of the machine's time: whoever takes longer hangs
TAIL_SECONDS: Final = 400.0  # behind the log's end: time goes on until late boots and permits are over
SET_CLOCK: Final = "UPDATE test_clock SET at = $1"
CLOCK: Final = "SELECT at FROM test_clock"
TRANSACTION: Final = "SELECT pg_current_xact_id()::text"

BEFORE, SENT, AFTER = "before", "sent", "after"
WHERE: Final = (BEFORE, SENT, AFTER)
"""Where a process dies: before it sends a COMMIT, between that and the answer, or before it acts on the answer."""


class Death(msgspec.Struct, frozen=True):
    """At the boundary of this top-level transaction of a process, counted from 1."""

    where: str
    commit: int


class Moody(Reader):
    """Gives some records of some partitions, sometimes old ones again, and lets time pass."""

    def __init__(self, records: Records, chance: Random, pool: Pool, end: float, finish: Callable[[], None]) -> None:
        super().__init__(records)
        self.chance = chance
        self.pool = pool
        self.end = end
        self.finish = finish
        self.elapsed = 0.0
        self.over = 0

    async def start(self) -> None:
        self.elapsed = (await self.pool.fetchval(CLOCK) - START).total_seconds()

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
            await self.pass_time(RENEW_SECONDS)  # for one more turn, in which all is told
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
        """Behind what was written so far."""
        return self.positions[tp] + self.waiting(tp)

    def waiting(self, tp: TopicPartition) -> int:
        """How many unread records there are so far."""
        number = 0
        for record in self.records[tp][self.positions[tp] :]:
            if self.written(record) > self.elapsed:
                break
            number += 1
        return number

    def next_written(self) -> float:
        """When the next record will have been written; the end if there is none."""
        unread = [records[self.positions[tp]] for tp, records in self.records.items() if records[self.positions[tp] :]]
        return min(map(self.written, unread), default=self.end + TAIL_SECONDS)

    def written(self, record: ConsumerRecord[bytes, bytes]) -> float:
        written_at: int = record.timestamp
        return round(written_at / 1000 - T0, 3)

    async def pass_time(self, seconds: float) -> None:
        self.elapsed = round(self.elapsed + seconds, 6)  # as the database keeps it, for a successor
        await self.pool.execute(SET_CLOCK, START + timedelta(seconds=self.elapsed))


class Life(msgspec.Struct, frozen=True):
    """How a process ended: 0 by itself, -9 killed, at the end of the `transaction` of that id."""

    code: int
    transaction: str


def live(url: str, history: History, name: str, chance: Random, death: Death | None) -> Life:
    """One life, in a process of its own."""
    sys.stdout.flush()
    said, say = os.pipe()
    pid = os.fork()
    if pid:
        os.close(say)
        with os.fdopen(said) as heard:
            transaction = heard.read()
        return Life(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), transaction)
    try:
        signal.alarm(LIFE_SECONDS)
        if death is not None:
            die(death, say)
        asyncio.run(_live(url, history, name, chance))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


async def _live(url: str, history: History, name: str, chance: Random) -> None:
    pool = await postgres.connect(url, SERVICE, size=2, settings=PATIENT)
    alone = Exclusive(Calculation(), service=SERVICE, bootstrap_servers="", prefix="", instance=name, ring=lambda: None)
    reader = Moody(history.records, chance, pool, history.end, alone.stop)
    exclusive.monotonic_seconds = owner.monotonic_seconds = lambda: reader.elapsed  # type: ignore[attr-defined]
    exclusive.SILENT_SECONDS = float("inf")  # type: ignore[misc] # the broker is never silent, time only passes
    exclusive.TURN_SECONDS = 0.0  # type: ignore[misc] # nothing comes that would be worth waiting for
    with reading(reader):
        await alone.run(pool)


def die(death: Death, say: int) -> None:
    """Have this process killed where it is meant to be, after it has said in which transaction."""
    commit: Callable[[Transaction], Awaitable[None]] = Transaction._Transaction__commit
    commits = 0

    async def dying(self: Any) -> None:
        nonlocal commits
        commits += not self._nested
        if self._nested or commits < death.commit:
            await commit(self)
            return
        os.write(say, (await self._connection.fetchval(TRANSACTION)).encode())
        if death.where == SENT:
            sending = asyncio.ensure_future(commit(self))
            await asyncio.sleep(0)  # it is written, and the answer not read
            assert not sending.done()
        elif death.where == AFTER:
            await commit(self)
        os.kill(os.getpid(), signal.SIGKILL)

    Transaction._Transaction__commit = dying
