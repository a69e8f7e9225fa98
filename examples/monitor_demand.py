"""Reports pending and claimed tasks of a queue, so that Slipway scales a worker pool to them.

    python examples/monitor_demand.py linux ./queue --every 30

The queue here is a folder: files in `pending` wait, files in `claimed` run on workers of this pool. Replace `count` for
your own queue. A queue that cannot be counted is not reported; an empty one is reported as zero.
"""

import argparse
import asyncio
import json
import os
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from aiokafka import AIOKafkaProducer

TOPIC = os.environ.get("TOPIC_PREFIX", "") + "slipway.pool.demand.v1"


def count(queue: Path) -> tuple[int, int]:
    """Numbers of pending and claimed tasks. Raises OSError if they are unknown."""
    return len(list((queue / "pending").iterdir())), len(list((queue / "claimed").iterdir()))


async def report(producer: AIOKafkaProducer, pool: str, source: str, queue: Path, valid_for_seconds: float) -> None:
    observed_at = datetime.now(UTC)  # before counting: later changes belong to the next report
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
    # Kafka keeps the newest report per key; a report under another key would be added to this one. Ids in keys are
    # percent-encoded, since they may contain slashes.
    await producer.send_and_wait(
        TOPIC,
        json.dumps(data).encode(),
        key=f"{quote(pool, safe='')}/{quote(source, safe='')}".encode(),
        headers=[(name, value.encode()) for name, value in headers.items()],
    )
    print(f"{pool}: {pending} pending, {claimed} claimed", flush=True)


async def main() -> int:
    parser = argparse.ArgumentParser(description="Report the demand of a worker pool.")
    parser.add_argument("pool")
    parser.add_argument("queue", type=Path, help="folder with the folders pending and claimed")
    parser.add_argument("--source", default="folder", help="source; the demand of a pool is the sum over its sources")
    parser.add_argument("--every", type=float, default=0.0, metavar="SECONDS", help="interval [default: report once]")
    arguments = parser.parse_args()
    async with AIOKafkaProducer(bootstrap_servers=os.environ["KAFKA"]) as producer:
        while True:
            try:
                await report(
                    producer, arguments.pool, arguments.source, arguments.queue, max(300.0, 5 * arguments.every)
                )
            except OSError as error:
                print(f"not reported, the queue cannot be counted: {error}", file=sys.stderr, flush=True)
                if not arguments.every:
                    return 1
            if not arguments.every:
                return 0
            await asyncio.sleep(arguments.every)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
