"""Two sessions on positions, leaders, incarnations and schemas."""

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from datetime import datetime
from typing import Any, Final

import asyncpg
import msgspec
import pytest

import slipway_common
from slipway_api.events.alert import AlertRaised
from slipway_api.events.signal import SignalRaised
from slipway_api.events.topics import LAUNCH_CONFIG_SIGNAL, WORKER_LIFECYCLE
from slipway_common.base.clock import utc_now
from slipway_common.database import migrate
from slipway_common.database.postgres import Connection
from slipway_common.messaging import consume, incarnation, leadership, outbox
from slipway_common.messaging.consume import Consumer, Fenced, Owned, Portion
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.incarnation import Incarnation, Sent
from slipway_common.messaging.records import Record
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support import harness
from tests.support.harness import SERVICE, record_words, report
from tests.support.pairs import CONSUMER, TOPIC, Pair, claim, record
from tests.support.statements import Covered

locking: Final = Covered(slipway_common)


@locking("messaging.consume.CLAIM")
async def test_two_claims(pair: Pair) -> None:
    """Two first claims of a partition succeed one after the other, with different epochs."""
    async with pair.a.transaction():
        assert await claim(pair.a) == Owned(1, 0)
        second = await pair.b_waits(claim(pair.b))
    assert await second == Owned(2, 0)


@locking("database.tables.ADVANCE", "messaging.consume.CLAIM")
async def test_a_batch_that_waited_for_a_claim_is_fenced(pair: Pair) -> None:
    """The epoch is checked under the lock, so nothing of the batch remains."""
    former = await claim(pair.b)
    async with pair.a.transaction():
        successor = await claim(pair.a)
        batch = await pair.b_waits(consume.apply(pair.b, CONSUMER, former, [record(0, "late")]))
    with pytest.raises(Fenced):
        await batch
    assert await consume.apply(pair.a, CONSUMER, successor, [record(0, "first")]) == Owned(2, 1)
    assert await pair.words() == ["first"]


@locking("database.tables.ADVANCE", "messaging.consume.CLAIM")
async def test_a_batch_of_two_partitions_of_which_one_is_fenced(pair: Pair) -> None:
    """Nothing of either is applied, and the other partition is applied alone after that."""
    mine, former = await claim(pair.b, 0), await claim(pair.b, 1)
    portions = [
        Portion(WORKER_LIFECYCLE, partition, owned, [record(0, "together", partition=partition)])
        for partition, owned in enumerate((mine, former))
    ]
    async with pair.a.transaction():
        await claim(pair.a, 1)
        batch = await pair.b_waits(consume.apply_together(pair.b, CONSUMER, portions))
    with pytest.raises(Fenced):
        await batch
    assert await pair.words() == []
    assert await consume.apply(pair.b, CONSUMER, mine, portions[0].records) == Owned(1, 1)
    assert await pair.words() == ["together"]


@locking("database.tables.ADVANCE", "messaging.dead_records.INSERT")
async def test_the_same_batch_twice(pair: Pair) -> None:
    """Two tasks apply one batch under one epoch: the second waits for the first and is fenced by the position; sequence
    numbers and dead letters are those of the first."""
    owned = await claim(pair.a)
    batch = [record(0, "a"), record(1, "cut", subject="w2"), record(2, "b")]
    async with pair.a.transaction():
        await consume.apply(pair.a, CONSUMER, owned, batch)
        again = await pair.b_waits(consume.apply(pair.b, CONSUMER, owned, batch))
    with pytest.raises(Fenced):
        await again
    assert await pair.words() == ["a", "b"]
    assert await pair.a.fetchval("SELECT sequence_number FROM seen_sequence") == 3
    assert await pair.a.fetchval("SELECT count(*) FROM dead_letter") == 1


@locking("database.tables.ADVANCE")
async def test_a_rolled_back_batch_leaves_the_position(pair: Pair) -> None:
    """The second waits for a transaction that rolls back, then applies the batch itself."""
    owned = await claim(pair.a)
    undone = pair.a.transaction()
    await undone.start()
    await consume.apply(pair.a, CONSUMER, owned, [record(0, "a")])
    again = await pair.b_waits(consume.apply(pair.b, CONSUMER, owned, [record(0, "a")]))
    await undone.rollback()
    assert await again == Owned(1, 1)
    assert await pair.words() == ["a"]


@locking("messaging.consume.ADOPT", "database.tables.ADVANCE")
async def test_a_batch_that_waited_for_an_operator_is_fenced(pair: Pair) -> None:
    """Records read from the abandoned log do not affect the adopted position."""
    owned = await claim(pair.a)
    async with pair.a.transaction():
        await consume.adopt(pair.a, TOPIC, 0, "the-new-one", 7)
        batch = await pair.b_waits(consume.apply(pair.b, CONSUMER, owned, [record(0, "of the old log")]))
    with pytest.raises(Fenced):
        await batch
    assert await pair.words() == []
    assert await pair.a.fetchval("SELECT next_offset FROM consumed") == 7


