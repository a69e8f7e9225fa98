"""Consumption on Apache Kafka and PostgreSQL: owners, rebalances, seeks, gaps, restarts of both."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from slipway_api.events.topics import WORKER_LIFECYCLE, group
from slipway_common.base.clock import utc_now
from slipway_common.base.errors import Transient
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection, session
from slipway_common.messaging import consume, kafka
from slipway_common.messaging.consume import Consumer, Owned
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.records import Received, Record
from tests.support.consumption import delete_records, severities, until_read
from tests.support.harness import (
    PARTITIONS,
    SERVICE,
    Member,
    Place,
    enqueue,
    join,
    member,
    publisher,
    record_words,
    report,
    until,
)
from tests.support.processes import INSTANCE, Process


async def test_rebalance_while_failing(place: Place) -> None:
    """Members join and leave while their handlers fail: in the end all partitions are owned and every record took
    effect once."""
    await place.create(WORKER_LIFECYCLE)
    expected: dict[tuple[str, str], int] = {}
    async with publisher(place) as publish:
        staying = await join(place, failing(Random(0)), session_seconds=1.0)
        for seed in range(10):
            chance = Random(seed)
            instance = "" if seed % 3 else f"m{seed}"  # every third leaves silently, like a static member
            coming = await join(place, failing(chance), session_seconds=1.0, instance=instance)
            leaving, staying = (staying, coming) if seed % 2 else (coming, staying)
            for n in range(40):
                event = report(f"w{seed}-{n % 7}", f"{n}")
                expected[event.worker_id, event.kind] = 1
                await publish.send(event)
                if n == chance.randrange(40):
                    await leaving.stop()
            await leaving.stop()
            await until_owned(staying)
            await until_read(place, len(expected))
            assert await place.effects() == expected, f"seed {seed}"
        await staying.stop()
    assert (await place.dead(), await place.gaps()) == ([], [])


async def until_owned(joined: Member) -> None:
    await until(lambda: joined.owns == set(range(PARTITIONS)), "all partitions are owned again")


def failing(chance: Random) -> consume.Handler:
    """About every third batch fails with an infrastructure error, before or after its effects."""

    async def handle(tx: Connection, events: Sequence[Received]) -> None:
        fate = chance.random()
        if fate < 0.15:
            raise Transient("before")
        await record_words(tx, events)
        if fate < 0.3:
            raise TimeoutError("after")
        if fate < 0.35:
            tx.terminate()

    return handle


def goes_on_at(subscription: kafka.Subscription, partition: int = 2) -> int | None:
    """Next offset, if the partition is owned."""
    owned = subscription.owned.get(partition)
    return owned.next_offset if owned else None


async def test_stalled_owner(place: Place) -> None:
    """A process stopped inside its transaction blocks no other, and its work has no effect after it resumes."""
    await place.create(WORKER_LIFECYCLE)
    stalled = Process.at(place, "consumer")
    try:
        async with publisher(place) as publish:
            await publish.send(report("w1", "a"), partition=2)
            await stalled.until_printed("inside")
            stalled.stop()
            async with member(place, instance=INSTANCE) as successor:
                await until_read(place, 1)
                await publish.send(report("w1", "b"), partition=2)
                await until_read(place, 2)
                stalled.resume()
                await stalled.until_printed("batch rolled back")
                await publish.send(report("w1", "c"), partition=2)
                await until_read(place, 3)
                # On a slow machine the membership may lapse meanwhile; the partition must be owned now, not throughout.
                await until(lambda: goes_on_at(successor.subscription) == 3, "the successor owns the partition")
    finally:
        stalled.kill()
    assert await place.words("w1") == ["a", "b", "c"]


async def test_fenced_owner_rejoins(place: Place) -> None:
    """A zombie's late claim fences the rightful owner, which rejoins and owns the partition again."""
    await place.create(WORKER_LIFECYCLE)
    async with publisher(place) as publish, member(place, instance="0", session_seconds=1.0) as owner:
        async with place.database.acquire() as db:
            zombie, _ = await consume.claim(db, WORKER_LIFECYCLE.name, 1, owner.subscription.cluster)
        await publish.send(report("w1", "a"), partition=1)
        await until(lambda: owner.owns == set(range(PARTITIONS)) - {1}, "the partition is given up")
        await until_read(place, 1)
        await until_owned(owner)
        assert owner.subscription.owned[1].epoch > zombie.epoch
    assert await place.words("w1") == ["a"]


async def test_a_fence_of_a_former_claim(place: Place) -> None:
    """A batch of a former claim is fenced: the newer claim of the same process stands."""
    await place.create(WORKER_LIFECYCLE)
    async with member(place) as owner:
        mine = owner.subscription.owned[0]
        former = Owned(epoch=mine.epoch - 1, next_offset=mine.next_offset)
        await owner.subscription._recover(0, former, fenced=True)
        assert owner.subscription.owned.get(0) == mine


