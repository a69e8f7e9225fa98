"""Watches a status page or a file, and reports its state to Slipway as signals for a zone, account or launch config.

    python examples/monitor_signal.py config linux-zone-c https://status.example/zone-c --every 30

A page that does not answer is degraded; so is a text that begins with `degraded`. `maintenance` requests a pause, which
is accepted for configs only; any other text is fine. A signal is sent on every change, and repeated before its TTL ends
while the state is bad: a monitor that dies must not keep a config paused for ever.
"""

import argparse
import asyncio
import json
import os
import uuid
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

from aiokafka import AIOKafkaProducer
from kafka_access import options

TOPIC = os.environ.get("TOPIC_PREFIX", "") + "slipway.launch-config.signal.v1"
# A resume request lifts only a pause by the same source, so it is safe to send it without a pause.
SIGNALS = {
    "fine": ("recovered", "resume_request"),
    "degraded": ("degraded", "resume_request"),
    "maintenance": ("pause_request",),
}


def read_state(where: str) -> tuple[str, str]:
    """State, and a reason for people."""
    try:
        if where.startswith(("http://", "https://")):
            with urlopen(where, timeout=10) as page:
                text = page.read(1000).decode(errors="replace")
        else:
            text = Path(where).read_text(errors="replace")
    except OSError as error:
        return "degraded", f"{where}: {error}"
    reason = text.strip().partition("\n")[0][:200]
    state = next((state for state in ("degraded", "maintenance") if reason.startswith(state)), "fine")
    return state, reason or "fine"


async def publish(producer: AIOKafkaProducer, target: tuple[str, str], kind: str, reason: str, **rest: object) -> None:
    data = {"target_kind": target[0], "target_id": target[1], "kind": kind, "reason": reason, **rest}
    headers = {
        "ce_specversion": "1.0",
        "ce_id": str(uuid.uuid4()),
        "ce_source": f"/monitors/{rest['source']}",
        "ce_type": "io.slipway.signal.raised.v1",
        "content-type": "application/json",
    }
    await producer.send_and_wait(
        TOPIC,
        json.dumps(data).encode(),
        key="/".join(quote(part, safe="") for part in target).encode(),  # ids may contain slashes
        headers=[(name, value.encode()) for name, value in headers.items()],
    )
    print(f"{' '.join(target)}: {kind}, {reason}", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description="Report a status page or a file to Slipway as signals.")
    parser.add_argument("target_kind", choices=["config", "zone", "account", "pool", "image"])
    parser.add_argument("target_id")
    parser.add_argument("where", help="HTTP(S) URL or file")
    parser.add_argument("--source", default="status-page")
    parser.add_argument("--every", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--ttl", type=float, default=300.0, metavar="SECONDS", help="several times --every")
    arguments = parser.parse_args()
    target, before, sent_at = (arguments.target_kind, arguments.target_id), "", 0.0
    async with AIOKafkaProducer(**options()) as producer:
        loop = asyncio.get_running_loop()
        while True:
            now, observed_at = loop.time(), datetime.now(UTC).isoformat()
            state, reason = await asyncio.to_thread(read_state, arguments.where)
            expires = state != "fine" and now + 2 * arguments.every >= sent_at + arguments.ttl
            if state != before or expires:
                for kind in SIGNALS[state]:
                    await publish(
                        producer,
                        target,
                        kind,
                        reason,
                        source=arguments.source,
                        observed_at=observed_at,
                        ttl_seconds=arguments.ttl,
                    )
                before, sent_at = state, now
            await asyncio.sleep(arguments.every)


if __name__ == "__main__":
    asyncio.run(main())
