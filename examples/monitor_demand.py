"""Reports how many tasks wait and run, so that Slipway keeps a worker pool at that size.

    python examples/monitor_demand.py linux ./queue --every 30

The queue here is a folder: files in `pending` wait, files in `claimed` run on this pool's workers. Put your own queue
into `count`. Silence is not zero: what cannot be counted is not reported, and an empty queue is.
"""

import argparse
import asyncio
import json
import os
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

from aiokafka import AIOKafkaProducer

TOPIC = os.environ.get("TOPIC_PREFIX", "") + "slipway.pool.demand.v1"


def count(queue: Path) -> tuple[int, int]:
    """Tasks that wait, and tasks that run. Raises OSError when nobody knows."""
    return len(list((queue / "pending").iterdir())), len(list((queue / "claimed").iterdir()))


async def report(producer: AIOKafkaProducer, pool: str, source: str, queue: Path, valid_for_seconds: float) -> None:
    observed_at = datetime.now(UTC)  # before counting: what changes meanwhile is the next report's
    pending, claimed = await asyncio.to_thread(count, queue)
    data = {
        "pool_id": pool,
        "source": source,
        "pending": pending,
        "claimed": claimed,
        "observed_at": observed_at.isoformat(),
        "valid_for_seconds": valid_for_seconds,
    }
    headers = {
        "ce_specversion": "1.0",
        "ce_id": str(uuid.uuid4()),
        "ce_source": f"/monitors/{source}",
        "ce_type": "io.slipway.pool.demand_reported.v1",
        "content-type": "application/json",
    }
    # The newest report per key is kept; another key would add up with this one, or be kept for ever beside it.
    await producer.send_and_wait(
        TOPIC,
        json.dumps(data).encode(),
        key=f"{pool}/{source}".encode(),
        headers=[(name, value.encode()) for name, value in headers.items()],
    )
    print(f"{pool}: {pending} pending, {claimed} claimed", flush=True)


async def main() -> int:
    parser = argparse.ArgumentParser(description="Report the demand of a worker pool.")
    parser.add_argument("pool")
    parser.add_argument("queue", type=Path, help="a folder with the folders pending and claimed")
    parser.add_argument("--source", default="folder", help="who counts; the demand of a pool is the sum of its sources")
    parser.add_argument("--every", type=float, default=0.0, metavar="SECONDS", help="without it: once")
    asked = parser.parse_args()
    async with AIOKafkaProducer(bootstrap_servers=os.environ["KAFKA"]) as producer:
        while True:
            try:
                await report(producer, asked.pool, asked.source, asked.queue, max(300.0, 5 * asked.every))
            except OSError as error:
                print(f"not reported, since it cannot be counted: {error}", file=sys.stderr, flush=True)
                if not asked.every:
                    return 1
            if not asked.every:
                return 0
            await asyncio.sleep(asked.every)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
