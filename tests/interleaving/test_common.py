"""Two concurrent sessions for every locking statement of slipway_common: positions, sequence numbers, revisions and
dead letters are as if the sessions had run one after the other."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from datetime import datetime
from typing import Any, Final

import asyncpg
import msgspec
import pytest

import slipway_common
from slipway_common.base.clock import utc_now
from slipway_common.base.ids import new_id
from slipway_common.database import alerts, migrate, postgres
from slipway_common.database.postgres import Connection
from slipway_common.database.retention import DAY_SECONDS
from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_common.events.signal import SignalRaised
from slipway_common.events.topics import LAUNCH_CONFIG_SIGNAL, POOL_DEMAND, WORKER_LIFECYCLE
from slipway_common.messaging import consume, dead_letters, incarnation, leadership, outbox, relay, retention
from slipway_common.messaging.consume import Consumer, Fenced, Owned
from slipway_common.messaging.dead_letters import Replayed
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.incarnation import Incarnation, Sent
from slipway_common.messaging.records import Record
from slipway_common.messaging.relay import partition_for
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support import harness
from tests.support.harness import SERVICE, record_words, report, until
from tests.support.statements import Covered

CONSUMER: Final = Consumer(SERVICE, WORKER_LIFECYCLE, record_words)
TOPIC: Final = WORKER_LIFECYCLE.name
locking: Final = Covered(slipway_common)


class Pair:
    """Two sessions of a service on one database, and their tasks."""

    def __init__(self, url: str, a: Connection, b: Connection) -> None:
        self.url = url
        self.a = a
        self.b = b
        self.started: list[asyncio.Task[Any]] = []

    async def b_waits(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start the work of B, which must block on a lock held by A."""
        task = asyncio.create_task(work)
        self.started.append(task)
        watch = await postgres.session(self.url, SERVICE)
        try:
            query = "SELECT $1 = ANY(pg_blocking_pids($2))"
            pids = self.a.get_server_pid(), self.b.get_server_pid()

            async def waits_or_ended() -> bool:
                return task.done() or await watch.fetchval(query, *pids)

            await until(waits_or_ended, "B waits")
        finally:
            await watch.close()
        assert not task.done(), "B did not wait"
        return task

    async def words(self) -> list[str]:
        return [row["word"] for row in await self.a.fetch("SELECT word FROM effect ORDER BY id")]


@pytest.fixture
async def pair(postgres: EmbeddedPostgres) -> AsyncIterator[Pair]:
    async with pair_on(postgres) as sessions:
        yield sessions


@contextlib.asynccontextmanager
async def pair_on(server: EmbeddedPostgres) -> AsyncIterator[Pair]:
    name = harness.new_name()
    await harness.make_template(server, name)
    url = server.url(name)
    patient = {"idle_in_transaction_session_timeout": "0"} | harness.PATIENT
    a, b = [await postgres.session(url, SERVICE, **patient) for _ in range(2)]
    sessions = Pair(url, a, b)
    try:
        yield sessions
    finally:
        for task in sessions.started:
            task.cancel()
        a.terminate()
        b.terminate()
        await asyncio.gather(*sessions.started, return_exceptions=True)


def record(
    offset: int, word: str, *, partition: int = 0, subject: str = "w1", numbered: bool = True, event_id: str = ""
) -> Record:
    event = report(subject, word)
    envelope = Envelope(id=event_id or new_id(), type=event.type, source="/s", subject=subject, time=utc_now())
    if numbered:
        envelope = msgspec.structs.replace(envelope, sequence_number=offset + 1, previous=offset)
    headers = encode(envelope)
    value = b"{" if word == "cut" else msgspec.json.encode(event)
    return Record(TOPIC, partition, offset, subject.encode(), value, headers, 0)


async def claim(db: Connection, partition: int = 0) -> Owned:
    return (await consume.claim(db, TOPIC, partition, "cluster"))[0]


# Positions.