async def test_a_claim_that_fails_is_tried_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client swallows what its listener raises, and assigns the partition to nobody else."""
    await place.create(WORKER_LIFECYCLE)
    failed: set[int] = set()

    async def refused_once(db: Connection, topic: str, partition: int, cluster: str) -> tuple[Owned, str]:
        if partition not in failed:
            failed.add(partition)
            raise ConnectionResetError("no answer")
        return await consume.claim(db, topic, partition, cluster)

    monkeypatch.setattr(kafka, "claim", refused_once)
    async with member(place):
        assert failed == set(range(PARTITIONS))


async def test_unknown_commit(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the reply to a commit is lost, the position is read again and committed records are not repeated."""
    await place.create(WORKER_LIFECYCLE)
    lost: list[Owned] = []

    async def committed_but(db: Connection, consumer: Consumer, owned: Owned, records: Sequence[Record]) -> Owned:
        after = await consume.apply(db, consumer, owned, records)
        if not lost:
            lost.append(after)
            raise ConnectionResetError("no answer")
        return after

    monkeypatch.setattr(kafka, "apply", committed_but)
    async with publisher(place) as publish, member(place):
        await publish.send(report("w1", "a"), partition=0)
        await until(lambda: lost)
        await publish.send(report("w1", "b"), partition=0)
        await until_read(place, 2)
    assert await place.words("w1") == ["a", "b"]


async def test_fetched_before_the_seek(place: Place) -> None:
    """The stored position decides even if Kafka's offsets are ahead and the fetcher followed them during the claim."""
    await place.create(WORKER_LIFECYCLE)
    name = place.prefix + WORKER_LIFECYCLE.name
    async with publisher(place) as publish:
        async with member(place, instance="0") as former:
            for n in range(10):
                await publish.send(report("w1", f"{n}"), partition=0)
            await until_read(place, 10)
            await former.subscription.client.commit({TopicPartition(name, 0): 6})
        await place.database.execute("TRUNCATE effect, seen_sequence")
        await place.database.execute("UPDATE consumed SET next_offset = 0")
        claimed = await session(place.url, SERVICE, idle_in_transaction_session_timeout="0")
        async with claimed.transaction():
            await claimed.execute("SELECT FROM consumed FOR UPDATE")
            joined = await join(place, instance="0")

            async def fetched() -> bool:
                return bool(await joined.subscription.client.position(TopicPartition(name, 0)) == 10)

            await until(fetched)
            assert joined.owns == set()
        await until_read(place, 10)
        await joined.stop()
        await claimed.close()
    assert await place.words("w1") == [f"{n}" for n in range(10)]


async def test_batch_above_the_position(place: Place) -> None:
    """A batch above the position is accepted only if a read after a seek begins there too."""
    await place.create(WORKER_LIFECYCLE)
    async with member(place) as owner:
        client = owner.subscription.client
        record = fetched_record(place, offset=5)
        await owner.subscription.consume([record])
        assert owner.subscription.owned[0].next_offset == 0
        assert await client.position(TopicPartition(place.prefix + WORKER_LIFECYCLE.name, 0)) == 0
        await owner.subscription.consume([record])
        assert owner.subscription.owned[0].next_offset == 6
    assert await place.words("w1") == ["late"]


def fetched_record(place: Place, offset: int) -> Any:
    event = report("w1", "late")
    value = msgspec.json.encode(event)
    headers = encode(
        Envelope(id=new_id(), type=event.type, source="/s", subject="w1", time=utc_now(), sequence_number=9)
    )
    return ConsumerRecord(
        place.prefix + WORKER_LIFECYCLE.name, 0, offset, 0, 0, b"w1", value, None, 2, len(value), tuple(headers)
    )


