"""Opinions from outside without Kafka: raised, and told with those that were refused.

A signal is judged here by the rule by which it is judged when it comes over Kafka, and then takes that way itself: the
provisioner hears it too, and what it does is in one log.
"""

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Request

from slipway_common import outbox
from slipway_common.access import Credentials, bearer, check
from slipway_common.events import Time
from slipway_common.events.signal import SignalRaised
from slipway_common.postgres import Pool
from slipway_common.problem import Problem
from slipway_common.runtime import database, ring
from slipway_weight_calculator import metrics
from slipway_weight_calculator.domain import signals as opinions
from slipway_weight_calculator.domain.world import Draft
from slipway_weight_calculator.store import signals

router = APIRouter(tags=["signals"])
Database = Annotated[Pool, Depends(database)]

STRUCTURED: Final = "application/cloudevents+json"
ATTRIBUTES: Final = ("specversion", "type", "id", "source")
Word = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Said(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data of a signal as a caller writes them. `source` is the caller's own name or absent; without `observed_at`
    it is of now."""

    target_kind: Word
    target_id: Word
    kind: Word
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    source: str = ""
    observed_at: Time | None = None
    ttl_seconds: float = 900.0
    value: float | None = None


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A CloudEvent in structured mode; other attributes are its own matter."""

    specversion: str
    id: str
    source: str
    type: str
    data: msgspec.Raw


@router.post("/signals", status_code=202)
async def raise_signal(request: Request, db: Database, credentials: Credentials) -> dict[str, Any]:
    """Plain JSON, or a CloudEvent in binary or structured mode. Refused signals change nothing."""
    bearer(credentials)
    said = _said(request, await request.body())
    source = check(request, credentials, f"signal:write:{said.target_kind}:{said.target_id}")
    if said.source not in ("", source):
        raise _refused(f"source: the data names {said.source!r}, and the token is of {source!r}")
    async with db.acquire() as connection, connection.transaction():
        now = await signals.clock(connection)
        event = _event(said, source, now)
        known = await signals.world(connection, event.target_id if event.target_kind == "worker" else "")
        if reason := Draft(known).signal(event, now.timestamp(), request.app.state.signal_rules):
            metrics.REFUSED.labels(reason.partition(":")[0]).inc()
            raise _refused(reason)
        await outbox.enqueue(connection, [event])
    ring(request)
    boot = known.boots.get(event.target_id) if event.target_kind == "worker" else None
    reached = opinions.reached(event, known.configs, booting=boot.config_id if boot is not None else "")
    return {"source": source, "configs": sorted(reached)}


@router.get("/signals")
async def list_signals(db: Database) -> dict[str, Any]:
    """Those that count now, and the newest that came over Kafka and were refused."""
    return {"items": await signals.live(db), "refused": await signals.refused(db)}


def _said(request: Request, body: bytes) -> Said:
    """The data, by whichever mode they came in; Problem 400 or 422 if they cannot be read."""
    try:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() == STRUCTURED:
            envelope = msgspec.json.decode(body, type=Envelope)
            _check_attributes(envelope.specversion, envelope.type, envelope.id, envelope.source)
            body = bytes(envelope.data)
        elif "ce-specversion" in request.headers or "ce-type" in request.headers:
            _check_attributes(*(request.headers.get(f"ce-{name}", "") for name in ATTRIBUTES))
        return msgspec.json.decode(body, type=Said)
    except msgspec.ValidationError as error:
        raise Problem(422, "invalid-request", "The request is not valid", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "not-json", "The body is not JSON", str(error)) from error


def _check_attributes(specversion: str, type_: str, id_: str, source: str) -> None:
    if not specversion.startswith("1.") or not id_ or not source:
        detail = "specversion (1.0), id, source and type are needed"
        raise Problem(422, "invalid-request", "The CloudEvent is not valid", detail)
    if type_ != SignalRaised.type:
        detail = f"{type_!r} is no signal; their type is {SignalRaised.type}"
        raise Problem(422, "invalid-request", "The CloudEvent is not valid", detail)


def _event(said: Said, source: str, now: datetime) -> SignalRaised:
    return SignalRaised(
        source=source,
        target_kind=said.target_kind,
        target_id=said.target_id,
        kind=said.kind,
        reason=said.reason,
        observed_at=said.observed_at or now,
        ttl_seconds=said.ttl_seconds,
        value=said.value,
    )


def _refused(reason: str) -> Problem:
    return Problem(422, "signal-refused", "The signal has no effect", reason, reasons=list(opinions.REASONS))
