"""Record batches as the broker sends them: every codec, and those that cannot be decoded."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def batch(codec: int, *values: bytes) -> bytes:
    """A batch as a producer writes it; the broker stores it unchanged."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1_000_000,
    )
    for offset, value in enumerate(values):
        builder.append(offset, timestamp=1_000, key=b"key", value=value, headers=[("ce_id", b"1")])
    return bytes(builder.build())


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_every_codec_is_installed(codec: int) -> None:
    """Without its library, the client would raise at every fetch of one compressed record."""
    fetched = MemoryRecords(batch(codec, b"a" * 1000, b"b"))
    compressed = fetched.next_batch()
    assert isinstance(compressed, DefaultRecordBatch)
    assert compressed.compression_type == codec
    assert [record.value for record in compressed] == [b"a" * 1000, b"b"]
