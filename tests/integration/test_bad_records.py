"""Records that cannot be applied: dead letters, parked events, tombstones, gaps, unknown types."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

import msgspec
from confluent_kafka import Producer

from slipway_api.events.pool import DemandReported
from slipway_api.events.signal import SignalRaised
from slipway_api.events.topics import LAUNCH_CONFIG_SIGNAL, LAUNCH_CONFIG_WEIGHT, POOL_DEMAND, WORKER_LIFECYCLE
from slipway_common.base.clock import utc_now
from slipway_common.database.postgres import Connection
from slipway_common.messaging.dead_records import record_in
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.records import Received
from tests.support import batches
from tests.support.consumption import severities, until_read
from tests.support.harness import Place, member, publisher, report


async def test_raised_handler(place: Place) -> None:
    """A record whose handler raises is dead; its neighbours take effect and consumption continues."""
    await place.create(WORKER_LIFECYCLE)
    async with publisher(place) as publish, member(place):
        for subject, word in [("w1", "a"), ("w2", "raise"), ("w1", "b")]:
            await publish.send(report(subject, word), partition=0)
        await until_read(place, 3)
        assert await place.effects() == {("w1", "a"): 1, ("w1", "b"): 1}
        assert await place.dead() == [("w2", "dead", "ValueError: the handler has a bug")]


async def test_undecodable_value(place: Place) -> None:
    """Values that do not decode as their event type are dead, with the decoder's reason."""
    await place.create(WORKER_LIFECYCLE)
    values = [b"{", b"\xff\xfe", b'{"worker_id": 1}', b'{"x":' + b"[" * 100_000, b""]
    async with publisher(place) as publish, member(place):
        for index, value in enumerate(values):
            await publish.send(report(f"w{index}", "bad"), partition=0, value=value)
        await publish.send(report("w9", "good"), partition=0)
        await until_read(place, len(values) + 1)
        assert ("w9", "good") in await place.effects()
        assert [subject for subject, *_ in await place.dead()] == ["w0", "w1", "w2", "w3", "w4"]


async def test_undecodable_header(place: Place) -> None:
    """A record with an invalid or unstorable header is dead and blocks nothing."""
    good = encode(Envelope(id="1", type=report("w", "x").type, source="/outside", time=utc_now()))
    broken = [
        [*good, ("ce_subject", b"\xff")],
        [*good, ("ce_subject", b"nul\0")],
        [*good, ("ce_subject", b"long" * 1000)],
        [*good, ("ce_slipwaynumber", b"9" * 30)],
        [*good, ("ce_slipwayrevision", b"-1")],
        [*good, ("ce_time", b"yesterday")],
        [header for header in good if header[0] != "ce_id"],
        [],
        [*good, ("nul\0", b"\xff\0"), ("ce_specversion", b"2.0")],
    ]
    await place.create(WORKER_LIFECYCLE)
    async with publisher(place) as publish, member(place):
        for headers in broken:
            await publish.send(report("w1", "bad"), partition=0, key=b"\xffnul\0" * 500, headers=headers)
        fine = [*good, ("ce_subject", b"w2"), ("other", b"\xff"), ("null", None)]
        await publish.send(report("w2", "x"), partition=0, headers=fine)
        await until_read(place, len(broken) + 1)
        assert set(await place.effects()) == {("w2", "x")}
        assert [state for _, state, _ in await place.dead()] == ["dead"] * len(broken)


async def test_tombstone(place: Place) -> None:
    """A tombstone reaches the handler as a subject without an event; a null value without headers is left out."""
    await place.create(LAUNCH_CONFIG_WEIGHT)
    headers = encode(
        Envelope(
            id="1", type="io.slipway.weight.changed.v1", source="/s", subject="c1", time=utc_now(), sequence_number=1
        )
    )
    async with publisher(place) as publish, member(place, topic=LAUNCH_CONFIG_WEIGHT):
        name = place.prefix + LAUNCH_CONFIG_WEIGHT.name
        await publish.producer.send_and_wait(name, None, key=b"c0", partition=0)
        await publish.producer.send_and_wait(name, None, key=b"c1", partition=0, headers=headers)
        await until_read(place, 2)
        assert await place.effects() == {("c1", "tombstone"): 1}
        assert await place.dead() == []


