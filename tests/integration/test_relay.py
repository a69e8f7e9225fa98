"""Publishing on a real broker and database: despite crashes and stalls, nothing is lost, order per subject holds, and
sequence numbers have no gaps."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from itertools import count
from random import Random
from typing import Any, Final

import msgspec
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from slipway_api.events.launch_config import LaunchConfigArchived
from slipway_api.events.topics import LAUNCH_CONFIG_LIFECYCLE, WORKER_LIFECYCLE, dead_letter_topic
from slipway_api.events.worker import WorkerErrorReported
from slipway_common.base.clock import utc_now
from slipway_common.base.errors import BadEvent
from slipway_common.database.postgres import session
from slipway_common.messaging import outbox, topic_admin
from slipway_common.messaging import relay as relay_module
from slipway_common.messaging.envelope import decode
from slipway_common.messaging.partition_queues import RETRY_SECONDS
from slipway_common.messaging.producers import ABANDONED_SECONDS, OVERDUE_SECONDS, Producers
from slipway_common.messaging.relay import Publication, Relay, WrongPartitions, partition_for
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


def archived(launch_config_id: str) -> LaunchConfigArchived:
    return LaunchConfigArchived(
        launch_config_id=launch_config_id,
        name=launch_config_id.partition("@")[0],
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


GONE: Final = 2_000
# Events in the order in which space became free, of which the server expects that one in ten is new. They have a topic
# that no relay sends, and get their numbers after it has looked at them.
SCATTERED: Final = f"""
INSERT INTO outbox
    (id, event_id, topic, type, subject, key, revision, value, at, traceparent, partition, sequence_number)
OVERRIDING SYSTEM VALUE
SELECT -n, gen_random_uuid(), 'other', 't', 's', 's', n, repeat('x', 500)::bytea, slipway_clock(), '', 0,
    CASE WHEN n % 10 > 0 THEN n END
