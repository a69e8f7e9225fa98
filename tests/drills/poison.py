"""Records that no consumer can apply, on every consumed topic, beside tasks and reports that are handled as ever.

Batches are sent as bytes, so that they have what no client writes; one of each topic is changed on the broker's disk
before a service reads it. The positions of the services are polled: the delay of a record lasts until its consumer is
past it. Each service has to have a dead letter with a reason and all bytes of every such record, and no other.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from generate.examples import EXAMPLES
from slipway_api.events.pool import DemandReported
from slipway_api.events.topics import CONSUMED, POOL_DEMAND, TOPIC_OF, Topic, dead_letter_topic
from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import schema_of
from slipway_common.messaging.envelope import Envelope, encode
from slipway_local.demo.deployment import PARTITIONS, SERVICES, Deployment
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, Verdict, add_tasks, are_done, fetch
from tests.support.batches import CODECS, packed, produce, records

TOPICS: Final = tuple(dict.fromkeys(topic for topic, _ in CONSUMED))
TASKS: Final = 24
POLL_SECONDS: Final = 0.1
PAUSE_SECONDS: Final = 0.7  # longer than a fetch request waits at the broker
DELAY_SECONDS_MAX: Final = 5.0
LARGE_BYTES: Final = 2 * 2**20
RANDOM_CHARACTERS: Final = 6000
LONG_CHARACTERS: Final = 20_000  # quoted by the reason of the refusal
NAME, RAW_NAME = "a-name", b"a\xffname"  # of one length
ON_DISK: Final = b"changed-on-disk"
REPORTS: Final = "SELECT source FROM provisioner.demand WHERE source = ANY($1)"

Place = tuple[str, int, int]
"""Topic, partition and offset."""
DeadLetters = dict[tuple[str, str, int, int], Any]
"""Rows by service, topic, partition and offset."""


class Poison(msgspec.Struct, frozen=True):
    """One record, and what is wrong with it."""

    kind: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    codec: str = "none"

    def batch(self) -> bytes:
        """The batch of this record alone. The name of a header becomes one that is not UTF-8."""
        now_ms = int(utc_now().timestamp() * 1000)
        raw = records(0, [(self.key, self.value, self.headers)], timestamp_ms=now_ms)
        return packed(raw.replace(NAME.encode(), RAW_NAME), codec=CODECS[self.codec])


def poisons(topic: Topic, rng: Random) -> Iterator[Poison]:
    """Every kind of poison for a topic, each of another subject."""
    event = next(example for example in EXAMPLES if TOPIC_OF[type(example)] is topic)
    value = msgspec.json.encode(event)
    fields: dict[str, Any] = msgspec.json.decode(value)
    name = next(name for name, content in fields.items() if isinstance(content, str))
    random_text = "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(RANDOM_CHARACTERS))
    foreign = next(example for example in EXAMPLES if TOPIC_OF[type(example)] is not topic)

    def record(kind: str, value: bytes | None, *more: tuple[str, bytes | None], **changes: Any) -> Poison:
        key = changes.get("key", f"poison/{kind}".encode())
        subject = changes.get("subject", f"poison/{kind}")
        type_ = changes.get("type", event.type)
        envelope = Envelope(id=new_id(), type=type_, source="/drill", subject=subject, time=utc_now())
        return Poison(kind, key, value, [*encode(envelope), *more], changes.get("codec", "none"))

    def with_text(content: Any) -> bytes:
        return msgspec.json.encode(fields | {name: content})

    for codec in CODECS:
        yield record(f"truncated value, codec {codec}", value[: len(value) // 2], codec=codec)
        yield record(f"header name, codec {codec}", value, (NAME, b"1"), codec=codec)
    yield record("header value", value, ("ce_other", b"\xff"))
    yield record("long time", value, ("ce_time", b"1" * LONG_CHARACTERS))
    yield record("NUL in a header", value, subject="nul\0")
    yield record("NUL in a text", with_text("nul\0"))
    yield record("random characters in a text", with_text(random_text))
    yield record("random characters in a key", value, key=random_text.encode(), subject=random_text)
    yield record("2 MB", value[:-1] + b" " * LARGE_BYTES + b"}", codec="gzip")
    yield record("array", b"[]")
    yield record("number for a text", with_text(7))
    yield record("object for a text", with_text({"a": [None]}))
    yield record("empty value", b"")
    yield record("event of another topic", msgspec.json.encode(foreign), type=foreign.type)
    yield Poison("no attributes", b"poison/no-attributes", value, ())
    if not topic.compacted:  # in a compacted topic a null deletes, and the broker refuses a record without a key
        yield record("null value", None)
        yield Poison("null value without attributes", b"poison/null", None, ())
        if topic.parks:
            yield record("null key", value, key=None, subject="")


class Positions:
    """Delays of the records of all consumed topics, by the positions that the services store."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.consumed = {
            (service, topic.name, number)
            for topic, service in CONSUMED
            for number in range(PARTITIONS)
            if not topic.viewed
        }
        self.waiting: dict[tuple[str, str, int], deque[tuple[int, float]]] = {place: deque() for place in self.consumed}
        self.delays: list[float] = []
        self.consumer: Any = AIOKafkaConsumer(bootstrap_servers=deployment.kafka, enable_auto_commit=False)

    @contextlib.asynccontextmanager
    async def polled(self) -> AsyncIterator["Positions"]:
        await self.consumer.start()
        try:
            task = asyncio.create_task(self._poll())
            try:
                yield self
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        finally:
            await self.consumer.stop()

    async def ends(self, names: Sequence[str], partitions: int) -> dict[tuple[str, int], int]:
        """End offsets by topic, without the prefix, and partition."""
        prefix = self.deployment.prefix
        tps = [TopicPartition(prefix + name, number) for name in names for number in range(partitions)]
        found = await self.consumer.end_offsets(tps)
        return {(tp.topic.removeprefix(prefix), tp.partition): end for tp, end in found.items()}

    async def _poll(self) -> None:
        names = sorted({topic for _, topic, _ in self.consumed})
        select = " UNION ALL ".join(
            f"SELECT '{service}' AS service, topic, partition, next_offset FROM {schema_of(service)}.consumed"
            for service in SERVICES
        )
        while True:
            ends = await self.ends(names, PARTITIONS)
            seen_at = monotonic_seconds()
            for (_, topic, partition), waiting in self.waiting.items():
                end = ends[topic, partition]
                if end and (not waiting or waiting[-1][0] < end):
                    waiting.append((end, seen_at))
            for row in await fetch(self.deployment, select):
                waiting = self.waiting.get((row["service"], row["topic"], row["partition"]), deque())
                while waiting and (waiting[0][0] <= row["next_offset"]):
                    self.delays.append(monotonic_seconds() - waiting.popleft()[1])
            await asyncio.sleep(POLL_SECONDS)

    def worst_seconds(self) -> float:
        """The longest delay so far, of records that their consumers have not passed yet too."""
        now = monotonic_seconds()
        return max([*self.delays, *(now - waiting[0][1] for waiting in self.waiting.values() if waiting)], default=0.0)


