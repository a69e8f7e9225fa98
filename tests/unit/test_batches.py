"""Batches that tests send: a partition without a leader for a moment, and a refusal."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import CorruptRecordException, KafkaError

from tests.support.batches import produce

NOT_LEADER, CORRUPT = 6, 2


class Broker:
    """Broker to a producer: the `leaders` of its partition and the `codes` of its answers, one after another."""

    def __init__(self, leaders: list[int | None], codes: list[int]) -> None:
        self.codes = codes
        self.client = SimpleNamespace(
            cluster=SimpleNamespace(leader_for_partition=lambda _: leaders.pop(0)),
            send=self.send,
            force_metadata_update=self.nothing,
        )

    async def nothing(self, *_: object) -> None: ...

    partitions_for = nothing

    async def send(self, *_: object) -> Any:
        return SimpleNamespace(topics=[("t", [(0, self.codes.pop(0), 7, -1)])])


async def test_a_partition_without_a_leader_for_a_moment() -> None:
    """A drill stopped with error 6 of a broker on a busy computer, and those after it were not played."""
    broker: Any = Broker([None, -1, 0, 0], [NOT_LEADER, 0])
    assert await produce(broker, "t", 0, b"") == 7
    assert broker.codes == []


async def test_a_refusal_is_an_error_of_kafka() -> None:
    """Drills count it as broken, as any other."""
    broker: Any = Broker([0], [CORRUPT])
    with pytest.raises(KafkaError) as refused:
        await produce(broker, "t", 0, b"")
    assert refused.type is CorruptRecordException
