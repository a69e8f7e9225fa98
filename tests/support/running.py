"""Registered workers of the provisioner, and its counts of failures."""

from typing import Any, Final

import httpx2

from slipway_provisioner.domain.workers import Worker
from tests.support.provisioner import Provisioner


async def failures(provisioner: Provisioner) -> dict[str, int]:
    return dict(
        await provisioner.database.fetch("SELECT stage, failures FROM launch_config_outcomes WHERE failures > 0")
    )


COMMAND: Final[dict[str, Any]] = {"reason": "test", "by": "test", "until": None}


async def running(provisioner: Provisioner, pending: int = 1) -> list[tuple[Worker, httpx2.AsyncClient]]:
    """Registered workers and clients with their tokens."""
    pairs = []
    for worker in await provisioner.starting(pending):
        answer = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()
        client = provisioner.client(token=answer["token"])
        client.base_url = httpx2.URL(f"http://provisioner/workers/{worker.id}")
        pairs.append((worker, client))
    await provisioner.events()
    return pairs
