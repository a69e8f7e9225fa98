"""Slipway alerts as notifications, with plain aiokafka: at least once each, resumed after a restart."""

import asyncio
import json
import os
from collections import Counter
from urllib.request import Request, urlopen

from aiokafka import AIOKafkaConsumer
from kafka_access import options

TOPICS = [(PREFIX := os.getenv("TOPIC_PREFIX", "")) + "slipway.alert.v1", PREFIX + "slipway.worker.lifecycle.v1"]
ACTIONS = {
    b"io.slipway.alert.raised.v1": "trigger",
    b"io.slipway.alert.resolved.v1": "resolve",
    b"io.slipway.worker.launch_failed.v1": "count",
}
WEBHOOK = Request(url, headers={"content-type": "application/json"}) if (url := os.getenv("WEBHOOK_URL")) else None


async def main() -> None:
    counts: Counter[str] = Counter()
    group = {**options(), "group_id": PREFIX + "subscriber.alerts-aiokafka", "group_instance_id": "1"}
    async with AIOKafkaConsumer(*TOPICS, **group, enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
        async for record in consumer:
            try:
                body = {"action": ACTIONS[dict(record.headers)["ce_type"]], **json.loads(record.value)}
                counts[key := body.get("dedup_key") or body["launch_config_id"]] += 1
            except (KeyError, TypeError, ValueError):  # another type, a tombstone or an invalid event: skipped
                continue
            print(body["action"], key, counts[key], body.get("summary", ""), flush=True)
            if WEBHOOK and body["action"] != "count" and not body.get("repeat"):  # open alerts come again each day
                await asyncio.to_thread(urlopen, WEBHOOK, json.dumps(body).encode(), timeout=10)
            await consumer.commit()


asyncio.run(main())
