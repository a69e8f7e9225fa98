"""Listing, replaying and dropping dead letters of a service. Knows no HTTP.

A replay applies a subject's records in offset order, from the dead one on, until one fails. The topic's positions are
locked meanwhile, so that no event is parked behind a dead one while that is replayed.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from slipway_api.http.service import DeadLetter, DeadLetterContent, Replayed
from slipway_common.base.audited import AuditedKind
from slipway_common.database import audit
from slipway_common.database.places import Number, Text
from slipway_common.database.postgres import Connection, is_infrastructure
from slipway_common.messaging.consume import Consumer
from slipway_common.messaging.dead_records import REASON_CHARACTERS_MAX, reason_of, record_in
from slipway_common.messaging.envelope import UnknownType
from slipway_common.messaging.records import read, text_of
from slipway_common.observability.telemetry import logger

LOG = logger(__name__)

LIST: Final = """
SELECT topic, partition, "offset", subject, state, reason, record_at, at, undecoded FROM dead_letter
WHERE ($1::text IS NULL OR topic = $1) AND (topic, partition, "offset") > ($2, $3, $4)
ORDER BY topic, partition, "offset" LIMIT $5"""
SELECT: Final = 'SELECT * FROM dead_letter WHERE topic = $1 AND partition = $2 AND "offset" = $3'
LOCK_POSITIONS: Final = "SELECT FROM consumed WHERE topic = $1 ORDER BY partition FOR UPDATE"
SELECT_SUBJECT: Final = """
SELECT * FROM dead_letter WHERE topic = $1 AND subject = $2 ORDER BY partition, "offset\""""
DELETE: Final = 'DELETE FROM dead_letter WHERE topic = $1 AND partition = $2 AND "offset" = $3'
FAILED: Final = """
UPDATE dead_letter SET state = 'dead', reason = $4 WHERE topic = $1 AND partition = $2 AND "offset" = $3"""


class NotDead(Exception):
    """No such dead letter; it may have been replayed or dropped meanwhile."""


class DeadLetterPlace(NamedTuple):
    """Place of a dead letter in its topic and partition."""

    topic: Text
    partition: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    offset: Number


FIRST: Final = DeadLetterPlace("", 0, 0)


async def fetch(
    db: Connection, *, topic: str | None = None, after: DeadLetterPlace = FIRST, limit: int = 100
) -> list[DeadLetter]:
    """Dead letters of all topics or of one, by topic, partition and offset, from the one after that place."""
    return [DeadLetter(**row) for row in await db.fetch(LIST, topic, *after, limit)]


async def find(db: Connection, topic: str, partition: int, offset: int) -> DeadLetterContent:
    """One dead letter with its bytes. Raises NotDead."""
    row = await db.fetchrow(SELECT, topic, partition, offset)
    if row is None:
        raise NotDead(f"{topic}/{partition}/{offset}")
    key, value = (None if raw is None else raw.hex() for raw in (row["key"], row["value"]))
    return DeadLetterContent(**dict(row) | {"key": key, "value": value})


async def replay(db: Connection, consumer: Consumer, partition: int, offset: int, by: str) -> Replayed:
    """Retry the record and the records parked behind it. Raises NotDead."""
    afterwards: list[Callable[[], None]] = []
    async with db.transaction():
        done = await _replay(db, consumer, await _lock(db, consumer, partition, offset), afterwards)
        await _record(db, "replay", (consumer.topic.name, partition, offset), done, by)
    _run(afterwards)
    return done


async def drop(db: Connection, consumer: Consumer, partition: int, offset: int, by: str) -> Replayed:
    """Delete the record permanently and apply the records parked behind it. Raises NotDead."""
    afterwards: list[Callable[[], None]] = []
    async with db.transaction():
        rows = await _lock(db, consumer, partition, offset)
        await db.execute(DELETE, consumer.topic.name, partition, offset)
        LOG.warning("dead letter dropped", topic=consumer.topic.name, partition=partition, offset=offset)
        first, *rest = rows
        if (first["partition"], first["offset"]) == (partition, offset):
            done = await _replay(db, consumer, rest, afterwards)
        else:
            done = Replayed(0, len(rest), first["reason"])
        await _record(db, "drop", (consumer.topic.name, partition, offset), done, by)
    _run(afterwards)
    return done


async def _record(tx: Connection, action: str, place: tuple[str, int, int], done: Replayed, by: str) -> None:
    """Record in the audit that a person has settled a dead letter."""
    subject = "/".join(map(str, place))
    await audit.record_command(
        tx, AuditedKind.DEAD_LETTER, subject, action, by=by, applied=done.applied, remaining=done.remaining
    )


def _run(afterwards: Sequence[Callable[[], None]]) -> None:
    for act in afterwards:
        act()


async def _lock(db: Connection, consumer: Consumer, partition: int, offset: int) -> list[Any]:
    """Lock and return the record and, on ordered topics, all dead letters of its subject. Raises NotDead."""
    topic = consumer.topic
    await db.execute(LOCK_POSITIONS, topic.name)
    row = await db.fetchrow(SELECT, topic.name, partition, offset)
    if row is None:
        raise NotDead(f"{topic.name}/{partition}/{offset}")
    return list(await db.fetch(SELECT_SUBJECT, topic.name, row["subject"])) if topic.parks else [row]


async def _replay(
    db: Connection, consumer: Consumer, rows: list[Any], afterwards: list[Callable[[], None]]
) -> Replayed:
    for applied, row in enumerate(rows):
        if row["undecoded"]:
            return Replayed(applied, len(rows) - applied, f"{row['reason']}; it can only be shown and dropped")
        place = (row["topic"], row["partition"], row["offset"])
        try:
            async with db.transaction():
                act = await _handle(db, consumer, row)
        except Exception as error:
            if is_infrastructure(error):
                raise
            reason = text_of(reason_of(error).encode(errors="replace"), REASON_CHARACTERS_MAX)
            await db.execute(FAILED, *place, reason)
            return Replayed(applied, len(rows) - applied, reason)
        await db.execute(DELETE, *place)
        if act is not None:
            afterwards.append(act)
    return Replayed(len(rows), 0)


async def _handle(db: Connection, consumer: Consumer, row: Any) -> Callable[[], None] | None:
    ((_, _, event),) = read([record_in(row)])
    if isinstance(event, UnknownType):
        return None  # the consumer leaves unknown types out as well
    if isinstance(event, Exception):
        raise event
    return await consumer.handle(db, [event])
