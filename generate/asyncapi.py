"""AsyncAPI 3.0 document: topics as Kafka channels, events as messages, and the services that send and receive them."""

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

from slipway_api.events.topics import CONSUMED, TOPICS, Topic, group

# Version of the contracts. Within a series (1.x, or 0.3.x before 1.0) all changes are additive.
VERSION: Final = "0.3.0"
BINDING: Final = "0.5.0"
HEADERS: Final = {
    "type": "object",
    "required": ["ce_specversion", "ce_id", "ce_type", "ce_source"],
    "properties": {
        "ce_specversion": {"const": "1.0"},
        "ce_id": {"type": "string", "description": "Unique per source."},
        "ce_type": {"type": "string", "description": "Name of the message."},
        "ce_source": {"type": "string", "format": "uri-reference", "description": "Producer of the event."},
        "ce_subject": {"type": "string", "description": "Subject, of percent-encoded ids; its events are ordered."},
        "ce_time": {"type": "string", "format": "date-time", "description": "When it happened."},
        "content-type": {"const": "application/json"},
        "ce_slipwaysource": {"type": "string", "description": "Source and incarnation of the sequence numbers."},
        "ce_slipwaynumber": {
            "type": "string",
            "pattern": "^[0-9]+$",
            "description": "Sequence number per source and partition.",
        },
        "ce_slipwayprevious": {"type": "string", "pattern": "^[0-9]+$", "description": "Preceding sequence number."},
        "ce_slipwayrevision": {"type": "string", "pattern": "^[0-9]+$", "description": "Version of the subject."},
        "traceparent": {"type": "string", "description": "W3C Trace Context."},
    },
}


def document() -> dict[str, Any]:
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Slipway",
            "version": VERSION,
            "description": "CloudEvents 1.0 in binary content mode: attributes in ce_ headers, the plain JSON data as "
            "the value. Topic names may have a deployment's prefix. Changes within a series of versions (1.x, or 0.2.x "
            "before 1.0) are additive; a breaking change is a new type and topic.",
            "license": {"name": "MPL-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {topic.name: _channel(topic) for topic in TOPICS},
        "operations": {
            **{
                f"{service}.send.{topic.name}": _operation("send", topic, service)
                for topic in TOPICS
                for service in sorted(topic.producers)
            },
            **{f"{service}.receive.{topic.name}": _operation("receive", topic, service) for topic, service in CONSUMED},
        },
        "components": {
            "messages": {event.type: _message(topic, event) for topic in TOPICS for event in topic.events},
            "schemas": {"headers": HEADERS},
        },
    }


class _Fields:
    """Placeholder for an event that renders a topic's key as a template of field names."""

    def __init__(self, event: type[Any]) -> None:
        self._names = event.__struct_fields__

    def __getattr__(self, name: str) -> str:
        if name not in self._names:
            raise AttributeError(name)
        return f"{{{name}}}"


def key_of(topic: Topic) -> str:
    """Record key as a template of fields, each percent-encoded, for example {pool_id}/{source}."""
    return _template(topic.key, topic)


def subject_of(topic: Topic) -> str:
    """Subject, whose events are ordered, as a template."""
    return _template(topic.subject, topic)


def _template(made: Callable[[Any], str], topic: Topic) -> str:
    return " or ".join(sorted({unquote(made(_Fields(event))) for event in topic.events}))


def _channel(topic: Topic) -> dict[str, Any]:
    config: dict[str, Any] = {
        name: int(value) if value.isdigit() else value.split(",") for name, value in sorted(topic.config.items())
    }
    return {
        "address": topic.name,
        "description": f"Keyed by {key_of(topic)}; ordered per {subject_of(topic)}. Ids are percent-encoded in both.",
        "messages": {event.type: {"$ref": f"#/components/messages/{event.type}"} for event in topic.events},
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions,
                "topicConfiguration": config,
                "bindingVersion": BINDING,
            }
        },
    }


def _operation(action: str, topic: Topic, service: str) -> dict[str, Any]:
    channel = f"#/channels/{topic.name}"
    operation: dict[str, Any] = {
        "action": action,
        "channel": {"$ref": channel},
        "messages": [{"$ref": f"{channel}/messages/{event.type}"} for event in topic.events],
        "tags": [{"name": service}],
    }
    if action == "receive":
        group_id = {"type": "string", "enum": [group(service, topic)]}
        operation["bindings"] = {"kafka": {"groupId": group_id, "bindingVersion": BINDING}}
    return operation


def _message(topic: Topic, event: Any) -> dict[str, Any]:
    return {
        "name": event.type,
        "title": event.__name__,
        "contentType": "application/json",
        "headers": {"$ref": "#/components/schemas/headers"},
        "payload": {
            "schemaFormat": "application/schema+json;version=draft-2020-12",
            "schema": {"$ref": f"schemas/{event.type}.json"},
        },
        "bindings": {"kafka": {"key": {"type": "string", "description": key_of(topic)}, "bindingVersion": BINDING}},
    }
