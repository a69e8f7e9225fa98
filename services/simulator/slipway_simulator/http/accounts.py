"""HTTP API of the simulated provider: one API per account, with the error codes of real providers."""

import asyncio
import hashlib
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

from slipway_simulator import user_data
from slipway_simulator.console import console as console_of
from slipway_simulator.facts import Call, Code, Reply, TerminationRefused
from slipway_simulator.http.dropping import drop
from slipway_simulator.runtime import Simulator

DEPLOYMENT_TAG: Final = "slipway-deployment"
BATCH_TAG: Final = "slipway-batch"
CONFIG_TAG: Final = "slipway-launch-config"
NOT_PERMITTED: Final = "OperationNotPermitted"
"""Code of a termination that is refused."""
STATUS: Final[dict[Code, int]] = {
    "OK": 200,
    "InvalidRequest": 400,
    "ImageNotFound": 400,
    "AuthFailure": 401,
    "QuotaExceeded": 409,
    "InsufficientCapacity": 409,
    "RequestLimitExceeded": 429,
    "InternalError": 500,
}

router = APIRouter(prefix="/accounts/{account:id}")


def simulator(request: Request) -> Simulator:
    found = request.app.state.simulator
    assert isinstance(found, Simulator)
    return found


Simulated = Annotated[Simulator, Depends(simulator)]


class Create(BaseModel):
    """Body of a create call. `settings` may be part of the JSON in `user_data` instead."""

    token: str = Field(min_length=1, max_length=128)
    tags: dict[str, str] = {}
    count: int = 1
    zone: str
    instance_type: str
    image: str
    user_data: str = ""
    settings: dict[str, Any] = {}


@router.post("/instances")
async def create(account: str, body: Create, request: Request, simulation: Simulated) -> Response:
    """Create instances, as many of `count` as fit. A repeated token creates nothing more."""
    call = Call(
        at=simulation.now(),
        call_id=f"call-{simulation.world.cloud.calls + 1}",
        account=account,
        token=body.token,
        deployment=body.tags.get(DEPLOYMENT_TAG, ""),
        batch=body.tags.get(BATCH_TAG, ""),
        config=body.tags.get(CONFIG_TAG, ""),
        count=body.count,
        zone=body.zone,
        instance_type=body.instance_type,
        image=body.image,
        request=hashlib.sha256(msgspec.json.encode(body.model_dump(), order="sorted")).hexdigest()[:16],
    )
    found = user_data.found(body.user_data)
    reply = await simulation.create(call, {"settings": body.settings, **found} if body.settings else found)
    if reply.lost and request.client:
        await drop((request.client.host, request.client.port))
    return _response(reply, simulation)


@router.get("/instances")
async def instances(account: str, simulation: Simulated, deployment: str, batch: str | None = None) -> Response:
    """List the live instances of a deployment, and of a batch if one is named."""
    now = simulation.now()
    found = simulation.world.cloud.listed(account, deployment, batch, now=now)
    return _json(
        200,
        {
            "instances": [
                {
                    "id": instance.instance_id,
                    "state": instance.state(now),
                    "batch": instance.batch,
                    "config": instance.config,
                    "zone": instance.zone,
                    "created_at": instance.created_at,
                }
                for instance in found
            ]
        },
    )


@router.get("/instances/{instance_id:id}")
async def instance(account: str, instance_id: str, simulation: Simulated) -> Response:
    """Show a live instance."""
    found = simulation.world.cloud.instances.get(instance_id)
    if found is None or found.account != account:
        return _json(404, {"code": "InstanceNotFound", "message": f"no instance {instance_id}"})
    return _json(200, {"id": instance_id, "state": found.state(simulation.now())})


@router.get("/instances/{instance_id:id}/console", response_class=PlainTextResponse)
async def console(account: str, instance_id: str, simulation: Simulated) -> Response:
    """Console output of an instance, including a terminated one."""
    lines = await asyncio.to_thread(lambda: console_of(simulation.ledger.facts(), account, instance_id))
    if not lines:
        return _json(404, {"code": "InstanceNotFound", "message": f"no instance {instance_id}"})
    return PlainTextResponse("".join(f"{line}\n" for line in lines))


@router.delete("/instances/{instance_id:id}", status_code=204)
async def delete(account: str, instance_id: str, simulation: Simulated) -> Response:
    """Terminate an instance. It is safe to repeat."""
    instance = simulation.world.cloud.instances.get(instance_id)
    if instance and instance.account == account:
        now = simulation.now()
        if simulation.world.is_undying(account, instance_id, now):
            simulation.record([TerminationRefused(at=now, instance_id=instance_id, account=account)])
            return _json(409, {"code": NOT_PERMITTED, "message": f"{instance_id} is protected from termination"})
        simulation.end_instance(instance_id, "api")
    elif instance_id not in simulation.world.cloud.gone:
        return _json(404, {"code": "InstanceNotFound", "message": f"no instance {instance_id}"})
    return Response(status_code=204)


@router.get("/identity")
async def identity(account: str, simulation: Simulated) -> Response:
    """Check that the account exists."""
    if simulation.world.cloud.rules.account(account) is None:
        return _json(401, {"code": "AuthFailure", "message": f"no account {account}"})
    return _json(200, {"account": account})


def _response(reply: Reply, simulation: Simulator) -> Response:
    if reply.code == "OK":
        now, live = simulation.now(), simulation.world.cloud.instances
        states = [(id_, live[id_].state(now) if id_ in live else "terminated") for id_ in reply.instance_ids]
        return _json(200, {"instances": [{"id": id_, "state": state} for id_, state in states]})
    body: dict[str, Any] = {"code": reply.code, "message": reply.message}
    if reply.retry_after_seconds is not None:
        body["retry_after_seconds"] = reply.retry_after_seconds
    return _json(STATUS[reply.code], body)


def _json(status: int, body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")
