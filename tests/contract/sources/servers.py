"""Queues in real servers, and on moto, which stands in for Amazon SQS."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any, Final

import amqp
import asyncpg
import httpx2
import redis.asyncio as redis
from aiobotocore.session import get_session
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from moto.server import ThreadedMotoServer

from slipway_common.base.ids import new_id
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.contract.sources.worlds import (
    SECRET,
    ExecWorld,
    KedaWorld,
    NotAvailable,
    OutsideWorld,
    Page,
    WebWorld,
    World,
)
from tests.support.harness import until

RETENTIONS: Final = ("global", "basic", "detailed")
"""Kinds of samples of RabbitMQ's management API, the shortest interval of which is that of its statistics."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Gate:
    """A TCP gate before a server: it can be shut, or hold what it accepts."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        self.holds = False
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self.holds:
                await asyncio.Event().wait()
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.target)
            with contextlib.closing(to_writer):
                await asyncio.gather(_copy(reader, to_writer), _copy(to_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


class SqlWorld(World):
    """A table of tasks in a real PostgreSQL."""

    kind = "sql"
    counts = "both"

    def __init__(self, folder: Path) -> None:
        self.server = EmbeddedPostgres(folder)

    def settings(self) -> dict[str, Any]:
        count = "SELECT count(*) FROM task WHERE state = "
        url = self.server.url() if self.server.alive else "postgresql://127.0.0.1/none"
        return {"url": url, "tasks": count + "'waiting'", "running": count + "'running'"}

    async def start(self) -> None:
        await self.server.start()
        await self._execute("CREATE TABLE task (id serial PRIMARY KEY, state text)")

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.server.url())
        await connection.execute(statement)
        await connection.close()

    async def put(self, number: int) -> None:
        await self._execute(f"INSERT INTO task (state) SELECT 'waiting' FROM generate_series(1, {number})")

    async def take(self, number: int) -> None:
        some = f"SELECT id FROM task WHERE state = 'waiting' LIMIT {number}"
        await self._execute(f"UPDATE task SET state = 'running' WHERE id IN ({some})")

    async def away(self) -> None:
        await self.server.stop()

    async def back(self) -> None:
        await self.server.start()

    async def spoil(self) -> None:
        await self._execute("ALTER TABLE task RENAME COLUMN state TO status")

    async def remove(self) -> None:
        await self._execute("DROP TABLE task")

    async def hang(self) -> None:
        self.server.signal(signal.SIGSTOP)

    async def close(self) -> None:
        if self.server.alive:
            self.server.signal(signal.SIGCONT)
            await self.server.kill()


class ProcessWorld(World):
    """A queue in a server that is a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    async def answers(self) -> bool:
        raise NotImplementedError

    async def start(self) -> None:
        program = shutil.which(self.command()[0], path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            raise NotAvailable(f"{self.command()[0]} is not installed: run make tools")
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(  # noqa: ASYNC220 (it starts at once)
                [program, *self.command()[1:]],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                process_group=0,
                env=os.environ | self.environment(),
            )
        await until(self.answers, f"{self.command()[0]} answers")

    def environment(self) -> dict[str, str]:
        return {}

    async def away(self) -> None:
        assert self.process is not None
        self.process.terminate()
        await asyncio.to_thread(self.process.wait)

    async def back(self) -> None:
        await self.start()

    async def hang(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)

    async def close(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await asyncio.to_thread(self.process.wait)


class RedisWorld(ProcessWorld):
    """A list in a real Redis."""

    kind = "redis"
    without = frozenset({"remove", "running"})  # Redis has no empty list that exists

    def command(self) -> list[str]:
        return [
            "redis-server",
            "--port",
            str(self.port),
            "--dir",
            str(self.folder),
            "--save",
            "",
            "--appendonly",
            "yes",
        ]

    @property
    def client(self) -> Any:
        return redis.Redis(port=self.port, decode_responses=True)

    async def answers(self) -> bool:
        try:
            async with self.client as client:
                return bool(await client.ping())
        except (redis.RedisError, OSError):
            return False

    def settings(self) -> dict[str, Any]:
        return {"url": f"redis://127.0.0.1:{self.port}", "list": "builds"}

    async def put(self, number: int) -> None:
        async with self.client as client:
            for each in range(number):
                await client.rpush("builds", f"t{each}")

    async def take(self, number: int) -> None:
        async with self.client as client:
            for _ in range(number):
                await client.lpop("builds")

    async def spoil(self) -> None:
        async with self.client as client:
            await client.set("builds", SECRET)


class RedisStreamWorld(RedisWorld):
    """The group of a stream in a real Redis."""

    counts = "both"
    without = frozenset()

    def settings(self) -> dict[str, Any]:
        return {"url": f"redis://127.0.0.1:{self.port}", "stream": "builds", "group": "ci"}

    async def start(self) -> None:
        await super().start()
        async with self.client as client:
            with contextlib.suppress(redis.ResponseError):  # it is there again
                await client.xgroup_create("builds", "ci", id="0", mkstream=True)

    async def put(self, number: int) -> None:
        async with self.client as client:
            for each in range(number):
                await client.xadd("builds", {"task": each})

    async def take(self, number: int) -> None:
        async with self.client as client:
            await client.xreadgroup("ci", "worker", {"builds": ">"}, count=number)

    async def spoil(self) -> None:
        async with self.client as client:
            await client.delete("builds")
            await client.set("builds", SECRET)

    async def remove(self) -> None:
        async with self.client as client:
            await client.xgroup_destroy("builds", "ci")


class CeleryWorld(RedisWorld):
    """A queue of Celery in a real Redis, with priorities, written as Celery's transport writes it."""

    counts = "both"
    without = frozenset({"remove"})

    def settings(self) -> dict[str, Any]:
        return {"url": f"redis://127.0.0.1:{self.port}", "celery": "builds"}

    async def put(self, number: int) -> None:
        async with self.client as client:
            for each in range(number):
                await client.lpush("builds" if each % 2 else "builds\x06\x163", f"t{each}")

    async def take(self, number: int) -> None:
        async with self.client as client:
            for each in range(number):
                task = await client.rpop("builds") or await client.rpop("builds\x06\x163")
                await client.hset("unacked", f"tag{each}", task)


class PrometheusWorld(ProcessWorld):
    """A real Prometheus, which scrapes an exporter."""

    kind = "prometheus"
    counts = "both"
    without = frozenset({"spoil"})

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.exporter = Page()
        self.waiting = self.running = 0
        self._show()
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 200ms}\nscrape_configs:\n  - job_name: queue\n"
            f"    static_configs: [{{targets: ['127.0.0.1:{self.exporter.port}']}}]\n"
        )

    def command(self) -> list[str]:
        listen = f"--web.listen-address=127.0.0.1:{self.port}"
        return ["prometheus", listen, f"--storage.tsdb.path={self.folder}/tsdb", "--config.file=prometheus.yml"]

    async def answers(self) -> bool:
        return await self.value() is not None

    async def value(self) -> tuple[float, float] | None:
        try:
            async with httpx2.AsyncClient() as client:
                found = []
                for state in ("waiting", "running"):
                    params = {"query": f'queue_jobs{{state="{state}"}}'}
                    answer = await client.get(f"http://127.0.0.1:{self.port}/api/v1/query", params=params)
                    found.append(float(answer.json()["data"]["result"][0]["value"][1]))
                return found[0], found[1]
        except (httpx2.HTTPError, OSError, ValueError, LookupError):
            return None

    def settings(self) -> dict[str, Any]:
        jobs = 'sum(queue_jobs{state="waiting"})'
        return {"url": f"http://127.0.0.1:{self.port}", "tasks": jobs, "running": jobs.replace("waiting", "running")}

    def _show(self) -> None:
        jobs = [f'queue_jobs{{state="waiting"}} {self.waiting}', f'queue_jobs{{state="running"}} {self.running}', ""]
        self.exporter.bodies = {"/metrics": "\n".join(jobs).encode()}
        self.exporter.headers = {"Content-Type": "text/plain; version=0.0.4"}

    async def _scraped(self) -> None:
        self._show()

        async def is_scraped() -> bool:
            return await self.value() == (self.waiting, self.running)

        await until(is_scraped, "Prometheus has scraped the queue")

    async def put(self, number: int) -> None:
        self.waiting += number
        await self._scraped()

    async def take(self, number: int) -> None:
        self.waiting -= number
        self.running += number
        await self._scraped()

    async def remove(self) -> None:
        """The exporter goes: its series end."""
        self.exporter.shut()

        async def has_ended() -> bool:
            return await self.value() is None

        await until(has_ended, "the series has ended")

    async def close(self) -> None:
        await super().close()
        self.exporter.shut()


