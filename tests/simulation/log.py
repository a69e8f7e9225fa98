"""A log in memory instead of Kafka: partitions in order, nothing between them, and acknowledgements that get lost.

It stands where the relay expects a producer and where a subscription would fetch, so that relay and consumers run as
they are: numbers, duplicates, positions and epochs are theirs.
"""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from aiokafka.errors import KafkaError

from slipway_common.records import Record

PARTITIONS = 3


class Batch:
    """What the relay fills."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def append(self, **row: Any) -> bool:
        self.rows.append(row)
        return True


class Log:
    """Every topic of a deployment. `lost_acknowledgements`: that share of sends is stored, and reported as failed."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.lost_acknowledgements = 0.0
        self.partitions: dict[tuple[str, int], list[Record]] = {}

    def create_batch(self) -> Batch:
        return Batch()

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> "asyncio.Future[None]":
        for row in batch.rows:
            self.append(topic, partition, row)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.chance.random() < self.lost_acknowledgements:
            done.set_exception(KafkaError("the acknowledgement was lost"))
        else:
            done.set_result(None)
        return done

    def append(self, topic: str, partition: int, row: dict[str, Any]) -> None:
        records = self.partitions.setdefault((topic, partition), [])
        records.append(
            Record(
                topic=topic,
                partition=partition,
                offset=len(records),
                key=row["key"],
                value=row["value"],
                headers=row["headers"],
                timestamp_ms=row["timestamp"],
            )
        )

    def end(self, topic: str, partition: int) -> int:
        return len(self.partitions.get((topic, partition), []))

    def read(self, topic: str, partition: int, offset: int, limit: int) -> Sequence[Record]:
        """From `offset` on; a consumer may have been given some of it before."""
        return self.partitions.get((topic, partition), [])[offset : offset + limit]

    def all(self, topic: str) -> Sequence[Record]:
        return [record for (name, _), records in self.partitions.items() if name == topic for record in records]
