"""Publishing on a real broker and database: despite crashes and stalls, nothing is lost, order per subject holds, and
sequence numbers have no gaps."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from itertools import count
from random import Random
from typing import Any

import msgspec
import pytest

from slipway_common.base.clock import utc_now
from slipway_common.base.errors import BadEvent
from slipway_common.events.launch_config import LaunchConfigArchived
from slipway_common.events.topics import LAUNCH_CONFIG_LIFECYCLE, WORKER_LIFECYCLE, dead_letter_topic
from slipway_common.events.worker import WorkerErrorReported
from slipway_common.messaging import outbox
from slipway_common.messaging.envelope import decode
from slipway_common.messaging.relay import Relay, WrongPartitions, partition_for
from tests.support.harness import PARTITIONS, SERVICE, Place, enqueue, member, publisher, read_all, report, until
from tests.support.processes import Process


@contextlib.asynccontextmanager
async def running(relay: Relay) -> AsyncIterator[Relay]:
    task = asyncio.create_task(relay.run())
    try:
        yield relay
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_published(place: Place) -> None:
    async def empty() -> bool:
        return not await place.database.fetchval("SELECT count(*) FROM outbox")

    await until(empty, "the outbox is empty")


class Log(msgspec.Struct):
    """A topic as seen by a consumer that drops duplicates by sequence number."""

    events: dict[str, list[tuple[int, str]]]
    """(revision, word) by subject."""
    repeats: int
    gaps: list[str]


async def read(place: Place) -> Log:
    log = Log(defaultdict(list), 0, [])
    last: dict[tuple[int, str], int] = {}
    for record in await read_all(place, WORKER_LIFECYCLE.name):
        envelope = decode(record.headers, received_at=utc_now())
        assert envelope.sequence_number is not None
        assert envelope.revision is not None
        assert envelope.previous == envelope.sequence_number - 1
        assert record.partition == partition_for(envelope.subject, PARTITIONS)
        place_of = record.partition, envelope.sequence_source
        if envelope.sequence_number <= last.get(place_of, 0):
            log.repeats += 1
            continue
        if envelope.previous > last.get(place_of, 0):
            log.gaps.append(f"{place_of}: {envelope.sequence_number} after {last.get(place_of, 0)}")
        last[place_of] = envelope.sequence_number
        event = msgspec.json.decode(record.value, type=WorkerErrorReported)
        log.events[envelope.subject].append((envelope.revision, event.kind))
    return log


async def write(
    place: Place,
    writer: int,
    *,
    rounds: int,
    subjects: int = 7,
    relay: Relay | None = None,
    until_set: asyncio.Event | None = None,
) -> None:
    """Write transactions of several subjects, some rolled back, some slow to commit; each notifies the relay.

    At least `rounds` of them, and more until an event is set."""
    chance = Random(writer)
    for n in count():
        if n >= rounds and (until_set is None or until_set.is_set()):
            return
        names = sorted(chance.sample(range(subjects), chance.randint(1, 3)))
        async with place.database.acquire() as db:
            undone = chance.random() < 0.1
            with contextlib.suppress(Undone):
                async with db.transaction():
                    await outbox.enqueue(db, [report(f"w{name}", f"{writer}.{n}") for name in names])
                    await asyncio.sleep(chance.choice([0, 0, 0.002]))
                    if undone:
                        raise Undone
        if relay is not None:
            relay.wake(place.database)


class Undone(Exception):
    pass


def check(log: Log) -> None:
    """Check that nothing is lost: revisions of a subject are 1, 2, 3 …, and the words of each writer are in order."""
    assert log.gaps == []
    for events in log.events.values():
        assert [revision for revision, _ in events] == list(range(1, len(events) + 1))
        by_writer = defaultdict(list)
        for _, word in events:
            writer, n = word.split(".")
            by_writer[writer].append(int(n))
        assert all(words == sorted(words) for words in by_writer.values())


async def test_concurrent_writers(place: Place) -> None:
    """Sixteen writers on shared subjects while the relay runs."""
    await place.create(WORKER_LIFECYCLE)
    async with running(place.relay(WORKER_LIFECYCLE)) as relay:
        await asyncio.gather(*(write(place, writer, rounds=40, relay=relay) for writer in range(16)))
        await until_published(place)
    log = await read(place)
    check(log)
    assert log.repeats == 0
    revisions = dict(await place.database.fetch("SELECT subject, revision FROM outbox_subject"))
    assert {subject: len(events) for subject, events in log.events.items()} == revisions


async def test_killed_relay(place: Place) -> None:
    """Another relay takes over after SIGKILL."""
    await place.create(WORKER_LIFECYCLE)
    first = Process.at(place, "relay", "10")
    second = place.relay(WORKER_LIFECYCLE)
    try:
        await write(place, 0, rounds=5)
        await first.until_printed("published")
        async with running(second):
            killed = asyncio.Event()
            writing = asyncio.gather(
                *(write(place, writer, rounds=60, relay=second, until_set=killed) for writer in range(1, 5))
            )
            await first.until_printed("published\npublished\npublished")
            assert not second.leading
            first.kill()
            killed.set()
            await writing
            await until_published(place)
            assert second.leading
    finally:
        first.kill()
    check(await read(place))


async def test_stopped_relay(place: Place) -> None:
    """Another relay takes over from one stopped for longer than the session timeout; records sent by the first after it
    resumes are duplicates."""
    await place.create(WORKER_LIFECYCLE)
    first = Process.at(place, "relay", "1.5")
    second = place.relay(WORKER_LIFECYCLE)
    try:
        await first.until_printed("up")
        await write(place, 0, rounds=5)
        await first.until_printed("published")
        async with running(second):
            first.stop()
            await write(place, 1, rounds=30)
            await until(lambda: second.leading)
            await until_published(place)
            first.resume()
            await write(place, 2, rounds=30)
            await first.until_printed("relay restarting after an error")
            await until_published(place)
            assert second.leading
    finally:
        first.kill()
    check(await read(place))


async def test_zombie_relay(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that a relay sends after losing its lock are duplicates, before and after those of its successor."""
    await place.create(WORKER_LIFECYCLE)
    zombie, successor = place.relay(WORKER_LIFECYCLE), place.relay(WORKER_LIFECYCLE)
    held: list[Any] = []
    send = zombie._send

    async def hold(*arguments: Any) -> Any:
        held.append(arguments)
        raise ConnectionResetError

    monkeypatch.setattr(zombie, "_send", hold)
    for n in range(24):
        await enqueue(place.database, report(f"w{n % 12}", f"0.{n}"))
    async with publisher(place) as publish, place.database.acquire() as db:
        source = f"/slipway/{SERVICE}/{await db.fetchval('SELECT id FROM incarnation')}"
        with pytest.raises(ConnectionResetError):
            await zombie.publish(db, publish.producer, source)
        early, *late = held
        assert late
        await send(*early)
        async with running(successor):
            await enqueue(place.database, *(report(f"w{n}", "0.24") for n in range(6)))
            await until_published(place)
            for batch in late:
                await send(*batch)
            await enqueue(place.database, *(report(f"w{n}", "0.25") for n in range(12)))
            await until_published(place)
    log = await read(place)
    check(log)
    assert log.repeats == 24
    assert sum(len(events) for events in log.events.values()) == 24 + 6 + 12