async def test_poison_in_batch(place: Place) -> None:
    """One poison record in a full batch is the only dead one, although the batch is retried record by record."""
    await place.create(WORKER_LIFECYCLE)
    async with publisher(place) as publish:
        words = [f"{n}" if n != 137 else "raise" for n in range(300)]
        await asyncio.gather(*(publish.send(report(f"w{n}", word), partition=0) for n, word in enumerate(words)))
        async with member(place):
            await until_read(place, 300)
    effects = await place.effects()
    assert len(effects) == 299
    assert set(effects.values()) == {1}
    assert [subject for subject, *_ in await place.dead()] == ["w137"]


async def test_text_above_the_limit_of_an_index(place: Place) -> None:
    """A text that no row of an index can hold is an error of its record: a retry would fail forever."""
    await place.database.execute("CREATE INDEX effect_word ON effect (word)")
    await place.create(WORKER_LIFECYCLE)
    random = Random(1)  # PostgreSQL compresses a text before it checks the limit

    async def lengthen(tx: Connection, events: Sequence[Received]) -> None:
        for event in events:
            size = 6000 if event.event.kind == "long" else 1
            word = "".join(chr(random.randrange(0x4E00, 0x9FFF)) for _ in range(size))
            await tx.execute("INSERT INTO effect (subject, word, partition) VALUES ($1, $2, 0)", event.subject, word)

    async with publisher(place) as publish, member(place, lengthen):
        for subject, word in [("w1", "a"), ("w2", "long"), ("w3", "b")]:
            await publish.send(report(subject, word), partition=0)
        await until_read(place, 3)
        assert {subject for subject, _ in await place.effects()} == {"w1", "w3"}
        ((subject, state, reason),) = await place.dead()
        assert (subject, state) == ("w2", "dead")
        assert reason.startswith("ProgramLimitExceededError: index row ")


async def test_records_that_the_client_cannot_decode(place: Place) -> None:
    """A name of a header that is not UTF-8, and a batch that the broker's disk has changed, are dead with their bytes;
    records before and behind them, in the same partition and in others, take effect."""
    await place.create(WORKER_LIFECYCLE)
    name = place.prefix + WORKER_LIFECYCLE.name
    async with publisher(place) as publish:
        await publish.send(report("w1", "a"), partition=0)
        good = encode(Envelope(id="1", type=report("w", "x").type, source="/outside", time=utc_now(), subject="w2"))
        raw = batches.records(0, [(b"w2", msgspec.json.encode(report("w2", "x")), [*good, ("name", b"\xff")])])
        renamed = batches.packed(raw.replace(b"name", b"n\xffme"), codec=batches.CODECS["lz4"])
        assert await batches.produce(publish.producer, name, 0, renamed) == 1
        await publish.send(report("w3", "changed-on-disk"), partition=0)
        await publish.send(report("w4", "b"), partition=0)
        await publish.send(report("w5", "c"), partition=1)
        change_on_disk(place, name, 0, b"changed-on-disk")
        async with member(place):
            await until_read(place, 5)
    assert await place.effects() == {("w1", "a"): 1, ("w4", "b"): 1, ("w5", "c"): 1}
    rows = await place.database.fetch('SELECT * FROM dead_letter ORDER BY "offset"')
    assert [(row["offset"], row["subject"], row["undecoded"]) for row in rows] == [(1, "w2", False), (2, "", True)]
    assert "names of headers are not UTF-8" in rows[0]["reason"]
    assert record_in(rows[0]).headers[-1] == ("n\udcffme", b"\xff")
    assert rows[0]["value"] == msgspec.json.encode(report("w2", "x"))
    assert rows[1]["reason"] == "record batch of offset 2 cannot be decoded: wrong checksum"
    assert b"Changed-on-disk" in rows[1]["value"]
    assert await place.gaps() == ["sequence-gap"]  # the number in the batch is unknown