@locking("messaging.consume.CLAIM")
async def test_two_claims(pair: Pair) -> None:
    """Two first claims of a partition succeed one after the other, with different epochs."""
    async with pair.a.transaction():
        assert await claim(pair.a) == Owned(1, 0)
        second = await pair.b_waits(claim(pair.b))
    assert await second == Owned(2, 0)


@locking("messaging.consume.ADVANCE", "messaging.consume.CLAIM")
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


@locking("messaging.consume.ADVANCE", "messaging.consume.RECORD_SEQUENCES", "messaging.dead_records.INSERT")
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


@locking("messaging.consume.ADVANCE")
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


@locking("messaging.consume.ADOPT", "messaging.consume.ADVANCE")
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


# Leader election.


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


# Events.


async def enqueue(db: Connection, *events: Any) -> None:
    async with db.transaction():
        await outbox.enqueue(db, events)


@locking("messaging.outbox.ENQUEUE")
@pytest.mark.parametrize("committed", [True, False])
async def test_revisions_follow_the_order_of_commits(pair: Pair, *, committed: bool) -> None:
    """The second writer of a subject gets its revision and identity after the first has ended, without a gap."""
    first = pair.a.transaction()
    await first.start()
    await outbox.enqueue(pair.a, [report("w1", "a"), report("w2", "a"), report("w1", "b")])
    second = await pair.b_waits(enqueue(pair.b, report("w1", "c"), report("w3", "c")))
    await (first.commit() if committed else first.rollback())
    await second
    rows = await pair.a.fetch("SELECT subject, revision, value FROM outbox ORDER BY id")
    got = [(r["subject"], r["revision"], msgspec.json.decode(r["value"])["kind"]) for r in rows]
    before = [("w1", 1, "a"), ("w2", 1, "a"), ("w1", 2, "b")] if committed else []
    assert got == [*before, ("w1", len(before[::2]) + 1, "c"), ("w3", 1, "c")]


@locking("messaging.outbox.ENQUEUE")
async def test_subjects_are_locked_in_one_order(pair: Pair) -> None:
    """Two writers of the same subjects in opposite orders: no deadlock, no duplicate revision."""
    for _ in range(25):
        names = [f"w{n}" for n in range(20)]
        await asyncio.gather(
            enqueue(pair.a, *(report(name, "a") for name in names)),
            enqueue(pair.b, *(report(name, "b") for name in reversed(names))),
        )
    revisions = await pair.a.fetch("SELECT array_agg(revision ORDER BY id) AS r FROM outbox GROUP BY subject")
    assert [row["r"] for row in revisions] == [list(range(1, 51))] * 20


LONG_AGO: Final = """
UPDATE outbox_subject SET (created_at, touched_at)
    = (slipway_clock() - interval '9 days', slipway_clock() - interval '9 days')"""
EIGHT_DAYS: Final = 8 * DAY_SECONDS
OLD_GAP: Final = """
INSERT INTO gap (topic, partition, kind, detail, at)
SELECT 't', 0, 'k', format('%s days ago', $1::int), slipway_clock() - make_interval(days => $1)"""


@locking("messaging.retention.DELETE_SUBJECTS", "messaging.outbox.ENQUEUE")
async def test_an_active_subject_is_not_pruned(pair: Pair) -> None:
    """Pruning passes over a subject that a writer has locked."""
    await enqueue(pair.a, report("w1", "a"))
    await pair.a.execute(LONG_AGO)
    async with pair.a.transaction():
        await outbox.enqueue(pair.a, [report("w1", "b")])
        assert await pair.b.execute(retention.DELETE_SUBJECTS.text, EIGHT_DAYS) == "DELETE 0"
    assert await pair.b.execute(retention.DELETE_SUBJECTS.text, EIGHT_DAYS) == "DELETE 0"
    assert await pair.a.fetchval("SELECT revision FROM outbox_subject") == 2


