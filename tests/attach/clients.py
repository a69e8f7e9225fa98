"""Workers' views of queues in RabbitMQ, PostgreSQL, Kafka and Amazon SQS, by their usual clients."""

import asyncio
import contextlib
from typing import Any, Final

from tests.attach.worker import RECORD

FETCH_MS: Final = 200
FETCHED_WITHIN_SECONDS: Final = 300
"""Time in which a message of SQS that was taken is with its worker alone."""


class RabbitClient:
    """A queue of RabbitMQ: what is not acknowledged waits again when its connection ends."""

    def __init__(self, address: str, queue: str) -> None:
        self.address, self.queue = address, queue
        self.connection: Any = None
        self.channel: Any = None
        self.tag = ""

    async def _open(self) -> Any:
        import amqp

        if self.connection is None or not self.connection.connected:
            self.connection = amqp.Connection(self.address, confirm_publish=True, connect_timeout=2)
            await asyncio.to_thread(self.connection.connect)
            self.channel = self.connection.channel()
        return self.channel

    async def take(self) -> str | None:
        channel = await self._open()
        message = await asyncio.to_thread(channel.basic_get, self.queue)
        if message is None:
            return None
        self.tag = message.delivery_tag
        return str(message.body)

    async def write(self, entry: str) -> None:
        import amqp

        channel = await self._open()
        await asyncio.to_thread(channel.basic_publish, amqp.Message(entry, delivery_mode=2), "", RECORD)

    async def done(self, _: str) -> None:
        await asyncio.to_thread(self.channel.basic_ack, self.tag)

    async def close(self) -> None:
        if self.connection is not None:
            with contextlib.suppress(Exception):
                await asyncio.to_thread(self.connection.close)


class SqlClient:
    """A table of tasks in PostgreSQL."""

    def __init__(self, address: str, queue: str) -> None:
        self.address, self.queue = address, queue
        self.connection: Any = None

    async def _open(self) -> Any:
        import asyncpg

        if self.connection is None or self.connection.is_closed():
            self.connection = await asyncpg.connect(self.address, timeout=5)
        return self.connection

    async def take(self) -> str | None:
        free = (
            "SELECT name FROM task WHERE pool = $1 AND state = 'waiting' ORDER BY name FOR UPDATE SKIP LOCKED LIMIT 1"
        )
        taken = f"UPDATE task SET state = 'running' WHERE name = ({free}) RETURNING name"
        task: str | None = await (await self._open()).fetchval(taken, self.queue)
        return task

    async def write(self, entry: str) -> None:
        await (await self._open()).execute("INSERT INTO ledger (entry) VALUES ($1)", entry)

    async def done(self, task: str) -> None:
        await (await self._open()).execute("UPDATE task SET state = 'done' WHERE name = $1", task)

    async def close(self) -> None:
        if self.connection is not None:
            await self.connection.close()


class KafkaClient:
    """A topic of Kafka: a record is committed when its task has ended, and a rebalance waits for that."""

    def __init__(self, address: str, queue: str) -> None:
        self.address, self.queue = address, queue
        self.consumer: Any = None
        self.producer: Any = None
        self.is_working = asyncio.Lock()

    async def _open(self) -> Any:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener

        is_working = self.is_working

        class Waiting(ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_revoked(self, revoked: Any) -> None:
                async with is_working:
                    pass

            async def on_partitions_assigned(self, assigned: Any) -> None:
                pass

        if self.producer is None:
            producer = AIOKafkaProducer(bootstrap_servers=self.address, acks="all")
            await _started(producer)
            self.producer = producer
        if self.consumer is None:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.address,
                group_id=f"group-{self.queue}",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                heartbeat_interval_ms=200,
                max_poll_records=1,
            )
            consumer.subscribe([self.queue], listener=Waiting())
            await _started(consumer)
            self.consumer = consumer
        return self.consumer

    async def take(self) -> str | None:
        consumer = await self._open()
        await self.is_working.acquire()
        found = {}
        try:
            found = await consumer.getmany(timeout_ms=FETCH_MS, max_records=1)
        finally:
            if not found:
                self.is_working.release()
        return next((str(record.value.decode()) for records in found.values() for record in records), None)

    async def write(self, entry: str) -> None:
        await self.producer.send_and_wait(RECORD, entry.encode())

    async def done(self, _: str) -> None:
        await self.consumer.commit()
        self.is_working.release()

    async def close(self) -> None:
        for client in (self.consumer, self.producer):
            if client is not None:
                await client.stop()


async def _started(client: Any) -> None:
    try:
        await client.start()
    except BaseException:
        await client.stop()
        raise


class SqsClient:
    """A queue of Amazon SQS, whose URL is the address of the server and the name of the queue."""

    def __init__(self, address: str, queue: str) -> None:
        self.address, self.queue = address, queue
        self.stack = contextlib.AsyncExitStack()
        self.client: Any = None
        self.receipt = ""

    async def _open(self) -> Any:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session

        if self.client is None:
            config = AioConfig(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 1})
            made = get_session().create_client("sqs", region_name="us-east-1", endpoint_url=self.address, config=config)
            self.client = await self.stack.enter_async_context(made)
        return self.client

    def url(self, queue: str) -> str:
        return f"{self.address}/123456789012/{queue}"

    async def take(self) -> str | None:
        client = await self._open()
        given = {"QueueUrl": self.url(self.queue), "VisibilityTimeout": FETCHED_WITHIN_SECONDS}
        answer = await client.receive_message(**given, MaxNumberOfMessages=1, WaitTimeSeconds=0)
        for message in answer.get("Messages", ()):
            self.receipt = message["ReceiptHandle"]
            return str(message["Body"])
        return None

    async def write(self, entry: str) -> None:
        await (await self._open()).send_message(QueueUrl=self.url(RECORD), MessageBody=entry)

    async def done(self, _: str) -> None:
        await (await self._open()).delete_message(QueueUrl=self.url(self.queue), ReceiptHandle=self.receipt)

    async def close(self) -> None:
        await self.stack.aclose()


CLIENTS: Final = {"rabbitmq": RabbitClient, "sql": SqlClient, "kafka_lag": KafkaClient, "sqs": SqsClient}
