"""Envelope headers: encoding and decoding are lossless, and undecodable headers are rejected with a reason."""

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.pool import DemandReported
from slipway_api.events.worker import Scope, WorkerLaunchFailed
from slipway_common.base.errors import BadEvent
from slipway_common.messaging import envelope
from slipway_common.messaging.envelope import Envelope, UnknownType, decode, decode_data, encode

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RECEIVED = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
USUAL = {
    "ce_specversion": b"1.0",
    "ce_id": b"1",
    "ce_type": b"t",
    "ce_source": b"/s",
    "ce_time": b"2026-01-05T09:30:00Z",
}

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
NUMBER = st.integers(0, 2**63 - 1)


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    numbered = draw(st.booleans())
    offset = timezone(timedelta(minutes=draw(st.integers(-23 * 60, 23 * 60))))
    return Envelope(
        id=draw(TEXT),
        type=draw(TEXT),
        source=draw(TEXT),
        subject=draw(st.just("") | TEXT),
        time=(EPOCH + timedelta(microseconds=draw(st.integers(0, 2**52)))).astimezone(offset),
        sequence_number=draw(NUMBER) if numbered else None,
        previous=draw(NUMBER) if numbered else None,
        sequence_source=draw(TEXT) if numbered else "",
        revision=draw(st.none() | NUMBER),
        traceparent=draw(st.just("") | TEXT),
    )


@given(envelopes())
def test_round_trip(sent: Envelope) -> None:
    assert decode(encode(sent), received_at=RECEIVED) == sent


@given(st.dictionaries(st.sampled_from([*USUAL, "ce_slipwaynumber", "traceparent", "x"]), st.none() | st.binary()))
def test_any_bytes_are_decoded_or_rejected_with_a_reason(headers: Mapping[str, bytes | None]) -> None:
    """Any headers give attributes or raise BadEvent, and nothing else."""
    with contextlib.suppress(BadEvent):
        decode(list(headers.items()), received_at=RECEIVED)


def test_missing_time_is_receipt() -> None:
    headers = [(name, value) for name, value in USUAL.items() if name != "ce_time"]
    assert decode(headers, received_at=RECEIVED).time == RECEIVED


def test_headers_may_come_in_any_order_and_twice() -> None:
    """The last of two equal headers counts, and both must be text."""
    turned = list(reversed(USUAL.items()))
    assert decode(turned, received_at=RECEIVED) == decode(list(USUAL.items()), received_at=RECEIVED)
    assert decode([*turned, ("ce_id", b"2")], received_at=RECEIVED).id == "2"
    with pytest.raises(BadEvent, match="header ce_id is not UTF-8"):
        decode([("ce_id", b"\xff"), *turned], received_at=RECEIVED)


def test_new_header_names_take_no_memory() -> None:
    """Neither many layouts are stored nor long ones."""
    envelope._layouts.clear()
    assert decode([*USUAL.items(), ("x" * 2_000, b"")], received_at=RECEIVED).id == "1"
    assert not envelope._layouts
    for n in range(2 * envelope.LAYOUTS_MAX):
        assert decode([*USUAL.items(), (f"x-{n}", b"")], received_at=RECEIVED).id == "1"
    assert len(envelope._layouts) <= envelope.LAYOUTS_MAX


def test_other_headers_are_left_alone() -> None:
    assert decode([*USUAL.items(), ("x-mine", b"\xff")], received_at=RECEIVED).id == "1"


BAD_HEADERS = [
    ({"ce_id": None}, "ce_id"),
    ({"ce_type": b"", "ce_source": b""}, "ce_type, ce_source"),
    ({"ce_id": b"\xff\xfe"}, "header ce_id is not UTF-8"),
    ({"traceparent": b"\xff"}, "header traceparent is not UTF-8"),
    ({"ce_specversion": b"0.3"}, "version 0.3 is not 1.x"),
    ({"ce_time": b"yesterday"}, "'yesterday' is not RFC 3339"),
    ({"ce_time": b"2026-01-05T09:30:00"}, "no time zone"),
    ({"ce_slipwaynumber": b"many"}, "ce_slipwaynumber 'many' is not a number"),
    ({"ce_slipwayrevision": b""}, "is not a number"),
]


@pytest.mark.parametrize(("change", "reason"), BAD_HEADERS)
def test_undecodable_headers_have_a_reason(change: Mapping[str, bytes | None], reason: str) -> None:
    with pytest.raises(BadEvent, match=reason):
        decode(list({**USUAL, **change}.items()), received_at=RECEIVED)


def test_unknown_type_is_not_a_bad_event() -> None:
    """An unknown type is skipped and counted, whatever its value: a newer producer is not an error."""
    with pytest.raises(UnknownType):
        decode_data("io.slipway.worker.levitated.v1", b"\xff not json")


def test_tombstone_has_no_event() -> None:
    assert decode_data(DemandReported.type, None) is None


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"null", b'{"pool_id": 5}', b"\xff", b"{}"])
def test_undecodable_value_is_a_bad_event(value: bytes) -> None:
    with pytest.raises(BadEvent, match=DemandReported.type):
        decode_data(DemandReported.type, value)


def test_newer_values_and_fields_are_accepted() -> None:
    """An unknown enum value decodes as unknown, an unknown field is ignored."""
    event = decode_data(
        WorkerLaunchFailed.type,
        b'{"worker_id":"w","pool_id":"p","launch_config_id":"c","account_id":"a","image_revision":"i","batch_id":"b",'
        b'"mood":"gloomy","outcome":{"stage":"launch","result":"failed","scope":"astrology","house":7}}',
    )
    assert event.outcome.scope is Scope.UNKNOWN
