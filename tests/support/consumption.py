"""Positions of a group."""

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from slipway_api.events.topics import WORKER_LIFECYCLE
from tests.support.harness import Place, until


async def positions(place: Place) -> int:
    """Number of offsets consumed over all partitions."""
    return int(await place.database.fetchval("SELECT coalesce(sum(next_offset), 0) FROM consumed"))


async def until_read(place: Place, records: int) -> None:
    async def done() -> bool:
        return await positions(place) >= records

    await until(done, f"{records} records are done with")


async def severities(place: Place) -> set[str]:
    return {row["severity"] for row in await place.database.fetch("SELECT severity FROM alert")}


async def delete_records(place: Place, before: dict[int, int]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=place.kafka.bootstrap)
    await admin.start()
    try:
        name = place.prefix + WORKER_LIFECYCLE.name
        await admin.delete_records(
            {TopicPartition(name, p): RecordsToDelete(before_offset=offset) for p, offset in before.items()}
        )
    finally:
        await admin.close()
