"""Record batches as bytes, also those that no client writes."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from aiokafka.errors import LeaderNotAvailableError, NodeNotReadyError, NotLeaderForPartitionError, for_code
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBase, DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition

from slipway_common.base.clock import monotonic_seconds

CODECS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ENCODE: Final[dict[int, Callable[[bytes], bytes]]] = {1: gzip_encode, 2: snappy_encode, 3: lz4_encode, 4: zstd_encode}
HEADER: Final = DefaultRecordBase.HEADER_STRUCT
NAME: Final = "ce_name"
TIMEOUT_MS: Final = 30_000
LEADER_SECONDS: Final = 30.0
NOT_LED: Final = (LeaderNotAvailableError, NodeNotReadyError, NotLeaderForPartitionError)


def batch(codec: int, *values: bytes, base_offset: int = 0) -> bytes:
    """A batch as a producer writes it and the broker stores it."""
    return records(codec, [(b"key", value, [(NAME, b"1")]) for value in values], base_offset=base_offset)


def records(
    codec: int,
    given: Sequence[tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]],
    *,
    base_offset: int = 0,
    timestamp_ms: int = 1_000,
) -> bytes:
    """A batch of records, each with key, value and headers."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2**30,
    )
    for offset, (key, value, headers) in enumerate(given):
        builder.append(offset, timestamp=timestamp_ms, key=key, value=value, headers=list(headers))
    built: bytes = builder.build()
    return base_offset.to_bytes(8) + built[8:]


def packed(raw: bytes, *, codec: int, base_offset: int = 0, encode: Callable[[bytes], bytes] | None = None) -> bytes:
    """The batch with its records encoded as `codec` says, or by `encode`."""
    fields, body = list(HEADER.unpack_from(raw)), (encode or ENCODE.get(codec, bytes))(raw[HEADER.size :])
    fields[0], fields[5] = base_offset, codec
    return checked(framed(HEADER.pack(*fields) + body))


def framed(raw: bytes) -> bytes:
    """The batch with its length before it."""
    return raw[:8] + (len(raw) - 12).to_bytes(4) + raw[12:]


def checked(raw: bytes) -> bytes:
    """The batch with the right checksum."""
    at = DefaultRecordBase.CRC_OFFSET
    checksum: int = calc_crc32c(raw[DefaultRecordBase.ATTRIBUTES_OFFSET :])
    return raw[:at] + checksum.to_bytes(4) + raw[at + 4 :]


def with_byte(raw: bytes, at: int, byte: int) -> bytes:
    return raw[:at] + bytes([byte]) + raw[at + 1 :]


async def produce(producer: AIOKafkaProducer, topic: str, partition: int, raw: bytes) -> int:
    """Have the broker store a batch; returns the offset of its first record. Raises KafkaError if it refuses.

    A broker that is too busy for its own heartbeats leads no partition for a moment.
    """
    deadline = monotonic_seconds() + LEADER_SECONDS
    while True:
        try:
            return await _produce(producer, topic, partition, raw)
        except NOT_LED:
            if monotonic_seconds() > deadline:
                raise
        await asyncio.sleep(0.1)
        await producer.client.force_metadata_update()


async def _produce(producer: AIOKafkaProducer, topic: str, partition: int, raw: bytes) -> int:
    await producer.partitions_for(topic)
    node = producer.client.cluster.leader_for_partition(TopicPartition(topic, partition))
    if node is None or node < 0:
        raise LeaderNotAvailableError
    request = ProduceRequest(None, -1, TIMEOUT_MS, [(topic, [(partition, raw)])])
    response: Any = await producer.client.send(node, request)
    ((_, ((_, error_code, offset, *_),)),) = response.topics
    if error_code:
        raise for_code(error_code)
    return int(offset)