def change_on_disk(place: Place, name: str, partition: int, word: bytes) -> None:
    """Change one byte of a record in the broker's log, which the broker sends as it is."""
    (segment,) = place.kafka.storage.glob(f"{name}-{partition}/*.log")
    with segment.open("r+b") as log:
        at = log.read().index(word)
        log.seek(at)
        log.write(word[:1].upper())


async def test_newest_dead_letter_of_a_subject(place: Place) -> None:
    """Of a latest-wins input only the newest dead letter is kept; of others each."""
    await place.create(POOL_DEMAND, LAUNCH_CONFIG_SIGNAL)
    async with (
        publisher(place) as publish,
        member(place, topic=POOL_DEMAND),
        member(place, topic=LAUNCH_CONFIG_SIGNAL),
    ):
        for n in range(3):
            await publish.send(demand(pending=n), numbered=False, value=b"%d" % n)
            await publish.send(demand(n, "other"), numbered=False, value=b"other %d" % n)
            await publish.send(signal("c"), numbered=False, value=b"signal %d" % n)
        await until_read(place, 9)
        rows = await place.database.fetch("SELECT value FROM dead_letter ORDER BY value")
        assert [row["value"] for row in rows] == [b"2", b"other 2", b"signal 0", b"signal 1", b"signal 2"]


def signal(target_id: str) -> SignalRaised:
    return SignalRaised(
        source="s", target_kind="config", target_id=target_id, kind="pause_request", reason="r", observed_at=utc_now()
    )


async def test_deleted_input(place: Place) -> None:
    """A null value under a key deletes what a monitor reported; in a topic of events it is dead."""
    await place.create(POOL_DEMAND, WORKER_LIFECYCLE)
    deleted: list[tuple[str, Any]] = []

    async def note(tx: Connection, events: Sequence[Received]) -> None:
        deleted.extend((received.subject, received.event) for received in events)

    async with publisher(place) as publish, member(place, note, topic=POOL_DEMAND), member(place):
        await publish.send(demand(pending=1), key=b"p/q", value=None, headers=[])
        await publish.send(report("w1", "a"), value=None)
        await publish.send(report("w2", "a"), value=None, headers=[])
        await until_read(place, 3)
    assert deleted == [("p/q", None)]
    assert sorted(subject for subject, *_ in await place.dead()) == ["w1", "w2"]


async def test_parked_behind_dead(place: Place) -> None:
    """Events that follow a dead event of their subject are parked, in the same batch and in later ones."""
    await place.create(WORKER_LIFECYCLE)
    async with publisher(place) as publish, member(place):
        for subject, word in [("w1", "a"), ("w1", "raise"), ("w1", "b"), ("w2", "a")]:
            await publish.send(report(subject, word), partition=0)
        await publish.send(report("w3", "cut short"), partition=0, value=b"{")
        await until_read(place, 5)
        for subject in ("w1", "w2", "w3"):
            await publish.send(report(subject, "c"), partition=0)
        await until_read(place, 8)
    assert await place.effects() == {("w1", "a"): 1, ("w2", "a"): 1, ("w2", "c"): 1}
    assert [(subject, state) for subject, state, _ in await place.dead()] == [
        ("w1", "dead"),
        ("w1", "parked"),
        ("w3", "dead"),
        ("w1", "parked"),
        ("w3", "parked"),
    ]


async def test_latest_wins_is_not_parked(place: Place) -> None:
    """A dead demand report does not block later ones."""
    await place.create(POOL_DEMAND)

    async def record_pending(tx: Connection, events: Sequence[Received]) -> None:
        rows = [(received.subject, f"{received.event.pending}", received.partition) for received in events]
        await tx.executemany("INSERT INTO effect (subject, word, partition) VALUES ($1, $2, $3)", rows)

    async with publisher(place) as publish, member(place, record_pending, topic=POOL_DEMAND):
        await publish.send(demand(pending=1), numbered=False, value=b"{")
        await publish.send(demand(pending=2), numbered=False)
        await until_read(place, 2)
    assert await place.effects() == {("p/q", "2"): 1}


