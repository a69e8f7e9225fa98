"""Test service for slipway_common: a database, topics, a record producer, a handler with countable effects, and a
helper to wait for conditions."""

import asyncio
import contextlib
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from itertools import count
from typing import Any, Final

import asyncpg
import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from sqlalchemy import MetaData

from slipway_api.events.topics import POOL_DEMAND, TOPIC_OF, WORKER_LIFECYCLE, Topic, dead_letter_topic
from slipway_api.events.worker import WorkerErrorReported
from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.base.ids import new_id
from slipway_common.database import migrate, postgres
from slipway_common.database.postgres import Connection, Database
from slipway_common.database.tables import leader, messaging, script
from slipway_common.messaging import kafka, outbox, topic_admin
from slipway_common.messaging.broker import connect
from slipway_common.messaging.consume import Batch, Consumer, Handler
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.leader_loop import LeaderLoop
from slipway_common.messaging.leadership import Turn
from slipway_common.messaging.records import Received
from slipway_common.messaging.relay import Relay, partition_for
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.postgres import EmbeddedPostgres

SERVICE: Final = "probe"
PARTITIONS: Final = 4
TEMPLATE: Final = "probe_template"
TABLES: Final = MetaData()
messaging(TABLES)
leader(TABLES)
# No unique key: a duplicate effect is a second row.
EFFECT: Final = """
CREATE TABLE effect (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, subject text NOT NULL, word text NOT NULL,
    partition integer NOT NULL
);"""
MIGRATED: Final = """
CREATE TABLE alembic_version (version_num text PRIMARY KEY);
INSERT INTO alembic_version VALUES ('0001')"""
# Timeouts of a process that a test stops inside a transaction; 5 s in production.
QUICK: Final = {"idle_in_transaction_session_timeout": "1s", "lock_timeout": "3s"}

# Timeout of waits, generous because machines may be busy. A wait ends with its event, so it costs nothing otherwise.
PATIENCE_SECONDS: Final = 60.0
# Timeouts of sessions that block each other in tests, and of those in a test that the machine may hold up.
PATIENT: Final = {"lock_timeout": "60s", "statement_timeout": "60s", "idle_in_transaction_session_timeout": "60s"}
WAITING: Final = """
SELECT count(DISTINCT l.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE NOT l.granted AND a.datname = current_database()"""

USUAL: Final[Any] = object()

_numbers = count(1)


