"""Decoding of fetched record batches. One that cannot be decoded becomes one `Undecoded` value in place of its records.

The client itself raises at such a batch, loses the records that it returns with it, and raises again at the next fetch.
A broker checks what producers send, but not if names of headers are UTF-8, and it returns what its disk returns.
"""

import gzip
import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import cramjam
import msgspec
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBase
from aiokafka.record.memory_records import MemoryRecords

from slipway_common.base.errors import BadEvent
from slipway_common.messaging.records import Undecoded

FRAME_BYTES: Final = 12  # base offset and length, before every batch
MAGIC: Final = 16  # place of the format's version
CODEC: Final = 22  # place of the byte with the codec
HEADER: Final = DefaultRecordBase.HEADER_STRUCT
ATTRIBUTES: Final = 5  # among the fields of HEADER; the length is the second
CODEC_MASK: Final = DefaultRecordBase.CODEC_MASK
# By default clients put at most 1 MiB into a batch before they compress it; zstd can make terabytes of that. A header
# that is empty takes 70 times its bytes in memory.
DECOMPRESSED_BYTES_MAX: Final = 8 * 2**20
HEADERS_MAX: Final = 1_000  # of one record: 500 bytes can be millions, which take minutes to read and store
NONE: Final = -1  # length of a null
VARINT_BITS_MAX: Final = 64
XERIAL: Final = b"\x82SNAPPY\0"  # what Java's clients write before blocks of snappy
XERIAL_BYTES: Final = 16


class FetchedRecord(NamedTuple):
    """One record, with the attributes that the client expects."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    checksum: None = None


class FetchedBatch(msgspec.Struct, frozen=True):
    """One batch, with the attributes that the client expects. Its checksum is known to be right, or its only record is
    `Undecoded`. No producer is named, since that matters only to consumers of committed transactions."""

    next_offset: int
    records: Sequence[Any]
    is_control_batch: bool = False
    is_transactional: bool = False
    producer_id: None = None

    def validate_crc(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return iter(self.records)


class FetchedBatches:
    """Batches of one partition in the answer to a fetch request, in place of the client's class."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._start = 0
        self._end = self._end_of(0)

    def _end_of(self, start: int) -> int:
        """End of the batch at `start`; 0 if there is none, or if the broker has cut it off."""
        first = start + FRAME_BYTES
        end = first + int.from_bytes(self._data[first - 4 : first], signed=True)
        return end if first < end <= len(self._data) else 0

    def size_in_bytes(self) -> int:
        return len(self._data)

    def has_next(self) -> bool:
        return self._end > 0

    def next_batch(self) -> FetchedBatch:
        raw = self._data[self._start : self._end]
        self._start, self._end = self._end, self._end_of(self._end)
        following = int.from_bytes(self._data[self._start : self._start + 8], signed=True) if self._end else None
        return batch_of(raw, following)


def batch_of(raw: bytes, following: int | None = None) -> FetchedBatch:
    """Decode a batch; one `Undecoded` takes the place of its records if that fails. The next batch, if it is known,
    begins at the offset `following`."""
    try:
        magic = raw[MAGIC] if len(raw) > MAGIC else 0
        if magic > 2:
            raise BadEvent(f"unknown record format {magic}")
        if magic == 2 and len(raw) < HEADER.size:
            raise BadEvent("its header is incomplete")
        batch = MemoryRecords(raw).next_batch()
        if not batch.validate_crc():
            raise BadEvent("wrong checksum")
        records = _records(raw, batch) if magic == 2 else list(batch)
        return FetchedBatch(batch.next_offset, records, batch.is_control_batch)
    except MemoryError:
        raise  # no fault of the batch
    except Exception as error:
        return _undecoded(raw, following, str(error) or repr(error))


def _undecoded(raw: bytes, following: int | None, reason: str) -> FetchedBatch:
    base_offset = last_offset = int.from_bytes(raw[:8], signed=True)
    stored_ms = 0
    if len(raw) >= HEADER.size and raw[MAGIC] >= 2:
        fields = HEADER.unpack_from(raw)
        last_offset, stored_ms = base_offset + fields[6], max(0, fields[8])
    elif following is not None:
        last_offset = following - 1
    if following is not None and not base_offset <= last_offset < following:
        last_offset = following - 1  # the count of offsets is corrupt as well
    last_offset = max(last_offset, base_offset)
    offsets = f"offset {base_offset}" if base_offset == last_offset else f"offsets {base_offset}…{last_offset}"
    value = Undecoded(raw, f"record batch of {offsets} cannot be decoded: {reason}")
    # The client drops records below its position, which may be anywhere in the batch.
    undecoded = FetchedRecord(last_offset, stored_ms, 0, None, value)
    return FetchedBatch(last_offset + 1, [undecoded])


def _records(raw: bytes, batch: Any) -> Sequence[Any]:
    """Records of a batch of today's format."""
    if raw[CODEC] & CODEC_MASK:
        raw = _decompressed(raw)
        batch = MemoryRecords(raw).next_batch()
    try:
        records = list(batch)
    except Exception:
        records = list(_with_escaped_names(raw))
    for record in records:
        _check_headers(len(record.headers))
    return records


def _check_headers(count: int) -> None:
    if count > HEADERS_MAX:
        raise BadEvent(f"a record has {count:,} headers; at most {HEADERS_MAX:,} are allowed")


