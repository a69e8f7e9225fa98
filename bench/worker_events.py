"""Generated worker lifecycle events of a whole fleet, interleaved in the order of their times."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Final

from slipway_api.events.launch_config import LaunchConfigCreated
from slipway_api.events.worker import (
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerClaimed,
    WorkerEvent,
    WorkerIdle,
    WorkerLaunched,
    WorkerLaunchFailed,
    WorkerRegistered,
    WorkerRequested,
    WorkerStopped,
    WorkerStopping,
)

SEED: Final = 5
BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
STARTS_PER_SECOND: Final = 50.0
FAILING: Final = 0.03  # of the launches, by capacity errors
IMAGES: Final = 5
ACCOUNTS: Final = 4
POOL_SIZE: Final = 20

TimedEvent = tuple[WorkerEvent, float]
"""An event and its time in seconds since the epoch."""


def launch_configs(number: int) -> list[LaunchConfigCreated]:
    """`number` configs in pools of 20, over four accounts and five images; one image per pool."""
    return [
        LaunchConfigCreated(
            launch_config_id=f"config-{n}@000000",
            name=f"config-{n}",
            pool_id=f"pool-{n // POOL_SIZE}",
            account_id=f"account-{n % ACCOUNTS}",
            region="r",
            zone=f"zone-{n % POOL_SIZE}",
            instance_type=f"m{n % 8}.large",
            image_revision=f"image-{n // POOL_SIZE % IMAGES}",
            base_weight=1.0,
            price_factor=1.0,
            state="active",
            revision=1,
        )
        for n in range(number)
    ]


def generate(configs: Sequence[LaunchConfigCreated], number: int) -> list[TimedEvent]:
    """The first `number` events of a fleet on these configs, ordered by the time at which they happened."""
    chance, ticket = Random(SEED), count()
    under_way: list[tuple[float, int, WorkerEvent, Iterator[TimedEvent]]] = []
    found: list[TimedEvent] = []
    at = BEGAN
    while len(found) < number:
        at += chance.expovariate(STARTS_PER_SECOND)
        while under_way and under_way[0][0] <= at:
            when, _, event, lifecycle = heappop(under_way)
            found.append((event, when))
            if following := next(lifecycle, None):
                heappush(under_way, (following[1], next(ticket), following[0], lifecycle))
        lifecycle = _lifecycle(chance.choice(configs), f"worker-{next(ticket)}", at, chance)
        event, when = next(lifecycle)
        heappush(under_way, (when, next(ticket), event, lifecycle))
    return found[:number]


def _lifecycle(config: LaunchConfigCreated, worker_id: str, at: float, chance: Random) -> Iterator[TimedEvent]:
    """Events of one worker within a minute: faster than in production, so that every stage has work soon."""
    ids: dict[str, Any] = {
        "worker_id": worker_id,
        "pool_id": config.pool_id,
        "launch_config_id": config.launch_config_id,
        "account_id": config.account_id,
        "image_revision": config.image_revision,
    }
    instance = f"i-{worker_id}"
    yield WorkerRequested(decision_id="decision", **ids), at
    at += chance.uniform(1, 3)
    if chance.random() < FAILING:
        place = f"{config.instance_type}/{config.zone}/on-demand"
        outcome = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, place, "InsufficientInstanceCapacity")
        yield WorkerLaunchFailed(batch_id="batch", outcome=outcome, **ids), at
        return
    ok = Outcome(Stage.LAUNCH, Result.OK)
    yield WorkerLaunched(instance_id=instance, batch_id="batch", outcome=ok, **ids), at
    boot_seconds = chance.uniform(5, 15)
    at += boot_seconds
    ok = Outcome(Stage.BOOT, Result.OK)
    yield WorkerRegistered(instance_id=instance, boot_seconds=boot_seconds, outcome=ok, **ids), at
    at += chance.uniform(0, 2)
    ok = Outcome(Stage.CLAIM, Result.OK)
    yield WorkerClaimed(task_id="task", source="queue", outcome=ok, **ids), at
    at += chance.uniform(10, 20)
    yield WorkerIdle(**ids), at
    at += chance.uniform(1, 5)
    yield WorkerStopping(reason="idle timeout", **ids), at
    at += chance.uniform(1, 5)
    yield WorkerStopped(reason="idle timeout", **ids), at
