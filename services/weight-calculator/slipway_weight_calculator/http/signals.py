"""Signals over HTTP, for sources without Kafka: raising them, and listing the live and the refused ones.

A signal is checked here by the same rules as one from Kafka and is then published there, so that the provisioner
receives it too and all signals are in one log. Only here a token must be for the target, or for the owners of all
launch configs that the signal reaches as it arrives: who may write the topic is trusted with all targets.
"""

from datetime import datetime
from typing import Annotated, Final

import msgspec
from fastapi import Depends, Request

from slipway_api.events.decoding import EventDecoder
from slipway_api.events.signal import SignalRaised
from slipway_api.events.signal_kinds import TTL_SECONDS
from slipway_api.http.weight_calculator import AcceptedSignal, Signals
from slipway_api.limits import Name, Reason
from slipway_api.time import Time
from slipway_common.base.audited import AuditedKind
from slipway_common.base.signal_rules import redacted_signal
from slipway_common.database import audit
from slipway_common.database.postgres import Database
from slipway_common.declaration.fields import NAME_PATTERN
from slipway_common.messaging import outbox
from slipway_common.web import openapi
from slipway_common.web.access import READ, Caller, NeedsCaller
from slipway_common.web.answers import Accepted, Answer
from slipway_common.web.bodies import invalid
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import database, wake
from slipway_weight_calculator import metrics
from slipway_weight_calculator.domain import world
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.signals import REASONS, reached
from slipway_weight_calculator.store import signals

router = Router(tags=["signals"])
DatabaseDep = Annotated[Database, Depends(database)]
Raiser = Annotated[Caller, Depends(NeedsCaller("signal:write:{target_kind}:{target_id}", "signal:write:owner:{owner}"))]

STRUCTURED: Final = "application/cloudevents+json"
ATTRIBUTES: Final = ("specversion", "type", "id", "source")
Word = Annotated[Name, msgspec.Meta(pattern=NAME_PATTERN.expression)]


class SignalBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of a request to raise a signal. `source` must be the caller's own name, or empty; `observed_at` defaults to
    now."""

    target_kind: Word
    target_id: Word
    kind: Word
    reason: Annotated[Reason, msgspec.Meta(min_length=1)]
    source: Name = ""
    observed_at: Time | None = None
    ttl_seconds: float = TTL_SECONDS
    value: float | None = None


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes of a CloudEvent in structured mode; others are ignored."""

    specversion: str
    id: str
    source: str
    type: str


class Read(Envelope, frozen=True, kw_only=True):
    """A CloudEvent whose data are decoded once its attributes are known."""

    data: msgspec.Raw


class Structured(Envelope, frozen=True, kw_only=True):
    """A CloudEvent with a signal."""

    data: SignalBody


BODY: Final = EventDecoder(SignalBody)
STRUCTURED_BODY: Final = EventDecoder(Structured)


DOCUMENTED: Final = openapi.body(
    "A signal, or a CloudEvent with it in structured mode.",
    json=openapi.struct_schema(SignalBody),
    cloudevent=openapi.struct_schema(Structured),
) | {"parameters": [openapi.header(f"ce-{name}", "Attribute of a CloudEvent in binary mode.") for name in ATTRIBUTES]}


@router.post("/signals", openapi_extra=DOCUMENTED)
async def raise_signal(request: Request, caller: Raiser, db: DatabaseDep) -> Accepted[AcceptedSignal]:
    """Raise a signal, from plain JSON or a CloudEvent in binary or structured mode. Refused signals change nothing. A
    pause request is accepted before the provisioner decides if the source has paused its share of the pool.

    With the scope signal:write:owner:OWNER, all launch configs that the signal reaches must be of that owner. A worker
    belongs to a launch config here only while it boots."""
    signal = _parse(request, await request.body())
    source = caller.name
    async with db.acquire() as connection, connection.transaction():
        now = await signals.clock(connection)
        event = redacted_signal(_event(signal, source, now))
        known = await signals.world(connection, event.target_id if event.target_kind == "worker" else "")
        boot = known.boots.get(event.target_id) if event.target_kind == "worker" else None
        configs = reached(event, known.configs, booting=boot.config_id if boot is not None else "")
        for owner in sorted({known.configs[id_].declared.owner for id_ in configs} or {""}):
            caller.permit(target_kind=event.target_kind, target_id=event.target_id, owner=owner)
        if signal.source not in ("", source):
            raise _refused(f"source: the body names {signal.source!r}, but the token belongs to {source!r}")
        if reason := world.apply_signal(Draft(known), event, now.timestamp(), request.app.state.signal_rules):
            metrics.REFUSED.labels(reason.partition(":")[0]).inc()
            raise _refused(reason)
        await outbox.enqueue(connection, [event])
        await audit.record_command(
            connection,
            AuditedKind(event.target_kind),
            event.target_id,
            f"signal {event.kind}",
            by=source,
            reason=event.reason,
            ttl_seconds=event.ttl_seconds,
            value=event.value,
        )
    wake(request)
    return Accepted(AcceptedSignal(source=source, configs=sorted(configs)))


@router.get("/signals", dependencies=[READ])
async def list_signals(db: DatabaseDep) -> Answer[Signals]:
    """List the live signals, and the newest ones from Kafka that were refused."""
    return Answer(Signals(items=await signals.live(db), refused=await signals.refused(db)))


def _parse(request: Request, body: bytes) -> SignalBody:
    """Parse the body, in any of the three modes. Raises Problem 400 or 422."""
    is_structured = request.headers.get("content-type", "").partition(";")[0].strip().lower() == STRUCTURED
    try:
        if is_structured:
            envelope = msgspec.json.decode(body, type=Read)
            _check_attributes(envelope.specversion, envelope.type, envelope.id, envelope.source)
            return STRUCTURED_BODY.decode(body).data
        if "ce-specversion" in request.headers or "ce-type" in request.headers:
            _check_attributes(*(request.headers.get(f"ce-{name}", "") for name in ATTRIBUTES))
        return BODY.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(str(error), Structured if is_structured else SignalBody) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "not-json", "The body is not JSON", str(error)) from error


def _check_attributes(specversion: str, type_: str, id_: str, source: str) -> None:
    if not specversion.startswith("1.") or not id_ or not source:
        detail = "specversion (1.0), id, source and type are required"
        raise Problem(422, "invalid-request", "The CloudEvent is not valid", detail)
    if type_ != SignalRaised.type:
        detail = f"{type_!r} is not the type of a signal; use {SignalRaised.type}"
        raise Problem(422, "invalid-request", "The CloudEvent is not valid", detail)


def _event(signal: SignalBody, source: str, now: datetime) -> SignalRaised:
    return SignalRaised(
        source=source,
        target_kind=signal.target_kind,
        target_id=signal.target_id,
        kind=signal.kind,
        reason=signal.reason,
        observed_at=signal.observed_at or now,
        ttl_seconds=signal.ttl_seconds,
        value=signal.value,
    )


def _refused(reason: str) -> Problem:
    return Problem(422, "signal-refused", "The signal has no effect", reason, reasons=list(REASONS))
