"""Alerts as rows: one open row per deduplication key, and those that were closed.

The outbox records them in the transaction that raises or resolves them. So an alert is open for as long as its row
says, however long its topic keeps records, and its events carry the whole alert.
"""

import contextlib
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, replace

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved
from slipway_api.events.fitting import fitted
from slipway_api.events.topics import ALERT
from slipway_api.http.service import ListedAlert
from slipway_common.database.places import LAST_NUMBER
from slipway_common.database.postgres import Connection

REPEAT_SECONDS: Final = 86_400.0
"""An open alert is published again after this, so that a consumer that lost it has it again."""
TOMBSTONE_SECONDS: Final = 7 * 86_400.0
"""A closed alert stays in its compacted topic for this long."""
PASSING: Final = "partition"
"""Kind of the subjects whose alerts report what has happened, and that nothing resolves."""
PASSED: Final = "recorded a week ago, and in the table gap"
CONFIRMED_SECONDS: Final = 300.0
"""An alert of a process that has not confirmed it for this long is resolved: the process has ended."""
ABANDONED: Final = "the process that raised it has ended, and no other one of its service has the problem"
CHUNK_ROWS: Final = 100
BODY: Final = msgspec.json.Decoder(AlertRaised)

RAISE: Final = """
INSERT INTO alert AS a (dedup_key, kind, subject_kind, subject_id, severity, body)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (dedup_key) WHERE closed_at IS NULL DO UPDATE
SET severity = excluded.severity, body = excluded.body, revision = a.revision + 1, published_at = slipway_clock(),
    silenced_until = CASE WHEN excluded.severity = 'page' AND a.severity <> 'page' THEN NULL ELSE a.silenced_until END
RETURNING raised_at, revision"""
CLOSE: Final = """
UPDATE alert SET closed_at = slipway_clock(), resolution = $2, revision = revision + 1
WHERE dedup_key = $1 AND closed_at IS NULL RETURNING body, raised_at, revision"""
COLUMNS: Final = """id, dedup_key, kind, subject_kind, subject_id, severity, body, raised_at, closed_at, resolution,
    silenced_until, silenced_by, silence_reason"""
SELECT: Final = f"""
SELECT {COLUMNS} FROM alert
WHERE ($1::boolean IS NULL OR (closed_at IS NULL) = $1)
    AND ($2::timestamptz IS NULL OR closed_at IS NULL OR closed_at >= $2)
    AND ($3::timestamptz IS NULL OR raised_at < $3) AND id < $4
ORDER BY id DESC LIMIT $5"""
IS_OPEN: Final = "SELECT EXISTS (SELECT FROM alert WHERE dedup_key = $1 AND closed_at IS NULL)"
CONFIRM: Final = """
UPDATE alert SET confirmed_at = slipway_clock() WHERE dedup_key = $1 AND closed_at IS NULL RETURNING true"""
UNCONFIRMED: Final = """
SELECT dedup_key, body FROM alert
WHERE closed_at IS NULL AND kind = ANY($1)
    AND coalesce(confirmed_at, raised_at) < slipway_clock() - make_interval(secs => $2)
ORDER BY dedup_key LIMIT $3"""
OPEN_BODY: Final = "SELECT body FROM alert WHERE dedup_key = $1 AND closed_at IS NULL"
SILENCE: Final = f"""
UPDATE alert SET silenced_until = $2, silenced_by = $3, silence_reason = $4
WHERE dedup_key = $1 AND closed_at IS NULL RETURNING {COLUMNS}"""
CLAIM_UNPUBLISHED: Final = """
SELECT dedup_key, body, raised_at, revision FROM alert
WHERE closed_at IS NULL AND published_at < slipway_clock() - make_interval(secs => $1)
ORDER BY dedup_key LIMIT $2 FOR UPDATE SKIP LOCKED"""
MARK_PUBLISHED: Final = """
UPDATE alert SET published_at = slipway_clock() WHERE dedup_key = ANY($1) AND closed_at IS NULL"""
CLAIM_CLOSED: Final = """
SELECT id, dedup_key, body FROM alert
WHERE closed_at < slipway_clock() - make_interval(secs => $1) AND NOT deleted
ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED"""
MARK_DELETED: Final = "UPDATE alert SET deleted = true WHERE id = ANY($1)"
SUPERSEDED: Final = """
SELECT a.id FROM alert a WHERE id = ANY($1)
    AND EXISTS (SELECT FROM alert b WHERE b.dedup_key = a.dedup_key AND b.id > a.id)"""