def _decompressed(raw: bytes) -> bytes:
    """The same batch without compression. Raises BadEvent for an unknown codec and for too many bytes, and any error of
    a codec."""
    fields = list(HEADER.unpack_from(raw))
    codec = fields[ATTRIBUTES] & CODEC_MASK
    if codec not in CODECS:
        raise BadEvent(f"unknown compression codec {codec}")
    body = CODECS[codec](raw[HEADER.size :])
    if len(body) > DECOMPRESSED_BYTES_MAX:
        raise BadEvent(f"more than {DECOMPRESSED_BYTES_MAX:,} bytes after decompression")
    fields[1] = HEADER.size - FRAME_BYTES + len(body)
    fields[ATTRIBUTES] &= ~CODEC_MASK
    return bytes(HEADER.pack(*fields)) + body


def _gunzip(body: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
        return file.read(DECOMPRESSED_BYTES_MAX + 1)


def _into(decompress_into: Callable[[bytes, bytearray], int], body: bytes) -> bytes:
    """Decompress into a buffer of a limited size, which is enlarged as long as it does not suffice."""
    size = 2**20
    while True:
        buffer = bytearray(size)
        try:
            return bytes(memoryview(buffer)[: decompress_into(body, buffer)])
        except cramjam.DecompressionError as error:
            if size > DECOMPRESSED_BYTES_MAX:
                raise BadEvent(
                    f"corrupt, or more than {DECOMPRESSED_BYTES_MAX:,} bytes after decompression: {error}"
                ) from error
        size = min(size * 8, DECOMPRESSED_BYTES_MAX + 1)


def _unsnappy(body: bytes) -> bytes:
    if not body.startswith(XERIAL):
        return _snappy_block(body)
    blocks, at = bytearray(), XERIAL_BYTES
    while at < len(body) and len(blocks) <= DECOMPRESSED_BYTES_MAX:
        start = at + 4
        at = start + int.from_bytes(body[at:start])
        blocks += _snappy_block(body[start:at])
    return bytes(blocks)


def _snappy_block(block: bytes) -> bytes:
    """Decompress one block. It begins with the size that it will have, which the codec allocates unseen: up to 4 GiB,
    and where that fails the process ends."""
    size, _ = _unsigned(block, 0)
    if size > DECOMPRESSED_BYTES_MAX:
        raise BadEvent(f"more than {DECOMPRESSED_BYTES_MAX:,} bytes after decompression")
    return bytes(cramjam.snappy.decompress_raw(block))


CODECS: Final[dict[int, Callable[[bytes], bytes]]] = {
    DefaultRecordBase.CODEC_GZIP: _gunzip,
    DefaultRecordBase.CODEC_SNAPPY: _unsnappy,
    DefaultRecordBase.CODEC_LZ4: partial(_into, cramjam.lz4.decompress_into),
    DefaultRecordBase.CODEC_ZSTD: partial(_into, cramjam.zstd.decompress_into),
}


def _with_escaped_names(raw: bytes) -> Iterator[FetchedRecord]:
    """Records of an uncompressed batch. Bytes that are not UTF-8 in names of headers become surrogates, as in names of
    files. Raises any error if the batch is corrupt."""
    fields = HEADER.unpack_from(raw)
    base_offset, attributes, first_ms, newest_ms, count = fields[0], fields[5], fields[7], fields[8], fields[12]
    timestamp_type = int(bool(attributes & DefaultRecordBase.TIMESTAMP_TYPE_MASK))
    at = HEADER.size
    for _ in range(count):
        size, at = _varint(raw, at)
        end = at + size
        milliseconds, at = _varint(raw, at + 1)  # after the attributes, which have no meaning yet
        offset, at = _varint(raw, at)
        key, at = _nullable(raw, at)
        value, at = _nullable(raw, at)
        headers_left, at = _varint(raw, at)
        _check_headers(headers_left)
        headers = []
        for _ in range(headers_left):
            name, at = _nullable(raw, at)
            content, at = _nullable(raw, at)
            headers.append(((name or b"").decode(errors="surrogateescape"), content))
        if at != end:
            raise BadEvent(f"a record has {size} bytes, but ends after {at - end + size}")
        stored_ms = newest_ms if timestamp_type else first_ms + milliseconds
        yield FetchedRecord(base_offset + offset, stored_ms, timestamp_type, key, value, tuple(headers))


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A zigzag-encoded number of variable length, and the place after it."""
    number, at = _unsigned(raw, at)
    return (number >> 1) ^ -(number & 1), at


def _unsigned(raw: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and the place after it. Its length is limited: an endless one would take hours."""
    number = 0
    for shift in range(0, VARINT_BITS_MAX, 7):
        byte = raw[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return number, at
    raise BadEvent("a number has no end")


def _nullable(raw: bytes, at: int) -> tuple[bytes | None, int]:
    """Bytes with their length before them, and the place after them."""
    size, at = _varint(raw, at)
    if size == NONE:
        return None, at
    if not 0 <= size <= len(raw) - at:
        raise BadEvent(f"a field of {size} bytes ends after its record")
    return raw[at : at + size], at + size


def install() -> None:
    """Let all consumers of this process decode by this module; the client has no setting for it."""
    fetcher.MemoryRecords = FetchedBatches