@locking("messaging.consume.RECORD_EVENT_IDS")
@pytest.mark.parametrize("committed", [True, False])
async def test_an_external_event_in_two_partitions(pair: Pair, *, committed: bool) -> None:
    """The second waits for the outcome of the first; one of them takes effect."""
    ours, theirs = await claim(pair.a, 0), await claim(pair.b, 1)
    same = [record(0, "a", partition=p, numbered=False, event_id="one") for p in (0, 1)]
    first = pair.a.transaction()
    await first.start()
    await consume.apply(pair.a, CONSUMER, ours, same[:1])
    second = await pair.b_waits(consume.apply(pair.b, CONSUMER, theirs, same[1:]))
    await (first.commit() if committed else first.rollback())
    assert await second == Owned(1, 1)
    assert await pair.words() == ["a"]


def signal(offset: int, **attributes: Any) -> Record:
    """A signal of a monitor."""
    event = SignalRaised(
        source="m", target_kind="zone", target_id="z", kind=f"k{offset}", reason="r", observed_at=utc_now()
    )
    envelope = Envelope(id=f"e{offset}", type=event.type, source="/m", subject="z", time=utc_now(), **attributes)
    return Record(LAUNCH_CONFIG_SIGNAL.name, 0, offset, b"z", msgspec.json.encode(event), encode(envelope), 0)


async def test_sequence_numbers_where_anyone_may_write(pair: Pair) -> None:
    """They count for nothing: events of the service whose numbers a monitor used are no duplicates, and no row remains
    of each name that it made up."""
    signals = Consumer(SERVICE, LAUNCH_CONFIG_SIGNAL, record_words)
    owned, _ = await consume.claim(pair.a, LAUNCH_CONFIG_SIGNAL.name, 0, "cluster")
    claimed = signal(0, sequence_number=2**63 - 1, sequence_source="/slipway/weight-calculator/1")
    genuine = signal(1, sequence_number=7, previous=6, sequence_source="/slipway/weight-calculator/1")
    repeated = msgspec.structs.replace(genuine, offset=2)
    made_up = [signal(offset, sequence_number=1, sequence_source=f"/made-up/{offset}") for offset in (3, 4)]
    await consume.apply(pair.a, signals, owned, [claimed, genuine, repeated, *made_up])
    assert await pair.words() == ["k0", "k1", "k3", "k4"]
    assert await pair.a.fetchval("SELECT count(*) FROM seen_sequence") == 0


def bid(db: Connection, instance: str, *, stale_seconds: float = 10.0, restarted: bool = False) -> Any:
    return db.fetchval(leadership.BID, instance, stale_seconds, restarted)


@locking("messaging.leadership.BID")
async def test_two_bids(pair: Pair) -> None:
    """The second rechecks after the first has committed: the row is no longer stale."""
    async with pair.a.transaction():
        assert await bid(pair.a, "a") == 1
        second = await pair.b_waits(bid(pair.b, "b"))
    assert await second is None
    assert await bid(pair.b, "a", restarted=True) == 2
    assert await bid(pair.b, "b", stale_seconds=-1.0) == 3


@locking("messaging.leadership.TURN", "messaging.leadership.BID")
async def test_a_turn_beside_a_bid(pair: Pair) -> None:
    """A leader replaced while it waits for its row finds none, and would roll back."""
    await bid(pair.a, "a")
    async with pair.a.transaction():
        assert await bid(pair.a, "b", stale_seconds=-1.0) == 2
        turn = await pair.b_waits(pair.b.fetchval(leadership.TURN, 1))
    assert await turn is None
    assert await pair.b.fetchval(leadership.TURN, 2) > 0


@locking("messaging.leadership.TURN", "messaging.leadership.BID")
async def test_a_bid_beside_a_turn(pair: Pair) -> None:
    """A turn that commits renews the row, so the bid that waited for it fails."""
    await bid(pair.a, "a")
    await pair.a.execute("UPDATE leader SET seen_at = slipway_clock() - interval '1 hour'")
    async with pair.a.transaction():
        assert await pair.a.fetchval(leadership.TURN, 1) > 0
        late = await pair.b_waits(bid(pair.b, "b"))
    assert await late is None
    assert await pair.a.fetchval("SELECT instance FROM leader") == "a"


