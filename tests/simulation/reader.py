"""Records in memory where Exclusive expects Kafka's clients, so that all of it runs as it is: bidding, taking over,
seeking, turns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from slipway_common import exclusive, kafka
from slipway_common.consume import Place

CLUSTER = "cluster"
Records = Mapping[Place, Sequence[ConsumerRecord[bytes, bytes]]]


class Reader:
    """All that there is, in order, as much at a time as it is asked for."""

    def __init__(self, records: Records) -> None:
        self.records = {TopicPartition(*place): found for place, found in records.items()}
        self.positions: dict[TopicPartition, int] = {}
        self._client = self

    async def start(self) -> None:
        """There is nothing to connect to."""

    async def stop(self) -> None:
        """Nor to let go of."""

    async def _wait_on_metadata(self, name: str) -> set[int]:
        return {tp.partition for tp in self.records if tp.topic == name}

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        self.positions = dict.fromkeys(tps, 0)

    def assignment(self) -> set[TopicPartition]:
        return set(self.positions)

    def pause(self, *_: TopicPartition) -> None:
        """It is only asked for records of what has been sought."""

    def resume(self, *_: TopicPartition) -> None:
        """See pause."""

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.positions[tp] = offset

    async def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 0)

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.highwater(tp) for tp in tps}

    def highwater(self, tp: TopicPartition) -> int:
        """Where the log ends."""
        return len(self.records[tp])

    async def getmany(
        self, *, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, Sequence[ConsumerRecord[bytes, bytes]]]:
        found: dict[TopicPartition, Sequence[ConsumerRecord[bytes, bytes]]] = {}
        left = max_records or 500
        for tp in self.positions:
            if left and (records := self.take(tp, left)):
                found[tp] = records
                left -= len(records)
        return found

    def take(self, tp: TopicPartition, number: int) -> Sequence[ConsumerRecord[bytes, bytes]]:
        """The next records of a partition, so many at most."""
        position = self.positions[tp]
        taken = self.records[tp][position : position + number]
        self.positions[tp] = position + len(taken)
        return taken


class Admin:
    """Asked only to tell Kafka the positions, which is tried and not needed."""

    def __init__(self, **_: Any) -> None:
        """Of whatever broker."""

    async def start(self) -> None:
        """There is nothing to connect to."""

    async def close(self) -> None:
        """Nor to let go of."""

    async def find_coordinator(self, group_id: str) -> int:
        raise KafkaError(f"nobody keeps positions of {group_id}")


@contextmanager
def reading(reader: Reader) -> Iterator[None]:
    """Every Exclusive that connects meanwhile reads by this reader."""

    async def cluster_id(_: str) -> str:
        return CLUSTER

    with (
        mock.patch.object(exclusive, "AIOKafkaConsumer", return_value=reader),
        mock.patch.object(exclusive, "AIOKafkaAdminClient", Admin),
        mock.patch.object(kafka, "cluster_id", cluster_id),
    ):
        yield