@locking("messaging.retention.DELETE_SUBJECTS", "messaging.outbox.ENQUEUE")
async def test_an_event_during_the_pruning_of_its_subject(pair: Pair) -> None:
    """The writer waits for the deletion and restarts at revision 1; its event is not lost."""
    await enqueue(pair.a, report("w1", "a"))
    await pair.a.execute(LONG_AGO)
    async with pair.a.transaction():
        assert await pair.a.execute(retention.DELETE_SUBJECTS.text, EIGHT_DAYS) == "DELETE 1"
        speaking = await pair.b_waits(enqueue(pair.b, report("w1", "b")))
    await speaking
    assert [row["revision"] for row in await pair.a.fetch("SELECT revision FROM outbox ORDER BY id")] == [1, 1]


@locking("messaging.retention.DELETE_SEEN_EVENTS", "messaging.consume.RECORD_EVENT_IDS")
async def test_an_external_event_repeated_while_it_is_pruned(pair: Pair) -> None:
    """The repeat waits for the deletion and is then applied as new."""
    owned = await claim(pair.b)
    owned = await consume.apply(pair.b, CONSUMER, owned, [record(0, "a", numbered=False, event_id="one")])
    await pair.a.execute("UPDATE seen_event SET seen_at = slipway_clock() - interval '8 days'")
    async with pair.a.transaction():
        assert await pair.a.execute(retention.DELETE_SEEN_EVENTS.text, 7 * DAY_SECONDS) == "DELETE 1"
        late = [record(1, "again", numbered=False, event_id="one")]
        repeat = await pair.b_waits(consume.apply(pair.b, CONSUMER, owned, late))
    await repeat
    assert await pair.words() == ["a", "again"]


@locking("messaging.retention.DELETE_GAPS")
async def test_gaps_are_pruned_twice_at_once(pair: Pair) -> None:
    """The second does not wait for the first, and leaves its rows to it."""
    for days in (61, 59):
        await pair.a.execute(OLD_GAP, days)
    async with pair.a.transaction():
        assert await pair.a.execute(retention.DELETE_GAPS.text, 60 * DAY_SECONDS) == "DELETE 1"
        assert await pair.b.execute(retention.DELETE_GAPS.text, 60 * DAY_SECONDS) == "DELETE 0"
    assert await pair.a.fetchval("SELECT array_agg(detail) FROM gap") == ["59 days ago"]


OLD_AUDIT: Final = """
INSERT INTO audit (at, by, origin, action, reason, kind, subject_id, result)
SELECT slipway_clock() - make_interval(days => age), 'op', '', 'apply', '', 'account', 'a', 'created'
FROM unnest('{61, 59}'::int[]) AS ages (age)"""


@locking("messaging.retention.DELETE_AUDIT")
async def test_the_audit_is_pruned_twice_at_once(pair: Pair) -> None:
    """The second does not wait for the first, and leaves its rows to it."""
    await pair.a.execute(OLD_AUDIT)
    async with pair.a.transaction():
        assert await pair.a.execute(retention.DELETE_AUDIT.text, 60 * DAY_SECONDS) == "DELETE 1"
        assert await pair.b.execute(retention.DELETE_AUDIT.text, 60 * DAY_SECONDS) == "DELETE 0"
    assert await pair.a.fetchval("SELECT count(*) FROM audit") == 1


# Alerts.

ALERT: Final = AlertRaised(dedup_key="k", subject_kind="pool", subject_id="p", kind="odd", summary="s")
OVER: Final = AlertResolved(dedup_key="k", subject_kind="pool", subject_id="p", kind="odd", summary="over")
COUNTED: Final = "SELECT count(*) FILTER (WHERE closed_at IS NULL), count(*) FROM alert"


@locking("database.alerts.RAISE", "database.alerts.CLOSE")
async def test_an_alert_is_raised_while_it_is_raised_and_resolved(pair: Pair) -> None:
    """The second waits, and changes the same row; one that waited for the end of the alert begins a new one."""
    async with pair.a.transaction():
        await alerts.record(pair.a, [ALERT])
        second = await pair.b_waits(alerts.record(pair.b, [ALERT]))
    assert [event.revision for event in await second] == [2]
    async with pair.a.transaction():
        await alerts.record(pair.a, [OVER])
        third = await pair.b_waits(alerts.record(pair.b, [ALERT]))
    assert [event.revision for event in await third] == [1]
    assert tuple(await pair.a.fetchrow(COUNTED)) == (1, 2)


