"""Demand reports on Kafka, as an external queue publishes them: CloudEvents headers without sequence numbers.

Reports are levels, so while Kafka is unavailable only the newest one of each pool is kept, and the simulation goes on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from slipway_api.events.pool import DemandReported as DemandEvent
from slipway_api.events.topics import POOL_DEMAND
from slipway_common.base.ids import new_id
from slipway_common.messaging.clients import Kafka, client_options
from slipway_common.messaging.envelope import Envelope, Headers, encode
from slipway_common.observability.telemetry import logger
from slipway_simulator.facts import DemandReported, Fact
from slipway_simulator.queue import Counts
from slipway_simulator.scenario import LEAST_REPORT_SECONDS
from slipway_simulator.world import World

SOURCE = "simulator"
# A report that is not sent within this time is replaced by a newer one.
SEND_TIMEOUT_SECONDS = 5.0
RETRY_SECONDS = 1.0

log = logger(__name__)


class Producer(Protocol):
    """The part of AIOKafkaProducer that is used."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def send(self, topic: str, *, value: bytes, key: bytes, headers: Headers) -> Awaitable[Any]: ...


class Report(msgspec.Struct, frozen=True):
    pool_id: str
    counts: Counts
    observed_at: float


class Reporter:
    """Reports the demand of every pool each `report_seconds`, and immediately when its counts have changed."""

    def __init__(
        self,
        world: World,
        record: Callable[[Iterable[Fact]], None],
        changed: asyncio.Event,
        make_producer: Callable[[], Producer],
        *,
        topic: str,
        now: Callable[[], float],
    ) -> None:
        self._world = world
        self._record = record
        self._changed = changed
        self._make_producer = make_producer
        self._topic = topic
        self._now = now
        self._last: dict[str, Report] = {}
        self.connected = False

    async def run(self) -> None:
        """Report forever. A producer that fails is replaced."""
        while True:
            producer = self._make_producer()
            try:
                await producer.start()
                while True:
                    self._changed.clear()  # before the counts are read: later changes belong to the next round
                    await self._publish(producer, self.due())
                    self.connected = True
                    await self._next_round()
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("demand report failed; retrying", error=repr(error))
                self.connected = False
            finally:
                await _stop(producer)
            await asyncio.sleep(RETRY_SECONDS)

    def due(self) -> list[Report]:
        """Reports that are due now, with the current counts."""
        now, rules = self._now(), self._world.cloud.rules
        if not rules.reports:
            return []
        reports = [Report(pool_id, self._world.queue.counts(pool_id), now) for pool_id in self._world.queue.pools]
        return [report for report in reports if self._is_due(report, rules.report_seconds, rules.report_on_change)]

    def _is_due(self, report: Report, report_seconds: float, on_change: bool) -> bool:
        last = self._last.get(report.pool_id)
        if last is None or (on_change and last.counts != report.counts):
            return True
        return report.observed_at - last.observed_at >= report_seconds

    async def _publish(self, producer: Producer, reports: list[Report]) -> None:
        """Send all reports and record them once they are acknowledged."""
        if not reports:
            return
        async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
            sent = [await producer.send(self._topic, **self._message(report)) for report in reports]
            await asyncio.gather(*sent)
        self._last |= {report.pool_id: report for report in reports}
        self._record(
            DemandReported(
                at=self._now(),
                pool_id=report.pool_id,
                pending=report.counts.pending,
                claimed=report.counts.claimed,
                observed_at=report.observed_at,
            )
            for report in reports
        )

    def _message(self, report: Report) -> dict[str, Any]:
        observed_at = datetime.fromtimestamp(report.observed_at, UTC)
        event = DemandEvent(
            pool_id=report.pool_id,
            source=SOURCE,
            pending=report.counts.pending,
            claimed=report.counts.claimed,
            observed_at=observed_at,
            valid_for_seconds=self._world.cloud.rules.valid_for_seconds,
        )
        envelope = Envelope(id=new_id(), type=DemandEvent.type, source="/simulator/queue", time=observed_at)
        return {
            "value": msgspec.json.encode(event),
            "key": POOL_DEMAND.key(event).encode(),
            "headers": encode(envelope),
        }

    async def _next_round(self) -> None:
        """Wait until something has changed or a report is due, but at least for the minimum interval."""
        await asyncio.sleep(LEAST_REPORT_SECONDS)
        rules = self._world.cloud.rules
        oldest = min((report.observed_at for report in self._last.values()), default=self._now())
        wait_seconds = max(0.0, oldest + rules.report_seconds - self._now())
        try:
            async with asyncio.timeout(wait_seconds):
                await self._changed.wait()
        except TimeoutError:
            pass


def kafka_producer(kafka: Kafka) -> Producer:
    producer: Producer = AIOKafkaProducer(
        **client_options(kafka),
        acks="all",
        request_timeout_ms=int(SEND_TIMEOUT_SECONDS * 1000),
        retry_backoff_ms=200,
    )
    return producer


async def _stop(producer: Producer) -> None:
    """Stop a producer; errors are ignored, because its broker may be unavailable."""
    try:
        async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
            await producer.stop()
    except (KafkaError, OSError, TimeoutError):
        pass
