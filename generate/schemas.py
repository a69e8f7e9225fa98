"""JSON Schema 2020-12 of every event type, from its Struct. Objects are open: readers ignore unknown fields."""

import inspect
from datetime import datetime
from typing import Any, Final, get_args

import msgspec

from slipway_api.events.topics import EVENT_OF, TOPIC_OF

Schema = dict[str, Any]
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, Schema]:
    """Event type → schema of its data. `x-topic` is the topic of the event."""
    return {type_: _schema(event) for type_, event in sorted(EVENT_OF.items())}


def _schema(event: type[Any]) -> Schema:
    _, parts = msgspec.json.schema_components([event], ref_template="#/$defs/{name}")
    body: Schema = parts.pop(event.__name__)
    body["description"] = inspect.getdoc(event) or ""  # inherited from its base class if it has none

    for part in parts.values():
        if "description" in part:
            part["description"] = inspect.cleandoc(part["description"])
    for field in msgspec.structs.fields(event):
        if datetime in (field.type, *get_args(field.type)):
            _mark_time(body["properties"][field.encode_name])
    head = {"$schema": DIALECT, "$id": f"urn:slipway:schema:{event.type}", "x-topic": TOPIC_OF[event].name}
    return head | body | ({"$defs": parts} if parts else {})


def _mark_time(property_: Schema) -> None:
    for schema in (property_, *property_.get("anyOf", [])):
        if schema.get("type") == "string":
            schema["format"] = "date-time"