@locking("database.alerts.ADOPT")
async def test_an_alert_is_raised_while_a_restored_database_is_compared(pair: Pair) -> None:
    """The comparison waits, and does not resolve what is open by then."""
    async with pair.a.transaction():
        await alerts.record(pair.a, [ALERT])
        comparing = await pair.b_waits(alerts.reconcile(pair.b, [ALERT]))
    assert await comparing == []
    assert tuple(await pair.a.fetchrow(COUNTED)) == (1, 1)


@locking("database.alerts.SILENCE")
async def test_an_alert_is_resolved_while_it_is_silenced(pair: Pair) -> None:
    """There is no alert left to silence."""
    await alerts.record(pair.a, [ALERT])
    async with pair.a.transaction():
        await alerts.record(pair.a, [OVER])
        silence = await pair.b_waits(alerts.silence(pair.b, "k", until=utc_now(), by="ops", reason="r"))
    assert await silence is None


OLD_ALERTS: Final = """
UPDATE alert SET published_at = published_at - interval '2 days', raised_at = raised_at - interval '9 days',
    closed_at = closed_at - interval '91 days'"""


@locking("database.alerts.CLAIM_UNPUBLISHED", "database.alerts.MARK_PUBLISHED")
async def test_an_alert_is_published_again_by_one(pair: Pair) -> None:
    """The second replica does not wait, and has nothing to publish, now and afterwards."""
    await alerts.record(pair.a, [ALERT])
    await pair.a.execute(OLD_ALERTS)
    async with pair.a.transaction():
        assert [alert.repeat for alert in await alerts.claim_unpublished(pair.a)] == [True]
        assert await alerts.claim_unpublished(pair.b) == []
    assert await alerts.claim_unpublished(pair.b) == []


@locking("database.alerts.CLAIM_CLOSED", "database.alerts.MARK_DELETED", "messaging.retention.DELETE_ALERTS")
async def test_a_closed_alert_leaves_the_topic_once(pair: Pair) -> None:
    """The second replica does not wait, and the row is pruned by one of them."""
    await alerts.record(pair.a, [ALERT])
    await alerts.record(pair.a, [OVER])
    await pair.a.execute(OLD_ALERTS)
    async with pair.a.transaction():
        assert [alert.dedup_key for alert in await alerts.claim_closed(pair.a)] == ["k"]
        assert await alerts.claim_closed(pair.b) == []
        assert await pair.b.execute(retention.DELETE_ALERTS.text, 90 * DAY_SECONDS) == "DELETE 0"
    assert await alerts.claim_closed(pair.b) == []
    assert await pair.b.execute(retention.DELETE_ALERTS.text, 90 * DAY_SECONDS) == "DELETE 1"


# Sequence numbers.


@locking("messaging.relay.LOCK")
async def test_one_relay_at_a_time(pair: Pair) -> None:
    """The lock is free only after the session that holds it has ended, including its transaction."""
    assert await pair.a.fetchval(relay.LOCK) is True
    assert await pair.b.fetchval(relay.LOCK) is False
    await enqueue(pair.b, report("w1", "a"))
    unfinished = pair.a.transaction()
    await unfinished.start()
    await number(pair.a)
    await end_session(pair.url, pair.a)
    await until(lambda: pair.b.fetchval(relay.LOCK))
    await number(pair.b)
    assert [tuple(r) for r in await pair.b.fetch("SELECT sequence_number, previous_sequence_number FROM outbox")] == [
        (1, 0)
    ]


async def number(db: Connection) -> None:
    rows = await db.fetch(relay.UNNUMBERED)
    partitions = [partition_for(row["key"], harness.PARTITIONS) for row in rows]
    await db.execute(relay.NUMBER, [row["id"] for row in rows], [row["topic"] for row in rows], partitions)