class RabbitWorld(ProcessWorld):
    """A queue in a real RabbitMQ."""

    kind = "rabbitmq"
    counts = "both"
    without = frozenset({"spoil"})

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.api, self.distribution = free_port(), free_port()
        (folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\nmanagement.tcp.ip = 127.0.0.1\n"
            f"management.tcp.port = {self.api}\ncollect_statistics_interval = 200\nloopback_users = none\n"
            + "".join(f"management.sample_retention_policies.{each}.minute = 1\n" for each in RETENTIONS)
        )
        self.connection: Any = None

    def command(self) -> list[str]:
        # Debian's wrapper runs as root only to become its own user; the program itself runs as anybody.
        return ["/usr/lib/rabbitmq/bin/rabbitmq-server"]

    def environment(self) -> dict[str, str]:
        return {
            "RABBITMQ_NODENAME": f"slipway{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self.distribution),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder),
            "RABBITMQ_LOG_BASE": str(self.folder),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
            "HOME": str(self.folder),
        }

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        async with httpx2.AsyncClient(auth=("guest", "guest"), timeout=10) as client:
            answer = await client.request(method, f"http://127.0.0.1:{self.api}/api{path}", json=body)
            return answer.raise_for_status().json() if answer.content else None

    async def answers(self) -> bool:
        try:
            await self.call("PUT", "/queues/%2F/builds", {"durable": True})
            return await self._counted() is not None
        except (httpx2.HTTPError, OSError):
            return False

    async def _counted(self) -> tuple[int, int] | None:
        body = await self.call("GET", "/queues/%2F/builds")
        if "messages_ready" not in body:
            return None
        return body["messages_ready"], body["messages_unacknowledged"]

    def settings(self) -> dict[str, Any]:
        return {"url": f"http://127.0.0.1:{self.api}", "queue": "builds"}

    async def _reaches(self, waiting: int, running: int) -> None:
        async def is_reached() -> bool:
            return await self._counted() == (waiting, running)

        await until(is_reached, "RabbitMQ has counted")

    async def put(self, number: int) -> None:
        before = await self._counted() or (0, 0)
        for each in range(number):
            message = {"routing_key": "builds", "payload": str(each), "payload_encoding": "string"}
            message["properties"] = {"delivery_mode": 2}  # type: ignore[assignment]
            await self.call("POST", "/exchanges/%2F/amq.default/publish", message)
        await self._reaches(before[0] + number, before[1])

    async def take(self, number: int) -> None:
        before = await self._counted() or (0, 0)

        def consume() -> None:
            self.connection = amqp.Connection(f"127.0.0.1:{self.port}")
            self.connection.connect()
            channel = self.connection.channel()
            for _ in range(number):
                channel.basic_get("builds")

        await asyncio.to_thread(consume)
        await self._reaches(before[0] - number, before[1] + number)

    async def remove(self) -> None:
        await self.call("DELETE", "/queues/%2F/builds")