FROM generate_series(1, 10 * {GONE}) AS n ORDER BY md5(n::text)"""
NUMBERED: Final = "UPDATE outbox SET sequence_number = -id WHERE sequence_number IS NULL"
ENTRIES_READ: Final = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'outbox_unnumbered'"


async def test_events_that_are_gone_are_read_once(place: Place) -> None:
    """New events are found without those that were sent before, whose entries stay in the index until a vacuum."""
    async with place.database.acquire() as db:
        await db.execute(SCATTERED)
        await db.execute("ANALYZE outbox")
        await db.execute(NUMBERED)

    async def sent() -> bool:
        return not await place.database.fetchval("SELECT count(*) FROM outbox WHERE topic <> 'other'")

    await place.create(WORKER_LIFECYCLE)
    async with running(place.relay(WORKER_LIFECYCLE)) as relay:
        for n in range(10):
            await enqueue(place.database, report("w1", str(n)))
            relay.wake(place.database)
            await until(sent, "the event is sent")
    async with asyncio.timeout(10):
        while not (read := await place.database.fetchval(ENTRIES_READ)):
            await asyncio.sleep(0.05)
    assert read < 3 * GONE  # once to number them, and once more


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
            # What it finds first: the reason of the server, or a closed connection.
            await first.until_printed("no connection to the database", "relay restarting after an error")
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
    send = relay_module.send_batch

    async def hold(*arguments: Any) -> Any:
        held.append(arguments)
        raise ConnectionResetError

    for n in range(24):
        await enqueue(place.database, report(f"w{n % 12}", f"0.{n}"))
    async with publisher(place) as publish, place.database.acquire() as db:

        async def producer() -> Any:
            return publish.producer

        source = f"/slipway/{SERVICE}/{await db.fetchval('SELECT id FROM incarnation')}"
        with monkeypatch.context() as patch:
            patch.setattr(relay_module, "send_batch", hold)
            publication = Publication(zombie, source, Producers(producer), places=[], together_seconds=None)
            await publication.round(db)
        assert sum(len(arguments[-1]) for arguments in held) == 24
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


async def test_commits_are_notified_together(place: Place) -> None:
    """A relay that does not lead notifies the one that leads once per 20 ms, since a NOTIFY for each commit would halve
    the commits."""
    relay, received = place.relay(WORKER_LIFECYCLE), []
    listening = await session(place.url, SERVICE)
    try:
        await listening.add_listener(relay._channel, lambda *_: received.append(1))
        for _ in range(100):
            relay.wake(place.database)
        await until(lambda: received, "the notification arrives")
        await place.database.fetchval("SELECT pg_notify($1, 'last')", relay._channel)
        await until(lambda: len(received) > 1, "the last one arrives")
    finally:
        await listening.close()
    assert len(received) == 2


async def test_a_commit_during_a_notification_is_notified_of(place: Place) -> None:
    """The leader may have looked at the outbox before it."""
    relay, received = place.relay(WORKER_LIFECYCLE), []

    class Committing:
        """Database in which another transaction commits while the first notification is sent."""

        notified = 0

        async def execute(self, *arguments: Any) -> None:
            await place.database.execute(*arguments)
            self.notified += 1
            if self.notified == 1:
                relay.wake(self)

    listening = await session(place.url, SERVICE)
    try:
        await listening.add_listener(relay._channel, lambda *_: received.append(1))
        relay.wake(Committing())
        await until(lambda: len(received) == 2, "both commits are notified of")
    finally:
        await listening.close()


async def test_wrong_partition_count(place: Place) -> None:
    """The relay publishes nothing if the partition count differs, since keys would move."""
    await place.create(WORKER_LIFECYCLE)
    relay = place.relay(WORKER_LIFECYCLE, partitions=PARTITIONS + 1)
    await enqueue(place.database, report("w1", "a"))
    with pytest.raises(WrongPartitions, match=r"has 4 partitions, but the registry has 5"):
        await relay._lead()
    assert await place.database.fetchval("SELECT count(*) FROM outbox") == 1
    assert await read_all(place, WORKER_LIFECYCLE.name) == []


class Broker:
    """Producer of a broker that answers for all partitions but the `silent` ones."""

    def __init__(self, silent: set[int]) -> None:
        self.silent = silent
        self.opened = 0
        self.sent: list[tuple[int, list[str], asyncio.Future[None]]] = []  # partition, words, acknowledgement

    async def open(self) -> "Broker":
        self.opened += 1
        return self

    async def abandon(self) -> None:
        """Nothing to close."""

    async def partitions_for(self, topic: str) -> set[int]:
        return set(range(PARTITIONS))

    def create_batch(self) -> Any:
        return Words()

    async def send_batch(self, batch: Any, topic: str, *, partition: int) -> asyncio.Future[None]:
        acknowledgement: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if partition not in self.silent:
            acknowledgement.set_result(None)
        self.sent.append((partition, batch.words, acknowledgement))
        return acknowledgement

    def words(self, partition: int) -> list[list[str]]:
        """Batches sent to a partition."""
        return [words for sent_to, words, _ in self.sent if sent_to == partition]


class Words:
    """Batch that stores the words of its events."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def append(self, *, value: bytes, **_: Any) -> bool:
        self.words.append(msgspec.json.decode(value)["kind"])
        return True


