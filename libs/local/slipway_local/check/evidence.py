"""Evidence of a run from three independent sources: the simulator's ledger, every topic from offset 0, and the rows.

Only reads; path_check.py checks the evidence."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import asyncpg
import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from slipway_api.events.topics import CONSUMED, TOPICS, dead_letter_topic
from slipway_common.base.clock import utc_now
from slipway_common.base.errors import BadEvent
from slipway_common.messaging.envelope import Envelope, decode, decode_data
from slipway_simulator import facts, ledger

# Rows that the relay has deleted were acknowledged by Kafka; those still in the outbox may or may not be on the topic.
SENT: Final = """
SELECT i.id AS incarnation, p.topic, p.partition,
    coalesce(
        (SELECT min(o.sequence_number) - 1 FROM {schema}.outbox o
            WHERE o.topic = p.topic AND o.partition = p.partition),
        p.sequence_number) AS sent
FROM {schema}.relay_position p, {schema}.incarnation i"""


class Published(msgspec.Struct, frozen=True):
    """One record of a topic. `event` is None for a tombstone or a malformed record."""

    topic: str
    partition: int
    offset: int
    envelope: Envelope | None
    event: Any


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Tables that the check reads."""

    workers: Sequence[dict[str, Any]]
    batches: Sequence[dict[str, Any]]
    dead: int
    gaps: Sequence[dict[str, Any]]
    sent: dict[tuple[str, str, int], int]  # (source, topic, partition) → last acknowledged sequence number
    limits: dict[str, int]  # account → units its lease pool admits
    pools: dict[str, tuple[int, int]]  # pool → (minimum, maximum)
    pool_of: dict[str, str]  # launch config → pool


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence of one run. The instance reaper has passed twice over everything older than `settled_before` (epoch
    seconds)."""

    settled_before: float
    ledger: Sequence[facts.Fact]
    published: Sequence[Published]
    dead_records: int
    rows: Rows


async def gather(*, ledger_path: Path, kafka: str, prefix: str, database_url: str, settle_seconds: float) -> Evidence:
    """Read all three sources. The system keeps running meanwhile, so the ledger is read last: instances that ended in
    between are already terminated there."""
    rows = await _rows(database_url)
    settled_before = utc_now().timestamp() - settle_seconds
    published, dead_records = await _topics(kafka, prefix)
    await asyncio.sleep(0.5)
    return Evidence(
        settled_before=settled_before,
        ledger=list(ledger.read(ledger_path)),
        published=published,
        dead_records=dead_records,
        rows=rows,
    )


async def _topics(kafka: str, prefix: str) -> tuple[list[Published], int]:
    names = {prefix + topic.name: topic.name for topic in TOPICS}
    dead = [prefix + dead_letter_topic(topic, service) for topic, service in CONSUMED]
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        described = await admin.describe_topics([*names, *dead])
    finally:
        await admin.close()
    partitions = [TopicPartition(t["topic"], p["partition"]) for t in described for p in t["partitions"]]
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka, enable_auto_commit=False)
    await consumer.start()
    try:
        ends = await consumer.end_offsets(partitions)
        live = [tp for tp in partitions if ends[tp] > 0 and tp.topic in names]
        dead_records = sum(ends[tp] for tp in partitions if tp.topic not in names)
        published: list[Published] = []
        if live:
            consumer.assign(live)
            await consumer.seek_to_beginning(*live)
            while any([await consumer.position(tp) < ends[tp] for tp in live]):
                for batch in (await consumer.getmany(timeout_ms=200, max_records=5000)).values():
                    published += [_published(names[record.topic], record) for record in batch]
    finally:
        await consumer.stop()
    return published, dead_records


def _published(topic: str, record: Any) -> Published:
    try:
        envelope = decode(record.headers, received_at=datetime.fromtimestamp(record.timestamp / 1000, UTC))
        event = decode_data(envelope.type, record.value)
    except BadEvent:
        return Published(topic, record.partition, record.offset, None, None)
    return Published(topic, record.partition, record.offset, envelope, event)


async def _rows(database_url: str) -> Rows:
    db = await asyncpg.connect(database_url)
    try:
        workers = await db.fetch(
            "SELECT id::text, pool_id, launch_config_id, account_id, state, batch_id::text, instance_id, reason, "
            "extract(epoch FROM requested_at)::float8 AS requested_at FROM provisioner.worker"
        )
        batches = await db.fetch(
            "SELECT id::text, launch_config_id, state, outcome, units, account_id, "
            "extract(epoch FROM started_at)::float8 AS started_at FROM provisioner.launch_batch"
        )
        dead = 0
        gaps = []
        sent: dict[tuple[str, str, int], int] = {}
        for schema in ("provisioner", "weight_calculator", "lease_broker"):
            dead += await db.fetchval(f"SELECT count(*) FROM {schema}.dead_letter")
            gaps += await db.fetch(f"SELECT '{schema}' AS service, topic, partition, kind, detail FROM {schema}.gap")
            service = schema.replace("_", "-")
            for row in await db.fetch(SENT.format(schema=schema)):
                sent[f"/slipway/{service}/{row['incarnation']}", row["topic"], row["partition"]] = row["sent"]
        limits = await db.fetch(
            "SELECT a.id, p.limit_units FROM provisioner.account a "
            "JOIN lease_broker.lease_pools p ON p.id = a.lease_pool_id"
        )
        pools = await db.fetch("SELECT id, min_capacity, max_capacity FROM provisioner.worker_pool")
        configs = await db.fetch("SELECT id, pool_id FROM provisioner.launch_config")
    finally:
        await db.close()
    return Rows(
        workers=[dict(row) for row in workers],
        batches=[dict(row) for row in batches],
        dead=dead,
        gaps=[dict(row) for row in gaps],
        sent=sent,
        limits={row["id"]: row["limit_units"] for row in limits},
        pools={row["id"]: (row["min_capacity"], row["max_capacity"]) for row in pools},
        pool_of={row["id"]: row["pool_id"] for row in configs},
    )
