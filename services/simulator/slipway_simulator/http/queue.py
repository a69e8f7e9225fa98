"""HTTP API of the queue for external workers: claim a task, renew the claim, finish the task.

Simulated machines take their tasks within the process; both may share a pool.
"""

from fastapi import Request

from slipway_api.http.simulator import (
    ClaimedTask,
    FinishedTask,
    RenewedTask,
    TaskFinished,
    TaskRenewal,
    TaskRequest,
)
from slipway_common.web.answers import Answer, NoContent
from slipway_common.web.bodies import Body
from slipway_common.web.router import Router
from slipway_simulator.http.accounts import Simulated
from slipway_simulator.http.dropping import disconnected
from slipway_simulator.queue import command
from slipway_simulator.reports import SOURCE

router = Router(prefix="/queue/{pool_id:id}")


@router.post("/claim", responses={204: {"description": "There was no task in time."}})
async def claim(
    pool_id: str, body: Body[TaskRequest], request: Request, simulation: Simulated
) -> Answer[ClaimedTask] | NoContent:
    """Claim a task; 204 if there was none in time. The task is pending again unless the claim is renewed in time."""
    gone = disconnected((request.client.host, request.client.port) if request.client else None)
    until = simulation.now() + body.wait_seconds
    while (run := simulation.claim(pool_id, body.worker_id, body.instance_id)) is None:
        if not await simulation.work_in(pool_id, gone, until=until):
            return NoContent()
    task = ClaimedTask(
        task_id=run.task.task_id,
        command=command(run),
        source=SOURCE,
        claim_seconds=simulation.world.queue.claim_seconds,
    )
    return Answer(task)


@router.post("/tasks/{task_id:id}/renew")
async def renew(pool_id: str, task_id: str, body: Body[TaskRenewal], simulation: Simulated) -> Answer[RenewedTask]:
    """Renew a claim; 409 if the worker has lost it."""
    simulation.renew(pool_id, task_id, body.worker_id)
    return Answer(RenewedTask(claim_seconds=simulation.world.queue.claim_seconds))


@router.post("/tasks/{task_id:id}/finish")
async def finish(pool_id: str, task_id: str, body: Body[FinishedTask], simulation: Simulated) -> Answer[TaskFinished]:
    """Finish a task with its exit code. It is safe to repeat. 409 if the worker has lost its claim."""
    simulation.finish(pool_id, task_id, body.worker_id, body.exit_code)
    return Answer(TaskFinished(task_id=task_id))
