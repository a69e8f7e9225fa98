"""Alerts of Slipway as notifications, in plain aiokafka: each at least once, and a restart goes on where it was."""

import asyncio
import json
import os
from collections import Counter
from urllib.request import Request, urlopen

from aiokafka import AIOKafkaConsumer

TOPICS = [(PREFIX := os.getenv("TOPIC_PREFIX", "")) + "slipway.alert.v1", PREFIX + "slipway.worker.lifecycle.v1"]
ACTIONS = {
    b"io.slipway.alert.raised.v1": "trigger",
    b"io.slipway.alert.resolved.v1": "resolve",
    b"io.slipway.worker.launch_failed.v1": "count",
}
WEBHOOK = Request(url, headers={"content-type": "application/json"}) if (url := os.getenv("WEBHOOK_URL")) else None


async def main() -> None:
    told: Counter[str] = Counter()
    group = {"bootstrap_servers": os.environ["KAFKA"], "group_id": PREFIX + "alerts-aiokafka", "group_instance_id": "1"}
    async with AIOKafkaConsumer(*TOPICS, **group, enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
        async for record in consumer:
            try:
                body = {"action": ACTIONS[dict(record.headers)["ce_type"]], **json.loads(record.value)}
                told[key := body.get("dedup_key") or body["launch_config_id"]] += 1
            except (KeyError, TypeError, ValueError):  # another type, a tombstone, no event: it holds up nothing
                continue
            print(body["action"], key, told[key], body.get("summary", ""), flush=True)
            if WEBHOOK and body["action"] != "count":  # a refusal ends us, and the next run tells it again
                await asyncio.to_thread(urlopen, WEBHOOK, json.dumps(body).encode(), timeout=10)
            await consumer.commit()


asyncio.run(main())
