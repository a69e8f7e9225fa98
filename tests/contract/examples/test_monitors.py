"""Example monitors: their events are read by kcat and plain aiokafka and handled by the provisioner."""

import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipway_api.events.signal import SignalRaised
from slipway_api.events.topics import LAUNCH_CONFIG_SIGNAL, Topic
from slipway_common.base.clock import utc_now
from slipway_common.messaging.envelope import decode, decode_data
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.handlers.signals import record_requests
from tests.contract.examples.outside import example, kcat, serving
from tests.support.harness import Place, member, read_all, until
from tests.support.provisioner import Provisioner, declared, provisioner_on


@contextlib.asynccontextmanager
async def listening(place: Place, postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    """Provisioner that consumes signals as the service does: record, transaction, handler."""
    topic = LAUNCH_CONFIG_SIGNAL
    await place.create(topic)
    async with provisioner_on(postgres) as provisioner:
        await provisioner.follow_the_host()
        await provisioner.declare(declared("zone-a", "zone-b"))  # of which a source may pause one
        async with member(place, record_requests, topic=topic, database=provisioner.database):
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


async def test_signals_follow_a_file(place: Place, postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Maintenance pauses the config without interruption; its end resumes the config."""
    status = tmp_path / "status"
    write(status, "all is well")
    async with listening(place, postgres) as provisioner:

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