async def until(condition: Callable[[], Any], what: str = "", *, seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait for a true result of `condition`; raises AssertionError on timeout. Infrastructure errors count as false."""
    deadline = monotonic_seconds() + seconds
    error: Exception | None = None
    answer: Any = None
    while monotonic_seconds() < deadline:
        try:
            answer = condition()
            if inspect.isawaitable(answer):
                answer = await answer
            error = None
        except (OSError, KafkaError, asyncpg.PostgresError, asyncpg.InterfaceError) as caught:
            error = caught
        else:
            if answer:
                return answer
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {seconds} s: {what or inspect.getsource(condition)} (last: {error or answer!r})")


async def until_waiting(database: Database, *tasks: asyncio.Task[Any]) -> None:
    """Wait until each task is blocked on a lock in its own session."""

    async def all_wait() -> bool:
        for task in tasks:
            assert not task.done(), task
        return bool(await database.fetchval(WAITING) >= len(tasks))

    await until(all_wait, f"{len(tasks)} sessions wait for locks")


async def until_ended_or_waiting(database: Database, task: asyncio.Task[Any]) -> None:
    """Wait until a task has ended or a session is blocked on a lock."""

    async def ended_or_waiting() -> bool:
        return task.done() or bool(await database.fetchval(WAITING))

    await until(ended_or_waiting, "the task ends or waits for a lock")


async def make_template(server: EmbeddedPostgres, name: str = TEMPLATE) -> None:
    """Create a template database once per server and name: the tables of every service, and one for effects."""
    url = await server.create_database(name)
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            names = {"role": postgres.role_of(SERVICE), "schema": postgres.schema_of(SERVICE)}
            await connection.execute(migrate.PREPARE.format(**names))
            await connection.execute(f"SET LOCAL ROLE {names['role']}")
            await connection.execute(f"SET LOCAL search_path TO {names['schema']}")
            await connection.execute(script(TABLES) + EFFECT + MIGRATED)
    finally:
        await connection.close()


class Place:
    """Database and topics of one test. `database` has the role of the service."""

    def __init__(
        self, servers: tuple[EmbeddedKafka, EmbeddedPostgres], url: str, database: Database, prefix: str
    ) -> None:
        self.kafka, self.postgres = servers
        self.url = url
        self.database = database
        self.prefix = prefix

    async def create(self, *topics: Topic) -> None:
        """Create the topics and their dead-letter topics."""
        rows = [topic_admin.Wanted(self.prefix + topic.name, PARTITIONS, topic.config) for topic in topics]
        rows += [
            topic_admin.Wanted(self.prefix + dead_letter_topic(topic, SERVICE), 1, topic_admin.DEAD_LETTER_CONFIG)
            for topic in topics
        ]
        await topic_admin.ensure(self.kafka.bootstrap, rows)

    def relay(self, *topics: Topic, partitions: int = PARTITIONS, stalled_seconds: float = 10.0) -> Relay:
        return Relay(
            SERVICE,
            database_url=self.url,
            kafka=self.kafka.bootstrap,
            topic_prefix=self.prefix,
            partitions=topic_admin.partition_counts(topics, partitions),
            stalled_seconds=stalled_seconds,
        )

    async def effects(self) -> Counter[tuple[str, str]]:
        """Number of effects of each (subject, word)."""
        return Counter((r["subject"], r["word"]) for r in await self.database.fetch("SELECT subject, word FROM effect"))

    async def words(self, subject: str) -> list[str]:
        """Words that took effect for a subject, in order."""
        rows = await self.database.fetch("SELECT word FROM effect WHERE subject = $1 ORDER BY id", subject)
        return [row["word"] for row in rows]

    async def dead(self) -> list[tuple[str, str, str]]:
        """Dead letters as (subject, state, reason), by offset."""
        query = 'SELECT subject, state, reason FROM dead_letter ORDER BY partition, "offset"'
        return [tuple(row) for row in await self.database.fetch(query)]

    async def gaps(self) -> list[str]:
        return [row["kind"] for row in await self.database.fetch("SELECT kind FROM gap ORDER BY id")]

    async def alerts(self) -> list[str]:
        """Kinds of the alerts in the outbox."""
        rows = await self.database.fetch("SELECT value FROM outbox WHERE topic = 'slipway.alert.v1' ORDER BY id")
        return [msgspec.json.decode(row["value"])["kind"] for row in rows]


def new_name() -> str:
    """New database name; with a dot appended, the topic prefix."""
    return f"probe_{next(_numbers)}"


@contextlib.asynccontextmanager
async def new_place(servers: tuple[EmbeddedKafka, EmbeddedPostgres], name: str = "") -> AsyncIterator[Place]:
    """Create a database from the template, which must exist."""
    name = name or new_name()
    url = await servers[1].create_database(name, template=TEMPLATE)
    database = await postgres.connect(url, SERVICE, command_timeout_seconds=PATIENCE_SECONDS, settings=PATIENT)
    try:
        yield Place(servers, url, database, f"{name}.")
    finally:
        database.terminate()


def report(subject: str, word: str) -> WorkerErrorReported:
    """Event of WORKER_LIFECYCLE that carries one word."""
    return WorkerErrorReported(
        worker_id=subject, pool_id="p", launch_config_id="c", account_id="a", image_revision="i", kind=word, detail=""
    )


async def record_words(tx: Connection, events: Sequence[Received]) -> None:
    """Handler that inserts a row per event. The word "raise" raises, like a bug in a handler."""
    for received in events:
        word = "tombstone" if received.event is None else received.event.kind
        await tx.execute(
            "INSERT INTO effect (subject, word, partition) VALUES ($1, $2, $3)",
            received.subject,
            word,
            received.partition,
        )
        if word == "raise":
            raise ValueError("the handler has a bug")


class Words:
    """View that stores the words per subject; `refused` makes it fail once."""

    topic = WORKER_LIFECYCLE

    def __init__(self) -> None:
        self.seen: dict[str, list[str | None]] = {}
        self.refused = ""

    async def apply(self, database: Database, records: Sequence[Received]) -> None:
        for received in records:
            word = None if received.event is None else received.event.kind
            if word and word == self.refused:
                self.refused = ""
                self.seen = {}
                raise ConnectionResetError("as asked")
            self.seen.setdefault(received.subject, []).append(word)


class Diary:
    """The work of one replica at a time: what it reads becomes effects, and it remembers how many there are.

    `remembered` has to be what is stored; `due_at` asks for turns without records; `fails` are raised once each, where
    their name says, and `broken` each time.
    """

    topics = (WORKER_LIFECYCLE, POOL_DEMAND)

    def __init__(self) -> None:
        self.remembered = 0
        self.coming = 0
        self.turns: list[Turn] = []
        self.loads = 0
        self.due_at: float | None = None
        self.fails: dict[str, Exception] = {}
        self.broken: Exception | None = None

    def fail(self, where: str) -> None:
        if where == "store" and self.broken is not None:
            raise self.broken
        if error := self.fails.pop(where, None):
            raise error

    async def load(self, tx: Connection) -> None:
        self.fail("load")
        self.remembered = await tx.fetchval("SELECT count(*) FROM effect")
        self.loads += 1

    def begin(self, turn: Turn) -> None:
        self.coming = 0
        self.due_at = None
        self.turns.append(turn)

    async def handle(self, tx: Connection, events: Sequence[Received]) -> None:
        for received in events:
            word = received.event.kind if received.topic == WORKER_LIFECYCLE.name else f"{received.event.pending}"
            await tx.execute(
                "INSERT INTO effect (subject, word, partition) VALUES ($1, $2, $3)",
                received.subject,
                word,
                received.partition,
            )
            if word == "raise":
                raise ValueError("the handler has a bug")
        self.coming += len(events)

    async def store(self, tx: Connection, turn: Turn, batch: Batch | None) -> None:
        self.fail("store")
        assert self.remembered + self.coming == await tx.fetchval("SELECT count(*) FROM effect")

    def committed(self) -> bool:
        self.fail("committed")
        self.remembered += self.coming
        return False

    def due(self) -> float | None:
        return self.due_at


@contextlib.asynccontextmanager
async def replica(place: Place, instance: str, diary: Diary | None = None) -> AsyncIterator[LeaderLoop]:
    """Leader loop that bids until the end of the block and then stops gracefully."""
    leader_loop = LeaderLoop(
        diary or Diary(),
        service=SERVICE,
        kafka=place.kafka.bootstrap,
        prefix=place.prefix,
        instance=instance,
        wake=lambda: None,
    )
    running = asyncio.create_task(leader_loop.run(place.database))
    try:
        await until(lambda: leader_loop.status, "leader known", seconds=60)
        yield leader_loop
    finally:
        leader_loop.stop()
        async with asyncio.timeout(60):
            await running  # it ends on its own, without an error


class Publisher:
    """Producer of records with sequence numbers, like a relay, or without, like an external producer."""

    def __init__(self, place: Place, producer: AIOKafkaProducer, source: str = "/slipway/elsewhere") -> None:
        self.place = place
        self.producer = producer
        self.source = source
        self.numbers: Counter[int] = Counter()

    async def send(
        self,
        event: Any,
        *,
        partition: int | None = None,
        key: Any = USUAL,
        value: Any = USUAL,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        numbered: bool = True,
        stored_at: datetime | None = None,
        **attributes: Any,
    ) -> Any:
        """Send one record and wait for its acknowledgement; attributes default to those of a relay. `stored_at` is the
        timestamp of the record [default: now]."""
        topic = TOPIC_OF[type(event)]
        if partition is None:
            partition = partition_for(topic.key(event), PARTITIONS)
        if numbered:
            number = attributes.pop("sequence_number", self.numbers[partition] + 1)
            previous = attributes.pop("previous", self.numbers[partition])
            self.numbers[partition] = number
            attributes |= {"sequence_number": number, "previous": previous, "sequence_source": f"{self.source}/1"}
        envelope = {"id": new_id(), "type": event.type, "source": self.source, "time": utc_now()}
        envelope |= {"subject": topic.subject(event)} | attributes
        return await self.producer.send_and_wait(
            self.place.prefix + topic.name,
            msgspec.json.encode(event) if value is USUAL else value,
            key=topic.key(event).encode() if key is USUAL else key,
            partition=partition,
            headers=encode(Envelope(**envelope)) if headers is None else headers,
            timestamp_ms=None if stored_at is None else round(stored_at.timestamp() * 1000),
        )


@contextlib.asynccontextmanager
async def publisher(place: Place) -> AsyncIterator[Publisher]:
    producer = AIOKafkaProducer(
        bootstrap_servers=place.kafka.bootstrap,
        enable_idempotence=True,
        linger_ms=1,
        request_timeout_ms=int(2 * PATIENCE_SECONDS * 1000),
    )
    await producer.start()
    try:
        yield Publisher(place, producer)
    finally:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(producer.stop(), 2)


class Member:
    """One replica of the test service that consumes one topic."""

    def __init__(self, place: Place, broker: Any, subscription: kafka.Subscription) -> None:
        self.place = place
        self.broker = broker
        self.subscription = subscription
        self.rung = 0

    @property
    def owns(self) -> set[int]:
        return set(self.subscription.owned)

    async def stop(self) -> None:
        await self.subscription.stop()
        await self.broker.stop()


async def join(
    place: Place,
    handle: Handler = record_words,
    *,
    topic: Topic = WORKER_LIFECYCLE,
    database: Database = None,
    instance: str = "",
    session_seconds: float = 10.0,
) -> Member:
    """Start a group member; by default one that the group removes as soon as it stops."""
    broker = connect(place.kafka.bootstrap, SERVICE)
    subscription = kafka.Subscription(
        broker,
        database or place.database,
        Consumer(SERVICE, topic, handle),
        prefix=place.prefix,
        instance=instance,
        wake=lambda: None,
        heartbeat_seconds=0.1,
        session_seconds=session_seconds,
    )
    await broker.start()
    return Member(place, broker, subscription)


@contextlib.asynccontextmanager
async def member(place: Place, handle: Handler = record_words, **options: Any) -> AsyncIterator[Member]:
    """Start a member and wait until it owns all partitions."""
    joined = await join(place, handle, **options)
    try:
        await until(lambda: joined.owns == set(range(PARTITIONS)), "all partitions are owned")
        yield joined
    finally:
        await joined.stop()


async def read_all(place: Place, topic_name: str) -> list[Any]:
    """Every record of a topic, in offset order per partition."""
    consumer = AIOKafkaConsumer(bootstrap_servers=place.kafka.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        name = place.prefix + topic_name
        await until(lambda: consumer.partitions_for_topic(name) or consumer._client.force_metadata_update())
        partitions = [TopicPartition(name, p) for p in sorted(consumer.partitions_for_topic(name))]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        records: list[Any] = []
        for partition in partitions:
            while await consumer.position(partition) < ends[partition]:
                records += (await consumer.getmany(partition, timeout_ms=200)).get(partition, [])
        return records
    finally:
        await consumer.stop()


async def enqueue(database: Database, *events: Any) -> None:
    async with database.acquire() as db, db.transaction():
        await outbox.enqueue(db, events)
