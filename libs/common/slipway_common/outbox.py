"""State and event together: events become rows in the transaction that changes the state; the relay publishes them.

Knows no Kafka client. The revision of a subject is drawn here, under a lock on the subject's row that is held to the
end of the transaction; the identity of the outbox row is drawn after it. So per subject the order of identities is
the order of commits, whatever other writers do.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from slipway_common.errors import BadEvent
from slipway_common.ids import new_id
from slipway_common.postgres import Connection
from slipway_common.telemetry import child_of, current_trace
from slipway_common.topics import TOPIC_OF

# A row that fits into no Kafka batch would stop the relay for good, so it is refused before it is committed.
VALUE_BYTES_MAX: Final = 500_000


class Traced(msgspec.Struct, frozen=True):
    """An event that continues a trace of its own rather than the caller's."""

    event: Any
    traceparent: str


class Tombstone(msgspec.Struct, frozen=True):
    """Deletes a key of a compacted topic. `event` is the last state, from which key and subject are derived."""

    event: Any


ENQUEUE: Final = """
WITH given AS (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[])
        WITH ORDINALITY AS g (event_id, topic, type, subject, key, value, traceparent, place)
), bumped AS (
    INSERT INTO outbox_subject AS s (topic, subject, revision)
    SELECT topic, subject, count(*) FROM given GROUP BY topic, subject ORDER BY topic, subject
    ON CONFLICT (topic, subject) DO UPDATE SET revision = s.revision + excluded.revision,
        touched_at = slipway_clock()
    RETURNING topic, subject, revision
)
INSERT INTO outbox (event_id, topic, type, subject, key, revision, value, at, traceparent)
SELECT event_id, topic, type, subject, key,
    b.revision + 1 - row_number() OVER (PARTITION BY topic, subject ORDER BY place DESC),
    value, coalesce($8, slipway_clock()), traceparent
FROM given JOIN bumped b USING (topic, subject) ORDER BY place"""

DEAD: Final = """
INSERT INTO outbox (event_id, topic, type, subject, key, revision, value, at, traceparent, headers)
VALUES ($1, $2, $3, $4, $5, 0, $6, slipway_clock(), $7, $8)"""


async def enqueue(tx: Connection, events: Sequence[Any], *, at: datetime | None = None) -> None:
    """Add events to the outbox of the caller's transaction, in order.

    `at` is the time of the facts; without it the database's clock counts. An event may be wrapped in Traced or
    Tombstone. Raises BadEvent for an event that no batch could carry.
    """
    if not events:
        return
    columns: list[list[Any]] = [[] for _ in range(7)]
    for wrapped in events:
        event, parent, dead = wrapped, current_trace(), False
        if isinstance(event, Traced):
            event, parent = event.event, event.traceparent
        if isinstance(event, Tombstone):
            event, dead = event.event, True
        topic = TOPIC_OF[type(event)]
        value = None if dead else msgspec.json.encode(event)
        if value is not None and len(value) > VALUE_BYTES_MAX:
            raise BadEvent(f"{event.type} of {topic.subject(event)} has {len(value)} bytes; at most {VALUE_BYTES_MAX}")
        row = (new_id(), topic.name, event.type, topic.subject(event), topic.key(event), value, child_of(parent))
        for column, cell in zip(columns, row, strict=True):
            column.append(cell)
    await tx.execute(ENQUEUE, *columns, at)
