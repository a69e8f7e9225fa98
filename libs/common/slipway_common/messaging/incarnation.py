"""Incarnation of a database: part of the source of its events, renewed when the database has lost commits.

A database that was restored, or whose standby took over without the newest commits, would use sequence numbers and
revisions again, and consumers would drop its new events as duplicates. So the relay compares the rows with the log
before it sends anything: the log ahead of the rows means that commits were lost. Then, and when a person reports a
restore, a new incarnation begins: with sequence numbers of its own, with revisions above all earlier ones, and with a
hook by which the service stops what must wait for a person.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

import msgspec

from slipway_api.events.alert import AlertRaised
from slipway_common.database import alerts
from slipway_common.database.postgres import Connection
from slipway_common.messaging import outbox
from slipway_common.messaging.partition_queues import Place
from slipway_common.observability.telemetry import logger

LOG = logger(__name__)
Answer = TypeVar("Answer")

Renewed = Callable[[Connection, "Incarnation"], Awaitable[None]]
"""Called in the transaction that renews the incarnation."""

GET: Final = "SELECT id, reason, former, revision_base, requested FROM incarnation"
POSITIONS: Final = "SELECT topic, partition, sequence_number FROM relay_position"
WAITING: Final = "SELECT event_id::text AS event_id, topic, key, at FROM outbox WHERE headers IS NULL"
# Writers of events wait, so that none commits a revision of the former incarnation afterwards.
EXCLUDE_WRITERS: Final = "LOCK TABLE outbox_subject IN EXCLUSIVE MODE"
# Above every revision before: more than a thousand of a subject in a millisecond are impossible.
RENEW: Final = """
UPDATE incarnation SET id = replace(gen_random_uuid()::text, '-', ''), drawn_at = slipway_clock(), reason = $1,
    former = ARRAY(SELECT DISTINCT unnest(former || id || $2::text[]) ORDER BY 1), requested = NULL,
    revision_base = greatest(revision_base + 1024, (extract(epoch FROM slipway_clock()) * 1000)::bigint * 1024)
RETURNING id, reason, former, revision_base, requested"""
FORGET_SENT: Final = "DELETE FROM outbox WHERE event_id = ANY($1::uuid[])"
# Dead letters keep the headers of their record, and have no revision of their own.
RENUMBER: Final = """
UPDATE outbox SET partition = NULL, sequence_number = NULL, previous_sequence_number = NULL,
    revision = CASE WHEN headers IS NULL AND revision <= $2 THEN revision - $1 + $2 ELSE revision END"""
RAISE_SUBJECTS: Final = """
UPDATE outbox_subject s SET revision = greatest(s.revision, o.revision) FROM (
    SELECT topic, subject, max(revision) AS revision FROM outbox WHERE headers IS NULL GROUP BY topic, subject) o
WHERE s.topic = o.topic AND s.subject = o.subject"""
FORGET_POSITIONS: Final = "DELETE FROM relay_position"
# From here on this database, on the running server, counts as compared.
COMPARED: Final = "UPDATE incarnation SET server = slipway_server() WHERE server <> slipway_server()"
PING: Final = "SELECT 1"
REQUEST: Final = "UPDATE incarnation SET requested = $1"
IS_CURRENT: Final = "SELECT EXISTS (SELECT FROM incarnation WHERE id = $1 AND requested IS NULL)"
TRUSTED: Final = "SELECT EXISTS (SELECT FROM incarnation WHERE server = slipway_server() AND requested IS NULL)"


class Incarnation(msgspec.Struct, frozen=True):
    """The incarnation of a database, and the reason why it was renewed; empty for the first. `former` are earlier ones.

    Revisions of subjects are above `revision_base`. `requested`: why a person wants a new one, or None. `by`: the
    person who reports a restore just now; empty in a renewal by the relay."""

    id: str
    reason: str
    former: tuple[str, ...]
    revision_base: int
    requested: str | None
    by: str = ""

    def source(self, service: str) -> str:
        """Source of the sequence numbers of a service's events."""
        return f"{source_prefix(service)}{self.id}"


def source_prefix(service: str) -> str:
    return f"/slipway/{service}/"


class NotCompared(Exception):
    """Rows cannot be compared with the log now, since partitions are without a leader; the text names them."""

    def __init__(self, places: Iterable[Place]) -> None:
        named = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(places))
        super().__init__(f"partitions without a leader: {named}; restore their brokers, or recreate their topics")


class Sent(msgspec.Struct, frozen=True):
    """The log as far as one service has written it: by partition, the highest sequence number of each incarnation.
    `unread` partitions are without a leader."""

    numbers: Mapping[Place, Mapping[str, int]]
    unread: Collection[Place] = ()

    @property
    def incarnations(self) -> set[str]:
        return {incarnation for found in self.numbers.values() for incarnation in found}


