"""Queues in RabbitMQ, PostgreSQL, Kafka and on moto, which stands in for Amazon SQS, with ledgers of their workers."""

import asyncio
import contextlib
import logging
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

import amqp
import asyncpg
from aiobotocore.session import get_session
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from moto.server import ThreadedMotoServer

from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.attach.judge import Count, Entry
from tests.attach.queues import AGAIN, ONCE, POOLS, AttachedQueue, entries, program
from tests.attach.worker import RECORD
from tests.contract.sources.servers import Gate, RabbitWorld
from tests.support.harness import until

PARTITIONS: Final = 4


class RabbitQueue(AttachedQueue):
    """Queues of a real RabbitMQ, which workers reach over AMQP and the source by the management API. Its statistics are
    up to 1.1 s old here."""

    behind_seconds = 1.3

    def __init__(self, kind: str, folder: Path, rng: Random) -> None:
        super().__init__(kind, folder, rng)
        self.server = RabbitWorld(folder)
        self.amqp, self.api = Gate(self.server.port), Gate(self.server.api)
        self.seen: list[Entry] = []
        self.connection: Any = None
        self.restarting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.server.start()
        for queue in (*POOLS, RECORD):
            await self.server.call("PUT", f"/queues/%2F/{queue}", {"durable": True})
        await self._open()

    async def _open(self) -> None:
        await self.amqp.open()
        await self.api.open()

    async def close(self) -> None:
        await self._shut()
        if self.restarting is not None:
            await self.restarting
        await self.server.close()

    async def _shut(self) -> None:
        await self.amqp.shut()
        await self.api.shut()

    async def away(self) -> None:
        # Its stop and its start take seconds, in which machines would boot and take tasks, and which nobody has to wait
        # for; killed, it forgets what was acknowledged.
        await self._shut()
        self.restarting = asyncio.create_task(self._restart())

    async def _restart(self) -> None:
        await self.server.away()
        await self.server.back()

    async def back(self) -> None:
        assert self.restarting is not None
        await self.restarting
        await self._open()

    def sources(self) -> list[dict[str, Any]]:
        pools = {pool: pool for pool in POOLS}
        return [{"url": f"http://127.0.0.1:{self.api.port}", "behind_seconds": self.behind_seconds, "pools": pools}]

    def _channel(self) -> Any:
        if self.connection is None or not self.connection.connected:
            # Not by the gate, which is served by the event loop that these calls block.
            server = f"127.0.0.1:{self.server.port}"
            self.connection = amqp.Connection(server, confirm_publish=True, connect_timeout=2)
            self.connection.connect()
        return self.connection.channel()

    async def put(self, pool: str, task: str) -> None:
        with self._channel() as channel:
            channel.basic_publish(amqp.Message(task, delivery_mode=2), "", pool)

    async def counted(self) -> dict[str, Count]:
        with self._channel() as channel:
            return {pool: (channel.queue_declare(pool, passive=True).message_count, None) for pool in POOLS}

    async def ledger(self) -> list[Entry]:
        with self._channel() as channel:
            while (message := channel.basic_get(RECORD, no_ack=True)) is not None:
                self.seen += entries([message.body])
        return self.seen

    def agent(self, pool: str) -> list[str]:
        return program("rabbitmq", f"127.0.0.1:{self.amqp.port}", pool)


class SqlQueue(AttachedQueue):
    """A table of tasks in a real PostgreSQL, which only these workers work on, so that it counts both."""

    counts = "both"

    def __init__(self, kind: str, folder: Path, rng: Random) -> None:
        super().__init__(kind, folder, rng)
        self.server = EmbeddedPostgres(folder / "queue")

    async def start(self) -> None:
        await self.server.start()
        await self._fetch("CREATE TABLE task (name text PRIMARY KEY, pool text, state text)")
        await self._fetch("CREATE TABLE ledger (id serial PRIMARY KEY, entry text)")

    async def close(self) -> None:
        if self.server.alive:
            await self.server.kill()

    async def away(self) -> None:
        await self.server.stop()

    async def back(self) -> None:
        await self.server.start()

    async def _fetch(self, statement: str, *arguments: Any) -> list[Any]:
        db = await asyncpg.connect(self.server.url(), timeout=2)
        try:
            return list(await db.fetch(statement, *arguments))
        finally:
            await db.close()

    def sources(self) -> list[dict[str, Any]]:
        count = "SELECT pool, count(*) FROM task WHERE state = '{}' GROUP BY pool"
        queries = {"tasks": count.format("waiting"), "running": count.format("running")}
        return [{"url": self.server.url(), "pools": {pool: pool for pool in POOLS}} | queries]

    async def put(self, pool: str, task: str) -> None:
        await self._fetch("INSERT INTO task (name, pool, state) VALUES ($1, $2, 'waiting')", task, pool)

    async def counted(self) -> dict[str, Count]:
        rows = await self._fetch("SELECT pool, state, count(*)::int AS n FROM task GROUP BY pool, state")
        numbers = {(row["pool"], row["state"]): row["n"] for row in rows}
        return {pool: (numbers.get((pool, "waiting"), 0), numbers.get((pool, "running"), 0)) for pool in POOLS}

    async def ledger(self) -> list[Entry]:
        return entries([row["entry"] for row in await self._fetch("SELECT entry FROM ledger ORDER BY id")])

    async def finished(self) -> int:
        return len(await self._fetch("SELECT FROM task WHERE state = 'done'"))

    def agent(self, pool: str) -> list[str]:
        return program("sql", self.server.url(), pool)


