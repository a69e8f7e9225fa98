"""Consumers read every example in contracts/, also with additions of a newer producer."""

import json
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipway_api.events.topics import CONSUMED, EVENT_OF, TOPICS, Topic
from slipway_common.messaging.envelope import decode, decode_data

FOLDER = Path(__file__).parents[2] / "contracts/examples"
RECEIVED = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
READ = [
    pytest.param(topic, event, id=f"{service}-{event.type}") for topic, service in CONSUMED for event in topic.events
]
MAPS = {"stages", "offsets"}
EVENTS = [pytest.param(topic, event, id=event.type) for topic in TOPICS for event in topic.events]


def record(event: type[Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / f"{event.type}.json").read_text())
    return loaded


def read(example: dict[str, Any]) -> Any:
    """Decode an event as consumers do: headers first, then the value."""
    headers = [(name, text.encode()) for name, text in example["headers"].items()]
    envelope = decode(headers, received_at=RECEIVED)
    return decode_data(envelope.type, json.dumps(example["data"]).encode())


@pytest.mark.parametrize(("topic", "event"), READ)
def test_consumers_read_every_example(topic: Topic, event: type[Any]) -> None:
    """Each example is on the topic that its consumers subscribe to, and encodes to the same value again."""
    example = record(event)
    decoded = read(example)
    assert (type(decoded), example["topic"]) == (event, topic.name)
    assert json.loads(msgspec.json.encode(decoded)) == example["data"]
    assert (topic.key(decoded), topic.subject(decoded)) == (example["key"], example["headers"]["ce_subject"])


@pytest.mark.parametrize(("topic", "event"), EVENTS)
def test_fields_of_a_newer_producer_are_ignored(topic: Topic, event: type[Any]) -> None:
    example = record(event)
    assert example["topic"] == topic.name
    newer = example | {"data": _with_more_fields(example["data"])}
    assert read(newer) == read(example)


def test_enum_values_of_a_newer_producer_are_unknown() -> None:
    """Every enum on the wire decodes a new value as `unknown` instead of rejecting the record."""
    met = set()
    for event in EVENT_OF.values():
        for place, name, kind in _enums(event):
            example = record(event)
            data = example["data"]
            if place:
                data[place] = data.get(place) or {"stage": "boot", "result": "ok"}
            (data[place] if place else data)[name] = "word-of-tomorrow"
            decoded = read(example)
            found = getattr(getattr(decoded, place) if place else decoded, name)
            assert found is kind.UNKNOWN  # type: ignore[attr-defined]
            met.add(kind)
    assert {kind.__name__ for kind in met} == {"Stage", "Result", "Scope", "Notice"}


def _enums(event: type[Any]) -> list[tuple[str, str, type[StrEnum]]]:
    """Enum fields of an event: its own, with an empty place, and those of its outcome. There are no others."""
    fields = [("", field) for field in msgspec.structs.fields(event)]
    outcome = next((field.type for _, field in fields if field.name == "outcome"), None)
    if outcome is not None:
        struct = outcome if isinstance(outcome, type) else next(iter(outcome.__args__))
        fields += [("outcome", field) for field in msgspec.structs.fields(struct)]
    found = [
        (place, field.name, field.type)
        for place, field in fields
        if isinstance(field.type, type) and issubclass(field.type, StrEnum)
    ]
    schemas = msgspec.json.schema_components([event])[1].values()
    assert {kind.__name__ for *_, kind in found} == {schema["title"] for schema in schemas if "enum" in schema}
    return found


def _with_more_fields(value: Any, name: str = "") -> Any:
    """The value with an additional field in every object that is not a map with the event's own keys."""
    if isinstance(value, list):
        return [_with_more_fields(part) for part in value]
    if not isinstance(value, dict):
        return value
    inner = {key: _with_more_fields(part, key) for key, part in value.items()}
    return inner if name in MAPS else inner | {"added_tomorrow": {"deep": [1, None, "x"]}}
