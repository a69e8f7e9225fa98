"""Two owners of one partition on real PostgreSQL: what the former does has no effect, and no position is lost."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import Any, Final

import msgspec
import pytest

from slipway_common import consume
from slipway_common.clock import utc_now
from slipway_common.consume import Consumer, Fenced, Owned, Received, Record
from slipway_common.envelope import Envelope, encode
from slipway_common.ids import new_id
from slipway_common.postgres import Connection, Pool, connect
from slipway_common.topics import WORKER_LIFECYCLE
from slipway_local.postgres import EmbeddedPostgres
from tests.harness import SERVICE, make_template, record_words, report

CONSUMER: Final = Consumer(SERVICE, WORKER_LIFECYCLE, record_words)
_databases = count(1)


@pytest.fixture
async def pool(postgres: EmbeddedPostgres) -> AsyncIterator[Pool]:
    name = f"consume_{next(_databases)}"
    await make_template(postgres, name)
    pool = await connect(postgres.url(name), SERVICE)
    yield pool
    await pool.close()


def record(offset: int, word: str) -> Record:
    event = report("w", word)
    envelope = Envelope(
        id=new_id(), type=event.type, source="/s", subject="w", time=utc_now(), number=offset + 1, previous=offset
    )
    return Record(WORKER_LIFECYCLE.name, 0, offset, b"w", msgspec.json.encode(event), encode(envelope), 0)


async def claim(db: Connection) -> Owned:
    owned, _ = await consume.claim(db, WORKER_LIFECYCLE.name, 0, "cluster")
    return owned


async def words(pool: Pool) -> list[str]:
    return [row["word"] for row in await pool.fetch("SELECT word FROM effect ORDER BY id")]


async def test_a_former_owner_changes_nothing(pool: Pool) -> None:
    """The epoch decides, though the position is where the former owner left it."""
    async with pool.acquire() as db:
        former = await claim(db)
        successor = await claim(db)
        with pytest.raises(Fenced):
            await consume.apply(db, CONSUMER, former, [record(0, "former")])
        assert await consume.reread(db, WORKER_LIFECYCLE.name, 0, former.epoch) is None
        await consume.apply(db, CONSUMER, successor, [record(0, "successor")])
    assert await words(pool) == ["successor"]


async def test_the_position_moves_with_the_effects(pool: Pool) -> None:
    """Both are committed or neither; the next owner goes on behind the last effect, a repeat has none."""
    async with pool.acquire() as db:
        owned = await claim(db)
        batch = [record(0, "a"), record(1, "b")]
        assert await consume.apply(db, CONSUMER, owned, batch) == Owned(1, 2)
        assert await consume.reread(db, WORKER_LIFECYCLE.name, 0, 1) == Owned(1, 2)
        with pytest.raises(ConnectionError):
            await consume.apply(db, Consumer(SERVICE, WORKER_LIFECYCLE, fail), Owned(1, 2), [record(2, "undone")])
        assert await consume.reread(db, WORKER_LIFECYCLE.name, 0, 1) == Owned(1, 2)
        assert await claim(db) == Owned(2, 2)
        await consume.apply(db, CONSUMER, Owned(2, 2), [*batch, record(2, "c")])
    assert await words(pool) == ["a", "b", "c"]


async def fail(tx: Connection, events: Sequence[Received]) -> None:
    await record_words(tx, events)
    raise ConnectionError


async def test_a_claim_waits_for_the_batch_under_way(pool: Pool) -> None:
    """It goes on behind what the former owner was about to commit, and repeats nothing."""
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def slow(tx: Connection, events: Sequence[Received]) -> None:
        await record_words(tx, events)
        inside.set()
        await go_on.wait()

    async def applied() -> Any:
        async with pool.acquire() as db:
            return await consume.apply(db, Consumer(SERVICE, WORKER_LIFECYCLE, slow), Owned(1, 0), [record(0, "a")])

    async def claimed() -> Owned:
        async with pool.acquire() as db:
            return await claim(db)

    assert await claimed() == Owned(1, 0)
    batch = asyncio.create_task(applied())
    await inside.wait()
    successor = asyncio.create_task(claimed())
    await asyncio.sleep(0.05)
    assert not successor.done()
    go_on.set()
    assert await batch == Owned(1, 1)
    assert await successor == Owned(2, 1)
    assert await words(pool) == ["a"]