class KafkaQueue(AttachedQueue):
    """Topics of a real Kafka of its own, on which a consumer group works. Its lag contains what runs."""

    counts = "waiting_and_running"
    tasks: ClassVar[dict[str, int]] = {ONCE: 4, AGAIN: 8}
    idle = 3

    def __init__(self, kind: str, folder: Path, rng: Random) -> None:
        super().__init__(kind, folder, rng)
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it would print each attempt while the broker is away
        self.server = EmbeddedKafka(folder / "queue")
        self.producer: Any = None
        self.consumer: Any = None
        self.seen: list[Entry] = []
        self.added = dict.fromkeys(POOLS, 0)

    async def start(self) -> None:
        await self.server.start()
        admin = AIOKafkaAdminClient(bootstrap_servers=self.server.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in POOLS] + [NewTopic(RECORD, 1, 1)])

        async def have_coordinators() -> bool:
            try:
                for pool in POOLS:
                    await admin.list_consumer_group_offsets(f"group-{pool}")
            except KafkaError:
                return False
            return True

        await until(have_coordinators, "the broker keeps offsets of groups")
        await admin.close()
        self.producer = AIOKafkaProducer(bootstrap_servers=self.server.bootstrap, acks="all")
        await self.producer.start()
        self.consumer = AIOKafkaConsumer(bootstrap_servers=self.server.bootstrap)
        await self.consumer.start()
        self.consumer.assign([TopicPartition(RECORD, 0)])
        await self.consumer.seek_to_beginning()

    async def close(self) -> None:
        for client in (self.producer, self.consumer):
            if client is not None:
                with contextlib.suppress(KafkaError):
                    await client.stop()
        await self.server.kill()

    async def away(self) -> None:
        await self.server.stop()

    async def back(self) -> None:
        await self.server.start()

    def sources(self) -> list[dict[str, Any]]:
        group = {"bootstrap_servers": self.server.bootstrap}
        return [group | {"group": f"group-{pool}", "topic": pool, "pool": pool} for pool in POOLS]

    async def put(self, pool: str, task: str) -> None:
        await self.producer.send_and_wait(pool, task.encode(), partition=self.added[pool] % PARTITIONS)
        self.added[pool] += 1

    async def counted(self) -> dict[str, Count]:
        """Records that were added and whose tasks have not ended, which are committed just afterwards."""
        if not self.server.alive:
            raise ConnectionError
        done = [entry.task.partition("-")[0] for entry in await self.ledger() if entry.what == "end"]
        return {pool: (self.added[pool] - done.count(pool), None) for pool in POOLS}

    async def ledger(self) -> list[Entry]:
        for records in (await self.consumer.getmany(timeout_ms=50)).values():
            self.seen += entries([record.value for record in records])
        return self.seen

    def agent(self, pool: str) -> list[str]:
        return program("kafka_lag", self.server.bootstrap, pool)


class SqsQueue(AttachedQueue):
    """Queues of moto, which stands in for Amazon SQS. They are away as a gate before them is shut."""

    tasks: ClassVar[dict[str, int]] = {ONCE: 4, AGAIN: 8}
    idle = 3

    def __init__(self, kind: str, folder: Path, rng: Random) -> None:
        super().__init__(kind, folder, rng)
        logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it would print each request
        self.server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self.server.start()
        self.gate = Gate(self.server.get_host_and_port()[1])
        self.stack = contextlib.AsyncExitStack()
        self.client: Any = None
        self.seen: list[Entry] = []

    async def start(self) -> None:
        await self.gate.open()
        self.client = await self.stack.enter_async_context(
            get_session().create_client(
                "sqs",
                region_name="us-east-1",
                endpoint_url=self.address,
                aws_access_key_id="test",
                aws_secret_access_key="test",
            )
        )
        for queue in (*POOLS, RECORD):
            await self.client.create_queue(QueueName=queue)

    async def close(self) -> None:
        await self.stack.aclose()
        await self.gate.shut()
        self.server.stop()

    async def away(self) -> None:
        await self.gate.shut()

    async def back(self) -> None:
        await self.gate.open()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.gate.port}"

    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}

    def url(self, queue: str) -> str:
        return f"{self.address}/123456789012/{queue}"

    def sources(self) -> list[dict[str, Any]]:
        usual = {"region": "us-east-1", "endpoint_url": self.address}
        return [usual | {"queue_url": self.url(pool), "pool": pool} for pool in POOLS]

    async def put(self, pool: str, task: str) -> None:
        await self.client.send_message(QueueUrl=self.url(pool), MessageBody=task)

    async def counted(self) -> dict[str, Count]:
        counts: dict[str, Count] = {}
        for pool in POOLS:
            given = {"QueueUrl": self.url(pool), "AttributeNames": ["ApproximateNumberOfMessages"]}
            async with asyncio.timeout(0.5):
                answer = await self.client.get_queue_attributes(**given)
            counts[pool] = int(answer["Attributes"]["ApproximateNumberOfMessages"]), None
        return counts

    async def ledger(self) -> list[Entry]:
        given = {"QueueUrl": self.url(RECORD), "MaxNumberOfMessages": 10, "VisibilityTimeout": 600}
        while messages := (await self.client.receive_message(**given)).get("Messages"):
            self.seen += entries([message["Body"] for message in messages])
            for message in messages:
                await self.client.delete_message(QueueUrl=self.url(RECORD), ReceiptHandle=message["ReceiptHandle"])
        return self.seen

    def agent(self, pool: str) -> list[str]:
        return program("sqs", self.address, pool)