async def test_foreign_cluster(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions of another cluster stop the partition and raise an alert until an operator adopts a new position."""
    monkeypatch.setattr(kafka, "STOPPED_SECONDS", 0.05)
    await place.create(WORKER_LIFECYCLE)
    async with member(place, instance="0"):
        pass
    await place.database.execute("UPDATE consumed SET cluster_id = 'the-old-one'")
    async with publisher(place) as publish:
        await publish.send(report("w1", "a"), partition=0)
        joined = await join(place, instance="0")
        try:
            await until(lambda: len(joined.subscription.stopped) == PARTITIONS)
            assert joined.owns == set()
            assert "the-old-one" in joined.subscription.stopped[0]
            assert set(await place.gaps()) == {"foreign-position"}
            assert await severities(place) == {"page"}
            assert await place.effects() == {}
            for partition in range(PARTITIONS):
                assert await joined.subscription.adopt(partition, at_end=False, by="ops") == 0
            audit = await place.database.fetch("SELECT by, action, subject_id FROM audit")
            assert sorted((row["by"], row["action"], row["subject_id"]) for row in audit) == [
                ("ops", "adopt", f"{WORKER_LIFECYCLE.name}/{partition}") for partition in range(PARTITIONS)
            ]
            await until_owned(joined)
            await until_read(place, 1)
        finally:
            await joined.stop()
    assert await place.words("w1") == ["a"]
    assert len(await place.gaps()) == PARTITIONS


async def test_retention_gap(place: Place) -> None:
    """Records deleted before they were read are recorded as a gap, except on the first start."""
    await place.create(WORKER_LIFECYCLE)
    async with publisher(place) as publish:
        await publish.send(report("w0", "before our time"), partition=1)
        await publish.send(report("w0", "before our time"), partition=2)
        await delete_records(place, {1: 1})
        async with member(place, instance="0"):
            await publish.send(report("w1", "a"), partition=0)
            await until_read(place, 3)
        for word in ("b", "c", "d"):
            await publish.send(report("w1", word), partition=0)
        await delete_records(place, {0: 3})
        async with member(place, instance="0"):
            await until_read(place, 6)
    assert await place.words("w1") == ["a", "d"]
    details = await place.database.fetch("SELECT detail FROM gap WHERE kind = 'retention'")
    assert [row["detail"] for row in details] == ["offsets 1…2 were deleted by retention before they were read"]
    assert "retention" in await place.alerts()


async def test_applied_positions_are_reported(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Applied positions are committed to Kafka, including the last, so that lag tools show zero."""
    monkeypatch.setattr(kafka, "REPORT_SECONDS", 0.05)
    await place.create(WORKER_LIFECYCLE)
    async with publisher(place) as publish, member(place):
        await publish.send(report("w1", "a"), partition=0)
        admin = AIOKafkaAdminClient(bootstrap_servers=place.kafka.bootstrap)
        await admin.start()
        try:

            async def reported() -> bool:
                offsets = await admin.list_consumer_group_offsets(place.prefix + group(SERVICE, WORKER_LIFECYCLE))
                found = offsets.get(TopicPartition(place.prefix + WORKER_LIFECYCLE.name, 0))
                return found is not None and found.offset == 1

            await until(reported)
        finally:
            await admin.close()


async def test_broker_restart(place: Place) -> None:
    """Each event takes effect once and in order across a restart of Kafka."""
    await place.create(WORKER_LIFECYCLE)
    relay = place.relay(WORKER_LIFECYCLE)
    publishing = asyncio.create_task(relay.run())
    try:
        async with member(place):
            await keep_enqueuing(place, relay, range(40))
            await until_read(place, 10)
            dying = asyncio.create_task(place.kafka.kill())
            await keep_enqueuing(place, relay, range(40, 80))
            await dying
            await place.kafka.start()
            await keep_enqueuing(place, relay, range(80, 120))

            async def all_applied() -> bool:
                return len(await place.effects()) == 120

            await until(all_applied, "all events took effect")
    finally:
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
    for subject in range(5):
        assert await place.words(f"w{subject}") == [f"{n}" for n in range(120) if n % 5 == subject]
    assert (await place.dead(), await place.gaps()) == ([], [])


async def keep_enqueuing(place: Place, relay: Any, numbers: range) -> None:
    for n in numbers:
        await enqueue(place.database, report(f"w{n % 5}", f"{n}"))
        relay.wake(place.database)


async def test_database_outage_fills_no_dlq(place: Place) -> None:
    """Each event takes effect once across a restart of PostgreSQL, without dead letters."""
    await place.create(WORKER_LIFECYCLE)
    async with publisher(place) as publish, member(place):
        for n in range(60):
            await publish.send(report(f"w{n % 5}", f"{n}"))
        await until_read(place, 1)
        await place.postgres.kill()
        for n in range(60, 120):
            await publish.send(report(f"w{n % 5}", f"{n}"))
        await place.postgres.start()
        await until_read(place, 120)
    for subject in range(5):
        assert await place.words(f"w{subject}") == [f"{n}" for n in range(120) if n % 5 == subject]
    assert (await place.dead(), await place.gaps()) == ([], [])


async def test_partitions_that_fail_together_are_applied_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction for all partitions of a fetch that fails delays none of them."""
    await place.create(WORKER_LIFECYCLE)
    failed: list[int] = []

    async def refused(_: Connection, __: Consumer, portions: Sequence[consume.Portion]) -> None:
        failed.append(len(portions))
        raise Transient("a row is locked")

    monkeypatch.setattr(kafka, "apply_together", refused)
    async with publisher(place) as publish, member(place) as owner:
        async with owner.subscription._running:  # what is fetched meanwhile waits
            for number in range(4 * PARTITIONS):
                await publish.send(report(f"w{number}", "a"), partition=number % PARTITIONS)
        await until_read(place, 4 * PARTITIONS)
        await until(lambda: failed, "several partitions were fetched together")
    assert set((await place.effects()).values()) == {1}