LOST: Final = "the database has lost commits since; it is raised again if it lasts"
ADOPT: Final = """
INSERT INTO alert AS a (dedup_key, kind, subject_kind, subject_id, severity, body, raised_at, revision)
VALUES ($1, $2, $3, $4, $5, $6, coalesce($7, slipway_clock()), $8)
ON CONFLICT (dedup_key) WHERE closed_at IS NULL DO UPDATE SET revision = greatest(a.revision, excluded.revision)
RETURNING xmax = 0"""
OPEN_BESIDE: Final = """
SELECT body FROM alert a WHERE closed_at IS NULL AND NOT dedup_key = ANY($1)
    AND NOT EXISTS (SELECT FROM outbox o WHERE o.topic = $2 AND o.key = a.dedup_key)
ORDER BY dedup_key"""
PASSED_AWAY: Final = """
SELECT dedup_key, body FROM alert
WHERE closed_at IS NULL AND subject_kind = $1 AND raised_at < slipway_clock() - make_interval(secs => $2)
ORDER BY dedup_key LIMIT $3"""


async def record(tx: Connection, events: Sequence[Any]) -> list[Any]:
    """Record the alerts among the events that a transaction publishes. Returns the events; those of alerts are whole:
    when the alert was raised, its revision, and in a resolution what was raised."""
    recorded = list(events)
    places = [place for place, event in enumerate(events) if isinstance(event, Alert) and not event.repeat]
    for place in sorted(places, key=lambda place: events[place].dedup_key):  # rows are locked in one order
        event = events[place]
        recorded[place] = await (_raise(tx, event) if isinstance(event, AlertRaised) else _close(tx, event))
    return recorded


async def reconcile(tx: Connection, raised: Collection[AlertRaised]) -> list[Alert]:
    """Events after which the topic and a database that has lost commits agree; `raised` are the alerts that the topic
    has as open.

    What was raised in the lost time is resolved, since it has no row that would be. What was resolved in it begins
    anew, since its row is open, so that its service would not raise it; unless its event waits in the outbox. Revisions
    go on from those of the topic, since sinks know a change by its revision.
    """
    lost = [
        alert
        for alert in sorted(raised, key=lambda alert: alert.dedup_key)
        if await tx.fetchval(ADOPT, *_head(alert), _body(alert), alert.raised_at, alert.revision)
    ]
    rows = await tx.fetch(OPEN_BESIDE, [alert.dedup_key for alert in raised], ALERT.name)
    again = [BODY.decode(row["body"]) for row in rows]
    return [*(_resolved(alert, LOST) for alert in (*lost, *again)), *again]


def _head(event: Alert) -> tuple[str, ...]:
    return event.dedup_key, event.kind, event.subject_kind, event.subject_id, event.severity


async def _raise(tx: Connection, event: AlertRaised) -> AlertRaised:
    row = await tx.fetchrow(RAISE, *_head(event), _body(event))
    return replace(event, raised_at=row["raised_at"], revision=row["revision"])


async def _close(tx: Connection, event: Alert) -> Alert:
    row = await tx.fetchrow(CLOSE, event.dedup_key, event.summary)
    if row is None:  # nothing was raised; the event says so to consumers that missed an earlier one
        return event
    raised = BODY.decode(row["body"])
    whole = {name: value for name, value in asdict(raised).items() if name not in ("summary", "console")}
    whole |= {"summary": event.summary or raised.summary, "raised_at": row["raised_at"], "revision": row["revision"]}
    return AlertResolved(**whole)


async def fetch(
    db: Connection,
    *,
    open_: bool | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    after: int = LAST_NUMBER,
    limit: int,
) -> list[ListedAlert]:
    """Alerts, newest first: all, or those that are (not) open; of the closed ones those closed `since`, and of all
    those raised before `until`; from the one before the row `after`."""
    return [_row(row) for row in await db.fetch(SELECT, open_, since, until, after, limit)]


