"""Topics on the broker, compared with the registry: creates missing ones and reports differences; deletes none."""

import asyncio
import sys
from typing import Final

import msgspec
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import InvalidReplicationFactorError, KafkaError, TopicAlreadyExistsError, for_code

from slipway_api.events.topics import CONSUMED, DAY_MS, TOPICS, Topic, dead_letter_topic
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.settings import from_environment
from slipway_common.messaging.clients import Kafka, KafkaSettings, client_options

BROKERS_SECONDS: Final = 10.0
"""Time in which brokers that are too few for the replicas may return, as after a restart."""
DEAD_LETTER_CONFIG: Final = {"cleanup.policy": "delete", "retention.ms": str(14 * DAY_MS)}


class Wanted(msgspec.Struct, frozen=True):
    """Desired state of one topic on the broker."""

    name: str
    partitions: int
    config: dict[str, str]


def wanted(*, prefix: str = "", partitions: int | None = None) -> list[Wanted]:
    """All topics and dead-letter topics. `partitions` overrides the registry's count (tests, demo)."""
    rows = [Wanted(prefix + t.name, partitions or t.partitions, t.config) for t in TOPICS]
    rows += [Wanted(prefix + dead_letter_topic(t, service), 1, DEAD_LETTER_CONFIG) for t, service in CONSUMED]
    return rows


def partition_counts(topics: tuple[Topic, ...] = TOPICS, partitions: int | None = None) -> dict[str, int]:
    """Partition count by topic name, for the relay."""
    return {t.name: partitions or t.partitions for t in topics}


async def create(kafka: Kafka, *, prefix: str = "", partitions: int | None = None, replicas: int = 1) -> int:
    """Create the registry's topics that the broker lacks and wait for leaders; returns the number created."""
    return await ensure(kafka, wanted(prefix=prefix, partitions=partitions), replicas=replicas)


async def ensure(kafka: Kafka, rows: list[Wanted], *, replicas: int = 1) -> int:
    """Create missing topics and wait until every partition has a leader; returns the number created.

    Raises KafkaError if the broker refuses.
    """
    admin = AIOKafkaAdminClient(**client_options(kafka))
    try:
        await admin.start()
        present = set(await admin.list_topics())
        missing = [row for row in rows if row.name not in present]
        if missing:
            new = [NewTopic(row.name, row.partitions, replicas, topic_configs=row.config) for row in missing]
            await _create(admin, new)
        await _wait_for_leaders(admin, [row.name for row in rows])
    finally:
        await admin.close()
    return len(missing)


async def _create(admin: AIOKafkaAdminClient, new: list[NewTopic]) -> None:
    """Create topics. Raises KafkaError for the first that is refused: for want of brokers only after a while."""
    until = monotonic_seconds() + BROKERS_SECONDS
    while True:
        response = await admin.create_topics(new, timeout_ms=30_000)
        refused = [row for row in response.topic_errors if row[1] not in {0, TopicAlreadyExistsError.errno}]
        if not refused:
            return
        name, code, *rest = refused[0]
        if code != InvalidReplicationFactorError.errno or monotonic_seconds() > until:
            raise for_code(code)(f"{name}: {rest[0] if rest else ''}")
        await asyncio.sleep(0.2)


async def _wait_for_leaders(admin: AIOKafkaAdminClient, names: list[str]) -> None:
    """Wait until every partition has a leader; before that, producing fails. Raises TimeoutError after 10 s."""
    for _ in range(200):
        described = await admin.describe_topics(names)
        if all(t["error_code"] == 0 and all(p["leader"] >= 0 for p in t["partitions"]) for t in described):
            return
        await asyncio.sleep(0.05)
    raise TimeoutError("topics were created but have no leaders after 10 s")


async def diff(kafka: Kafka, *, prefix: str = "", partitions: int | None = None) -> list[str]:
    """Differences between the broker and the registry, one line each."""
    rows = wanted(prefix=prefix, partitions=partitions)
    admin = AIOKafkaAdminClient(**client_options(kafka))
    try:
        await admin.start()
        present = set(await admin.list_topics())
        found = [row for row in rows if row.name in present]
        lines = [f"{row.name}: missing" for row in rows if row.name not in present]
        if not found:
            return lines
        counts = {t["topic"]: len(t["partitions"]) for t in await admin.describe_topics([r.name for r in found])}
        resources = [ConfigResource(ConfigResourceType.TOPIC, row.name) for row in found]
        configs: dict[str, dict[str, str]] = {}
        for response in await admin.describe_configs(resources):
            for _, _, _, name, entries in response.resources:
                configs[name] = {entry[0]: entry[1] for entry in entries}
        for row in found:
            if counts[row.name] != row.partitions:
                lines.append(f"{row.name}: {counts[row.name]} partitions, wanted {row.partitions}")
            for key, value in row.config.items():
                if configs.get(row.name, {}).get(key) != value:
                    lines.append(f"{row.name}: {key} is {configs.get(row.name, {}).get(key)}, wanted {value}")
        return lines
    finally:
        await admin.close()


async def delete(kafka: Kafka, *, prefix: str) -> None:
    """Delete the topics with a prefix, as used by a test run. Raises ValueError for an empty prefix (production)."""
    if not prefix:
        raise ValueError("refusing to delete topics without a prefix")
    admin = AIOKafkaAdminClient(**client_options(kafka))
    await admin.start()
    try:
        present = set(await admin.list_topics())
        await admin.delete_topics([row.name for row in wanted(prefix=prefix) if row.name in present])
    finally:
        await admin.close()


class TopicSettings(KafkaSettings):
    """Settings of topic creation."""

    topic_prefix: str = ""
    partitions: int | None = None
    replicas: int = 1
    """Replication factor, at most the number of brokers [default: 1]. Three is usual in production."""


def main() -> None:
    """Create missing topics, print differences, and exit: 1 if any differ. `python -m` runs it."""
    settings = from_environment(TopicSettings)
    kafka, prefix, partitions = settings.kafka_access, settings.topic_prefix, settings.partitions
    try:
        created = asyncio.run(create(kafka, prefix=prefix, partitions=partitions, replicas=settings.replicas))
        differences = asyncio.run(diff(kafka, prefix=prefix, partitions=partitions))
    except (KafkaError, OSError) as error:
        sys.exit(f"the broker of SLIPWAY_KAFKA={settings.kafka} cannot be used: {error}")
    print(f"{created} topic{'' if created == 1 else 's'} created")  # noqa: T201 # this is a command
    sys.exit("\n".join(differences) or 0)


if __name__ == "__main__":
    main()
