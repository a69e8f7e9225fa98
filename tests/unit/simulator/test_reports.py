"""Demand reports: when they are due, and their behaviour while Kafka is unavailable."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from aiokafka.errors import KafkaConnectionError

from slipway_api.events.pool import DemandReported as DemandEvent
from slipway_common.messaging.envelope import Envelope, Headers, decode, decode_data
from slipway_simulator import reports, scenario
from slipway_simulator.facts import DemandReported, DemandSet, Fact, ScenarioLoaded
from slipway_simulator.reports import Reporter
from slipway_simulator.world import World, rebuild


class FakeProducer:
    """Fake producer for a broker that is up or down."""

    def __init__(self) -> None:
        self.down = False
        self.tried = 0
        self.sent: list[tuple[str, bytes, Envelope, DemandEvent]] = []

    async def start(self) -> None:
        self.tried += 1
        if self.down:
            raise KafkaConnectionError("nobody there")

    async def stop(self) -> None: ...

    async def send(self, topic: str, *, value: bytes, key: bytes, headers: Headers) -> Awaitable[Any]:
        if self.down:
            raise KafkaConnectionError("nobody there")
        envelope = decode(headers, received_at=datetime(2000, 1, 1, tzinfo=UTC))
        self.sent.append((topic, key, envelope, decode_data(envelope.type, value)))
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        acknowledged.set_result(None)
        return acknowledged


class Run:
    """A reporter with a world whose clock moves only explicitly."""

    def __init__(self, **rules: Any) -> None:
        self.now = 1000.0
        self.changed = asyncio.Event()
        self.producer = FakeProducer()
        self.recorded: list[Fact] = []
        loaded = scenario.decode(msgspec.json.encode({"pools": {"linux": {}}} | rules))
        self.world: World = rebuild([ScenarioLoaded(at=self.now, scenario=loaded)])
        self.reporter = Reporter(
            self.world, self.record, self.changed, lambda: self.producer, topic="t.demand", now=lambda: self.now
        )

    def record(self, facts: Iterable[Fact]) -> None:
        self.recorded += facts

    def set_level(self, pending: int) -> None:
        self.world.fold(DemandSet(at=self.now, pool_id="linux", pending=pending))
        self.changed.set()

    @property
    def pending(self) -> list[int]:
        return [event.pending for *_, event in self.producer.sent]


async def soon(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "LEAST_REPORT_SECONDS", 0.02)
    monkeypatch.setattr(reports, "RETRY_SECONDS", 0.02)


async def test_a_report_is_a_cloud_event_of_an_external_source() -> None:
    """Binary CloudEvents headers without sequence numbers, keyed by pool and source; recorded once acknowledged."""
    run = Run(valid_for_seconds=60)
    run.set_level(3)
    task = asyncio.create_task(run.reporter.run())
    await soon(lambda: bool(run.recorded))
    task.cancel()
    topic, key, envelope, event = run.producer.sent[0]
    at = datetime.fromtimestamp(1000.0, UTC)
    assert (topic, key) == ("t.demand", b"linux/simulator")
    assert envelope == Envelope(id=envelope.id, type=DemandEvent.type, source="/simulator/queue", time=at)
    assert event == DemandEvent(
        pool_id="linux", source="simulator", pending=3, claimed=0, observed_at=at, valid_for_seconds=60.0
    )
    assert run.recorded == [DemandReported(at=1000.0, pool_id="linux", pending=3, claimed=0, observed_at=1000.0)]


async def test_changes_are_reported_immediately_and_levels_when_due() -> None:
    """A change is reported immediately, several changes as one; otherwise a report is due after `report_seconds`."""
    run = Run(report_seconds=10)
    task = asyncio.create_task(run.reporter.run())
    await soon(lambda: run.pending == [0] and len(run.recorded) == 1)
    for level in range(1, 6):
        run.set_level(level)
    await soon(lambda: run.pending == [0, 5] and len(run.recorded) == 2)  # sent, and noted as reported
    run.now += 9.9
    assert run.reporter.due() == []
    run.now += 0.1
    assert [report.counts.pending for report in run.reporter.due()] == [5]
    task.cancel()


async def test_changes_can_wait_for_the_next_report() -> None:
    """Without report_on_change, a change is reported with the next periodic report."""
    run = Run(report_on_change=False, report_seconds=10)
    task = asyncio.create_task(run.reporter.run())
    await soon(lambda: run.pending == [0] and len(run.recorded) == 1)
    run.set_level(4)
    assert run.reporter.due() == []
    run.now += 10
    run.changed.set()
    await soon(lambda: run.pending == [0, 4])
    task.cancel()


async def test_another_monitor_may_report() -> None:
    run = Run(reports=False)
    run.set_level(3)
    task = asyncio.create_task(run.reporter.run())
    await soon(lambda: run.reporter.connected)
    assert run.reporter.due() == []
    assert run.pending == []
    task.cancel()


async def test_only_the_newest_level_outlives_an_outage() -> None:
    """While the broker is down, nothing is recorded as reported; afterwards the newest level is sent."""
    run = Run()
    run.producer.down = True
    task = asyncio.create_task(run.reporter.run())
    for level in (1, 2, 3):
        run.set_level(level)
        tried = run.producer.tried
        await soon(lambda tried=tried: run.producer.tried > tried)  # type: ignore[misc]
    assert (run.pending, run.recorded, run.reporter.connected) == ([], [], False)
    run.producer.down = False
    await soon(lambda: run.pending == [3] and len(run.recorded) == 1)
    assert run.reporter.connected
    run.producer.down = True
    run.set_level(9)
    await soon(lambda: not run.reporter.connected)
    run.producer.down = False
    await soon(lambda: run.pending == [3, 9])
    task.cancel()
