"""Record batches as the broker sends them: every codec, and those that cannot be decoded."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.codec import snappy_encode
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBase
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from slipway_common.messaging import fetched as slipway_fetched
from slipway_common.messaging.fetched import FetchedBatches
from slipway_common.messaging.partitions import partitions_of
from slipway_common.messaging.records import Undecoded
from tests.support.batches import CODECS, NAME, batch, checked, framed, packed, records, with_byte


def fetched(*batches: bytes, position: int = 0) -> list[Any]:
    """Records that a consumer at `position` is given."""
    partition = TopicPartition("t", 0)
    records = fetcher.PartitionRecords(
        partition, fetcher.MemoryRecords(b"".join(batches)), [], position, None, None, True, fetcher.READ_UNCOMMITTED
    )
    return list(records)


def values(records: Sequence[Any]) -> list[tuple[int, bytes]]:
    return [(record.offset, record.value) for record in records]


def test_the_client_decodes_by_this_module() -> None:
    """Every consumer imports the module of partitions, and the client has no other way to its records."""
    assert partitions_of.__module__ == "slipway_common.messaging.partitions"
    assert fetcher.MemoryRecords is FetchedBatches


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_every_codec(codec: int) -> None:
    """Compressed records are read like others."""
    records = fetched(batch(codec, b"a" * 1000, b"b"), batch(codec, b"c", base_offset=2))
    assert values(records) == [(0, b"a" * 1000), (1, b"b"), (2, b"c")]
    assert [(record.key, record.headers) for record in records] == [(b"key", ((NAME, b"1"),))] * 3


def test_blocks_of_snappy() -> None:
    """Java's clients write snappy in blocks, here of 100 bytes."""
    xerial = batch(0, b"a" * 1000, b"b")
    for blocks in (partial(snappy_encode, xerial_blocksize=100), partial(snappy_encode, xerial_compatible=False)):
        assert values(fetched(packed(xerial, codec=2, encode=blocks))) == [(0, b"a" * 1000), (1, b"b")]


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_header_name_that_is_not_utf8(codec: int) -> None:
    """The record is read, with its neighbours, and the name of its header keeps its bytes."""
    name = b"ce_\xff\xfee\0"
    raw = packed(batch(0, b"a", b"b").replace(NAME.encode(), name), codec=codec, base_offset=1)
    records = fetched(batch(codec, b"first"), raw, batch(codec, b"last", base_offset=3))
    assert values(records) == [(0, b"first"), (1, b"a"), (2, b"b"), (3, b"last")]
    (header,) = records[1].headers
    assert (header[0].encode(errors="surrogateescape"), header[1]) == (name, b"1")
    assert (records[1].key, records[1].timestamp) == (b"key", 1_000)


CORRUPT = {
    "wrong checksum": batch(0, b"x", b"y", base_offset=1).replace(b"y", b"z"),
    "unknown compression codec 6": packed(batch(0, b"x", b"y"), codec=6, base_offset=1),
    "unknown record format 7": with_byte(batch(0, b"x", b"y", base_offset=1), 16, 7),
    "its header is incomplete": framed(batch(0, b"x", b"y", base_offset=1)[:40]),
    "Not a gzipped file": packed(batch(0, b"x", b"y"), codec=1, base_offset=1, encode=bytes),
    "snappy": packed(batch(0, b"x", b"y"), codec=2, base_offset=1, encode=bytes),
    "lz4": packed(batch(0, b"x", b"y"), codec=3, base_offset=1, encode=bytes),
    "Unknown frame descriptor": packed(batch(0, b"x", b"y"), codec=4, base_offset=1, encode=bytes),
    "a number has no end": checked(framed(batch(0, b"x", b"y", base_offset=1)[:61] + b"\xff" * 2**20)),
    "more than 8,388,608 bytes after decompression": packed(
        batch(0, b"x", b"y"), codec=2, base_offset=1, encode=lambda _: b"\xff\xff\xff\xff\x0fx"
    ),
    "a record has": checked(with_byte(batch(0, b"x", b"y", base_offset=1), 61, 2 * 15)),
    "ends after its record": checked(with_byte(batch(0, b"x", b"y", base_offset=1), 65, 2 * 60)),
}


