"""Launches per task on a deployment of real processes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipway_common.base.clock import monotonic_seconds
from slipway_common.declaration.models import Declaration
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.supervisor import Supervisor
from slipway_simulator import facts, ledger
from tests.support.accounts import simulated_account
from tests.support.folders import temporary_folder

SPEED = 40.0
WAIT_SECONDS = 180.0
POOLS = {"reusable-1": 0, "one-task-1": 1, "reusable-2": 0, "one-task-2": 1}  # pool → tasks per worker, 0: unlimited


def declared() -> Declaration:
    """Declaration of POOLS with one config each."""
    pools = [
        {
            "id": pool,
            "max_capacity": 5,
            "launch_configs": [
                {
                    "name": f"{pool}-zone-a",
                    "account": "acc",
                    "zone": "zone-a",
                    "instance_type": "m5",
                    "image": "i",
                    "settings": {"tasks_per_worker": tasks} if tasks else {},
                }
            ],
        }
        for pool, tasks in POOLS.items()
    ]
    lease_pool = {
        "id": "acc",
        "limit": 20,
        "hold_seconds": 1200 / SPEED,
        "ttl_seconds": 300 / SPEED,
        "reserve_seconds": 180 / SPEED,
        "pacing": "off",
    }
    return Declaration.model_validate(
        {"version": 1, "lease_pools": [lease_pool], "accounts": [simulated_account()], "worker_pools": pools}
    )


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    """A complete deployment with four idle pools."""
    with temporary_folder() as folder:
        async with Supervisor() as supervisor:
            started = Deployment(supervisor, folder, speed=SPEED, seconds={})
            await started.start()
            await started.apply(declared())
            yield started
            await started.remove()


def launches(deployment: Deployment) -> Counter[str]:
    """Number of instances ever created by pool, from the ledger."""
    created = (f for f in ledger.read(deployment.ledger) if isinstance(f, facts.InstanceCreated))
    return Counter(fact.config.partition("-zone-a@")[0] for fact in created)


async def reported(deployment: Deployment, pool: str, since: float) -> list[facts.DemandReported]:
    """Demand reports of a pool after a time."""
    return [
        f
        for f in ledger.read(deployment.ledger)
        if isinstance(f, facts.DemandReported) and f.pool_id == pool and f.at > since
    ]


async def wait(deployment: Deployment, pools: list[str], reports_after: int) -> None:
    """Wait until each pool's one task has ended, with `reports_after` demand reports since."""
    deadline = monotonic_seconds() + WAIT_SECONDS
    while monotonic_seconds() < deadline:
        ends = {f.pool_id: f.at for f in ledger.read(deployment.ledger) if isinstance(f, facts.TaskEnded)}
        seen: list[Any] = [await reported(deployment, p, ends[p]) for p in pools if p in ends]
        if len(seen) == len(pools) and all(len(reports) >= reports_after for reports in seen):
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"tasks did not end in time: {launches(deployment)}")


async def test_one_task_one_worker(deployment: Deployment) -> None:
    """One pending task launches one worker, in two cases: slow boots with a report each second; and a report of the
    claimed task that is still the newest one after the task and its one-task worker have ended."""
    slow = {
        "seed": 5,
        "speed": SPEED,
        "accounts": {"*": {}},
        "report_seconds": SPEED,
        "report_on_change": True,
        "boot_seconds_median": 180.0,
        "faults": "slow-boot:1.5",
    }
    await deployment.call("POST", "simulator", "/scenario", slow)
    for pool in ("reusable-1", "one-task-1"):
        task = {"pool_id": pool, "count": 1, "duration_seconds": 40.0}
        await deployment.call("POST", "simulator", "/tasks", task)
    await wait(deployment, ["reusable-1", "one-task-1"], reports_after=4)

    late = slow | {"report_seconds": 2.5 * SPEED, "report_on_change": False, "boot_seconds_median": 20.0, "faults": ""}
    await deployment.call("POST", "simulator", "/scenario", late)
    for pool in ("reusable-2", "one-task-2"):
        task = {"pool_id": pool, "count": 1, "duration_seconds": 8.0}
        await deployment.call("POST", "simulator", "/tasks", task)
    await wait(deployment, ["reusable-2", "one-task-2"], reports_after=2)
    assert launches(deployment) == dict.fromkeys(POOLS, 1)
