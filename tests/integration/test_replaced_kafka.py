"""Kafka that is replaced by an empty cluster under the same address, while its readers run."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from slipway_common.messaging import kafka
from slipway_common.messaging.partitions import Partitions
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.harness import PARTITIONS, Diary, Place, member, new_place, publisher, replica, report, until


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedKafka]:
    made = EmbeddedKafka(tmp_path / "kafka")
    await made.start()
    yield made
    await made.kill()


async def replace(broker: EmbeddedKafka) -> None:
    await broker.kill()
    shutil.rmtree(broker.log.parent / "storage")
    await broker.start()


async def publish(place: Place, number: int, word: str) -> None:
    """Publish an event, and wait until it has taken effect. A relay continues its numbers in a new log."""
    async with publisher(place) as connected:
        await connected.send(report("w1", word), partition=0, sequence_number=number, previous=number - 1)

    async def has() -> bool:
        return (await place.words("w1"))[-1:] == [word]

    await until(has, f"{word} took effect")


async def adopt(readings: Callable[[], Sequence[Partitions]], cluster: str) -> None:
    """Wait until every partition has stopped, and adopt the beginning of the log of this cluster. A leader makes its
    readings anew when it connects, so that one may be gone before it is adopted."""
    adopted: set[tuple[str, int]] = set()

    async def all_adopted() -> bool:
        for reading in readings():
            for partition, reason in list(reading.stopped.items()):
                assert f"this is cluster {cluster}" in reason
                with contextlib.suppress(KeyError):
                    assert await reading.adopt(partition, at_end=False, by="ops") == 0
                    adopted.add((reading.name, partition))
        return bool(readings()) and len(adopted) == len(readings()) * PARTITIONS

    await until(all_adopted, "all partitions have stopped, and are adopted")


async def test_readers_wait_for_an_operator(
    broker: EmbeddedKafka, servers: tuple[EmbeddedKafka, EmbeddedPostgres], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions in the lost log mean nothing in the new one, also where it is longer: read from there, its first events
    would be lost without a word."""
    monkeypatch.setattr(kafka, "STOPPED_SECONDS", 0.05)
    own = broker, servers[1]
    async with new_place(own) as shared, new_place(own) as alone:
        for place in (shared, alone):
            await place.create(*Diary.topics)
        async with member(shared) as joined, replica(alone, "a") as leader:
            await until(leader.working, "the replica leads")
            for place in (shared, alone):
                await publish(place, 1, "before")
            await replace(broker)
            for place in (shared, alone):
                await place.create(*Diary.topics)
            cluster = await kafka.cluster_id(broker.bootstrap)
            await adopt(lambda: [joined.subscription], cluster)
            await adopt(lambda: leader.readings, cluster)
            for place in (shared, alone):
                await publish(place, 2, "after")
                assert await place.words("w1") == ["before", "after"]
