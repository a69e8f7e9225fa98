"""Views: a topic read whole, ready once read to the end, and read again from its beginning after any error."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from slipway_common.postgres import Pool
from slipway_common.records import Received
from slipway_common.topics import WORKER_LIFECYCLE
from slipway_common.views import Reader
from tests.harness import Place, Words, publisher, report, until


@contextlib.asynccontextmanager
async def reading(place: Place, view: Words) -> AsyncIterator[Reader]:
    reader = Reader(view, bootstrap_servers=place.kafka.bootstrap, prefix=place.prefix, ring=lambda: None)
    task = asyncio.create_task(reader.run(place.pool))
    try:
        yield reader
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_ready_when_read_to_the_end(place: Place) -> None:
    """What was there at the start is applied before it is ready; what comes later follows; bad records are skipped."""
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
            assert view.seen["w0"] == ["0", "8", "16", "24", "32", None]
            assert view.seen["w7"] == ["7", "15", "23", "31", "39"]
            await publish.send(report("w7", "40"))
            await until(lambda: view.seen["w7"][-1] == "40")


async def test_starts_over_after_an_error(place: Place) -> None:
    """A view that failed has everything again, and is not ready in between."""
    await place.create(WORKER_LIFECYCLE)
    ready: list[bool] = []

    class Noting(Words):
        """Notes whether it was ready when it was given its first record, and each time that it begins again."""

        async def apply(self, pool: Pool, records: Sequence[Received]) -> None:
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
        assert len(ready) == 2
        assert not ready[1]


async def test_waits_for_its_topic(place: Place) -> None:
    """Without its topic it is not ready; an empty one is read to its end at once."""
    view = Words()
    async with reading(place, view) as reader:
        await asyncio.sleep(0)
        assert not reader.ready
        await place.create(WORKER_LIFECYCLE)
        await until(lambda: reader.ready)
        assert view.seen == {}
