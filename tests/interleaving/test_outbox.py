"""Two sessions on events, their sequence numbers, alerts and dead letters."""

import asyncio
from typing import Any, Final

import asyncpg
import msgspec
import pytest

import slipway_common
from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.topics import POOL_DEMAND
from slipway_api.http.service import Replayed
from slipway_common.base.clock import utc_now
from slipway_common.database import alerts
from slipway_common.database.postgres import Connection
from slipway_common.database.retention import DAY_SECONDS
from slipway_common.messaging import consume, dead_letters, outbox, relay, retention
from slipway_common.messaging.consume import Consumer, Owned
from slipway_common.messaging.records import Record
from slipway_common.messaging.relay import partition_for
from tests.support import harness
from tests.support.harness import SERVICE, record_words, report, until
from tests.support.pairs import CONSUMER, Pair, claim, record
from tests.support.statements import Covered

locking: Final = Covered(slipway_common)


async def enqueue(db: Connection, *events: Any) -> None:
    async with db.transaction():
        await outbox.enqueue(db, events)


@locking("messaging.outbox.ENQUEUE", "messaging.outbox.insertion")
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


@locking("database.alerts.CONFIRM")
async def test_an_alert_is_resolved_while_its_process_confirms_it(pair: Pair) -> None:
    """It is over, which the process learns, so that it raises the alert again if the cause is still there."""
    await alerts.record(pair.a, [ALERT])
    assert await alerts.confirm(pair.b, "k")
    async with pair.a.transaction():
        await alerts.record(pair.a, [OVER])
        confirmation = await pair.b_waits(alerts.confirm(pair.b, "k"))
    assert not await confirmation


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
    await db.execute(relay.NUMBER, [], [row["id"] for row in rows], [row["topic"] for row in rows], partitions)


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
    await db.execute(relay.NUMBER, [], [row["id"] for row in rows], [row["topic"] for row in rows], partitions)


@locking("messaging.relay.DELETE", "messaging.relay.NUMBER")
async def test_a_late_acknowledgement_deletes_nothing_else(pair: Pair) -> None:
    """Two relays got the same rows acknowledged: both deletions succeed, later rows remain."""
    await enqueue(pair.a, report("w1", "a"), report("w2", "a"))
    await number(pair.a)
    places = [(row["topic"], row["partition"]) for row in await pair.a.fetch(relay.PLACES)]
    ids = [row["id"] for row in await pair.a.fetch(relay.LOWEST, *zip(*places, strict=True))]
    async with pair.a.transaction():
        assert await pair.a.execute(relay.DELETE, ids) == "DELETE 2"
        late = await pair.b_waits(pair.b.execute(relay.DELETE, ids))
    assert await late == "DELETE 0"
    await enqueue(pair.a, report("w1", "b"))
    await pair.b.execute(relay.NUMBER, ids, [], [], [])
    assert await pair.a.fetchval("SELECT count(*) FROM outbox") == 1


async def dead_letter(pair: Pair) -> Owned:
    """Dead-letter w1 at offset 0 and park one at 1; both would now be applied."""
    owned = await claim(pair.a)
    owned = await consume.apply(pair.a, CONSUMER, owned, [record(0, "raise"), record(1, "b")])
    await pair.a.execute(
        "UPDATE dead_letter SET value = $1 WHERE state = 'dead'", msgspec.json.encode(report("w1", "a"))
    )
    return owned


@locking("messaging.dead_letters.LOCK_POSITIONS", "messaging.dead_letters.DELETE", "database.tables.ADVANCE")
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
