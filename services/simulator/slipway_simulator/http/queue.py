"""The queue's side for workers from outside: claim a task, renew the claim, finish. Simulated machines take theirs
within the process; both may share a pool.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from slipway_simulator.http.accounts import Simulated
from slipway_simulator.http.dropping import over
from slipway_simulator.queue import command
from slipway_simulator.reports import SOURCE

router = APIRouter(prefix="/queue/{pool_id}")
Text = Annotated[str, Field(min_length=1, max_length=200)]


class Claim(BaseModel):
    """`wait_seconds`: how long to wait for a task, on the wall, if there is none."""

    worker_id: Text
    instance_id: Text
    wait_seconds: float = Field(default=0.0, ge=0, le=30)


class Renewal(BaseModel):
    worker_id: Text


class Finish(BaseModel):
    worker_id: Text
    exit_code: int


@router.post("/claim")
async def claim(pool_id: str, body: Claim, request: Request, simulation: Simulated) -> Any:
    """A task, once there is one: 204 when there was none in time. The task waits again unless its claim is renewed."""
    hung_up = over((request.client.host, request.client.port) if request.client else None)
    until = simulation.now() + body.wait_seconds
    while (run := simulation.claim(pool_id, body.worker_id, body.instance_id)) is None:
        if not await simulation.work_in(pool_id, hung_up, until=until):
            return Response(status_code=204)
    task = {"task_id": run.task.task_id, "command": command(run), "source": SOURCE}
    return task | {"claim_seconds": simulation.world.queue.claim_seconds}


@router.post("/tasks/{task_id}/renew")
async def renew(pool_id: str, task_id: str, body: Renewal, simulation: Simulated) -> dict[str, Any]:
    """The claim lasts anew; 409 when the task is not this worker's."""
    simulation.renew(pool_id, task_id, body.worker_id)
    return {"claim_seconds": simulation.world.queue.claim_seconds}


@router.post("/tasks/{task_id}/finish")
async def finish(pool_id: str, task_id: str, body: Finish, simulation: Simulated) -> dict[str, Any]:
    """The task has ended, well or badly; saying so again is fine. 409 when it is not this worker's."""
    simulation.finish(pool_id, task_id, body.worker_id, body.exit_code)
    return {"task_id": task_id}
