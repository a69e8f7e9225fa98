"""Narration of topics for people who watch a deployment."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

from slipway_api.events.alert import AlertRaised
from slipway_api.events.topics import ALERT, LAUNCH_CONFIG_WEIGHT, POOL_LIFECYCLE, WORKER_LIFECYCLE
from slipway_api.events.weight import WeightChanged
from slipway_api.events.worker import Outcome, Result, Scope, Stage, WorkerLaunchFailed
from slipway_client.cli.watching import Watch
from slipway_client.transport.failed import Failed
from slipway_common.base.clock import utc_now
from tests.support.harness import Place, publisher, until
from tests.support.pool_events import rolled_back

REFUSED = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, code="InsufficientCapacity")

ROLLED_BACK = rolled_back()


def weight(state: str, reason: str, next_probe_at: datetime | None = None) -> WeightChanged:
    return WeightChanged(
        launch_config_id="linux-zone-b@3f2c9a",
        name="linux-zone-b",
        pool_id="linux",
        config_revision=1,
        weight=0.5,
        health=0.5,
        stages={},
        state=state,
        next_probe_at=next_probe_at,
        reason=f"linux-zone-b {reason}",
    )


def refused(number: int) -> WorkerLaunchFailed:
    return WorkerLaunchFailed(
        worker_id=f"w-{number}",
        pool_id="linux",
        launch_config_id="linux-zone-b@3f2c9a",
        account_id="sim-a",
        image_revision="linux-1",
        batch_id="b",
        outcome=REFUSED,
    )


def narrated(watch: Watch) -> list[str]:
    """Narrated lines, without those on unavailable services."""
    return [line.text for line in watch.snapshot().lines if "nobody is here" not in line.text]


async def test_recent_history_of_topics_is_narrated(place: Place) -> None:
    """History first, then new events; many failures in one line; unreadable records are skipped."""
    await place.create(LAUNCH_CONFIG_WEIGHT, ALERT, WORKER_LIFECYCLE, POOL_LIFECYCLE)
    alert = AlertRaised(
        dedup_key="k", subject_kind="partition", subject_id="s", kind="gap", summary="records are missing"
    )

    async def fetch(service: str, path: str) -> Any:
        raise Failed("nobody is here")

    async with publisher(place) as publish:
        at = utc_now().replace(microsecond=0) - timedelta(seconds=30)
        await publish.send(weight("tripped", "tripped: 2 capacity errors", at + timedelta(seconds=12)), time=at)
        for number in range(3):
            await publish.send(refused(number), time=at + timedelta(milliseconds=number))
        await publish.send(refused(0), value=b"{", partition=0)
        watch = Watch(
            fetch,
            title="top",
            kafka=place.kafka.bootstrap,
            prefix=place.prefix,
            history_seconds=3600,
            interval_seconds=3600,  # polled once: polls between two records would split their lines
        )
        running = asyncio.create_task(watch.run())
        try:
            await until(lambda: "kafka" not in watch.problems and watch.complete)
            await publish.send(weight("healthy", "healthy"), time=utc_now())
            await publish.send(alert, time=utc_now())
            await publish.send(ROLLED_BACK, time=utc_now())
            texts = await until(lambda: len(found := narrated(watch)) == 5 and found)
        finally:
            running.cancel()
            await asyncio.wait({running})
    assert texts == [
        "linux-zone-b tripped: 2 capacity errors; next probe in 12 s",
        "3 launches refused: InsufficientCapacity (linux-zone-b 3)",
        "linux-zone-b recovered: a start succeeded",
        "alert: records are missing",
        "pool linux rolled back by me to entry 7 of its history: it does not boot",
    ]