class SqsWorld(World):
    """A queue of moto, which stands in for Amazon SQS."""

    kind = "sqs"
    counts = "both"
    without = frozenset({"spoil"})

    def __init__(self) -> None:
        self.server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self.server.start()
        self.target = self.server.get_host_and_port()[1]
        self.gate = Gate(self.target)
        self.url = ""

    async def start(self) -> None:
        await self.gate.open()
        async with self.client() as client:
            found = await client.create_queue(QueueName=f"builds-{new_id()}")
        self.url = found["QueueUrl"]

    def client(self) -> Any:
        return get_session().create_client(
            "sqs", region_name="us-east-1", endpoint_url=f"http://127.0.0.1:{self.target}"
        )

    def settings(self) -> dict[str, Any]:
        endpoint = f"http://127.0.0.1:{self.gate.port}"
        return {"queue_url": self.url, "region": "us-east-1", "endpoint_url": endpoint}

    async def put(self, number: int) -> None:
        async with self.client() as client:
            for each in range(number):
                await client.send_message(QueueUrl=self.url, MessageBody=str(each))

    async def take(self, number: int) -> None:
        async with self.client() as client:
            await client.receive_message(QueueUrl=self.url, MaxNumberOfMessages=number)

    async def away(self) -> None:
        await self.gate.shut()

    async def back(self) -> None:
        await self.gate.open()

    async def remove(self) -> None:
        async with self.client() as client:
            await client.delete_queue(QueueUrl=self.url)

    async def hang(self) -> None:
        await self.gate.shut()
        self.gate.holds = True
        await self.gate.open()

    async def close(self) -> None:
        await self.gate.shut()
        self.server.stop()


