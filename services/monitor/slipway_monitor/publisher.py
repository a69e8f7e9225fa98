"""Demand reports on Kafka, as CloudEvents without sequence numbers."""

import asyncio
from typing import Final

import msgspec

from slipway_api.events.pool import DemandReported
from slipway_api.events.topics import POOL_DEMAND
from slipway_common.base.ids import new_id
from slipway_common.messaging.broker import connect
from slipway_common.messaging.clients import Kafka
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.observability.telemetry import logger

LOG = logger(__name__)

SEND_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 1.0
EVENT_SOURCE: Final = "/slipway-monitor"


class Publisher:
    """Publishes reports. Those that are not acknowledged in time are given up: the next one is newer."""

    def __init__(self, access: Kafka, topic_prefix: str) -> None:
        self._broker = connect(access, "monitor")
        self._publisher = self._broker.publisher(topic_prefix + POOL_DEMAND.name)

    async def start(self) -> None:
        """Connect; waits for a broker."""
        while True:
            try:
                await self._broker.start()
            except Exception as error:
                LOG.warning("Kafka is unavailable, retrying", error=repr(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def publish(self, report: DemandReported) -> None:
        """Publish a report. Raises KafkaError and TimeoutError."""
        envelope = Envelope(id=new_id(), type=report.type, source=EVENT_SOURCE, time=report.observed_at)
        headers = {name: value.decode() for name, value in encode(envelope)}
        async with asyncio.timeout(SEND_SECONDS):
            await self._publisher.publish(
                msgspec.json.encode(report), key=POOL_DEMAND.key(report).encode(), headers=headers
            )

    async def stop(self) -> None:
        await self._broker.stop()
