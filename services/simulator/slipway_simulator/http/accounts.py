"""HTTP API of the simulated provider: one API per account, with the error codes of real providers."""

import asyncio
import hashlib
from typing import Annotated, Final

import msgspec
from fastapi import Depends, Request, Response
from fastapi.responses import PlainTextResponse
from msgspec import UNSET

from slipway_api.http.simulator import (
    CreatedInstances,
    InstanceRequest,
    InstanceStatus,
    ListedInstance,
    ListedInstances,
    ProviderError,
    SimulatedIdentity,
)
from slipway_common.web.answers import Answer, NoContent, Untyped
from slipway_common.web.bodies import Body
from slipway_common.web.router import Router
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

router = Router(prefix="/accounts/{account:id}")


class ProviderRefusal(Exception):
    """A call that the provider refuses with a code of its own."""

    def __init__(self, status: int, code: str, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        after = UNSET if retry_after_seconds is None else retry_after_seconds
        self.error = ProviderError(code=code, message=message, retry_after_seconds=after)


def simulator(request: Request) -> Simulator:
    found = request.app.state.simulator
    assert isinstance(found, Simulator)
    return found


Simulated = Annotated[Simulator, Depends(simulator)]


@router.post("/instances")
async def create(
    account: str, body: Body[InstanceRequest], request: Request, simulation: Simulated
) -> Answer[CreatedInstances]:
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
        request=hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()[:16],
    )
    found = user_data.found(body.user_data)
    reply = await simulation.create(call, {"settings": body.settings, **found} if body.settings else found)
    if reply.lost and request.client:
        await drop((request.client.host, request.client.port))
    return Answer(_created(reply, simulation))


@router.get("/instances")
async def instances(
    account: str, simulation: Simulated, deployment: str, batch: str | None = None
) -> Answer[ListedInstances]:
    """List the live instances of a deployment, and of a batch if one is named."""
    now = simulation.now()
    found = simulation.world.cloud.listed(account, deployment, batch, now=now)
    items = [
        ListedInstance(
            id=instance.instance_id,
            state=instance.state(now),
            batch=instance.batch,
            config=instance.config,
            zone=instance.zone,
            created_at=instance.created_at,
        )
        for instance in found
    ]
    return Answer(ListedInstances(instances=items))


@router.get("/instances/{instance_id:id}")
async def instance(account: str, instance_id: str, simulation: Simulated) -> Answer[InstanceStatus]:
    """Show a live instance."""
    found = simulation.world.cloud.instances.get(instance_id)
    if found is None or found.account != account:
        raise _no_instance(instance_id)
    return Answer(InstanceStatus(id=instance_id, state=found.state(simulation.now())))


@router.get("/instances/{instance_id:id}/console", response_class=PlainTextResponse)
async def console(
    account: str, instance_id: str, simulation: Simulated
) -> Annotated[Response, Untyped("the text that a machine has printed")]:
    """Console output of an instance, including a terminated one."""
    lines = await asyncio.to_thread(lambda: console_of(simulation.ledger.facts(), account, instance_id))
    if not lines:
        raise _no_instance(instance_id)
    return PlainTextResponse("".join(f"{line}\n" for line in lines))


@router.delete("/instances/{instance_id:id}")
async def delete(account: str, instance_id: str, simulation: Simulated) -> NoContent:
    """Terminate an instance. It is safe to repeat."""
    instance = simulation.world.cloud.instances.get(instance_id)
    if instance and instance.account == account:
        now = simulation.now()
        if simulation.world.is_undying(account, instance_id, now):
            simulation.record([TerminationRefused(at=now, instance_id=instance_id, account=account)])
            raise ProviderRefusal(409, NOT_PERMITTED, f"{instance_id} is protected from termination")
        simulation.end_instance(instance_id, "api")
    elif instance_id not in simulation.world.cloud.gone:
        raise _no_instance(instance_id)
    return NoContent()


@router.get("/identity")
async def identity(account: str, simulation: Simulated) -> Answer[SimulatedIdentity]:
    """Check that the account exists."""
    if simulation.world.cloud.rules.account(account) is None:
        raise ProviderRefusal(401, "AuthFailure", f"no account {account}")
    return Answer(SimulatedIdentity(account=account))


def _created(reply: Reply, simulation: Simulator) -> CreatedInstances:
    """Instances that a call has created. Raises ProviderRefusal."""
    if reply.code != "OK":
        raise ProviderRefusal(STATUS[reply.code], reply.code, reply.message, reply.retry_after_seconds)
    now, live = simulation.now(), simulation.world.cloud.instances
    states = [(id_, live[id_].state(now) if id_ in live else "terminated") for id_ in reply.instance_ids]
    return CreatedInstances(instances=[InstanceStatus(id=id_, state=state) for id_, state in states])


def _no_instance(instance_id: str) -> ProviderRefusal:
    return ProviderRefusal(404, "InstanceNotFound", f"no instance {instance_id}")
