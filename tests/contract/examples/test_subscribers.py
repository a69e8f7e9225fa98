"""Example alert subscribers: alerts are delivered at least once, and exactly once without crashes."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from generate.kafka_scripts import SUBSCRIBER_GROUPS
from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.topics import ALERT, WORKER_LIFECYCLE
from slipway_api.events.worker import Outcome, Result, Scope, Stage, WorkerIdle, WorkerLaunchFailed
from slipway_common.messaging.relay import partition_for
from tests.contract.examples.outside import (
    EXAMPLES,
    committed,
    example,
    headers,
    kcat,
    publish,
    raised,
    resolved,
    serving,
)
from tests.support.harness import PARTITIONS, Place, publisher, until

SUBSCRIBERS: Final = ("alerts_aiokafka", "alerts_faststream")
LINES_MAX: Final = 42


def worker(worker_id: str) -> dict[str, Any]:
    ids = {"pool_id": "linux", "launch_config_id": "linux-zone-a", "account_id": "a", "image_revision": "i"}
    return {"worker_id": worker_id} | ids


def failed(worker_id: str) -> WorkerLaunchFailed:
    outcome = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, "m5/zone-a/", "InsufficientCapacity")
    return WorkerLaunchFailed(**worker(worker_id), batch_id="b", outcome=outcome)


async def until_committed(place: Place, name: str, alerts: int) -> None:
    """Wait until a restart would start after this many alerts."""

    async def behind() -> bool:
        found = await committed(place, place.prefix + SUBSCRIBER_GROUPS + name.replace("_", "-"))
        return sum(offset for (topic, _), offset in found.items() if topic == ALERT.name) >= alerts

    await until(behind, f"{name} has committed {alerts} alerts")


@pytest.mark.parametrize("name", SUBSCRIBERS)
async def test_each_alert_is_delivered_once_over_a_restart(place: Place, tmp_path: Path, name: str) -> None:
    """Alerts of relay and kcat; killed after a commit, the subscriber continues with later alerts."""
    await place.create(ALERT, WORKER_LIFECYCLE)
    with serving() as webhook, example(place, name, tmp_path, WEBHOOK_URL=webhook.url) as subscriber:
        await publish(place, raised("x"), failed("w-1"), WorkerIdle(**worker("w-1")), failed("w-2"))
        subscriber.start()
        await until(lambda: len(webhook.posted) == 1, "the webhook gets x")
        await subscriber.until_printed("count linux-zone-a 2")
        by_hand = json.dumps({"dedup_key": "test/x", "subject_id": "x", "kind": "test", "summary": "by hand"})
        topic = place.prefix + ALERT.name
        kcat(place, "-P", "-t", topic, "-k", "test/x", *headers(AlertResolved.type, "1"), write=by_hand)
        await until(lambda: len(webhook.posted) == 2, "the webhook gets the end of x")
        await publish(place, raised("z", repeat=True), raised("y"))
        await until(lambda: len(webhook.posted) == 3, "the webhook gets y")
        found = kcat(place, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k\n").split()
        assert sorted(found) == ["test/x", "test/x", "test/y", "test/z"]
        await until_committed(place, name, 4)
        subscriber.kill()
        await publish(place, resolved("y"))
        subscriber.start()
        await until(lambda: len(webhook.posted) == 4, "the webhook gets the end of y")
        delivered = [(body["action"], body["dedup_key"]) for body in webhook.posted]
        assert delivered == [("trigger", "test/x"), ("resolve", "test/x"), ("trigger", "test/y"), ("resolve", "test/y")]
        assert webhook.posted[0]["summary"] == "x is on fire"
        assert subscriber.lines("count") == ["count linux-zone-a 1 ", "count linux-zone-a 2 "]


@pytest.mark.parametrize("name", SUBSCRIBERS)
async def test_invalid_records_do_not_block_alerts(place: Place, tmp_path: Path, name: str) -> None:
    """An alert after tombstones, garbage and unknown types in its partition is delivered, and nothing else."""
    await place.create(ALERT, WORKER_LIFECYCLE)
    fire = raised("x")
    partition = partition_for(ALERT.key(fire), PARTITIONS)
    type_: tuple[str, bytes | None] = ("ce_type", AlertRaised.type.encode())
    async with publisher(place) as outsider:
        garbage: list[tuple[bytes | None, list[tuple[str, bytes | None]]]] = [
            (None, [type_]),
            (b"not JSON", [type_]),
            (b"\xff\xfe", [type_]),
            (b"[]", [type_]),
            (b"{}", [type_]),
            (b'{"dedup_key": ["x"]}', [type_]),
            (b"{}", []),
            (b"{}", [("ce_type", b"\xff")]),
            (b"{}", [("ce_type", None)]),
            (b'{"dedup_key": "new"}', [("ce_type", b"io.slipway.alert.acknowledged.v1")]),
        ]
        for value, its_headers in garbage:
            await outsider.send(fire, partition=partition, value=value, headers=its_headers)
        await outsider.send(fire, partition=partition)
    with serving() as webhook, example(place, name, tmp_path, WEBHOOK_URL=webhook.url) as subscriber:
        subscriber.start()
        await until(lambda: webhook.posted, "the webhook gets x")
        assert [body["dedup_key"] for body in webhook.posted] == ["test/x"]
        assert subscriber.lines("trigger", "resolve", "count") == ["trigger test/x 1 x is on fire"]
        await until_committed(place, name, 11)
        assert subscriber.runs


async def test_rejected_alert_is_delivered_later_aiokafka(place: Place, tmp_path: Path) -> None:
    """An alert rejected by the webhook ends the subscriber before its commit; a restart delivers the alert."""
    await place.create(ALERT, WORKER_LIFECYCLE)
    with serving() as webhook, example(place, "alerts_aiokafka", tmp_path, WEBHOOK_URL=webhook.url) as subscriber:
        webhook.answers.append(503)
        await publish(place, raised("x"))
        subscriber.start()
        assert await subscriber.ended() == 1
        assert "HTTP Error 503" in subscriber.errors()
        assert (len(webhook.refused), webhook.posted) == (1, [])
        subscriber.start()
        await until(lambda: len(webhook.posted) == 1, "the webhook gets x")


async def test_rejected_alert_is_delivered_later_faststream(place: Place, tmp_path: Path) -> None:
    """An alert rejected by the webhook is read again a little later, not at once."""
    await place.create(ALERT, WORKER_LIFECYCLE)
    with serving() as webhook, example(place, "alerts_faststream", tmp_path, WEBHOOK_URL=webhook.url) as subscriber:
        webhook.answers.append(503)
        await publish(place, raised("x"))
        subscriber.start()
        await until(lambda: len(webhook.posted) == 1, "the webhook gets x")
        assert len(webhook.refused) == 1
        assert subscriber.runs


@pytest.mark.parametrize("name", SUBSCRIBERS)
def test_stays_small(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_needs_no_package_of_ours(path: Path) -> None:
    """Examples import nothing of Slipway, so that they can be copied."""
    assert re.findall(r"^\s*(?:from|import) slipway_\w+", path.read_text(), re.MULTILINE) == []