async def test_a_silent_partition_delays_no_other(place: Place) -> None:
    """Events of other partitions are published while one does not answer; its own wait for the acknowledgement, are
    sent again when none comes, and follow in order."""
    silent = partition_for("w0", PARTITIONS)
    others = [f"w{n}" for n in range(1, 12) if partition_for(f"w{n}", PARTITIONS) != silent]
    broker, now = Broker({silent}), 0.0
    relay = place.relay(WORKER_LIFECYCLE)
    publication = Publication(relay, "/slipway/probe/1", Producers(broker.open), places=[], clock=lambda: now)

    async def waiting() -> set[str]:
        return {row["subject"] for row in await place.database.fetch("SELECT subject FROM outbox")}

    async with place.database.acquire() as db:

        async def publish(word: str) -> None:
            """Publish an event of each subject, until only those of the silent partition wait."""
            await enqueue(place.database, *(report(subject, word) for subject in ("w0", *others)))

            async def published() -> bool:
                return not await publication.round(db) and await waiting() == {"w0"}

            await until(published, "the events of all other partitions are published")

        await publish("a")
        await publish("b")
        assert publication.unsendable() == []
        assert broker.words(silent) == [["a"]]
        now += OVERDUE_SECONDS + 0.1
        assert publication.unsendable() == [(WORKER_LIFECYCLE.name, silent)]
        await publish("c")
        assert broker.opened == 2, "the producer with the silent partition takes no other batches"
        assert broker.words(silent) == [["a"]]
        now += ABANDONED_SECONDS
        await publish("d")
        assert broker.words(silent) == [["a"]]
        now += max(RETRY_SECONDS)
        await publish("e")
        assert broker.words(silent)[1:] == [["a", "b", "c", "d", "e"]], "sent again, with what came meanwhile"
        assert broker.opened == 3, "partitions that failed are tried by a producer of their own"
        broker.silent.clear()
        for _, _, acknowledgement in broker.sent:
            if not acknowledgement.done():
                acknowledgement.set_result(None)
        while await waiting():
            await publication.round(db)
        assert publication.unsendable() == []
        assert len(broker.words(silent)) == 2
    await publication.close()


async def test_a_refused_topic_delays_no_other(place: Place) -> None:
    """A topic that the broker accepts nothing for waits; other topics are published, and it follows once it is accepted
    again, in order and once."""
    await place.create(LAUNCH_CONFIG_LIFECYCLE)
    refused = topic_admin.Wanted(
        place.prefix + WORKER_LIFECYCLE.name, PARTITIONS, WORKER_LIFECYCLE.config | {"max.message.bytes": "10"}
    )
    await topic_admin.ensure(place.kafka.bootstrap, [refused])
    subjects = [f"w{n}" for n in range(12)]
    async with running(place.relay(WORKER_LIFECYCLE, LAUNCH_CONFIG_LIFECYCLE)) as relay:
        for round_ in range(3):
            await enqueue(place.database, *(report(subject, f"0.{round_}") for subject in subjects))
            relay.wake(place.database)
            await enqueue(place.database, archived(f"c/{round_}@3f2c9a"))
            relay.wake(place.database)

            async def only_refused_wait(count: int = len(subjects) * (round_ + 1)) -> bool:
                topics = [row["topic"] for row in await place.database.fetch("SELECT topic FROM outbox")]
                return topics == [WORKER_LIFECYCLE.name] * count

            await until(only_refused_wait, "the other topic is published")
        assert await read_all(place, WORKER_LIFECYCLE.name) == []
        await until(lambda: relay.publication and len(relay.publication.unsendable()) == PARTITIONS, "all are known")
        await accept(place, WORKER_LIFECYCLE.name)
        await until_published(place)
    log = await read(place)
    check(log)
    assert {subject: len(events) for subject, events in log.events.items()} == dict.fromkeys(subjects, 3)


async def test_a_topic_that_does_not_exist_delays_no_other(place: Place) -> None:
    """Its events wait until it is created."""
    await place.create(LAUNCH_CONFIG_LIFECYCLE)
    await enqueue(place.database, report("w1", "0.1"), archived("c/1@3f2c9a"))
    async with running(place.relay(WORKER_LIFECYCLE, LAUNCH_CONFIG_LIFECYCLE)):

        async def waiting() -> list[str]:
            return [row["subject"] for row in await place.database.fetch("SELECT subject FROM outbox")]

        async def only_one_waits() -> bool:
            return await waiting() == ["w1"]

        await until(only_one_waits, "the other topic is published")
        await place.create(WORKER_LIFECYCLE)
        await until_published(place)
    assert set((await read(place)).events) == {"w1"}


async def accept(place: Place, topic: str) -> None:
    """Let the broker accept batches of a topic up to its usual limit."""
    admin = AIOKafkaAdminClient(bootstrap_servers=place.kafka.bootstrap)
    await admin.start()
    try:
        resource = ConfigResource(ConfigResourceType.TOPIC, place.prefix + topic, {"max.message.bytes": "1048588"})
        await admin.alter_configs([resource])
    finally:
        await admin.close()


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
    gone = archived("c/1@3f2c9a")
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
