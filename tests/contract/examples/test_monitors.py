"""Example monitors: their events are read by kcat and plain aiokafka and handled by the provisioner."""

import contextlib
import importlib.util
import os
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from slipway_common.base.clock import utc_now
from slipway_common.events.pool import DemandReported
from slipway_common.events.signal import SignalRaised
from slipway_common.events.topics import LAUNCH_CONFIG_SIGNAL, POOL_DEMAND, Topic
from slipway_common.messaging.consume import Handler
from slipway_common.messaging.envelope import decode, decode_data
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.handlers.demand import record_demand
from slipway_provisioner.handlers.signals import record_requests
from tests.contract.examples.outside import EXAMPLES, example, kcat, serving
from tests.support.harness import Place, member, read_all, until
from tests.support.provisioner import Provisioner, declared, provisioner_on


@contextlib.asynccontextmanager
async def listening(place: Place, postgres: EmbeddedPostgres, topic: Topic) -> AsyncIterator[Provisioner]:
    """Provisioner that consumes one topic as the service does: record, transaction, handler."""
    handlers: dict[Topic, Handler] = {POOL_DEMAND: record_demand, LAUNCH_CONFIG_SIGNAL: record_requests}
    await place.create(topic)
    async with provisioner_on(postgres) as provisioner:
        await provisioner.follow_the_host()
        await provisioner.declare(declared("zone-a", "zone-b"))  # of which a source may pause one
        async with member(place, handlers[topic], topic=topic, database=provisioner.database):
            yield provisioner
        assert await provisioner.database.fetchval("SELECT count(*) FROM dead_letter") == 0


async def published(place: Place, topic: Topic) -> list[Any]:
    """Events of a topic in order of time, read by plain aiokafka and decoded by our envelope."""
    records = await read_all(place, topic.name)
    events = [decode_data(decode(r.headers, received_at=utc_now()).type, r.value) for r in records]
    assert [r.key.decode() for r in records] == [topic.key(event) for event in events]
    return sorted(events, key=lambda event: event.observed_at)


def write(path: Path, text: str) -> None:
    """Replace a file atomically."""
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)


