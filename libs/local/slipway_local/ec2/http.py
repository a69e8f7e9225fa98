"""HTTP of the stand-in: EC2, STS and Service Quotas at `/`, metadata of machines below `/imds`, operators' routes."""

from email.utils import formatdate
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from pydantic import BaseModel

from slipway_common.base.ids import new_secret
from slipway_local.ec2 import metadata, scenario
from slipway_local.ec2.cloud import Instance
from slipway_local.ec2.facts import FaultCleared, FaultSet, Notice, ScenarioLoaded
from slipway_local.ec2.faults import NOTATION
from slipway_local.ec2.runtime import StandIn
from slipway_local.ec2.seeding import Seed
from slipway_simulator.http import problems
from slipway_simulator.http.dropping import drop
from slipway_simulator.notation import Fault

router = APIRouter()


def stand_in(request: Request) -> StandIn:
    found = request.app.state.stand_in
    assert isinstance(found, StandIn)
    return found


Playing = Annotated[StandIn, Depends(stand_in)]


class NewFault(BaseModel):
    name: str
    arg: str = ""
    from_seconds: float | None = None
    until_seconds: float | None = None


class NewNotice(BaseModel):
    """Notice to spot machines, of all or of a zone, a type, or by ids."""

    notice: Notice = "interruption"
    zone: str = ""
    instance_type: str = ""
    instance_ids: list[str] = []


def install(app: FastAPI) -> None:
    app.include_router(router)
    problems.install(app)


@router.post("/")
async def call(request: Request, playing: Playing) -> Response:
    """Answer a call to EC2, STS or Service Quotas."""
    headers = request.headers
    answer = await playing.answer(
        await request.body(), headers.get("authorization", ""), headers.get("x-amz-target", "")
    )
    if answer.lost and request.client:
        await drop((request.client.host, request.client.port))
    date = formatdate(playing.history.now() + playing.history.effects().clock_seconds, usegmt=True)
    return Response(answer.text, status_code=answer.status, media_type=answer.media_type, headers={"date": date})


@router.put("/imds/{instance_id:id}/latest/api/token")
async def open_session(instance_id: str, request: Request, playing: Playing) -> Response:
    if _running(playing, instance_id) is None:
        return Response(status_code=404)
    answer = playing.sessions.open(instance_id, request.headers, new_secret(), playing.history.now())
    return Response(answer.text, status_code=answer.status, media_type="text/plain")


@router.get("/imds/{instance_id:id}/{path:path}")
async def read_metadata(instance_id: str, path: str, request: Request, playing: Playing) -> Response:
    instance = _running(playing, instance_id)
    if instance is None:
        return Response(status_code=404)
    if not playing.sessions.valid(instance_id, request.headers, playing.history.now()):
        return Response(status_code=401)
    zone_id = playing.zone_ids[instance.created.zone]
    answer = metadata.read(instance, zone_id, playing.lives.user_data[instance_id], path, playing.signer)
    return Response(answer.text, status_code=answer.status, media_type="text/plain")


def _running(playing: StandIn, instance_id: str) -> Instance | None:
    """Instance whose machine may read its metadata: until it is terminated."""
    instance = playing.history.cloud.instances.get(instance_id)
    return instance if instance is not None and instance.terminated_at is None else None


@router.post("/scenario")
async def load(request: Request, playing: Playing) -> Response:
    fact = ScenarioLoaded(at=playing.history.now(), scenario=scenario.decode(await request.body()))
    playing.history.record([fact])
    return _json(200, {"started_at": fact.at, "seed": fact.scenario.seed, "speed": fact.scenario.speed})


@router.delete("/scenario")
async def clear(playing: Playing) -> Response:
    """Terminate all machines and forget everything, as after a start."""
    await playing.clear()
    return Response(status_code=204)


@router.post("/faults")
async def set_fault(body: NewFault, playing: Playing) -> Response:
    for parsed in NOTATION.parsed([Fault(body.name, body.arg, body.from_seconds, body.until_seconds)]):
        playing.history.record([FaultSet(at=playing.history.now(), fault=parsed)])
    return _json(200, {"faults": msgspec.to_builtins(playing.history.cloud.faults)})


@router.delete("/faults/{name:id}")
async def clear_fault(name: str, playing: Playing) -> Response:
    playing.history.record([FaultCleared(at=playing.history.now(), name=name)])
    return _json(200, {"faults": msgspec.to_builtins(playing.history.cloud.faults)})


@router.post("/notices")
async def notify(body: NewNotice, playing: Playing) -> Response:
    """Send an interruption notice or a rebalance recommendation now."""
    chosen = [
        instance
        for instance in playing.history.cloud.instances.values()
        if instance.created.lifecycle == "spot"
        and body.zone in ("", instance.created.zone)
        and body.instance_type in ("", instance.created.instance_type)
        and (not body.instance_ids or instance.id in body.instance_ids)
    ]
    return _json(200, {"instance_ids": playing.lives.notify(chosen, body.notice)})


@router.get("/identity-certificates")
async def identity_certificates(playing: Playing) -> Response:
    """Certificates of the keys that sign identity documents in this run, as PEM."""
    return _json(200, {"certificates": playing.signer.certificates()})


@router.post("/instances")
async def seed(request: Request, playing: Playing) -> Response:
    """Add running instances of an account that nobody has launched, without machines."""
    ids = await playing.seed(msgspec.json.decode(await request.body(), type=Seed))
    return _json(200, {"instance_ids": ids})


@router.post("/instances/{instance_id:id}/crash")
async def crash(instance_id: str, playing: Playing) -> Response:
    """Terminate a machine without a graceful shutdown."""
    playing.lives.end(instance_id, "fault")
    return Response(status_code=204)


@router.get("/truth")
async def truth(playing: Playing, tag: str = "slipway-deployment") -> Response:
    """Live instances, volumes and interfaces by the value of a tag, empty without it, counted from moto, which lacks
    the seeded ones."""
    return _json(200, {"tag": tag, "values": await playing.count(tag)})


@router.get("/ledger")
async def ledger(playing: Playing) -> Response:
    return _json(
        200, {"path": str(playing.history.ledger.path.resolve()), "size_bytes": playing.history.ledger.size_bytes}
    )


@router.get("/livez")
async def livez() -> Response:
    return _json(200, {"live": True})


@router.get("/readyz")
async def readyz() -> Response:
    """Ready once moto has answered its first calls."""
    return _json(200, {"ready": True})


@router.get("/state")
async def state(playing: Playing) -> Response:
    now, cloud = playing.history.now(), playing.history.cloud
    states: dict[str, int] = {}
    for instance in cloud.instances.values():
        states[instance.state(now)] = states.get(instance.state(now), 0) + 1
    return _json(
        200,
        {
            "at": now,
            "started_at": cloud.started_at,
            "speed": cloud.rules.speed,
            "calls": {"total": cloud.calls, "lost_replies": cloud.lost_replies, "replies": cloud.replies},
            "instances": {"created": cloud.created, **states},
            "faults": msgspec.to_builtins(cloud.faults),
        },
    )


def _json(status: int, body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")
