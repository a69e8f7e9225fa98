"""HTTP routes common to all services: health, status, metrics, dead letters, stopped partitions."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field

from slipway_api.http.pages import Items, Page
from slipway_api.http.service import (
    Adoption,
    AdoptionOfAll,
    AuditEntry,
    DeadLetter,
    DeadLetterContent,
    DeadLetterReference,
    ListedAlert,
    ListedToken,
    Position,
    Readiness,
    Replayed,
    Restore,
    Restored,
    RevokedToken,
    ServiceStatus,
    Silence,
    StoppedPartition,
    TokenRevocation,
)
from slipway_common.base.audited import AuditedKind
from slipway_common.base.redaction import described as error_text
from slipway_common.database import alerts, audit
from slipway_common.database import tokens as token_rows
from slipway_common.database.places import NEWEST, Newest
from slipway_common.database.postgres import Connection, Database
from slipway_common.messaging import dead_letters, incarnation
from slipway_common.messaging.consume import Consumer
from slipway_common.messaging.leader_loop import NotLeader
from slipway_common.messaging.partitions import Partitions
from slipway_common.messaging.records import BIGINT_MAX
from slipway_common.web import pages
from slipway_common.web.access import READ, READ_SETTINGS, Needs, Open
from slipway_common.web.answers import Answer, Unavailable, Untyped
from slipway_common.web.bodies import Body
from slipway_common.web.moment import Moment
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import Runtime, database, runtime_of, wake
from slipway_common.web.status import Status, stopped_partitions
from slipway_common.web.text import Name
from slipway_common.web.tokens import Tokens

Partition = Annotated[int, Field(ge=0, le=2**31 - 1)]
Offset = Annotated[int, Field(ge=0, le=BIGINT_MAX)]

health = Router(include_in_schema=False, dependencies=[Depends(Open("probes have no token"))])


@health.get("/livez")
async def livez() -> Annotated[PlainTextResponse, Untyped("text, of which probes read the status alone")]:
    return PlainTextResponse("ok")


@health.get("/readyz")
async def readyz(runtime: Annotated[Runtime, Depends(runtime_of)]) -> Answer[Readiness] | Unavailable[Readiness]:
    reasons = runtime.unready()
    database = runtime.people_database or runtime.database
    if database is not None and not reasons:
        try:
            await runtime.ask_database(database)
        except Exception as error:
            reasons.append(f"database: {error_text(error)}")
    readiness = Readiness(ready=not reasons, reasons=reasons)
    return Unavailable(readiness) if reasons else Answer(readiness)


measured = Router(include_in_schema=False)


@measured.get("/metrics", dependencies=[Depends(Needs("read:metrics"))])
async def metrics() -> Annotated[PlainTextResponse, Untyped("text in the format of Prometheus")]:
    return PlainTextResponse(generate_latest(), media_type=CONTENT_TYPE_LATEST)


described = Router(include_in_schema=False)


@described.get("/openapi.json", dependencies=[READ])
async def api_document(request: Request) -> Annotated[JSONResponse, Untyped("the OpenAPI document of this service")]:
    return JSONResponse(request.app.openapi())


about = Router(tags=["status"])


@about.get("/status", dependencies=[READ])
async def get_status(request: Request) -> Answer[ServiceStatus]:
    """Return readiness, clocks, schema, positions and lag of this process; within a second, even in an outage."""
    status: Status = request.app.state.status
    return Answer(await status.read())


restores = Router(prefix="/restored", tags=["restores"])


@restores.post("")
async def restored(
    request: Request,
    body: Body[Restore],
    by: Annotated[str, Depends(Needs("restores:write"))],
    db: Annotated[Database, Depends(database)],
) -> Answer[Restored]:
    """Record that the database was restored or has lost commits. Its events continue under a new incarnation."""
    async with db.acquire() as connection, connection.transaction():
        await incarnation.request(connection, body.reason, request.app.state.renewed, by=by)
        service = request.app.state.status.itself["service"]
        await audit.record_command(connection, AuditedKind.DATABASE, service, "restored", by=by, reason=body.reason)
    wake(request)
    return Answer(Restored())


audits = Router(prefix="/audit", tags=["audit"])


@audits.get("", dependencies=[READ])
async def list_audit(
    database: Annotated[Database, Depends(database)],
    kind: AuditedKind | None = None,
    subject: Name | None = None,
    by: Name | None = None,
    since: Moment | None = None,
    limit: pages.Limit = 100,
    cursor: pages.Cursor = None,
) -> Answer[Page[AuditEntry]]:
    """List the writes of people and pipelines, newest first: at, by (name of the token), origin (address), action,
    reason, kind, subject_id, result, and the fields that changed `before` and `after`, of settings their digests."""
    (after,) = pages.after(cursor, NEWEST)
    rows = await audit.fetch(database, kind=kind, subject_id=subject, by=by, since=since, after=after, limit=limit + 1)
    return pages.page(rows, limit, lambda row: Newest(row.id))


raised = Router(prefix="/alerts", tags=["alerts"])


@raised.get("", dependencies=[READ])
async def list_alerts(
    database: Annotated[Database, Depends(database)],
    open_: Annotated[bool | None, Query(alias="open", description="Only open alerts, or only closed ones.")] = None,
    since: Annotated[Moment | None, Query(description="Closed alerts only if closed at or after this time.")] = None,
    until: Annotated[Moment | None, Query(description="Alerts raised before this time.")] = None,
    limit: pages.Limit = 100,
    cursor: pages.Cursor = None,
) -> Answer[Page[ListedAlert]]:
    """List the alerts that this service has raised, newest first. Closed ones are kept for 90 days."""
    (after,) = pages.after(cursor, NEWEST)
    rows = await alerts.fetch(database, open_=open_, since=since, until=until, after=after, limit=limit + 1)
    return pages.page(rows, limit, lambda row: Newest(row.id))


@raised.post("/silence")
async def silence_alert(
    body: Body[Silence],
    by: Annotated[str, Depends(Needs("alerts:write"))],
    database: Annotated[Database, Depends(database)],
) -> Answer[ListedAlert]:
    """Silence an open alert: until then no one has to be notified of it. It stays open, and is listed."""
    async with database.acquire() as db, db.transaction():
        row = await alerts.silence(db, body.dedup_key, until=body.until, by=by, reason=body.reason)
        if row is None:
            detail = f"no alert is open under the key {body.dedup_key!r}; see `slipway alert ls`"
            raise Problem(404, "unknown-alert", "No such open alert", detail)
        await audit.record_command(
            db, AuditedKind.ALERT, body.dedup_key, "silence", by=by, reason=body.reason, until=body.until
        )
    return Answer(row)


tokened = Router(prefix="/tokens", tags=["tokens"])


@tokened.get("", dependencies=[READ])
async def list_tokens(request: Request, database: Annotated[Database, Depends(database)]) -> Answer[Items[ListedToken]]:
    """List the tokens of this service's file, with the time of the last use in the last 90 days, which is recorded
    twice a minute, and whether they were revoked."""
    tokens: Tokens = request.app.state.tokens
    uses, revoked = await token_rows.last_uses(database), await token_rows.revoked(database)
    items = [
        ListedToken(
            name=token.name,
            scopes=token.scopes,
            expires_at=token.expires_at,
            last_used_at=uses.get(token.name),
            revoked=token.sha256 in revoked,
        )
        for token in tokens.load()
    ]
    return Answer(Items(items=items))


@tokened.post("/{name:id}/revoke")
async def revoke_token(
    request: Request,
    name: Name,
    body: Body[TokenRevocation],
    by: Annotated[str, Depends(Needs("tokens:write"))],
    database: Annotated[Database, Depends(database)],
) -> Answer[RevokedToken]:
    """Revoke a token for good, without its file: each replica refuses it within 5 s. A new token of the same name, with
    another secret, is none that was revoked."""
    tokens: Tokens = request.app.state.tokens
    token = tokens.named(name)
    if token is None:
        raise Problem(404, "unknown-token-name", "No such token", f"the tokens file of this service has no {name}")
    async with database.acquire() as db, db.transaction():
        is_new = await token_rows.revoke(db, token.sha256, name, by=by, reason=body.reason)
        if is_new:
            await audit.record_command(db, AuditedKind.TOKEN, name, "revoke", by=by, reason=body.reason)
    tokens.revoked |= {token.sha256}
    return Answer(RevokedToken(name=name, was_revoked=not is_new))


letters = Router(prefix="/dead-letters", tags=["dead letters"])
Settler = Annotated[str, Depends(Needs("dead-letters:write"))]
Settle = Callable[[Any, Consumer, int, int, str], Awaitable[Replayed]]


@letters.get("", dependencies=[READ])
async def list_dead_letters(
    database: Annotated[Database, Depends(database)],
    topic: Name | None = None,
    limit: pages.Limit = 100,
    cursor: pages.Cursor = None,
) -> Answer[Page[DeadLetter]]:
    """List dead letters, of all topics or of one."""
    after = pages.after(cursor, dead_letters.FIRST)
    rows = await dead_letters.fetch(database, topic=topic, after=after, limit=limit + 1)
    return pages.page(rows, limit, lambda row: dead_letters.DeadLetterPlace(row.topic, row.partition, row.offset))


@letters.get("/{topic}/{partition}/{offset}", dependencies=[READ_SETTINGS])
async def get_dead_letter(
    database: Annotated[Database, Depends(database)], topic: Name, partition: Partition, offset: Offset
) -> Answer[DeadLetterContent]:
    """Return a dead letter with its bytes."""
    try:
        return Answer(await dead_letters.find(database, topic, partition, offset))
    except dead_letters.NotDead as error:
        raise _not_dead(error) from error


@letters.post("/replay")
async def replay_dead_letter(
    request: Request,
    by: Settler,
    database: Annotated[Database, Depends(database)],
    letter: Body[DeadLetterReference],
) -> Answer[Replayed]:
    """Replay a dead letter, and on ordered topics the records parked behind it."""
    return await _settle(request, database, letter, dead_letters.replay, by)


@letters.post("/drop")
async def drop_dead_letter(
    request: Request,
    by: Settler,
    database: Annotated[Database, Depends(database)],
    letter: Body[DeadLetterReference],
) -> Answer[Replayed]:
    """Delete a dead letter, and apply the records parked behind it."""
    return await _settle(request, database, letter, dead_letters.drop, by)


async def _settle(
    request: Request, database: Database, letter: DeadLetterReference, settle: Settle, by: str
) -> Answer[Replayed]:
    consumer = request.app.state.consumers.get(letter.topic)
    leader_loop = runtime_of(request).leader_loop

    async def settled(db: Connection, consumer: Consumer) -> Replayed:
        return await settle(db, consumer, letter.partition, letter.offset, by)

    try:
        if leader_loop is not None and any(topic.name == letter.topic for topic in leader_loop.topics):
            outcome = await leader_loop.settle(database, letter.topic, settled)
        elif consumer is not None:
            async with database.acquire() as db:
                outcome = await settled(db, consumer)
        else:
            raise dead_letters.NotDead(f"{letter.topic} is not consumed here")
    except dead_letters.NotDead as error:
        raise _not_dead(error) from error
    except NotLeader as error:
        raise Problem(409, "not-leader", "This instance is on standby", f"{error}; send the request there") from error
    wake(request)
    return Answer(outcome)


def _not_dead(error: dead_letters.NotDead) -> Problem:
    return Problem(404, "not-dead", "No such dead letter", f"{error}; see `slipway dlq ls`")


Adopter = Annotated[str, Depends(Needs("positions:write"))]
positions = Router(prefix="/positions", tags=["positions"])


@positions.get("/stopped", dependencies=[READ])
async def list_stopped(runtime: Annotated[Runtime, Depends(runtime_of)]) -> Answer[Items[StoppedPartition]]:
    """List partitions that only an operator can resume, with the reason."""
    return Answer(Items(items=stopped_partitions(runtime)))


@positions.post("/adopt")
async def adopt_position(
    by: Adopter, runtime: Annotated[Runtime, Depends(runtime_of)], wanted: Body[Adoption]
) -> Answer[Position]:
    """Set a new position for a stopped partition; consumption resumes within seconds."""
    for reading in runtime.readings():
        if reading.consumer.topic.name == wanted.topic and wanted.partition in reading.stopped:
            return Answer(await _adopted(reading, wanted.partition, wanted.at, by))
    known = sorted({reading.consumer.topic.name for reading in runtime.readings()})
    if wanted.topic in known:
        detail = f"{wanted.topic}/{wanted.partition} is not stopped in this process"
    else:
        detail = f"this service does not consume topic {wanted.topic}, but {', '.join(known) or 'none now'}"
    raise Problem(409, "not-stopped", "The partition is not stopped", detail)


@positions.post("/adopt-all")
async def adopt_all_positions(
    by: Adopter, runtime: Annotated[Runtime, Depends(runtime_of)], wanted: Body[AdoptionOfAll]
) -> Answer[Items[Position]]:
    """Set a new position for every stopped partition of this process."""
    items = [
        await _adopted(reading, partition, wanted.at, by)
        for reading in runtime.readings()
        for partition in sorted(reading.stopped)
        if partition in reading.stopped  # it may have been revoked while another one was adopted
    ]
    return Answer(Items(items=items))


async def _adopted(reading: Partitions, partition: int, at: str, by: str) -> Position:
    position = await reading.adopt(partition, at_end=at == "end", by=by)
    return Position(topic=reading.consumer.topic.name, partition=partition, next_offset=position)