async def test_wrong_partition_count(place: Place) -> None:
    """The relay publishes nothing if the partition count differs, since keys would move."""
    await place.create(WORKER_LIFECYCLE)
    relay = place.relay(WORKER_LIFECYCLE, partitions=PARTITIONS + 1)
    await enqueue(place.database, report("w1", "a"))
    with pytest.raises(WrongPartitions, match=r"has 4 partitions, but the registry has 5"):
        await relay._lead()
    assert await place.database.fetchval("SELECT count(*) FROM outbox") == 1
    assert await read_all(place, WORKER_LIFECYCLE.name) == []


async def test_a_refused_row_holds_up_no_other_topic(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the broker of one partition refuses wait; rows of other partitions are sent once and deleted."""
    await place.create(WORKER_LIFECYCLE)
    relay = place.relay(WORKER_LIFECYCLE)
    send = relay._send

    async def refuse_one(producer: Any, source: str, rows: Any) -> Any:
        if rows[0]["partition"] == refused:
            raise ConnectionResetError
        return await send(producer, source, rows)

    monkeypatch.setattr(relay, "_send", refuse_one)
    subjects = [f"w{n}" for n in range(12)]
    refused = partition_for("w0", PARTITIONS)
    await enqueue(place.database, *(report(subject, "0.1") for subject in subjects))
    async with publisher(place) as publish, place.database.acquire() as db:
        for _ in range(3):
            with pytest.raises(ConnectionResetError):
                await relay.publish(db, publish.producer, "/slipway/probe/1")
    waiting = {row["subject"] for row in await place.database.fetch("SELECT subject FROM outbox")}
    assert waiting == {subject for subject in subjects if partition_for(subject, PARTITIONS) == refused}
    assert set((await read(place)).events) == set(subjects) - waiting


async def test_dead_letter_topic(place: Place) -> None:
    """A dead record reaches its dead-letter topic unchanged, with the reason; without its value if it is too large."""
    await place.create(WORKER_LIFECYCLE)
    async with publisher(place) as publish, member(place), running(place.relay(WORKER_LIFECYCLE)):
        bad = await publish.send(report("w1", "bad"), value=b"{", key=b"\xff\0")
        await publish.send(report("w2", "bad"), value=b"{" * 900_000)

        async def dead_lettered() -> bool:
            return len(await place.dead()) == 2

        await until(dead_lettered)
        await until_published(place)
    letters = {r.key: r for r in await read_all(place, dead_letter_topic(WORKER_LIFECYCLE, SERVICE))}
    headers = dict(letters["\ufffd\ufffd".encode()].headers)
    assert headers["ce_subject"] == b"w1"
    assert headers["__dlq.errors.topic"] == WORKER_LIFECYCLE.name.encode()
    assert headers["__dlq.errors.offset"] == b"%d" % bad.offset
    assert b"truncated" in headers["__dlq.errors.message"]
    assert letters["\ufffd\ufffd".encode()].value == b"{"
    assert letters[b"w2"].value is None
    assert int(dict(letters[b"w2"].headers)["__dlq.errors.omitted_bytes"]) > 900_000
    assert await place.database.fetchval("SELECT max(length(value)) FROM dead_letter") == 900_000


async def test_too_large_to_publish(place: Place) -> None:
    """An event too large for the relay is refused before the commit."""
    with pytest.raises(BadEvent, match="at most"):
        await enqueue(place.database, report("w1", "x" * 600_000))


async def test_deleted_key(place: Place) -> None:
    """A tombstone has a key, a type and a sequence number but no value, and continues its own trace."""
    await place.create(LAUNCH_CONFIG_LIFECYCLE, WORKER_LIFECYCLE)
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    gone = LaunchConfigArchived(
        launch_config_id="c/1@3f2c9a",
        name="c/1",
        pool_id="p",
        account_id="a",
        region="r",
        zone="z",
        instance_type="t",
        image_revision="i",
        base_weight=1,
        price_factor=1,
        state="archived",
        revision=1,
    )
    await enqueue(place.database, gone, outbox.Tombstone(gone), outbox.Traced(report("w1", "x"), trace))
    async with running(place.relay(LAUNCH_CONFIG_LIFECYCLE, WORKER_LIFECYCLE)):
        await until_published(place)
    state, tombstone = await read_all(place, LAUNCH_CONFIG_LIFECYCLE.name)
    key = b"c%2F1@3f2c9a"
    assert (state.key, tombstone.key, tombstone.value) == (key, key, None)
    envelope = decode(tombstone.headers, received_at=utc_now())
    assert (envelope.type, envelope.subject, envelope.revision) == (gone.type, key.decode(), 2)
    (traced,) = await read_all(place, WORKER_LIFECYCLE.name)
    assert decode(traced.headers, received_at=utc_now()).traceparent.split("-")[1] == "a" * 32
