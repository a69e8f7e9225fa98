"""Slipway alerts as notifications, with FastStream: at least once each, resumed after a restart."""

import asyncio
import json
import os
from collections import Counter
from urllib.request import Request, urlopen

from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker, annotations
from faststream.security import SASLScram512
from kafka_access import scram

TOPICS = [(PREFIX := os.getenv("TOPIC_PREFIX", "")) + "slipway.alert.v1", PREFIX + "slipway.worker.lifecycle.v1"]
ACTIONS = {"alert.raised.v1": "trigger", "alert.resolved.v1": "resolve", "worker.launch_failed.v1": "count"}
WEBHOOK = Request(url, headers={"content-type": "application/json"}) if (url := os.getenv("WEBHOOK_URL")) else None
SECURITY, counts = SASLScram512(*known) if (known := scram()) else None, Counter[str]()
broker = KafkaBroker(os.environ["KAFKA"], security=SECURITY, allow_auto_create_topics=False)


@broker.subscriber(
    *TOPICS,
    group_id=PREFIX + "subscriber.alerts-faststream",
    group_instance_id="1",
    auto_offset_reset="earliest",
    ack_policy=AckPolicy.NACK_ON_ERROR,
    decoder=lambda message: message.body,
)  # the defaults can lose messages
async def notify(message: annotations.KafkaMessage) -> None:
    try:
        body = {"action": ACTIONS[message.headers["ce_type"].removeprefix("io.slipway.")], **json.loads(message.body)}
        counts[key := body.get("dedup_key") or body["launch_config_id"]] += 1
        print(body["action"], key, counts[key], body.get("summary", ""), flush=True)
        if WEBHOOK and body["action"] != "count" and not body.get("repeat"):  # open alerts come again each day
            await asyncio.to_thread(urlopen, WEBHOOK, json.dumps(body).encode(), timeout=10)
    except (KeyError, TypeError, ValueError):  # another type, a tombstone, an invalid event: a retry cannot help
        return
    except OSError as error:
        raise await asyncio.sleep(5, error) from None  # then the same record comes again


asyncio.run(FastStream(broker).run())