@pytest.mark.parametrize("reason", CORRUPT)
def test_corrupt_batch(reason: str) -> None:
    """One value with the bytes and the reason takes the place of its records; its neighbours are read."""
    corrupt = CORRUPT[reason]
    first, dead, last = fetched(batch(0, b"first"), corrupt, batch(0, b"last", base_offset=3))
    assert values([first, last]) == [(0, b"first"), (3, b"last")]
    assert isinstance(dead.value, Undecoded)
    assert dead.value == corrupt
    assert dead.value.reason.startswith("record batch of offset")
    assert reason in dead.value.reason
    assert (dead.offset, dead.key, dead.headers) == (2, None, ())


@pytest.mark.parametrize("name", [b"name", b"nam\xff"])
def test_record_with_many_headers(name: bytes) -> None:
    """A few bytes can be millions of headers, which would take minutes to read and to store."""

    def with_headers(count: int, base_offset: int) -> bytes:
        raw = records(0, [(b"key", b"a", [("", None)] * (count - 1) + [("name", b"1")])])
        return packed(raw.replace(b"name", name), codec=4, base_offset=base_offset)

    first, dead = fetched(with_headers(1_000, 0), with_headers(200_000, 1))
    assert (first.value, len(first.headers)) == (b"a", 1_000)
    assert isinstance(dead.value, Undecoded)
    assert "a record has 200,000 headers; at most 1,000 are allowed" in dead.value.reason


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_batch_that_decompresses_to_too_much(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes that become many would end the process, at each start again."""
    monkeypatch.setattr(slipway_fetched, "DECOMPRESSED_BYTES_MAX", 2**20)
    fits, exceeds = batch(codec, bytes(2**20 - 100)), batch(codec, bytes(2**20), base_offset=1)
    first, dead = fetched(fits, exceeds)
    assert len(first.value) == 2**20 - 100
    assert dead.value == exceeds
    assert "more than 1,048,576 bytes after decompression" in dead.value.reason


def test_corrupt_batch_below_the_position() -> None:
    """A consumer that has read a part of the batch is given it too, and reads on."""
    corrupt = batch(0, b"x", b"y", base_offset=0).replace(b"y", b"z")
    assert [record.offset for record in fetched(corrupt, batch(0, b"last", base_offset=2), position=1)] == [1, 2]


def test_corrupt_count_of_offsets() -> None:
    """Records behind a batch that seems to end far beyond them are read."""
    corrupt = with_byte(batch(0, b"x"), 23, 0x70)
    assert [record.offset for record in fetched(corrupt, batch(0, b"last", base_offset=1))] == [0, 1]


def test_batch_that_the_broker_has_cut_off() -> None:
    """The broker ends an answer at its size; the next one begins with that batch."""
    raw = batch(0, b"x" * 100, base_offset=1)
    for cut in (5, 11, 12, 60, len(raw) - 1):
        assert values(fetched(batch(0, b"first"), raw[:cut])) == [(0, b"first")]
    assert not FetchedBatches(b"").has_next()
    assert not FetchedBatches(bytes(100)).has_next()
    assert FetchedBatches(raw[:50]).size_in_bytes() == 50


@pytest.mark.parametrize("codec", [0, 1])
def test_batch_of_an_older_format(codec: int) -> None:
    """A broker may still have records from before Kafka 0.11, which have no headers."""
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=codec, batch_size=1_000)
    for offset in (0, 1):
        builder.append(offset, timestamp=1_000, key=b"key", value=b"old")
    raw: bytes = builder.build()
    assert values(fetched(bytes(raw), batch(0, b"new", base_offset=2))) == [(0, b"old"), (1, b"old"), (2, b"new")]


def test_control_batch() -> None:
    """Marks of transactions are no records, but a corrupt batch that looks like one is not passed unseen."""
    control = checked(with_byte(batch(0, b"x", base_offset=1), 22, DefaultRecordBase.CONTROL_MASK))
    assert values(fetched(batch(0, b"a"), control, batch(0, b"b", base_offset=2))) == [(0, b"a"), (2, b"b")]
    (corrupt,) = fetched(with_byte(batch(0, b"x"), 22, DefaultRecordBase.CONTROL_MASK))
    assert isinstance(corrupt.value, Undecoded)
