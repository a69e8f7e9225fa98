"""Fast path for records written by a relay: it gives the same result as the general path, or defers to it."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generate.examples import EXAMPLES
from slipway_api.events.topics import TOPIC_OF
from slipway_common.messaging import records
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.records import Record, opened, received

AT = datetime(2026, 8, 1, 12, tzinfo=UTC)
HEADERS = [
    "ce_specversion",
    "ce_id",
    "ce_type",
    "ce_source",
    "ce_time",
    "content-type",
    "ce_subject",
    "ce_slipwaysource",
    "ce_slipwaynumber",
    "ce_slipwayprevious",
    "ce_slipwayrevision",
    "traceparent",
]
STRANGE = [
    b"",
    b"\xff",
    b"nul\0",
    b"x" * 1001,
    b"-1",
    b"1_0",
    b" 7 ",
    b"9" * 30,
    b"1.1",
    b"2.0",
    b"yesterday",
    b"2026-08-01T12:00:00",
    b"2026-08-01T14:00:00.5+02:00",
    b"io.slipway.worker.beamed_up.v9",
    "ü".encode(),
    b"application/json; charset=utf-8",
    None,
]


def record(event: Any, headers: list[tuple[str, bytes | None]] | None = None, value: bytes | None = b"") -> Record:
    topic = TOPIC_OF[type(event)]
    envelope = Envelope(
        id="1",
        type=event.type,
        source="/slipway/x",
        subject=topic.subject(event),
        time=AT,
        sequence_number=8,
        previous=7,
        sequence_source="/slipway/x/1",
        revision=3,
        traceparent=f"00-{8:032x}-{8:016x}-01",
    )
    if value == b"":
        value = msgspec.json.encode(event)
    return Record(topic.name, 3, 99, topic.key(event).encode(), value, headers or encode(envelope), 1_700_000_000_000)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.type)
def test_records_of_a_relay_take_the_fast_path(event: Any) -> None:
    written = record(event)
    expected = received(written, opened(written))
    assert records._read_fast(written) == expected


@given(st.sampled_from(HEADERS), st.sampled_from(STRANGE), st.sampled_from([b"", b"{", b"null", None]))
def test_other_records_take_the_general_path(name: str, strange: bytes | None, value: bytes | None) -> None:
    """Any header and value give the same event with the same attributes, or none."""
    usual: list[tuple[str, bytes | None]] = list(record(EXAMPLES[0]).headers)
    changed = record(EXAMPLES[0], [(n, strange if n == name else v) for n, v in usual], value)
    quick = records._read_fast(changed)
    if quick is not None:
        assert quick == received(changed, opened(changed))


@pytest.mark.parametrize("size", [200, 201, 10_000])
def test_a_long_traceparent_is_left_out(size: int) -> None:
    """It would be stored with rows, and published with every event that continues it."""
    usual = record(EXAMPLES[0]).headers
    changed = record(EXAMPLES[0], [(n, b"t" * size if n == "traceparent" else v) for n, v in usual])
    ((_, _, event),) = records.read([changed])
    assert event.traceparent == ("t" * size if size == 200 else "")


@given(st.sets(st.sampled_from(HEADERS), min_size=1), st.booleans())
def test_other_headers_take_the_general_path(names: set[str], twice: bool) -> None:
    usual: list[tuple[str, bytes | None]] = [(n, v) for n, v in record(EXAMPLES[0]).headers if n in names]
    changed = record(EXAMPLES[0], [*usual, *usual[:1], ("ce_mine", b"\xff")] if twice else usual)
    quick = records._read_fast(changed)
    if quick is not None:
        assert quick == received(changed, opened(changed))