async def test_demand_is_counted_stored_and_seen(place: Place, postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Zero is reported too; a queue that cannot be counted is not."""
    queue = tmp_path / "queue"
    for task in ("pending/1", "pending/2", "claimed/3"):
        (queue / task).parent.mkdir(parents=True, exist_ok=True)
        (queue / task).touch()
    async with listening(place, postgres, POOL_DEMAND) as provisioner:

        async def stored() -> Any:
            return await provisioner.database.fetchrow("SELECT source, pending, claimed FROM demand")

        with example(place, "monitor_demand", tmp_path) as monitor:
            monitor.start("linux", str(queue), "--every", "0.2")
            await until(lambda: stored_is(stored, ("folder", 2, 1)), "the first report is stored")
            for task in ("pending/1", "pending/2", "claimed/3"):
                (queue / task).unlink()
            await until(lambda: stored_is(stored, ("folder", 0, 0)), "zero is stored")
            (queue / "pending").rmdir()
            await until(lambda: "not reported" in monitor.errors(), "the error is printed")
            assert monitor.runs
    reports: list[DemandReported] = await published(place, POOL_DEMAND)
    counts = [(report.pending, report.claimed) for report in reports]
    assert (counts[0], counts[-1]) == ((2, 1), (0, 0))
    topic = place.prefix + POOL_DEMAND.name
    line = kcat(place, "-C", "-t", topic, "-o", "beginning", "-c", "1", "-q", "-f", "%k %h %s")
    key, headers, value = line.split(" ", 2)
    assert (key, "ce_type=io.slipway.pool.demand_reported.v1" in headers) == ("linux/folder", True)
    assert msgspec.json.decode(value, type=DemandReported) == reports[0]


async def stored_is(stored: Any, wanted: tuple[Any, ...]) -> bool:
    row = await stored()
    return row is not None and tuple(row) == wanted


async def test_demand_once(place: Place, tmp_path: Path) -> None:
    """Without an interval it reports and exits; a missing queue is an error, not zero."""
    await place.create(POOL_DEMAND)
    with example(place, "monitor_demand", tmp_path) as monitor:
        monitor.start("linux", str(tmp_path / "none"))
        assert await monitor.ended() == 1
        (tmp_path / "queue/pending").mkdir(parents=True)
        (tmp_path / "queue/claimed").mkdir()
        monitor.start("linux", "queue", "--source", "mine")
        assert await monitor.ended() == 0
    (report,) = await published(place, POOL_DEMAND)
    assert (report.source, report.pending, report.claimed) == ("mine", 0, 0)


async def test_demand_is_of_the_time_before_it_was_counted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that arrives while a queue is counted must not be hidden by a report with a later timestamp."""
    await place.create(POOL_DEMAND)
    monkeypatch.setenv("TOPIC_PREFIX", place.prefix)
    spec = importlib.util.spec_from_file_location("monitor_demand", EXAMPLES / "monitor_demand.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    asked_at: list[datetime] = []

    class Queue:
        """Record the time of the query."""

        def __truediv__(self, _: str) -> "Queue":
            asked_at.append(utc_now())
            return self

        def iterdir(self) -> list[str]:
            return []

    async with AIOKafkaProducer(bootstrap_servers=place.kafka.bootstrap) as producer:
        await module.report(producer, "linux", "q", Queue(), 300.0)
    (report,) = await published(place, POOL_DEMAND)
    assert report.observed_at <= asked_at[0]


async def test_signals_follow_a_file(place: Place, postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Maintenance pauses the config without interruption; its end resumes the config."""
    status = tmp_path / "status"
    write(status, "all is well")
    async with listening(place, postgres, LAUNCH_CONFIG_SIGNAL) as provisioner:

        async def paused() -> Any:
            return await provisioner.database.fetchval("SELECT paused FROM launch_config_name WHERE name = 'zone-a'")

        async def is_(wanted: str) -> bool:
            return bool(await paused() == (wanted == "paused"))

        with example(place, "monitor_signal", tmp_path) as monitor:
            monitor.start("config", "zone-a", str(status), "--every", "2", "--ttl", "8")
            await monitor.until_printed("recovered")
            write(status, "maintenance until noon")
            await until(lambda: is_("paused"), "the config is paused")
            await until(lambda: renewed(place), "requested again before the request expires")
            write(status, "done")
            await until(lambda: is_("active"), "the config is active")
    signals: list[SignalRaised] = await published(place, LAUNCH_CONFIG_SIGNAL)
    kinds = Counter(signal.kind for signal in signals if signal.kind != "pause_request")
    assert kinds == {"recovered": 2, "resume_request": 2}, "only pauses are requested again"
    pauses = [signal for signal in signals if signal.kind == "pause_request"]
    assert {signal.reason for signal in pauses} == {"maintenance until noon"}
    assert all((later.observed_at - earlier.observed_at).total_seconds() > 3 for earlier, later in pairwise(pauses))


async def renewed(place: Place) -> bool:
    """True once a pause was requested again before the request before it has expired."""
    pauses = [signal for signal in await published(place, LAUNCH_CONFIG_SIGNAL) if signal.kind == "pause_request"]
    return any(
        (later.observed_at - earlier.observed_at).total_seconds() < earlier.ttl_seconds
        for earlier, later in pairwise(pauses)
    )


async def test_signals_follow_a_page(place: Place, tmp_path: Path) -> None:
    """A page that does not answer gives a `degraded` signal until it does; kcat reads both signals."""
    await place.create(LAUNCH_CONFIG_SIGNAL)
    with serving() as page, example(place, "monitor_signal", tmp_path) as monitor:
        page.answers.append(503)
        monitor.start("zone", "zone-c", page.url, "--every", "0.05")
        await monitor.until_printed("zone zone-c: degraded")
        page.answers.clear()
        await monitor.until_printed("zone zone-c: recovered, all is well")
    topic = place.prefix + LAUNCH_CONFIG_SIGNAL.name
    seen = [
        msgspec.json.decode(line, type=SignalRaised)
        for line in kcat(place, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%s\n").splitlines()
    ]
    assert {(signal.target_kind, signal.target_id, signal.source) for signal in seen} == {
        ("zone", "zone-c", "status-page")
    }
    assert {"degraded", "recovered"} <= {signal.kind for signal in seen}
    assert "HTTP Error 503" in next(signal.reason for signal in seen if signal.kind == "degraded")


async def test_kcat_may_be_missing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kcat the test fails with a message on how to install it."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(pytest.fail.Exception, match="make tools"):
        kcat(place, "-L")