class KafkaWorld(World):
    """A consumer group on a real Kafka. Its broker is shared by the run, so that it does not go away here."""

    kind = "kafka_lag"
    counts = "waiting_and_running"
    without = frozenset({"spoil", "away", "hang"})

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self.kafka = kafka
        self.topic = f"builds-{new_id()}"

    async def start(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(self.topic, 2, 1)])

        group, partitions = f"g-{self.topic}", [TopicPartition(self.topic, 0)]

        async def has_coordinator() -> bool:
            try:  # one that still loads answers for no partition
                offsets = await admin.list_consumer_group_offsets(group, partitions=partitions)
            except KafkaError:
                return False
            return bool(offsets)

        await until(has_coordinator, "the broker keeps offsets of groups")
        await admin.close()

    def settings(self) -> dict[str, Any]:
        return {"bootstrap_servers": self.kafka.bootstrap, "group": f"g-{self.topic}", "topic": self.topic}

    async def put(self, number: int) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self.kafka.bootstrap) as producer:
            for each in range(number):
                await producer.send_and_wait(self.topic, b"task", partition=each % 2)

    async def take(self, number: int) -> None:
        """Work on some: their offsets are committed at their ends, so that the lag stays."""

    async def end(self, number: int) -> None:
        async with AIOKafkaConsumer(
            bootstrap_servers=self.kafka.bootstrap, group_id=f"g-{self.topic}", enable_auto_commit=False
        ) as consumer:
            consumer.assign([TopicPartition(self.topic, 0)])
            await consumer.commit({TopicPartition(self.topic, 0): number})

    async def remove(self) -> None:
        self.topic = f"{self.topic}-none"


WORLDS: Final = {
    "redis-list": RedisWorld,
    "redis-stream": RedisStreamWorld,
    "redis-celery": CeleryWorld,
    "http": lambda _: WebWorld(),
    "prometheus": PrometheusWorld,
    "sql": SqlWorld,
    "exec": ExecWorld,
    "rabbitmq": RabbitWorld,
    "sqs": lambda _: SqsWorld(),
    "keda": lambda _: KedaWorld(),
    "outside": OutsideWorld,
}
"""Worlds of all kinds but `kafka_lag`, whose broker is that of the run, from a folder of their own."""
