"""Retention of the tables that every service has."""

from typing import Final

from sqlalchemy import MetaData

from slipway_api.events.topics import TOPICS
from slipway_common.database.retention import HISTORY_DAYS, Bounded, Retention, Rule, delete_ended, delete_oldest, older
from slipway_common.database.sql import Statement
from slipway_common.database.tables import messaging

TOKEN_USE_DAYS: Final = 90
TABLES: Final = MetaData()
messaging(TABLES)
ALERT: Final = TABLES.tables["alert"]
AUDIT: Final = TABLES.tables["audit"]
SUBJECT: Final = TABLES.tables["outbox_subject"]
SEEN: Final = TABLES.tables["seen_event"]
TOKEN_USE: Final = TABLES.tables["token_use"]
GAP: Final = TABLES.tables["gap"]
DEAD: Final = TABLES.tables["dead_letter"]
# A subject of a compacted topic ends with its tombstone; one of another topic by itself. The first condition finds
# those that began long ago by an index; an index on the second time would change with every event.
DELETE_SUBJECTS: Final = Statement(
    delete_ended(
        SUBJECT,
        older(SUBJECT.c.created_at),
        older(SUBJECT.c.touched_at),
        SUBJECT.c.deleted | SUBJECT.c.topic.not_in([topic.name for topic in TOPICS if topic.compacted]),
        order=[SUBJECT.c.created_at],
    )
)
DELETE_SEEN_EVENTS: Final = Statement(delete_ended(SEEN, older(SEEN.c.seen_at), order=[SEEN.c.seen_at]))
DELETE_GAPS: Final = Statement(delete_oldest(GAP, GAP.c.at, order=GAP.c.id))
DELETE_DEAD_LETTERS: Final = Statement(delete_ended(DEAD, older(DEAD.c.at), order=[DEAD.c.at]))
DELETE_ALERTS: Final = Statement(delete_ended(ALERT, older(ALERT.c.closed_at), order=[ALERT.c.closed_at]))
# The day finds them by its index; the time changes with every use.
DELETE_TOKEN_USES: Final = Statement(
    delete_ended(TOKEN_USE, older(TOKEN_USE.c.day), older(TOKEN_USE.c.last_at), order=[TOKEN_USE.c.day])
)
DELETE_AUDIT: Final = Statement(delete_oldest(AUDIT, AUDIT.c.at, order=AUDIT.c.id))

RETENTION: Final[Retention] = (
    Rule(
        table="audit",
        rows="changes by people and pipelines",
        after="the change",
        days=HISTORY_DAYS,
        setting="audit_kept_days",
        delete=DELETE_AUDIT,
    ),
    Rule(table="alert", rows="closed alerts", after="the end of the alert", days=90, delete=DELETE_ALERTS),
    Rule(
        table="token_use",
        rows="last uses of tokens, one a day",
        after="the use",
        days=TOKEN_USE_DAYS,
        delete=DELETE_TOKEN_USES,
    ),
    Bounded("revoked_token", "one row per token that was revoked: deleted, its token would be good again"),
    Bounded("alembic_version", "one row"),
    Bounded("incarnation", "one row"),
    Rule(
        table="outbox_subject",
        rows="revisions of subjects, on compacted topics of deleted ones",
        after="the last event of the subject: a day more than Kafka keeps tombstones, and events of workers and leases",
        days=8,
        delete=DELETE_SUBJECTS,
    ),
    Rule(
        table="outbox",
        rows="events",
        after="the acknowledgement by Kafka",
        loop="relay",
        chunk="those acknowledged together, at most 500 of a partition",
    ),
    Bounded("relay_position", "one row per partition that the service writes to"),
    Bounded("consumed", "one row per partition that the service consumes"),
    Bounded(
        "seen_sequence",
        "one row per partition that services alone write to and incarnation of a producer, which a restore renews",
    ),
    Rule(
        table="seen_event",
        rows="ids of events of external producers",
        after="receipt: the longest retention of a topic that they write to",
        days=7,
        delete=DELETE_SEEN_EVENTS,
    ),
    Rule(table="gap", rows="gaps in consumed topics", after="the gap", days=HISTORY_DAYS, delete=DELETE_GAPS),
    Rule(table="dead_letter", rows="dead letters", after="receipt", days=14, delete=DELETE_DEAD_LETTERS),
)
