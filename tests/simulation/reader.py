"""In-memory replacement for the Kafka clients of LeaderLoop, which itself runs unchanged."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from slipway_common.messaging import kafka, leader_loop
from slipway_common.messaging.consume import Place

CLUSTER = "cluster"
Records = Mapping[Place, Sequence[ConsumerRecord[bytes, bytes]]]


class Reader:
    """Consumer that returns the given records in order."""

    def __init__(self, records: Records) -> None:
        self.records = {TopicPartition(*place): found for place, found in records.items()}
        self.positions: dict[TopicPartition, int] = {}
        self._client = self

    async def start(self) -> None:
        """Nothing to connect to."""

    async def stop(self) -> None:
        """Nothing to close."""

    async def _wait_on_metadata(self, name: str) -> set[int]:
        return {tp.partition for tp in self.records if tp.topic == name}

    def assign(self, tps: Iterable[TopicPartition]) -> None:
        self.positions = dict.fromkeys(tps, 0)

    def assignment(self) -> set[TopicPartition]:
        return set(self.positions)

    def pause(self, *_: TopicPartition) -> None:
        """Not needed: only sought partitions are read."""

    def resume(self, *_: TopicPartition) -> None:
        """Not needed, see pause."""

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.positions[tp] = offset

    async def beginning_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 0)

    async def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.highwater(tp) for tp in tps}

    def highwater(self, tp: TopicPartition) -> int:
        """End offset of a partition."""
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
        """Next records of a partition, at most `number`."""
        position = self.positions[tp]
        taken = self.records[tp][position : position + number]
        self.positions[tp] = position + len(taken)
        return taken


class Admin:
    """Admin client without a coordinator: positions cannot be committed to Kafka, which LeaderLoop tolerates."""

    def __init__(self, **_: Any) -> None:
        """Accept all options."""

    async def start(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to close."""

    async def find_coordinator(self, group_id: str) -> int:
        raise KafkaError(f"no coordinator of {group_id}")


@contextmanager
def reading(reader: Reader) -> Iterator[None]:
    """Make every LeaderLoop that connects within the context use this reader."""

    async def cluster_id(_: str) -> str:
        return CLUSTER

    with (
        mock.patch.object(leader_loop, "AIOKafkaConsumer", return_value=reader),
        mock.patch.object(leader_loop, "AIOKafkaAdminClient", Admin),
        mock.patch.object(kafka, "cluster_id", cluster_id),
    ):
        yield