async def end_session(url: str, session: Connection) -> None:
    """Terminate the session, like the server does for a stalled one."""
    administrator = await asyncpg.connect(url)
    try:
        await administrator.execute("SELECT pg_terminate_backend($1)", session.get_server_pid())
    finally:
        await administrator.close()


@locking("messaging.relay.NUMBER")
async def test_numbers_are_given_once(pair: Pair) -> None:
    """Two sessions number different rows of the same partitions: the second continues where the first ended."""
    await enqueue(pair.a, *(report(f"w{n}", "a") for n in range(20)))
    async with pair.a.transaction():
        await number(pair.a)
        rows = await pair.b.fetch("SELECT coalesce(max(id), 0) AS last FROM outbox")
        await enqueue(pair.b, *(report(f"w{n}", "b") for n in range(20)))
        later = await pair.b_waits(number_after(pair.b, rows[0]["last"]))
    await later
    numbers = await pair.a.fetch(
        "SELECT partition, array_agg(sequence_number ORDER BY id) AS given, "
        "array_agg(previous_sequence_number ORDER BY id) AS previous, "
        "(SELECT p.sequence_number FROM relay_position p WHERE p.partition = o.partition) AS last "
        "FROM outbox o GROUP BY partition"
    )
    assert len(numbers) == harness.PARTITIONS
    for row in numbers:
        assert row["given"] == list(range(1, row["last"] + 1))
        assert row["previous"] == list(range(row["last"]))


async def number_after(db: Connection, last: int) -> None:
    rows = await db.fetch("SELECT id, topic, key FROM outbox WHERE id > $1 ORDER BY id", last)
    partitions = [partition_for(row["key"], harness.PARTITIONS) for row in rows]
    await db.execute(relay.NUMBER, [row["id"] for row in rows], [row["topic"] for row in rows], partitions)


@locking("messaging.relay.ACKNOWLEDGED")
async def test_a_late_acknowledgement_deletes_nothing_else(pair: Pair) -> None:
    """Two relays got the same rows acknowledged: both deletions succeed, later rows remain."""
    await enqueue(pair.a, report("w1", "a"), report("w2", "a"))
    await number(pair.a)
    places = [(row["topic"], row["partition"]) for row in await pair.a.fetch(relay.PLACES)]
    ids = [row["id"] for row in await pair.a.fetch(relay.LOWEST, *zip(*places, strict=True))]
    async with pair.a.transaction():
        assert await pair.a.execute(relay.ACKNOWLEDGED, ids) == "DELETE 2"
        late = await pair.b_waits(pair.b.execute(relay.ACKNOWLEDGED, ids))
    assert await late == "DELETE 0"
    await enqueue(pair.a, report("w1", "b"))
    assert await pair.b.execute(relay.ACKNOWLEDGED, ids) == "DELETE 0"


# Dead letters.


async def dead_letter(pair: Pair) -> Owned:
    """Dead-letter w1 at offset 0 and park one at 1; both would now be applied."""
    owned = await claim(pair.a)
    owned = await consume.apply(pair.a, CONSUMER, owned, [record(0, "raise"), record(1, "b")])
    await pair.a.execute(
        "UPDATE dead_letter SET value = $1 WHERE state = 'dead'", msgspec.json.encode(report("w1", "a"))
    )
    return owned


@locking("messaging.dead_letters.LOCK_POSITIONS", "messaging.dead_letters.DELETE", "messaging.consume.ADVANCE")
async def test_an_event_during_a_replay(pair: Pair) -> None:
    """The event waits, and is then neither parked behind a record that is no longer dead, nor applied before it."""
    owned = await dead_letter(pair)
    async with pair.a.transaction():
        assert await dead_letters.replay(pair.a, CONSUMER, 0, 0, "ops") == Replayed(2, 0)
        later = await pair.b_waits(consume.apply(pair.b, CONSUMER, owned, [record(2, "c")]))
    await later
    assert await pair.words() == ["a", "b", "c"]
    assert await pair.a.fetchval("SELECT count(*) FROM dead_letter") == 0


