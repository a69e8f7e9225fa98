"""Two sessions of one service, and records for them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

import msgspec

from slipway_api.events.topics import WORKER_LIFECYCLE
from slipway_common.base.clock import utc_now
from slipway_common.base.ids import new_id
from slipway_common.database import postgres
from slipway_common.database.postgres import Connection
from slipway_common.messaging import consume
from slipway_common.messaging.consume import Consumer, Owned
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.records import Record
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support import harness
from tests.support.harness import SERVICE, record_words, report, until

CONSUMER: Final = Consumer(SERVICE, WORKER_LIFECYCLE, record_words)
TOPIC: Final = WORKER_LIFECYCLE.name


class Pair:
    """Two sessions of a service on one database, and their tasks."""

    def __init__(self, url: str, a: Connection, b: Connection) -> None:
        self.url = url
        self.a = a
        self.b = b
        self.started: list[asyncio.Task[Any]] = []

    async def b_waits(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start the work of B, which must block on a lock held by A."""
        task = asyncio.create_task(work)
        self.started.append(task)
        watch = await postgres.session(self.url, SERVICE)
        try:
            query = "SELECT $1 = ANY(pg_blocking_pids($2))"
            pids = self.a.get_server_pid(), self.b.get_server_pid()

            async def waits_or_ended() -> bool:
                return task.done() or await watch.fetchval(query, *pids)

            await until(waits_or_ended, "B waits")
        finally:
            await watch.close()
        assert not task.done(), "B did not wait"
        return task

    async def words(self) -> list[str]:
        return [row["word"] for row in await self.a.fetch("SELECT word FROM effect ORDER BY id")]


@contextlib.asynccontextmanager
async def pair_on(server: EmbeddedPostgres) -> AsyncIterator[Pair]:
    name = harness.new_name()
    await harness.make_template(server, name)
    url = server.url(name)
    patient = {"idle_in_transaction_session_timeout": "0"} | harness.PATIENT
    a, b = [await postgres.session(url, SERVICE, **patient) for _ in range(2)]
    sessions = Pair(url, a, b)
    try:
        yield sessions
    finally:
        for task in sessions.started:
            task.cancel()
        a.terminate()
        b.terminate()
        await asyncio.gather(*sessions.started, return_exceptions=True)


def record(
    offset: int, word: str, *, partition: int = 0, subject: str = "w1", numbered: bool = True, event_id: str = ""
) -> Record:
    event = report(subject, word)
    envelope = Envelope(id=event_id or new_id(), type=event.type, source="/s", subject=subject, time=utc_now())
    if numbered:
        envelope = msgspec.structs.replace(envelope, sequence_number=offset + 1, previous=offset)
    headers = encode(envelope)
    value = b"{" if word == "cut" else msgspec.json.encode(event)
    return Record(TOPIC, partition, offset, subject.encode(), value, headers, 0)


async def claim(db: Connection, partition: int = 0) -> Owned:
    return (await consume.claim(db, TOPIC, partition, "cluster"))[0]