async def is_open(db: Connection, dedup_key: str) -> bool:
    """True if an alert is open under this key."""
    return bool(await db.fetchval(IS_OPEN, dedup_key))


async def confirm(db: Connection, dedup_key: str) -> bool:
    """Record that the process that has raised an alert goes on to see its cause; False if the alert is not open."""
    return bool(await db.fetchval(CONFIRM, dedup_key))


async def open_summary(db: Connection, dedup_key: str) -> str:
    """Summary of the open alert under this key; empty if none is open."""
    body = await db.fetchval(OPEN_BODY, dedup_key)
    return "" if body is None else BODY.decode(body).summary


async def silence(tx: Connection, dedup_key: str, *, until: datetime, by: str, reason: str) -> ListedAlert | None:
    """Silence an open alert until a time, or replace its silence; None if no alert is open under this key. A notice
    that becomes a page is silent no more."""
    row = await tx.fetchrow(SILENCE, dedup_key, until, by, reason)
    return None if row is None else _row(row)


async def claim_unpublished(tx: Connection) -> list[AlertRaised]:
    """Open alerts that are due to be published again, marked as published. Their rows are locked."""
    rows = await tx.fetch(CLAIM_UNPUBLISHED, REPEAT_SECONDS, CHUNK_ROWS)
    await tx.execute(MARK_PUBLISHED, [row["dedup_key"] for row in rows])
    return [
        replace(
            BODY.decode(row["body"]),
            raised_at=row["raised_at"],
            revision=row["revision"],
            repeat=True,
        )
        for row in rows
    ]


async def claim_closed(tx: Connection) -> list[AlertRaised]:
    """Alerts closed long ago whose keys may leave the topic, marked as deleted there. One that was raised again since
    keeps its key; if that commits at this very moment, the alert is back in the topic with its next repetition. Their
    rows are locked."""
    rows = await tx.fetch(CLAIM_CLOSED, TOMBSTONE_SECONDS, CHUNK_ROWS)
    ids = [row["id"] for row in rows]
    await tx.execute(MARK_DELETED, ids)
    superseded = {row["id"] for row in await tx.fetch(SUPERSEDED, ids)}
    return [BODY.decode(row["body"]) for row in rows if row["id"] not in superseded]


async def passed(tx: Connection) -> list[AlertResolved]:
    """Resolutions of alerts on what happened a week ago, and that nothing else resolves."""
    rows = await tx.fetch(PASSED_AWAY, PASSING, TOMBSTONE_SECONDS, CHUNK_ROWS)
    return [_resolved(BODY.decode(row["body"]), PASSED) for row in rows]


async def abandoned(tx: Connection, kinds: Collection[str]) -> list[AlertResolved]:
    """Resolutions of alerts of these kinds, each of one process, which that process confirms no more: it was scaled
    away, and there is no successor of its instance that would resolve them."""
    rows = await tx.fetch(UNCONFIRMED, list(kinds), CONFIRMED_SECONDS, CHUNK_ROWS)
    return [_resolved(BODY.decode(row["body"]), ABANDONED) for row in rows]


def _resolved(alert: Alert, summary: str) -> AlertResolved:
    """Resolution of an alert, which is made whole when it is recorded."""
    return AlertResolved(**alert.identity, summary=summary)


def _body(event: AlertRaised) -> str:
    """The event as JSON text, which may hold characters that jsonb cannot; its notes are cut as in the event itself."""
    with contextlib.suppress(msgspec.ValidationError):  # another text is too long, for which the outbox refuses it
        event = fitted(event)
    return msgspec.json.encode(event).decode()


def _row(row: Any) -> ListedAlert:
    alert = BODY.decode(row["body"])
    return ListedAlert(
        **{name: row[name] for name in dict(row) if name != "body"},
        **{name: getattr(alert, name) for name in ("summary", "effect", "doing", "command", "cause")},
        since=alert.since or row["raised_at"],
        evidence=alert.evidence,
        console=alert.console,
    )