class Sent(msgspec.Struct, frozen=True):
    """A poison in the log. It is one record of a batch that was changed `on_disk`, or the only one of its batch."""

    topic: Topic
    place: Place
    poison: Poison
    on_disk: bool = False

    def problem(self, row: Any) -> str:
        """Missing part of the dead letter; empty if it has the reason and all bytes."""
        if not row["reason"]:
            return "no reason"
        if row["undecoded"]:
            return "" if self.on_disk and ON_DISK.upper() in row["value"] else "not the bytes of its batch"
        if (row["key"], row["value"]) != (self.poison.key, self.poison.value):
            return "not its key and value"
        names = [
            bytes.fromhex(raw[0]) if raw else name.encode() for name, _, *raw in msgspec.json.decode(row["headers"])
        ]
        wanted = [name.encode().replace(NAME.encode(), RAW_NAME) for name, _ in self.poison.headers]
        return "" if names == wanted else "not the names of its headers"


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    deployment = harness.new_deployment()
    await deployment.start()
    accounts = {"acc": Account()}
    await harness.play(
        deployment, declaration(harness.speed, accounts, {"builds": Pool(accounts=["acc"])}), boot_seconds_median=30
    )
    producer = AIOKafkaProducer(bootstrap_servers=deployment.kafka)
    await producer.start()
    try:
        async with Positions(deployment).polled() as positions:
            await add_tasks(deployment, "builds", TASKS // 2, 60.0)
            sent = [await send(deployment, producer, *chosen) for chosen in all_poisons(harness.rng)]
            harness.log(f"{len(sent)} records that cannot be applied are sent to {len(TOPICS)} topics")
            await report_compressed(deployment, producer)
            await add_tasks(deployment, "builds", TASKS // 2, 60.0)
            sent += await change_on_disk(deployment, producer, harness.rng)
            harness.log("a record of each topic is changed on the broker's disk")
            wanted = {(service, *one.place) for one in sent for topic, service in CONSUMED if topic is one.topic}

            async def all_dead() -> bool:
                return wanted <= (await dead_letters(deployment)).keys()

            async def all_published() -> bool:
                pairs = {dead_letter_topic(topic, service): (topic, service) for topic, service in CONSUMED}
                ends = await positions.ends(list(pairs), 1)
                return all(ends[name, 0] >= sum(one.topic is pairs[name][0] for one in sent) for name in pairs)

            async def all_reported() -> bool:
                return len(await fetch(deployment, REPORTS, [*CODECS])) == len(CODECS)

            await harness.until(all_dead, f"each is a dead letter of its consumers, {len(wanted)} in all")
            await harness.until(all_published, "each is published to its dead-letter topic")
            await harness.until(all_reported, f"reports compressed by {', '.join(CODECS)} are received")
            await harness.until(lambda: are_done(deployment, "builds", TASKS), "all tasks are done")
            found = await dead_letters(deployment)
            return judge(sent, found, positions, await stopped_partitions(deployment))
    finally:
        await producer.stop()


def all_poisons(rng: Random) -> list[tuple[Topic, int, Poison]]:
    """Poisons of all topics with their partitions, in any order."""
    found = [(topic, rng.randrange(PARTITIONS), one) for topic in TOPICS for one in poisons(topic, rng)]
    return rng.sample(found, len(found))


async def send(
    deployment: Deployment, producer: AIOKafkaProducer, topic: Topic, partition: int, poison: Poison
) -> Sent:
    """Have the broker store a poison."""
    offset = await produce(producer, deployment.prefix + topic.name, partition, poison.batch())
    return Sent(topic, (topic.name, partition, offset), poison, on_disk=poison.value == ON_DISK)


async def report_compressed(deployment: Deployment, producer: AIOKafkaProducer) -> None:
    """Report no demand, by a source for each codec: valid records, which are received like any other."""
    for source in CODECS:
        event = DemandReported(pool_id="builds", source=source, pending=0, claimed=0, observed_at=utc_now())
        key = POOL_DEMAND.key(event)
        envelope = Envelope(id=new_id(), type=event.type, source="/drill", subject=key, time=utc_now())
        report = Poison("none", key.encode(), msgspec.json.encode(event), encode(envelope), source)
        await produce(producer, deployment.prefix + POOL_DEMAND.name, 0, report.batch())


async def change_on_disk(deployment: Deployment, producer: AIOKafkaProducer, rng: Random) -> list[Sent]:
    """Send a record to each topic, and change it in the broker's log while the services are stopped."""
    for service in SERVICES:
        deployment.supervisor.pause(service)
    try:
        await asyncio.sleep(PAUSE_SECONDS)
        poison = Poison("changed on disk", b"poison/on-disk", ON_DISK, ())
        sent = [await send(deployment, producer, topic, rng.randrange(PARTITIONS), poison) for topic in TOPICS]
        for one in sent:
            topic, partition, _ = one.place
            folder = deployment.kafka_server.storage / f"{deployment.prefix}{topic}-{partition}"
            await asyncio.to_thread(_change, max(folder.glob("*.log")))
    finally:
        for service in SERVICES:
            deployment.supervisor.resume(service)
    return sent


def _change(segment: Path) -> None:
    with segment.open("r+b") as log:
        at = log.read().index(ON_DISK)
        log.seek(at)
        log.write(ON_DISK.upper())


async def dead_letters(deployment: Deployment) -> DeadLetters:
    """Rows of all dead letters."""
    rows = [
        (service, row)
        for service in SERVICES
        for row in await fetch(deployment, f"SELECT * FROM {schema_of(service)}.dead_letter")
    ]
    return {(service, row["topic"], row["partition"], row["offset"]): row for service, row in rows}


async def stopped_partitions(deployment: Deployment) -> int:
    answers = [await deployment.call("GET", service, "/positions/stopped") for service in SERVICES]
    return sum(len(answer["items"]) for answer in answers)


def judge(sent: Sequence[Sent], found: DeadLetters, positions: Positions, stopped: int) -> Verdict:
    """Compare the dead letters with what was sent, and the delays with what is allowed."""
    problems = []
    complete, on_disk = 0, 0
    for one in sent:
        for service in [service for topic, service in CONSUMED if topic is one.topic]:
            row = found.pop((service, *one.place))
            on_disk += one.on_disk and row["undecoded"]
            if wrong := one.problem(row):
                problems.append(f"{service}: {one.poison.kind} at {one.place}: {wrong}")
            else:
                complete += 1
    problems += [f"{service} has a dead letter of {topic}/{p} at {at}" for service, topic, p, at in found]
    worst = positions.worst_seconds()
    if worst > DELAY_SECONDS_MAX:
        problems.append(f"a record was handled after {worst:.1f} s, at most {DELAY_SECONDS_MAX:g} allowed")
    if stopped:
        problems.append(f"{stopped} partitions stopped")
    if not on_disk:
        problems.append("no batch was changed on disk before it was read: the drill proves nothing about them")
    return Verdict(
        f"{len(sent)} poison records on {len(TOPICS)} topics, {complete} dead letters with reason and bytes "
        f"({on_disk} undecoded batches), others' delay {worst:.2f} s of {len(positions.delays)}, "
        f"stopped partitions {stopped}",
        problems,
    )