@locking("messaging.leadership.RELEASE", "messaging.leadership.BID")
async def test_a_release_beside_a_bid(pair: Pair) -> None:
    """A bid succeeds only after the release; a former leader cannot release the row of its successor."""
    await bid(pair.a, "a")
    async with pair.a.transaction():
        await pair.a.execute(leadership.RELEASE, 1)
        assert await bid(pair.b, "b") is None
    assert await bid(pair.b, "b") == 2
    assert await pair.a.execute(leadership.RELEASE, 1) == "UPDATE 0"
    assert await bid(pair.a, "a") is None


@locking("messaging.leadership.TURN")
async def test_turns_one_after_the_other(pair: Pair) -> None:
    """The time of turns never goes back, even if the clock does."""
    await bid(pair.a, "a")
    async with pair.a.transaction():
        first = await pair.a.fetchval(leadership.TURN, 1)
        second = await pair.b_waits(pair.b.fetchval(leadership.TURN, 1))
    assert await second > first
    await pair.a.execute("UPDATE leader SET at = at + 3600")
    ahead = await pair.a.fetchval("SELECT at FROM leader")
    assert await pair.a.fetchval(leadership.TURN, 1) == ahead


class Ahead:
    """A log that is ahead of the rows of every database."""

    async def ends(self) -> Sent:
        return Sent({(TOPIC, 0): {"of the future": 1}})

    async def among(self, waiting: Mapping[str, tuple[consume.Place, datetime]]) -> Collection[str]:
        return ()

    async def raised_alerts(self) -> Collection[AlertRaised]:
        return ()


def renewal(db: Connection) -> Coroutine[Any, Any, Incarnation]:
    return incarnation.compare(
        db,
        Ahead(),
        place_of=lambda topic, _: (topic, 0),
        renewed=incarnation.stop_nothing,
        ping_seconds=harness.PATIENCE_SECONDS,
    )


@locking(
    "messaging.incarnation.RENEW",
    "messaging.incarnation.EXCLUDE_WRITERS",
    "messaging.incarnation.FORGET_SENT",
    "messaging.incarnation.RENUMBER",
    "messaging.incarnation.RAISE_SUBJECTS",
    "messaging.incarnation.FORGET_POSITIONS",
    "messaging.incarnation.COMPARED",
)
async def test_a_renewal_waits_for_writers(pair: Pair) -> None:
    """An event that is written meanwhile gets a revision of the new incarnation, as do those after it."""
    async with pair.a.transaction():
        await outbox.enqueue(pair.a, [report("w1", "a")])
        renewing = await pair.b_waits(renewal(pair.b))
    renewed = await renewing
    async with pair.a.transaction():
        await outbox.enqueue(pair.a, [report("w1", "b"), report("w2", "c")])
    rows = await pair.a.fetch("SELECT subject, revision, sequence_number FROM outbox ORDER BY id")
    base = renewed.revision_base
    assert [tuple(row) for row in rows] == [("w1", base + 1, None), ("w1", base + 2, None), ("w2", base + 1, None)]
    assert base > 2**50


async def test_a_writer_waits_for_a_renewal(pair: Pair) -> None:
    """Its event gets a revision of the new incarnation, though it began under the former one."""
    async with pair.b.transaction():
        await outbox.enqueue(pair.b, [report("w1", "before")])
    async with pair.a.transaction():
        base = (await pair.a.fetchrow(incarnation.RENEW, "restored", []))["revision_base"]
        await pair.a.execute(incarnation.EXCLUDE_WRITERS)
        writing = await pair.b_waits(outbox.enqueue(pair.b, [report("w1", "during")]))
    await writing
    assert await pair.a.fetchval("SELECT revision FROM outbox ORDER BY id DESC LIMIT 1") == base + 1


@locking("messaging.incarnation.REQUEST")
async def test_a_person_and_the_relay_renew_at_once(pair: Pair) -> None:
    """The incarnation is renewed once, and the request is done with it."""
    first = await incarnation.get(pair.a)
    async with pair.a.transaction():
        await incarnation.request(pair.a, "a backup", incarnation.stop_nothing, by="me")
        renewing = await pair.b_waits(renewal(pair.b))
    renewed = await renewing
    stored = await incarnation.get(pair.a)
    assert (stored.id, stored.requested, first.id in stored.former) == (renewed.id, None, True)
    assert await incarnation.is_current(pair.a, renewed.id)


@locking("database.migrate.LOCK_SERVER", "database.migrate.LOCK_SCHEMA")
async def test_two_migrations_at_once(postgres: EmbeddedPostgres) -> None:
    """Two replicas migrate the same new database to the head: both succeed."""
    url = await postgres.create_database(harness.new_name())
    await asyncio.gather(*(migrate.upgrade(url, "lease-broker") for _ in range(3)))
    session = await asyncpg.connect(url)
    try:
        assert await session.fetchval("SELECT count(*) FROM lease_broker.alembic_version") == 1
        assert await session.fetchval("SELECT count(*) FROM lease_broker.incarnation") == 1
    finally:
        await session.close()
