"""Registry of topics: every event has one topic, and all topics meet the documented guarantees."""

import re
from importlib import import_module
from typing import Any

import msgspec
import pytest

from generate.examples import EXAMPLES
from slipway_api.events.topics import (
    ALERT,
    CONSUMED,
    DECODERS,
    EVENT_OF,
    LAUNCH_CONFIG_SIGNAL,
    POOL_DEMAND,
    SERVICE_HEARTBEAT,
    TOPIC_OF,
    TOPICS,
    Topic,
    dead_letter_topic,
    group,
)
from slipway_common.base.settings import from_environment
from tests.support.provisioner import KEY

EVENTS = list(TOPIC_OF)
SERVICES = ("lease-broker", "provisioner", "weight-calculator")


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


@pytest.mark.parametrize("service", SERVICES)
def test_consumers_are_the_services_that_subscribe(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other service has the right to read a topic."""
    given = {"DATABASE_URL": "postgresql://db/db", "KAFKA": "kafka:9092", "REGISTRATION_KEYS": KEY}
    for name, value in (given | {"SECRETS_IN_ENVIRONMENT": "yes"}).items():
        monkeypatch.setenv(f"SLIPWAY_{name}", value)
    package = f"slipway_{service.replace('-', '_')}"
    settings = from_environment(import_module(f"{package}.settings").Settings)
    built = import_module(f"{package}.main").build(settings)
    leader_loop = built.runtime.leader_loop
    consumed = {consumer.topic for consumer in built.consumers} | {*(leader_loop.topics if leader_loop else ())}
    viewed = {view.topic for view in built.views}
    assert consumed == {topic for topic in TOPICS if service in topic.consumers and not topic.viewed}
    assert viewed == {topic for topic in TOPICS if service in topic.consumers and topic.viewed}


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_a_topic_has_one_service_that_writes_it(topic: Topic) -> None:
    """Apart from heartbeats and alerts, which every service writes; only demand and signals come from monitors."""
    services = topic.producers - {"monitors"}
    assert services <= {*SERVICES}
    assert len(services) <= 1 or (services == {*SERVICES} and topic in (SERVICE_HEARTBEAT, ALERT))
    assert ("monitors" in topic.producers) is (topic in (POOL_DEMAND, LAUNCH_CONFIG_SIGNAL))


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_subscribers_read_no_reports_and_no_requests(topic: Topic) -> None:
    assert topic.followed is not ("monitors" in topic.producers or ".request." in topic.name)


def test_consumed_lists_every_pair_once() -> None:
    assert sorted((topic.name, service) for topic, service in CONSUMED) == sorted(
        (topic.name, service) for topic in TOPICS for service in topic.consumers
    )
