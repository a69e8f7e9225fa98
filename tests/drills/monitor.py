"""Monitor of queues, as a program outside Slipway that publishes reports over Kafka."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Self

import msgspec
from aiokafka import AIOKafkaProducer

from slipway_api.events.pool import DemandReported
from slipway_api.events.topics import POOL_DEMAND
from slipway_common.base.clock import utc_now
from slipway_common.base.ids import new_id
from slipway_common.messaging.envelope import Envelope, encode
from slipway_local.demo.deployment import Deployment


class Monitor(ABC):
    """Reports tasks every `interval_seconds`, of real time like all of its times."""

    interval_seconds: float

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._producer: Any = AIOKafkaProducer(bootstrap_servers=deployment.kafka)

    @abstractmethod
    async def report(self) -> None:
        """Send the reports that are due."""

    @contextlib.asynccontextmanager
    async def reporting(self) -> AsyncIterator[Self]:
        """Report in the background."""
        async with self._producer:
            task = asyncio.create_task(self._report())
            try:
                yield self
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _report(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(self.interval_seconds)

    async def send(
        self, pool_id: str, *, source: str, pending: int = 0, claimed: int, valid_for_seconds: float
    ) -> datetime:
        """Publish the counts of a pool, and return when they were observed."""
        event = DemandReported(
            pool_id=pool_id,
            source=source,
            pending=pending,
            claimed=claimed,
            observed_at=utc_now(),
            valid_for_seconds=valid_for_seconds,
        )
        envelope = Envelope(id=new_id(), type=event.type, source=f"/drill/{source}", time=event.observed_at)
        await self._producer.send_and_wait(
            self.deployment.prefix + POOL_DEMAND.name,
            msgspec.json.encode(event),
            key=POOL_DEMAND.key(event).encode(),
            headers=encode(envelope),
        )
        return event.observed_at