class Log(Protocol):
    """Topics of one service, as far as it has written them."""

    async def ends(self) -> Sent:
        """The newest number of each incarnation at the end of each partition."""

    async def among(self, waiting: Mapping[str, tuple[Place, datetime]]) -> Collection[str]:
        """Which events (id → place and time) the log has. Raises NotCompared if a partition is without a leader."""

    async def raised_alerts(self) -> Collection[AlertRaised]:
        """The alerts of the service that the log has as open."""


def lost_commits(known: Incarnation, positions: Mapping[Place, int], sent: Sent) -> str:
    """Evidence that the database has lost commits: the log is ahead of its rows; empty if there is none.

    `positions` are the last numbers that it assigned. Events of a former incarnation are no evidence."""
    for (topic, partition), found in sorted(sent.numbers.items()):
        for incarnation, number in sorted(found.items()):
            assigned = positions.get((topic, partition), 0)
            if incarnation == known.id and number > assigned:
                return f"{topic}/{partition} has sequence number {number} of this database, whose last is {assigned}"
            if incarnation != known.id and incarnation not in known.former:
                return f"{topic}/{partition} has events of incarnation {incarnation}, unknown to this database"
    return ""


async def stop_nothing(_: Connection, __: Incarnation) -> None:
    """Effect of a renewal on a service whose state follows from the log."""


async def get(db: Connection) -> Incarnation:
    return _incarnation(await db.fetchrow(GET))


async def is_current(db: Connection, incarnation_id: str) -> bool:
    """True while this is the incarnation, and no person wants a new one."""
    current: bool = await db.fetchval(IS_CURRENT, incarnation_id)
    return current


async def is_trusted(db: Connection) -> bool:
    """True if the relay has compared this database with the log since its server started."""
    trusted: bool = await db.fetchval(TRUSTED)
    return trusted


async def request(tx: Connection, reason: str, renewed: Renewed, *, by: str) -> None:
    """Record a person's report that the database was restored. Its effects begin now; the relay renews the incarnation
    before it sends anything else."""
    reported = f"restored, reported by {by}: {reason}"
    await tx.execute(REQUEST, reported)
    await renewed(tx, msgspec.structs.replace(await get(tx), reason=reported, by=by))


async def compare(
    db: Connection, log: Log, *, place_of: Callable[[str, str | None], Place], renewed: Renewed, ping_seconds: float
) -> Incarnation:
    """Compare the rows with the log, and renew the incarnation if commits were lost or a person asked for it; returns
    the incarnation to publish under. Only the relay that leads calls it, before it numbers or sends anything.

    Waiting events that the log has already were sent after the state of the database, and are not sent again. Alerts
    that are open in one of the two only are resolved, or raised again.
    `place_of` is the place of an event by topic and key. The session is never idle for longer than `ping_seconds`.
    Raises NotCompared while a partition is without a leader, unless the database has been compared since its server
    started: then it can have lost nothing, and such a partition delays only its own events.
    """
    known = await get(db)
    sent = await _meanwhile(db, log.ends(), ping_seconds)
    positions = {(row["topic"], row["partition"]): row["sequence_number"] for row in await db.fetch(POSITIONS)}
    reason = known.requested or lost_commits(known, positions, sent)
    if not reason:
        if sent.unread and not await is_trusted(db):
            raise NotCompared(sent.unread)
        await db.execute(COMPARED)
        return known
    rows = await db.fetch(WAITING)
    waiting = {row["event_id"]: (place_of(row["topic"], row["key"]), row["at"]) for row in rows}
    already = await _meanwhile(db, log.among(waiting), ping_seconds)
    raised = await _meanwhile(db, log.raised_alerts(), ping_seconds)
    async with db.transaction():
        renewal = _incarnation(await db.fetchrow(RENEW, reason, sorted(sent.incarnations - {known.id})))
        await renewed(db, renewal)  # before writers of events wait, since it locks what they lock first
        await outbox.enqueue(db, await alerts.reconcile(db, raised))
        await db.execute(EXCLUDE_WRITERS)
        await db.execute(FORGET_SENT, list(already))
        await db.execute(RENUMBER, known.revision_base, renewal.revision_base)
        await db.execute(RAISE_SUBJECTS)
        await db.execute(FORGET_POSITIONS)
        await db.execute(COMPARED)
    LOG.error(
        "the database was restored or has lost commits: new incarnation",
        incarnation=renewal.id,
        former=known.id,
        reason=reason,
    )
    return renewal


async def _meanwhile(db: Connection, work: Coroutine[Any, Any, Answer], ping_seconds: float) -> Answer:
    """Result of `work`; queries the session meanwhile."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=ping_seconds))[0]:
            await db.execute(PING)
        return task.result()
    finally:
        task.cancel()


def _incarnation(row: Any) -> Incarnation:
    return Incarnation(row["id"], row["reason"], tuple(row["former"]), row["revision_base"], row["requested"])
