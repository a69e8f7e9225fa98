"""Registry of topics: every event has one topic, and all topics meet the documented guarantees."""

import re
from typing import Any

import msgspec
import pytest

from generate.examples import EXAMPLES
from slipway_common.events.topics import CONSUMED, DECODERS, EVENT_OF, TOPIC_OF, TOPICS, Topic, dead_letter_topic, group

EVENTS = list(TOPIC_OF)


def test_every_event_has_one_topic_and_one_type() -> None:
    listed = [event for topic in TOPICS for event in topic.events]
    assert len(listed) == len(set(listed)) == len(EVENT_OF) == len(DECODERS)
    assert {event.type for event in listed} == set(EVENT_OF)


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_topic_names_work_in_every_broker_and_metric(topic: Topic) -> None:
    """`.` and `_` collide in metric names; a name has at most 249 characters, as has its dead-letter topic's."""
    assert re.fullmatch(r"slipway(\.[a-z]+(-[a-z]+)*)+\.v[0-9]+", topic.name)
    for service in topic.consumers:
        assert len(dead_letter_topic(topic, service)) <= 200
        assert group(service, topic).startswith(f"slipway.{service}.")


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.type)
def test_events_are_frozen_values_with_a_versioned_type(event: type[Any]) -> None:
    assert re.fullmatch(r"io\.slipway\.[a-z_]+\.[a-z_]+\.v[0-9]+", event.type)
    assert event.type.rsplit(".", 1)[1] == TOPIC_OF[event].name.rsplit(".", 1)[1]
    assert msgspec.structs.fields(event)
    assert event.__struct_config__.frozen
    assert not event.__struct_config__.forbid_unknown_fields


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.type)
def test_keys_and_subjects_come_from_the_event(event: Any) -> None:
    topic = TOPIC_OF[type(event)]
    assert topic.key(event)
    assert topic.subject(event)


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic.compacted], ids=lambda topic: topic.name)
def test_compacted_topics_keep_one_record_per_subject(topic: Topic) -> None:
    """Compaction keeps the newest record of a key, so that a key must belong to one subject."""
    for event in (event for event in EXAMPLES if TOPIC_OF[type(event)] is topic):
        assert topic.key(event) == topic.subject(event)


def test_consumed_lists_every_pair_once() -> None:
    assert sorted((topic.name, service) for topic, service in CONSUMED) == sorted(
        (topic.name, service) for topic in TOPICS for service in topic.consumers
    )
