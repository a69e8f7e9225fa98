"""`slipway weights replay` from a broker, as a process of its own."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from itertools import islice
from pathlib import Path
from typing import Any

from slipway_client.cli import recorded
from slipway_common.events.topics import LAUNCH_CONFIG_LIFECYCLE, LAUNCH_CONFIG_SIGNAL, WORKER_LIFECYCLE
from slipway_common.messaging import topic_admin
from tests.support import outage_log
from tests.support.answers import environment
from tests.support.harness import PARTITIONS, PATIENCE_SECONDS, Place, publisher

COMMAND = (
    sys.executable,
    "-c",
    "from slipway_client.cli.main import app; app(prog_name='slipway')",
    "weights",
    "replay",
)
EVENTS = 300


async def replayed(place: Place, from_: str) -> tuple[int | None, str, str]:
    where = environment("http://127.0.0.1:1", kafka=place.kafka.bootstrap, prefix=place.prefix)
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--from", from_, "-o", "json", env=dict(os.environ) | where, stdout=PIPE, stderr=PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    return process.returncode, out.decode(), err.decode()


async def test_what_a_broker_retains(place: Place, tmp_path: Path) -> None:
    """The same as from a file of the same events in order of time, whatever their partitions; unreadable records are
    left out and counted."""
    topics = (LAUNCH_CONFIG_LIFECYCLE, LAUNCH_CONFIG_SIGNAL, WORKER_LIFECYCLE)
    # The events are months old, and the broker removes what is older than a topic's retention at any time.
    rows = [topic_admin.Wanted(place.prefix + topic.name, PARTITIONS, {"retention.ms": "-1"}) for topic in topics]
    await topic_admin.ensure(place.kafka.bootstrap, rows)
    lines = sorted(islice(outage_log.lines(), EVENTS), key=lambda line: str(json.loads(line)["time"]))
    (tmp_path / "log.jsonl").write_text("".join(f"{line}\n" for line in lines))
    async with publisher(place) as publishing:
        for event in recorded.Recording(tmp_path / "log.jsonl"):
            written: dict[str, Any] = {"time": event.time, "stored_at": event.time}
            await publishing.send(event.event, id=event.id, source=event.source, **written)
        await publishing.send(event.event, value=b"{", **written)
    results: dict[str, Any] = {}
    for from_ in (str(tmp_path / "log.jsonl"), "slipway.worker.lifecycle.v1", "worker.lifecycle"):
        code, out, errors = await replayed(place, from_)
        assert (code, errors) == (0, "")
        results[from_] = json.loads(out)
    assert results["worker.lifecycle"] == results["slipway.worker.lifecycle.v1"]
    from_file = results[str(tmp_path / "log.jsonl")]
    assert from_file["events"] > EVENTS * 0.9
    assert (from_file["unreadable"], results["worker.lifecycle"]["unreadable"]) == (0, 1)
    assert from_file["clamped"] == results["worker.lifecycle"]["clamped"] == 0
    assert results["worker.lifecycle"]["policies"] == from_file["policies"]


async def test_a_broker_without_the_topics(place: Place) -> None:
    code, out, errors = await replayed(place, "worker.lifecycle")
    assert (code, out) == (1, "")
    assert "has no topic" in errors
