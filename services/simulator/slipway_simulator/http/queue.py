"""HTTP API of the queue for external workers: claim a task, renew the claim, finish the task.

Simulated machines take their tasks within the process; both may share a pool.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from slipway_simulator.http.accounts import Simulated
from slipway_simulator.http.dropping import disconnected
from slipway_simulator.queue import command
from slipway_simulator.reports import SOURCE

router = APIRouter(prefix="/queue/{pool_id:id}")
Text = Annotated[str, Field(min_length=1, max_length=200)]


class Claim(BaseModel):
    """Body of a claim. `wait_seconds`: real seconds to wait if there is no task."""

    worker_id: Text
    instance_id: Text
    wait_seconds: float = Field(default=0.0, ge=0, le=30)


class Renewal(BaseModel):
    worker_id: Text


class Finish(BaseModel):
    worker_id: Text
    exit_code: int


@router.post("/claim", responses={204: {"description": "There was no task in time."}})
async def claim(pool_id: str, body: Claim, request: Request, simulation: Simulated) -> Any:
    """Claim a task; 204 if there was none in time. The task is pending again unless the claim is renewed in time."""
    gone = disconnected((request.client.host, request.client.port) if request.client else None)
    until = simulation.now() + body.wait_seconds
    while (run := simulation.claim(pool_id, body.worker_id, body.instance_id)) is None:
        if not await simulation.work_in(pool_id, gone, until=until):
            return Response(status_code=204)
    task = {"task_id": run.task.task_id, "command": command(run), "source": SOURCE}
    return task | {"claim_seconds": simulation.world.queue.claim_seconds}


@router.post("/tasks/{task_id:id}/renew")
async def renew(pool_id: str, task_id: str, body: Renewal, simulation: Simulated) -> dict[str, Any]:
    """Renew a claim; 409 if the worker has lost it."""
    simulation.renew(pool_id, task_id, body.worker_id)
    return {"claim_seconds": simulation.world.queue.claim_seconds}


@router.post("/tasks/{task_id:id}/finish")
async def finish(pool_id: str, task_id: str, body: Finish, simulation: Simulated) -> dict[str, Any]:
    """Finish a task with its exit code. It is safe to repeat. 409 if the worker has lost its claim."""
    simulation.finish(pool_id, task_id, body.worker_id, body.exit_code)
    return {"task_id": task_id}
