"""In-memory replacement for Kafka: ordered partitions, with lost acknowledgements.

It replaces the relay's producer and the fetching of subscriptions. Relay and consumers run unchanged, including
sequence numbers, duplicate detection, positions and epochs.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any

from aiokafka.errors import KafkaError

from slipway_api.events.alert import AlertRaised
from slipway_api.events.topics import ALERT
from slipway_common.database.postgres import Connection
from slipway_common.messaging import incarnation
from slipway_common.messaging.incarnation import Incarnation, Sent
from slipway_common.messaging.partition_queues import Place
from slipway_common.messaging.records import Record
from slipway_common.messaging.relay import Relay
from slipway_common.messaging.sent import SHARED_RECORDS, add_own, header, raised_by

PARTITIONS = 3
PING_SECONDS = 10.0


class Batch:
    """Batch of records that the relay fills."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def append(self, **row: Any) -> bool:
        self.rows.append(row)
        return True


class Log:
    """All topics of a deployment. `lost_acknowledgements`: share of sends that are stored but reported as failed."""

    def __init__(self, chance: Random, now: Callable[[], datetime]) -> None:
        self.chance = chance
        self.now = now
        self.lost_acknowledgements = 0.0
        self.partitions: dict[tuple[str, int], list[Record]] = {}
        self.appended_at: dict[tuple[str, int], list[datetime]] = {}  # like `partitions`

    def create_batch(self) -> Batch:
        return Batch()

    async def partitions_for(self, topic: str) -> set[int]:
        return set(range(1 if topic.endswith(".dlq") else PARTITIONS))

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> "asyncio.Future[None]":
        for row in batch.rows:
            self.append(topic, partition, row)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.chance.random() < self.lost_acknowledgements:
            done.set_exception(KafkaError("the acknowledgement was lost"))
        else:
            done.set_result(None)
        return done

    async def abandon(self) -> None:
        """Nothing to close."""

    def append(self, topic: str, partition: int, row: dict[str, Any]) -> None:
        self.appended_at.setdefault((topic, partition), []).append(self.now())
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

    async def compare(self, db: Connection, relay: Relay) -> Incarnation:
        """Compare the rows of a service with the log, as its relay does before it sends anything."""
        return await incarnation.compare(
            db, Written(self, relay.service), place_of=relay.place_of, renewed=relay.renewed, ping_seconds=PING_SECONDS
        )

    def end(self, topic: str, partition: int) -> int:
        """End offset of a partition."""
        return len(self.partitions.get((topic, partition), []))

    def read(self, topic: str, partition: int, offset: int, limit: int) -> Sequence[Record]:
        """Up to `limit` records from `offset` on."""
        return self.partitions.get((topic, partition), [])[offset : offset + limit]

    def all(self, topic: str) -> Sequence[Record]:
        return [record for (name, _), records in self.partitions.items() if name == topic for record in records]

    def history(self, topic: str) -> Sequence[tuple[Record, datetime]]:
        """Records of a topic, and when each was appended; one that was sent twice is in it twice."""
        return [
            entry
            for place, records in self.partitions.items()
            if place[0] == topic
            for entry in zip(records, self.appended_at[place], strict=True)
        ]


class Written:
    """The part of a log that one service has written."""

    def __init__(self, log: Log, service: str) -> None:
        self.log = log
        self.service = service

    async def ends(self) -> Sent:
        numbers: dict[Place, dict[str, int]] = {}
        for place, records in self.log.partitions.items():
            for record in records[-SHARED_RECORDS:]:
                add_own(numbers.setdefault(place, {}), record, self.service)
        return Sent(numbers)

    async def among(self, waiting: Mapping[str, tuple[Place, datetime]]) -> Collection[str]:
        places = {place for place, _ in waiting.values()}
        records = (record for place in places for record in self.log.partitions.get(place, []))
        return waiting.keys() & {header(record, "ce_id") for record in records}

    async def raised_alerts(self) -> Collection[AlertRaised]:
        return raised_by(self.service, {record.key: record for record in self.log.all(ALERT.name)}.values())
