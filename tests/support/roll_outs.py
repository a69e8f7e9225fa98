"""Revisions of a launch config, one of which replaces another."""

from collections import Counter
from typing import Any, Final

from slipway_api.events.weight import StageHealth, WeightChanged
from slipway_provisioner.domain.workers import Worker, claimed
from slipway_provisioner.store import pools, workers
from tests.support.provisioner import Provisioner, declared, report, revision_id, weight

OLD: Final = revision_id()
NEW: Final = revision_id(image="linux-2")
DRAINS: Final = "SELECT drain_terminate, drain_until FROM launch_config WHERE id = $1"


def with_image(image: str, *names: str, **changes: Any) -> dict[str, Any]:
    body = declared(*names, **changes)
    for config in body["worker_pools"][0]["launch_configs"]:
        config["image"] = image
    return body


async def running(provisioner: Provisioner, tasks: int) -> list[Worker]:
    """Idle workers of the old revision, as many as there are tasks."""
    await provisioner.admitted(tasks)
    await provisioner.launch()
    for worker in await provisioner.workers():
        assert (await provisioner.register(worker.instance_id or "", worker.batch_id)).is_success
    return await provisioner.workers()


async def claim(provisioner: Provisioner, some: list[Worker]) -> None:
    async with provisioner.database.acquire() as db, db.transaction():
        locked = await workers.lock(db, [worker.id for worker in some])
        await workers.save(db, [claimed(worker, "task", "q", await pools.now(db)) for worker in locked])


async def replaced(provisioner: Provisioner, **request: Any) -> None:
    """Declare another image, on the terms of the API."""
    terms = {"terminate": request.get("strategy") == "now"} | request
    await provisioner.declare(with_image("linux-2"), **terms)


def record(config_id: str, succeeded: int, **changes: Any) -> WeightChanged:
    """Weight record of a revision with this many successful starts."""
    stage = StageHealth(probability=0.95, successes=0, failures=0, window=64, failures_folded=0, succeeded=succeeded)
    return weight(config_id, stages=dict.fromkeys(("launch", "boot", "claim"), stage), **changes)


async def proves(provisioner: Provisioner, config_id: str = NEW, starts: int = 5, *, revision: int = 9) -> None:
    await provisioner.weights(record(config_id, starts), revision=revision)
    await provisioner.roll_out()


async def states(provisioner: Provisioner) -> dict[str, str]:
    rows = await provisioner.database.fetch("SELECT id, state FROM launch_config")
    return {row["id"]: row["state"] for row in rows}


async def launches(provisioner: Provisioner) -> dict[str, int]:
    rows = await provisioner.database.fetch("SELECT launch_config_id FROM worker WHERE state <> 'stopped'")
    return dict(Counter(row["launch_config_id"] for row in rows))


async def demanded(provisioner: Provisioner, pending: int, at: float) -> dict[str, int]:
    await provisioner.demand(report(pending, at=at))
    await provisioner.plan()
    return await launches(provisioner)


async def listed(provisioner: Provisioner, query: str = "") -> dict[str, dict[str, Any]]:
    async with provisioner.client() as client:
        return {row["id"]: row for row in (await client.get(f"/launch-configs{query}")).json()["items"]}
