"""Restores and failovers of a database on a real broker: the relay finds the log ahead of the rows, and nothing that it
publishes afterwards is dropped."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved, alert_key
from slipway_api.events.topics import ALERT, WORKER_LIFECYCLE
from slipway_common.base.clock import utc_now
from slipway_common.database import alerts
from slipway_common.database.postgres import Connection
from slipway_common.messaging import incarnation
from slipway_common.messaging.envelope import Envelope, decode
from slipway_common.messaging.incarnation import Incarnation, Log, NotCompared, Sent
from slipway_common.messaging.partition_queues import Place as Partition
from slipway_common.messaging.relay import Relay
from slipway_common.messaging.sent import header
from tests.support.harness import (
    PARTITIONS,
    PATIENCE_SECONDS,
    SERVICE,
    Place,
    enqueue,
    member,
    publisher,
    read_all,
    report,
    until,
)

PARTITION: Final[Partition] = (WORKER_LIFECYCLE.name, 1)
TABLES = ("incarnation", "outbox", "outbox_subject", "relay_position")


class Copy:
    """A copy of the tables that publishing uses, kept inside the database, as a backup of them."""

    def __init__(self, place: Place, *tables: str) -> None:
        self.database = place.database
        self.tables = tables or TABLES

    async def make(self) -> None:
        for table in self.tables:
            await self.database.execute(f"DROP TABLE IF EXISTS copy_of_{table}")
            await self.database.execute(f"CREATE TABLE copy_of_{table} AS TABLE {table}")

    async def restore(self) -> None:
        async with self.database.acquire() as db, db.transaction():
            for table in self.tables:
                await db.execute(f"DELETE FROM {table}")
                await db.execute(f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM copy_of_{table}")


class Renewals:
    """Counts renewals, as the service would stop its work."""

    def __init__(self) -> None:
        self.seen: list[Incarnation] = []

    async def __call__(self, _: Connection, renewal: Incarnation) -> None:
        self.seen.append(renewal)


def relay(place: Place, renewals: Renewals) -> Relay:
    made = place.relay(WORKER_LIFECYCLE)
    made.compared_topics, made.renewed = [WORKER_LIFECYCLE], renewals
    return made


@asynccontextmanager
async def running(made: Relay) -> AsyncIterator[Relay]:
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def published(place: Place, renewals: Renewals, *words: tuple[str, str]) -> None:
    """Enqueue (subject, word) events and run a relay until all are published."""
    await enqueue(place.database, *(report(subject, word) for subject, word in words))
    async with running(relay(place, renewals)):
        await until_empty(place)


async def until_empty(place: Place) -> None:
    async def empty() -> bool:
        return not await place.database.fetchval("SELECT count(*) FROM outbox")

    await until(empty, "the outbox is empty")


async def envelopes(place: Place) -> Sequence[Envelope]:
    found: list[Any] = await read_all(place, WORKER_LIFECYCLE.name)
    return [decode(record.headers, received_at=utc_now()) for record in found]


SUBJECTS = [f"w{n}" for n in range(2 * PARTITIONS)]


async def test_a_restored_database_drops_nothing(place: Place) -> None:
    """Events of the lost time were consumed; those that follow have numbers of their own and higher revisions, and take
    effect once."""
    await place.create(WORKER_LIFECYCLE)
    renewals, copy = Renewals(), Copy(place)
    async with member(place):
        await published(place, renewals, *((subject, "before") for subject in SUBJECTS))
        await copy.make()
        await published(place, renewals, *((subject, f"lost {n}") for n in range(5) for subject in SUBJECTS))
        assert renewals.seen == []
        await copy.restore()
        await published(place, renewals, *((subject, "after") for subject in [*SUBJECTS, "new"]))

        async def arrived() -> bool:
            return bool(await place.words("new"))

        await until(arrived, "the newest event took effect")
        for subject in SUBJECTS:
            lost = [f"lost {n}" for n in range(5)]
            await until(_has(place, subject, ["before", *lost, "after"]), f"the events of {subject}")
    (renewal,) = renewals.seen
    assert "of this database, whose last is" in renewal.reason
    assert await place.gaps() == []
    newest: dict[str, int] = {}
    for envelope in await envelopes(place):
        assert envelope.revision is not None
        assert envelope.revision > newest.get(envelope.subject, 0)
        newest[envelope.subject] = envelope.revision
    assert await place.database.fetchval(incarnation.TRUSTED)


def _has(place: Place, subject: str, words: list[str]) -> Any:
    async def has() -> bool:
        return await place.words(subject) == words

    return has


async def test_what_was_sent_before_is_not_sent_again(place: Place) -> None:
    """Events that waited in the outbox of the backup were published after it was made."""
    await place.create(WORKER_LIFECYCLE)
    renewals, copy = Renewals(), Copy(place)
    await published(place, renewals, ("w0", "before"))
    await enqueue(place.database, report("w1", "waits"), report("w2", "waits"))
    await copy.make()
    await published(place, renewals, ("w3", "lost"))
    await copy.restore()
    await published(place, renewals, ("w1", "after"))
    assert len(renewals.seen) == 1
    sent = [(envelope.subject, envelope.id) for envelope in await envelopes(place)]
    assert sorted(subject for subject, _ in sent) == ["w0", "w1", "w1", "w2", "w3"]
    assert len({id_ for _, id_ in sent}) == len(sent)


async def test_the_same_backup_restored_twice(place: Place) -> None:
    """Each restore is found, and a restart of the relay renews nothing."""
    await place.create(WORKER_LIFECYCLE)
    renewals, copy = Renewals(), Copy(place)
    await published(place, renewals, ("w0", "before"))
    await copy.make()
    for round_ in range(1, 3):
        await published(place, renewals, *((subject, "lost") for subject in SUBJECTS))
        await copy.restore()
        await published(place, renewals, ("w0", "after"))
        await published(place, renewals, ("w0", "again"))
        assert len(renewals.seen) == round_
    assert len({renewal.id for renewal in renewals.seen}) == 2
    revisions = [e.revision or 0 for e in await envelopes(place) if e.subject == "w0"]
    assert revisions == sorted(set(revisions))


async def test_an_intact_database_keeps_its_incarnation(place: Place) -> None:
    """However often the relay starts, with rows that wait and with topics that were emptied."""
    await place.create(WORKER_LIFECYCLE)
    renewals = Renewals()
    for _ in range(3):
        await published(place, renewals, *((subject, "word") for subject in SUBJECTS))
    assert renewals.seen == []
    await place.database.execute("UPDATE relay_position SET sequence_number = sequence_number + 1000")
    await published(place, renewals, ("w0", "last"))
    assert renewals.seen == []


async def test_a_person_renews_the_incarnation(place: Place) -> None:
    """The relay that leads begins the new one within seconds; until then the database is not trusted."""
    await place.create(WORKER_LIFECYCLE)
    renewals = Renewals()
    async with running(relay(place, renewals)):
        await enqueue(place.database, report("w0", "before"))
        await until_empty(place)
        async with place.database.acquire() as db, db.transaction():
            await incarnation.request(db, "a backup", renewals, by="me")
        await until(lambda: place.database.fetchval(incarnation.TRUSTED), "the relay has compared")
        await enqueue(place.database, report("w0", "after"))
        await until_empty(place)
    requested, renewed = renewals.seen
    assert requested.reason == renewed.reason == "restored, reported by me: a backup"
    before, *_, after = [envelope.sequence_source for envelope in await envelopes(place)]
    assert before.endswith(requested.id)
    assert after.endswith(renewed.id)


REVISION: Final = "SELECT revision FROM alert WHERE dedup_key = $1"


def alert(subject: str) -> AlertRaised:
    key = alert_key(SERVICE, "kind", subject)
    return AlertRaised(dedup_key=key, subject_kind="pool", subject_id=subject, kind="kind", summary="s")


def resolved(raised: AlertRaised) -> AlertResolved:
    names = {name: getattr(raised, name) for name in ("dedup_key", "subject_kind", "subject_id", "kind")}
    return AlertResolved(**names, summary="it is over")


async def test_alerts_of_the_lost_time(place: Place) -> None:
    """One that was raised in it has no row, and would be open in the topic for ever: it is resolved. One that was
    resolved in it has an open row, and would never page again: it is raised anew. Others are left, at the revision that
    the topic has, as are those of other services, and those that wait in the outbox."""
    await place.create(WORKER_LIFECYCLE, ALERT)
    renewals, copy = Renewals(), Copy(place, *TABLES, "alert")

    async def sent(*events: Any) -> None:
        await enqueue(place.database, *events)
        made = place.relay(WORKER_LIFECYCLE, ALERT)
        made.compared_topics, made.renewed = [WORKER_LIFECYCLE, ALERT], renewals
        async with running(made):
            await until_empty(place)

    lasting, ended, begun, waiting = alert("lasting"), alert("ended"), alert("begun"), alert("waiting")
    foreign = msgspec.structs.replace(begun, dedup_key=alert_key("other", "kind", "begun"))
    await sent(lasting, ended, report("w0", "before"))
    await copy.make()
    await sent(lasting, resolved(ended), begun, foreign, report("w0", "lost"))
    await copy.restore()
    await sent(waiting, report("w0", "after"))
    assert len(renewals.seen) == 1
    newest = {record.key.decode(): record for record in await read_all(place, ALERT.name)}
    open_ = {key for key, record in newest.items() if header(record, "ce_type") == AlertRaised.type}
    assert open_ == {each.dedup_key for each in (lasting, ended, waiting, foreign)}
    rows = await alerts.fetch(place.database, limit=10)
    assert {row.dedup_key for row in rows if row.closed_at is None} == open_ - {foreign.dedup_key}
    closed = {row.dedup_key: row.resolution for row in rows if row.closed_at}
    assert closed == {begun.dedup_key: alerts.LOST, ended.dedup_key: alerts.LOST}
    numbers = Counter(record.key.decode() for record in await read_all(place, ALERT.name))
    assert [numbers[each.dedup_key] for each in (lasting, ended, begun, foreign, waiting)] == [2, 4, 2, 1, 1]
    assert await place.database.fetchval(REVISION, lasting.dedup_key) == 2


class WithoutLeader(Log):
    """A log of which a partition has no leader."""

    def __init__(self, ahead: int = 0) -> None:
        """The last number in the other partition is `ahead`."""
        self.ahead = ahead

    async def ends(self) -> Sent:
        return Sent({(WORKER_LIFECYCLE.name, 0): {"lost": self.ahead}} if self.ahead else {}, [PARTITION])

    async def among(self, waiting: Mapping[str, tuple[Partition, datetime]]) -> Collection[str]:
        if PARTITION in {place for place, _ in waiting.values()}:
            raise NotCompared([PARTITION])
        return ()

    async def raised_alerts(self) -> Collection[AlertRaised]:
        return ()


async def compared(place: Place, log: Log) -> Incarnation:
    async with place.database.acquire() as db:
        return await incarnation.compare(
            db, log, place_of=lambda *_: PARTITION, renewed=Renewals(), ping_seconds=PATIENCE_SECONDS
        )


async def test_a_partition_without_a_leader_is_not_compared(place: Place) -> None:
    """Its events may be the only ones that a lost commit has left, so the database is not trusted until it is read."""
    await place.create(WORKER_LIFECYCLE)
    with pytest.raises(NotCompared, match=rf"{WORKER_LIFECYCLE.name}/1"):
        await compared(place, WithoutLeader())
    assert not await place.database.fetchval(incarnation.TRUSTED)
    await published(place, Renewals(), ("w0", "word"))
    assert await place.database.fetchval(incarnation.TRUSTED)
    trusted = await compared(place, WithoutLeader())
    assert trusted.former == ()  # compared since its server started, so that it has lost nothing


async def test_an_event_of_unknown_fate_is_not_renumbered(place: Place) -> None:
    """While it is unknown if the log has a waiting event, no new incarnation sends it again."""
    await enqueue(place.database, report("w0", "waits"))
    with pytest.raises(NotCompared):
        await compared(place, WithoutLeader(ahead=1))
    async with place.database.acquire() as db:
        assert (await incarnation.get(db)).former == ()
    await place.database.execute("DELETE FROM outbox")
    assert (await compared(place, WithoutLeader(ahead=1))).former != ()


async def test_records_of_other_services_hide_nothing(place: Place) -> None:
    """In a topic to which several services write, the newest record may be of another one."""
    await place.create(WORKER_LIFECYCLE)
    renewals, copy = Renewals(), Copy(place)
    await copy.make()
    await published(place, renewals, ("w0", "lost"))
    async with publisher(place) as other:
        for n in range(50):
            await other.send(report("w0", f"of another service {n}"))
    await copy.restore()
    await published(place, renewals, ("w0", "after"))
    assert len(renewals.seen) == 1


async def test_a_copy_of_a_database_is_not_trusted(place: Place) -> None:
    """Nor is one whose server has started since: nothing may start before the relay has compared."""
    await place.create(WORKER_LIFECYCLE)
    assert not await place.database.fetchval(incarnation.TRUSTED)  # the place is a copy of a template
    await published(place, Renewals(), ("w0", "word"))
    assert await place.database.fetchval(incarnation.TRUSTED)
    await place.database.execute("UPDATE incarnation SET server = 'another'")
    assert not await place.database.fetchval(incarnation.TRUSTED)
    await published(place, Renewals(), ("w0", "word"))
    assert await place.database.fetchval(incarnation.TRUSTED)