def demand(pending: int, pool_id: str = "p", seconds: float = 0) -> DemandReported:
    at = utc_now() + timedelta(seconds=seconds)
    return DemandReported(pool_id=pool_id, source="q", pending=pending, claimed=0, observed_at=at)


async def test_sequence_gap(place: Place) -> None:
    """A missing sequence number is recorded and alerted, and consumption continues; a repeat is dropped."""
    await place.create(WORKER_LIFECYCLE)
    async with publisher(place) as publish, member(place):
        await publish.send(report("w1", "a"), partition=0, sequence_number=41, previous=40)
        await publish.send(report("w2", "b"), partition=0, sequence_number=44, previous=43)
        await publish.send(report("w3", "b"), partition=0, sequence_number=44, previous=43)
        await publish.send(report("w4", "a"), partition=0, sequence_number=41, previous=40)
        await publish.send(report("w5", "c"), partition=0, sequence_number=49, previous=44)
        await until_read(place, 5)
    assert await place.effects() == {("w1", "a"): 1, ("w2", "b"): 1, ("w5", "c"): 1}
    assert await place.gaps() == ["sequence-gap"]
    assert await place.alerts() == ["sequence-gap"]
    assert await severities(place) == {"notice"}, "nobody can bring the records back"


async def test_unknown_type(place: Place) -> None:
    """An unknown event type is skipped and its sequence number recorded: no dead letter, no gap."""
    await place.create(WORKER_LIFECYCLE)
    async with publisher(place) as publish, member(place):
        await publish.send(report("w1", "a"), partition=0)
        await publish.send(report("w1", "new"), partition=0, type="io.slipway.worker.beamed_up.v9")
        await publish.send(report("w1", "b"), partition=0)
        await until_read(place, 3)
    assert await place.words("w1") == ["a", "b"]
    assert (await place.dead(), await place.gaps()) == ([], [])


async def test_outside_partitioner(place: Place) -> None:
    """Clients with other partitioners: the newest report wins, in any partition and repeated or not. No id of it is
    remembered."""
    await place.create(POOL_DEMAND)
    await place.database.execute("CREATE TABLE newest (key text PRIMARY KEY, pending int, observed_at timestamptz)")

    async def keep_newest(tx: Connection, events: Sequence[Received]) -> None:
        for received in events:
            await tx.execute(
                "INSERT INTO newest AS n VALUES ($1, $2, $3) ON CONFLICT (key) DO UPDATE "
                "SET (pending, observed_at) = (excluded.pending, excluded.observed_at) "
                "WHERE n.observed_at < excluded.observed_at",
                received.subject,
                received.event.pending,
                received.event.observed_at,
            )

    reports = [demand(n, f"pool-{key}", seconds=s) for key in range(8) for n, s in ((1, -1), (3, 0), (2, -2))]
    landed: dict[Any, set[Any]] = {}
    clients = {  # kcat and librdkafka hash with CRC32, Java's client and ours with murmur2
        name: Producer({"bootstrap.servers": place.kafka.bootstrap, "partitioner": name})
        for name in ("consistent_random", "murmur2_random")
    }
    async with member(place, keep_newest, topic=POOL_DEMAND):
        for number, event in enumerate(reports):
            key = POOL_DEMAND.key(event)
            headers = encode(Envelope(id=f"{number}", type=event.type, source="/monitor", time=utc_now(), subject=key))
            for client in clients.values():  # the same event through both
                client.produce(
                    place.prefix + POOL_DEMAND.name,
                    msgspec.json.encode(event),
                    key,
                    headers=[*headers],
                    on_delivery=lambda _, m: landed.setdefault(m.key(), set()).add(m.partition()),
                )
        for client in clients.values():
            await asyncio.to_thread(client.flush)
        await until_read(place, 2 * len(reports))
    assert any(len(partitions) > 1 for partitions in landed.values())
    assert await place.database.fetchval("SELECT count(*) FROM seen_event") == 0
    assert {row["pending"] for row in await place.database.fetch("SELECT pending FROM newest")} == {3}
    assert await place.dead() == []
