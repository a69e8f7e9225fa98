"""Pools that share an image, and their weight records."""

from collections.abc import Sequence
from typing import Any, Final

from slipway_api.events.scopes import Key, image_key, quota_key
from slipway_api.events.weight import SharedWindow, WeightChanged
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_provisioner.domain.workers import Worker, stopping
from slipway_provisioner.store import pools, workers
from tests.support.provisioner import Provisioner, declared, revision_id, weight

IMAGE: Final = image_key("simulated/linux-1")
QUOTA: Final = quota_key("sim-a", "sim-1", "m5.large")
NO_CAPACITY: Final = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, "", "InsufficientCapacity")
BOOT_FAILED: Final = Outcome(Stage.BOOT, Result.FAILED, Scope.IMAGE, "linux-1", "boot_timeout")


def two_pools(**changes: Any) -> dict[str, Any]:
    """Pool "linux" with zone-a, pool "other" with zone-b of the same image and zone-c of another one."""
    body = declared("zone-a", "zone-b", "zone-c", **changes)
    (first,) = body["worker_pools"]
    configs = first["launch_configs"]
    configs[2] |= {"image": "linux-2", "instance_type": "c5.large"}
    first["launch_configs"] = configs[:1]
    body["worker_pools"].append(first | {"id": "other", "launch_configs": configs[1:]})
    return body


def record(config: str, **changes: Any) -> WeightChanged:
    """Weight record of a launch config of `two_pools`."""
    return weight(ZONE_C if config == "zone-c" else config, **changes)


def shared(key: Key = IMAGE, stage: str = "boot", version: int = 1, window: int = 64, **changes: Any) -> SharedWindow:
    return SharedWindow(kind=key.kind, id=key.id, stage=stage, version=version, window=window, **changes)


ZONE_C: Final = revision_id("zone-c", image="linux-2", instance_type="c5.large")


async def end(provisioner: Provisioner, some: Sequence[Worker], outcome: Outcome | None) -> None:
    """Stop workers with an outcome, or without one as by our own action."""
    async with provisioner.database.acquire() as db, db.transaction():
        now = await pools.now(db)
        locked = await workers.lock(db, sorted(worker.id for worker in some))
        await workers.save(db, [stopping(worker, "test", now, outcome) for worker in locked])
