"""Compatibility with the CloudEvents SDK in Kafka's binary mode, for reading and writing every event."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary_event, to_binary_event
from cloudevents.core.v1.event import CloudEvent

from generate.examples import EXAMPLES, example
from slipway_common.messaging.envelope import decode, decode_data

RECEIVED = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
IDS = [event.type for event in EXAMPLES]


def written(event: Any) -> tuple[dict[str, bytes], str, bytes]:
    record = example(event)
    headers = {name: text.encode() for name, text in record["headers"].items()}
    return headers, record["key"], json.dumps(record["data"]).encode()


@pytest.mark.parametrize("event", EXAMPLES, ids=IDS)
def test_the_sdk_reads_what_we_write(event: Any) -> None:
    headers, key, value = written(event)
    read = from_binary_event(KafkaMessage(headers=headers, key=key, value=value))
    ours = decode(headers.items(), received_at=RECEIVED)
    assert (read.get_specversion(), read.get_datacontenttype()) == ("1.0", "application/json")
    assert (read.get_id(), read.get_type(), read.get_source(), read.get_subject(), read.get_time()) == (
        ours.id,
        ours.type,
        ours.source,
        ours.subject,
        ours.time,
    )
    assert (read.get_extension("slipwaynumber"), read.get_extension("slipwayrevision")) == (
        None if ours.sequence_number is None else str(ours.sequence_number),
        None if ours.revision is None else str(ours.revision),
    )
    assert read.get_data() == json.loads(value)


@pytest.mark.parametrize("event", EXAMPLES, ids=IDS)
def test_we_read_what_the_sdk_writes_back(event: Any) -> None:
    """A round trip through the SDK loses only the trace, which is not a CloudEvents attribute."""
    headers, key, value = written(event)
    again = to_binary_event(from_binary_event(KafkaMessage(headers=headers, key=key, value=value)))
    envelope = decode(again.headers.items(), received_at=RECEIVED)
    del headers["traceparent"]
    assert envelope == decode(headers.items(), received_at=RECEIVED)
    assert decode_data(envelope.type, again.value) == event
    assert again.key == key


def test_an_external_producer_needs_only_the_sdk() -> None:
    """A report of a monitor with the required attributes alone: no time, subject or sequence numbers."""
    attributes = {"type": "io.slipway.pool.demand_reported.v1", "source": "/ci-queue", "id": "7", "specversion": "1.0"}
    data = {"pool_id": "linux", "source": "ci-queue", "pending": 3, "claimed": 0, "observed_at": "2026-01-05T09:59:58Z"}
    message = to_binary_event(CloudEvent(attributes=attributes, data=data))
    envelope = decode(message.headers.items(), received_at=RECEIVED)
    assert (envelope.id, envelope.source, envelope.sequence_number) == ("7", "/ci-queue", None)
    assert decode_data(envelope.type, message.value).pending == 3
