"""Creation of topics on a real broker, and comparison with the registry."""

import msgspec
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from slipway_api.events.topics import CONSUMED, TOPICS, WORKER_LIFECYCLE
from slipway_common.messaging import topic_admin
from tests.support.harness import Place, until


async def test_create_and_diff(place: Place) -> None:
    """Creation is idempotent; afterwards nothing differs, and every later change is reported."""
    broker, prefix = place.kafka.bootstrap, place.prefix
    assert len(await topic_admin.diff(broker, prefix=prefix, partitions=1)) == len(TOPICS) + len(CONSUMED)
    assert await topic_admin.create(broker, prefix=prefix, partitions=1) == len(TOPICS) + len(CONSUMED)
    assert await topic_admin.create(broker, prefix=prefix, partitions=1) == 0
    assert await topic_admin.diff(broker, prefix=prefix, partitions=1) == []

    name = prefix + WORKER_LIFECYCLE.name
    admin = AIOKafkaAdminClient(bootstrap_servers=broker)
    await admin.start()
    try:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "1000"})])
        await admin.delete_topics([prefix + CONSUMED[0][0].name])
    finally:
        await admin.close()
    missing = f"{prefix}{CONSUMED[0][0].name}: missing"
    changed = f"{name}: retention.ms is 1000, wanted {WORKER_LIFECYCLE.config['retention.ms']}"

    async def is_reported() -> bool:
        return {missing, changed} <= set(await topic_admin.diff(broker, prefix=prefix, partitions=1))

    await until(is_reported)  # the broker answers first, and does it then


async def test_partition_counts_differ(place: Place) -> None:
    """A different partition count is reported but never changed, since keys would move."""
    row = topic_admin.Wanted(place.prefix + WORKER_LIFECYCLE.name, 2, WORKER_LIFECYCLE.config)
    assert await topic_admin.ensure(place.kafka.bootstrap, [row]) == 1
    assert await topic_admin.ensure(place.kafka.bootstrap, [msgspec.structs.replace(row, partitions=3)]) == 0
    assert f"{row.name}: 2 partitions, wanted 3" in await topic_admin.diff(
        place.kafka.bootstrap, prefix=place.prefix, partitions=3
    )
