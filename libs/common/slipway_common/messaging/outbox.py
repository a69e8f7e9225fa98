"""Transactional outbox: events are inserted in the transaction that changes the state; the relay publishes them.

Knows no Kafka client. The revision of a subject is assigned under a lock on its row, held until the transaction ends;
the identity of the outbox row is assigned after it. So per subject, identities follow the order of commits. Revisions
of an incarnation of the database are above those of earlier ones.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from slipway_api.events.fitting import fitted
from slipway_api.events.topics import DECODERS, TOPIC_OF
from slipway_api.limits import KEY
from slipway_common.base.errors import BadEvent
from slipway_common.base.ids import new_id
from slipway_common.database import alerts
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Writes
from slipway_common.messaging.records import VALUE_BYTES_MAX
from slipway_common.observability.telemetry import child_of, current_trace, logger

LOG = logger(__name__)


class Traced(msgspec.Struct, frozen=True):
    """An event with its own parent trace instead of the caller's."""

    event: Any
    traceparent: str


class Tombstone(msgspec.Struct, frozen=True):
    """Deletion of a key of a compacted topic. `event` is the last state; key and subject are derived from it."""

    event: Any


def insertion(first: int) -> str:
    """End of a statement that begins with `WITH`: adds the events of the parameters from this one on, which `columns`
    returns."""
    ids, topics, types, subjects, keys, values, parents, at = (f"${place}" for place in range(first, first + 8))
    return f"""event AS (
    SELECT * FROM unnest({ids}::uuid[], {topics}::text[], {types}::text[], {subjects}::text[], {keys}::text[],
        {values}::bytea[], {parents}::text[])
        WITH ORDINALITY AS g (event_id, topic, type, subject, key, value, traceparent, place)
), bumped AS (
    INSERT INTO outbox_subject AS s (topic, subject, revision, deleted)
    SELECT topic, subject, count(*) + (SELECT revision_base FROM incarnation),
        (array_agg(value IS NULL ORDER BY place DESC))[1]
    FROM event GROUP BY topic, subject ORDER BY topic, subject
    ON CONFLICT (topic, subject) DO UPDATE SET touched_at = slipway_clock(), deleted = excluded.deleted,
        revision = greatest(s.revision - (SELECT revision_base FROM incarnation), 0) + excluded.revision
    RETURNING topic, subject, revision
)
INSERT INTO outbox (event_id, topic, type, subject, key, revision, value, at, traceparent)
SELECT event_id, topic, type, subject, key,
    b.revision + 1 - row_number() OVER (PARTITION BY topic, subject ORDER BY place DESC),
    value, coalesce({at}, slipway_clock()), traceparent
FROM event JOIN bumped b USING (topic, subject) ORDER BY place"""


ENQUEUE: Final = f"WITH {insertion(1)}"

DEAD: Final = """
INSERT INTO outbox (event_id, topic, type, subject, key, revision, value, at, traceparent, headers)
VALUES ($1, $2, $3, $4, $5, 0, $6, slipway_clock(), $7, $8)"""


async def enqueue(
    tx: Connection, events: Sequence[Any], *, at: datetime | None = None, writes: Writes | None = None
) -> None:
    """Add events to the outbox of the caller's transaction, in order, as the last of its `writes` if they are given.

    `at` is the time of the events [default: the database's clock]. An event may be wrapped in Traced or Tombstone.
    Alerts are recorded as rows. Notes that are too long are cut. Raises BadEvent for an event that no consumer would
    accept: it is too large for a batch, or one of its names or its subject is too long.
    """
    if events:
        await (writes or tx).execute(ENQUEUE, *await columns(tx, events, at=at))


async def columns(tx: Connection, events: Sequence[Any], *, at: datetime | None = None) -> list[Any]:
    """Parameters of `insertion`, for events as `enqueue` adds them."""
    parents = [event.traceparent if isinstance(event, Traced) else current_trace() for event in events]
    bare = [event.event if isinstance(event, Traced) else event for event in events]
    recorded = await alerts.record(tx, bare)
    found: list[list[Any]] = [[] for _ in range(7)]
    for event, parent in zip(recorded, parents, strict=True):
        dead = isinstance(event, Tombstone)
        event = event.event if dead else event
        topic = TOPIC_OF[type(event)]
        value = None if dead else msgspec.json.encode(event)
        subject = topic.subject(event)
        if wrong := KEY.problem(subject):
            raise BadEvent(f"the subject of {event.type} {wrong}")
        if value is not None and (wrong := refusal(event, value)):
            value = _shortened(event, wrong)
        row = (new_id(), topic.name, event.type, subject, topic.key(event), value, child_of(parent))
        for column, cell in zip(found, row, strict=True):
            column.append(cell)
    return [*found, at]


def _shortened(event: Any, wrong: str) -> bytes:
    """Data of an event with its notes cut, since this is wrong with it. Raises BadEvent if that is not enough."""
    subject = TOPIC_OF[type(event)].subject(event)
    try:
        value = msgspec.json.encode(fitted(event))
    except msgspec.ValidationError:
        raise BadEvent(f"{event.type} of {subject}: {wrong}") from None
    if still := refusal(event, value):
        raise BadEvent(f"{event.type} of {subject}: {still}")
    LOG.warning("notes of an event were cut", type=event.type, subject=subject, reason=wrong)
    return value


def refusal(event: Any, value: bytes) -> str:
    """Reason why no consumer would accept the event with this data; empty if they will."""
    if len(value) > VALUE_BYTES_MAX:
        return f"has {len(value)} bytes; at most {VALUE_BYTES_MAX}"
    try:
        DECODERS[event.type].decode(value)
    except msgspec.DecodeError as error:
        return str(error)
    return ""