@locking("messaging.dead_letters.LOCK_POSITIONS", "messaging.dead_letters.DELETE", "messaging.dead_records.INSERT")
async def test_a_replay_during_a_batch(pair: Pair) -> None:
    """The replay waits for the record being parked and includes it."""
    owned = await dead_letter(pair)
    async with pair.a.transaction():
        await consume.apply(pair.a, CONSUMER, owned, [record(2, "c")])
        replay = await pair.b_waits(dead_letters.replay(pair.b, CONSUMER, 0, 0, "ops"))
    assert await replay == Replayed(3, 0)
    assert await pair.words() == ["a", "b", "c"]


@locking("messaging.retention.DELETE_DEAD_LETTERS", "messaging.dead_letters.DELETE")
async def test_dead_letters_are_pruned_beside_their_replay(pair: Pair) -> None:
    """Pruning passes over those that are being replayed; a replay of those that are being pruned applies them once."""
    await dead_letter(pair)
    await pair.a.execute("UPDATE dead_letter SET at = slipway_clock() - interval '15 days'")
    replayed = pair.a.transaction()
    await replayed.start()
    assert await dead_letters.replay(pair.a, CONSUMER, 0, 0, "ops") == Replayed(2, 0)
    assert await pair.b.execute(retention.DELETE_DEAD_LETTERS.text, 14 * DAY_SECONDS) == "DELETE 0"
    await replayed.rollback()
    async with pair.a.transaction():
        assert await pair.a.execute(retention.DELETE_DEAD_LETTERS.text, 14 * DAY_SECONDS) == "DELETE 2"
        replay = await pair.b_waits(dead_letters.replay(pair.b, CONSUMER, 0, 0, "ops"))
    assert await replay == Replayed(2, 0)
    assert await pair.words() == ["a", "b"]


@locking("messaging.dead_records.DELETE_OLDER")
async def test_two_newest_dead_letters(pair: Pair) -> None:
    """Two partitions have the newest dead letter of a subject: neither deletes that of the other, but the next does."""
    demand = Consumer(SERVICE, POOL_DEMAND, record_words)
    first, second = [(await consume.claim(pair.a, POOL_DEMAND.name, p, "cluster"))[0] for p in (0, 1)]
    first = await consume.apply(pair.a, demand, first, [malformed(0, 0)])
    async with pair.a.transaction():
        first = await consume.apply(pair.a, demand, first, [malformed(0, 1)])
        other = await pair.b_waits(consume.apply(pair.b, demand, second, [malformed(1, 0)]))
    await other
    assert await places(pair) == [(0, 1), (1, 0)]
    await consume.apply(pair.a, demand, first, [malformed(0, 2)])
    assert await places(pair) == [(0, 2)]


def malformed(partition: int, offset: int) -> Record:
    """A report of demand without attributes."""
    return Record(POOL_DEMAND.name, partition, offset, b"p/q", b"{", (), 0)


async def places(pair: Pair) -> list[tuple[int, int]]:
    return [tuple(row) for row in await pair.a.fetch('SELECT partition, "offset" FROM dead_letter ORDER BY 1, 2')]


@locking("messaging.dead_letters.LOCK_POSITIONS", "messaging.dead_letters.DELETE", "messaging.dead_letters.FAILED")
async def test_two_replays(pair: Pair) -> None:
    """The second finds the result of the first: nothing, or the record that failed again."""
    await dead_letter(pair)
    async with pair.a.transaction():
        await pair.a.execute("UPDATE dead_letter SET value = '{' WHERE state = 'parked'")
        assert (await dead_letters.replay(pair.a, CONSUMER, 0, 0, "ops")).remaining == 1
        second = await pair.b_waits(dead_letters.replay(pair.b, CONSUMER, 0, 0, "ops"))
    with pytest.raises(dead_letters.NotDead):
        await second
    assert await pair.words() == ["a"]
    assert [r["state"] for r in await pair.a.fetch("SELECT state FROM dead_letter")] == ["dead"]


# Incarnations.


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


# Schemas.


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


# Completeness.
