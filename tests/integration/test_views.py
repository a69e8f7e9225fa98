"""Views: ready once read to the end, and read again from the beginning after any error."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from slipway_api.events.topics import WORKER_LIFECYCLE
from slipway_common.database.postgres import Database
from slipway_common.messaging.records import Received
from slipway_common.messaging.views import Reader
from tests.support.harness import SERVICE, Place, Words, publisher, report, until


@contextlib.asynccontextmanager
async def reading(place: Place, view: Words) -> AsyncIterator[Reader]:
    reader = Reader(view, SERVICE, kafka=place.kafka.bootstrap, prefix=place.prefix, wake=lambda: None)
    task = asyncio.create_task(reader.run(place.database))
    try:
        yield reader
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_ready_when_read_to_the_end(place: Place) -> None:
    """Records present at the start are applied before the view is ready; those that cannot be are dead."""
    await place.create(WORKER_LIFECYCLE)
    view = Words()
    async with publisher(place) as publish:
        for n in range(40):
            await publish.send(report(f"w{n % 8}", f"{n}"))
        await publish.send(report("w0", "bad"), value=b"{")
        await publish.send(report("w0", "bad"), headers=[("ce_id", b"\xff")])
        await publish.send(report("w0", "new"), type="io.slipway.worker.beamed_up.v9")
        await publish.send(report("w0", "gone"), value=None)
        async with reading(place, view) as reader:
            await until(lambda: reader.ready)
            assert view.seen["w0"] == ["0", "8", "16", "24", "32"]
            assert view.seen["w7"] == ["7", "15", "23", "31", "39"]
            await publish.send(report("w7", "40"))
            await until(lambda: view.seen["w7"][-1] == "40")
    assert [subject for subject, *_ in await place.dead()] == ["w0"] * 3
    assert await place.database.fetchval("SELECT count(*) FROM outbox WHERE type = 'dead'") == 3


async def test_record_that_cannot_be_applied(place: Place) -> None:
    """An event at which the view fails is dead; others are applied, and the view is ready. Read again, it is the same
    dead letter. An error of the infrastructure blames no event."""
    await place.create(WORKER_LIFECYCLE)

    class Failing(Words):
        async def apply(self, database: Database, records: Sequence[Received]) -> None:
            for record in records:
                if record.event.kind == "bad":
                    await database.execute("SELECT $1::int", "bad")
            await super().apply(database, records)

    async with publisher(place) as publish:
        for n in range(5):
            await publish.send(report(f"w{n}", "bad" if n == 3 else "a"), partition=0)
        for _ in range(2):
            view = Failing()
            async with reading(place, view) as reader:
                await until(lambda: reader.ready)  # it is awaited in this round
                assert view.seen == {f"w{n}": ["a"] for n in (0, 1, 2, 4)}
    assert [(subject, state, reason[:11]) for subject, state, reason in await place.dead()] == [
        ("w3", "dead", "DataError: ")
    ]
    assert await place.database.fetchval("SELECT count(*) FROM outbox WHERE type = 'dead'") == 1


async def test_starts_over_after_an_error(place: Place) -> None:
    """After an error everything is applied again, and the view is not ready in between."""
    await place.create(WORKER_LIFECYCLE)
    ready: list[bool] = []

    class Noting(Words):
        """View that records its readiness at the first record and at each restart."""

        async def apply(self, pool: Database, records: Sequence[Received]) -> None:
            if not self.seen:
                ready.append(reader.ready)
            await super().apply(pool, records)

    view = Noting()
    async with publisher(place) as publish, reading(place, view) as reader:
        await publish.send(report("w1", "a"))
        await until(lambda: reader.ready and view.seen)
        view.refused = "b"
        await publish.send(report("w1", "b"))
        await until(lambda: view.seen == {"w1": ["a", "b"]} and reader.ready)
        _, *again = ready  # the view of an empty topic may be ready before its first record
        assert again
        assert not any(again)


async def test_waits_for_its_topic(place: Place) -> None:
    """A view is not ready without its topic; an empty topic is read at once."""
    view = Words()
    async with reading(place, view) as reader:
        await asyncio.sleep(0)
        assert not reader.ready
        await place.create(WORKER_LIFECYCLE)
        await until(lambda: reader.ready)
        assert view.seen == {}
