"""Unleased launches while the lease-broker is unavailable.

With `broker_unavailable_mode: safe`, launches continue at the last known pace; the broker charges them once restarted.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipway_common.declaration.models import Declaration
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.supervisor import Supervisor
from tests.e2e.test_path import SPEED, declared, launches
from tests.support.folders import temporary_folder
from tests.support.harness import until

HOLD_SECONDS = 8.0
SAFE = {"SLIPWAY_BROKER_UNAVAILABLE_MODE": "safe", "SLIPWAY_UNAVAILABLE_AFTER_SECONDS": "8"}


def briefly_held(declaration: Declaration) -> Declaration:
    """The same declaration with a short hold."""
    body = declaration.model_dump(mode="json")
    body["lease_pools"][0] |= {"hold_seconds": HOLD_SECONDS, "ttl_seconds": HOLD_SECONDS / 2, "reserve_seconds": 4.0}
    return Declaration.model_validate(body)


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    with temporary_folder() as folder:
        async with Supervisor() as supervisor:
            started = Deployment(supervisor, folder, speed=SPEED, seconds={}, environment={"provisioner": SAFE})
            await started.start()
            await started.apply(briefly_held(declared()))
            yield started
            await started.remove()


async def test_launches_continue_without_a_broker(deployment: Deployment) -> None:
    async def one_task(pool: str) -> None:
        task = {"pool_id": pool, "count": 1, "duration_seconds": 4000.0}
        await deployment.call("POST", "simulator", "/tasks", task)

    def launched(pool: str) -> bool:
        return launches(deployment)[pool] == 1

    await deployment.call(
        "POST", "simulator", "/scenario", {"seed": 5, "speed": SPEED, "accounts": {"*": {}}, "report_seconds": SPEED}
    )
    await one_task("reusable-1")
    await until(lambda: launched("reusable-1"), "a launch under a lease")
    await deployment.supervisor.kill("lease-broker")
    await one_task("reusable-2")
    await until(lambda: launched("reusable-2"), "a launch without a lease")
    await deployment.supervisor.restart("lease-broker")

    async def charged() -> bool:
        answer: Any = await deployment.call("GET", "lease-broker", "/lease-pools/acc/history?limit=1000")
        return [entry["units"] for entry in answer["items"] if entry["kind"] == "unleased"] == [1]

    await until(charged, "the unleased launch is charged")
