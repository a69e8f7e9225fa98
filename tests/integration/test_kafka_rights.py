"""The scripts of infra/kafka on a broker that denies whatever no row allows.

The broker's jars leave out Kafka's command line tools. The scripts still run: a stand-in on the PATH records their
calls, which are then made through an admin client.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError
from confluent_kafka.admin import (  # type: ignore[attr-defined] # it names them, but not in __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from generate import kafka_scripts
from slipway_api.events.topics import ALERT, SERVICE_HEARTBEAT, TOPICS, WORKER_LIFECYCLE, compared_topics, group
from slipway_common.database import migrate
from slipway_common.database import postgres as connections
from slipway_common.messaging import outbox
from slipway_common.messaging.relay import Relay
from slipway_common.messaging.topic_admin import wanted
from slipway_local.servers.child import Child
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support import harness
from tests.support.harness import PATIENCE_SECONDS, until
from tests.support.provisioner import KEY

PREFIX: Final = "test."
OPERATIONS: Final = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}
ADMIN: Final = "admin"
PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
STAND_IN: Final = """\
#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done >> "$CALLS"
echo >> "$CALLS"
"""


MODULES: Final = {
    "provisioner": "slipway_provisioner.main",
    "weight-calculator": "slipway_weight_calculator.main",
    "lease-broker": "slipway_lease_broker.main",
}
USERS: Final = (*MODULES, "monitors", "alerts", "operators", "subscribers")


def password(user: str) -> str:
    return f"{user}-password"


def settings(port: int) -> dict[str, str]:
    """Every listener authenticates, including the controller's; only the administrator may do what no ACL allows."""
    users = " ".join(f'user_{user}="{password(user)}"' for user in (ADMIN, *USERS))
    jaas = f'{PLAIN} username="{ADMIN}" password="{password(ADMIN)}" {users};'
    values = {
        "listeners": "PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port},"
        f"CLIENT://127.0.0.1:{port}",
        "advertised.listeners": "PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port},"
        f"CLIENT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,CLIENT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "CLIENT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN}",
    }
    for listener in ("controller", "client"):
        values[f"listener.name.{listener}.sasl.enabled.mechanisms"] = "PLAIN"
        values[f"listener.name.{listener}.plain.sasl.jaas.config"] = jaas
    return values


class Guarded:
    """A broker with the ACLs of the scripts. Clients of `open_address` are User:ANONYMOUS."""

    def __init__(self, open_address: str, address: str, folder: Path) -> None:
        self.open_address = open_address
        self.address = address
        self.folder = folder

    def administrator(self) -> AdminClient:
        return AdminClient(
            {
                "bootstrap.servers": self.address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": ADMIN,
                "sasl.password": password(ADMIN),
            }
        )

    def change_right(self, topic: str, *, given: bool) -> None:
        """Give clients of `open_address` the right to write to a topic, or take it."""
        place = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS")
        admin: Any = self.administrator()
        if given:
            binding = AclBinding(*place, "*", AclOperation.WRITE, AclPermissionType.ALLOW)
            futures = admin.create_acls([binding])
        else:
            every: Any = None
            futures = admin.delete_acls([AclBindingFilter(*place, every, AclOperation.WRITE, AclPermissionType.ANY)])
        for future in futures.values():
            future.result(30)

    def apply_scripts(self, prefix: str, **principals: str) -> None:
        """Topics and ACLs under a prefix."""
        admin = self.administrator()
        made = called("topics.sh", self.folder, "kafka-topics.sh", prefix, PARTITIONS="1", REPLICAS="1")
        allowed = called("acls.sh", self.folder, "kafka-acls.sh", prefix, **principals)
        created = admin.create_topics([new_topic(call) for call in made])
        bound = admin.create_acls([binding for call in allowed for binding in bindings(call)])
        for future in (*created.values(), *bound.values()):
            future.result(30)

    def aiokafka(self, user: str) -> dict[str, str]:
        """Arguments of an aiokafka client."""
        return {
            "bootstrap_servers": self.address,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": user,
            "sasl_plain_password": password(user),
        }

    async def writes(self, user: str, topic: str) -> bool:
        producer = AIOKafkaProducer(**self.aiokafka(user))
        await producer.start()
        try:
            await producer.send_and_wait(PREFIX + topic, b"{}", key=b"key", partition=0)
        except TopicAuthorizationFailedError:
            return False
        finally:
            await producer.stop()
        return True

    async def reads(self, user: str, topic: str, *, prefix: str = PREFIX) -> bool:
        """True if a record can be read without a group."""
        consumer = AIOKafkaConsumer(**self.aiokafka(user), enable_auto_commit=False, auto_offset_reset="earliest")
        await consumer.start()
        try:
            if prefix + topic not in await consumer.topics():
                return False  # not visible; aiokafka would wait for it
            consumer.assign([TopicPartition(prefix + topic, 0)])
            async with asyncio.timeout(PATIENCE_SECONDS):
                return bool(await consumer.getone())
        except TopicAuthorizationFailedError:
            return False
        finally:
            await consumer.stop()

    async def words(self, topic: str, number: int) -> list[str]:
        """Words of the first events of a partition, in order."""
        consumer = AIOKafkaConsumer(topic, **self.aiokafka(ADMIN), auto_offset_reset="earliest")
        await consumer.start()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return [json.loads((await consumer.getone()).value)["kind"] for _ in range(number)]
        finally:
            await consumer.stop()

    async def joins(self, user: str, group_id: str, topic: str) -> bool:
        """True if a record can be read by a member of a group."""
        consumer = AIOKafkaConsumer(
            PREFIX + topic,
            **self.aiokafka(user),
            group_id=PREFIX + group_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await consumer.start()
                return bool(await consumer.getone())
        except GroupAuthorizationFailedError:
            return False
        finally:
            await consumer.stop()


def called(script: str, folder: Path, tool: str, prefix: str, **env: str) -> list[list[str]]:
    """Arguments with which a generated script calls a tool."""
    folder = folder / f"{prefix}{script}"
    folder.mkdir()
    path, recorded, stand_in = folder / script, folder / "calls", folder / tool
    path.write_text(kafka_scripts.files()[f"infra/kafka/{script}"])
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    subprocess.run(
        ["sh", path, "broker:9092", prefix, "admin.properties"],
        check=True,
        env={"PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(recorded), **env},
    )
    calls = [call.splitlines() for call in recorded.read_text().strip().split("\n\n")]
    for call in calls:
        assert call[:4] == ["--bootstrap-server", "broker:9092", "--command-config", "admin.properties"]
    return calls


def options(call: Sequence[str]) -> dict[str, list[str]]:
    """Values by option."""
    found: dict[str, list[str]] = {}
    for word, value in zip(call, [*call[1:], "--"], strict=True):
        if word.startswith("--"):
            found.setdefault(word, []).extend([] if value.startswith("--") else [value])
    return found


def new_topic(call: Sequence[str]) -> Any:
    given = options(call)
    assert set(given) == {
        "--bootstrap-server",
        "--command-config",
        "--create",
        "--if-not-exists",
        "--topic",
        "--partitions",
        "--replication-factor",
        "--config",
    }
    (name,), (partitions,), (replicas,) = given["--topic"], given["--partitions"], given["--replication-factor"]
    config = dict(pair.split("=") for pair in given["--config"])
    return NewTopic(name, num_partitions=int(partitions), replication_factor=int(replicas), config=config)


def bindings(call: Sequence[str]) -> list[Any]:
    given = options(call)
    kind = "topic" if "--topic" in given else "group"
    assert set(given) == {
        "--bootstrap-server",
        "--command-config",
        "--add",
        "--allow-principal",
        "--operation",
        f"--{kind}",
        "--resource-pattern-type",
    }
    (pattern,), (principal,), (operation,) = (
        given[option] for option in ("--resource-pattern-type", "--allow-principal", "--operation")
    )
    return [
        AclBinding(
            ResourceType[kind.upper()],
            name,
            ResourcePatternType[pattern.upper()],
            principal,
            "*",
            OPERATIONS[operation],
            AclPermissionType.ALLOW,
        )
        for name in given[f"--{kind}"]
    ]


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    (port,) = free_ports(1)
    broker = EmbeddedKafka(folder / "kafka", settings=settings(port))
    await broker.start()
    try:
        guarded = Guarded(broker.bootstrap, f"127.0.0.1:{port}", folder)
        guarded.apply_scripts(PREFIX)
        for topic in TOPICS:
            assert await guarded.writes(ADMIN, topic.name)
        yield guarded
    finally:
        await broker.kill()


def test_topics_are_the_registrys(tmp_path: Path) -> None:
    made = {
        call[call.index("--topic") + 1]: (
            int(call[call.index("--partitions") + 1]),
            dict(pair.split("=") for pair in options(call)["--config"]),
        )
        for call in called("topics.sh", tmp_path, "kafka-topics.sh", PREFIX)
    }
    assert made == {row.name: (row.partitions, row.config) for row in wanted(prefix=PREFIX)}


@pytest.mark.parametrize("script", ["topics.sh", "acls.sh"])
def test_scripts_say_what_they_lack(tmp_path: Path, script: str) -> None:
    path = tmp_path / script
    path.write_text(kafka_scripts.files()[f"infra/kafka/{script}"])
    env = {"PATH": str(tmp_path)}
    done = subprocess.run(["/bin/sh", path], capture_output=True, text=True, check=False, env=env)
    assert done.returncode != 0
    assert f"usage: {script} BOOTSTRAP" in done.stderr
    done = subprocess.run(["/bin/sh", path, "b:1"], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 2
    assert f"kafka-{script.removesuffix('.sh')}.sh is not on the PATH" in done.stderr


# tests/unit/test_topics.py tests the registry itself: its consumers, and the topics that subscribers may read.


@pytest.mark.parametrize("user", USERS)
async def test_each_writes_its_own_topics(guarded: Guarded, user: str) -> None:
    for topic in TOPICS:
        assert await guarded.writes(user, topic.name) is (user in topic.producers), topic.name


@pytest.mark.parametrize("user", USERS)
async def test_each_reads_what_it_needs(guarded: Guarded, user: str) -> None:
    for topic in TOPICS:
        if user in ("subscribers", "operators"):
            needed = topic.followed
        elif user == "alerts":
            needed = topic is ALERT
        else:
            needed = user in topic.consumers or topic in compared_topics(user)
        assert await guarded.reads(user, topic.name) is needed, topic.name


async def test_groups_are_kept_apart(guarded: Guarded) -> None:
    """A subscriber may use its own groups only, and cannot move the position of a service."""
    topic = WORKER_LIFECYCLE.name
    taken = group("weight-calculator", WORKER_LIFECYCLE)
    assert await guarded.joins("subscribers", "subscriber.dashboard", topic)
    assert await guarded.joins("alerts", "slipway-alerts.webhook", ALERT.name)
    assert not await guarded.joins("alerts", "subscriber.dashboard", ALERT.name)
    assert not await guarded.joins("subscribers", taken, topic)
    assert await guarded.joins("weight-calculator", taken, topic)


async def test_services_work_with_their_rights(guarded: Guarded, postgres: EmbeddedPostgres) -> None:
    """Each service works with its own rights only: partitions claimed, views read to the end, events published."""
    urls = {}
    for service in MODULES:
        urls[service] = await postgres.create_database(f"rights_{service}")
        await migrate.upgrade(urls[service], service)
    await asyncio.gather(*(works(guarded, service, url) for service, url in urls.items()))


async def works(guarded: Guarded, service: str, url: str) -> None:
    """Under a prefix of its own, without rights of others."""
    prefix = f"{service}."
    await asyncio.to_thread(guarded.apply_scripts, prefix, **{service.upper().replace("-", "_"): "User:ANONYMOUS"})
    (port,) = free_ports(1)
    given = {
        "DATABASE_URL": url,
        "KAFKA": guarded.open_address,
        "TOPIC_PREFIX": prefix,
        "PARTITIONS": "1",
        "PORT": str(port),
        "REGISTRATION_KEYS": KEY,
        "SECRETS_IN_ENVIRONMENT": "yes",
    }
    child = Child(
        service,
        [sys.executable, "-m", MODULES[service]],
        log=guarded.folder / f"{service}.log",
        env=os.environ | {f"SLIPWAY_{name}": value for name, value in given.items()},
    )
    child.start()
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:

            async def ready() -> bool:
                try:
                    return (await http.get("/readyz")).status_code == 200
                except httpx2.TransportError:
                    return False

            await until(ready, f"{service} is ready", seconds=90)
        assert await guarded.reads(ADMIN, SERVICE_HEARTBEAT.name, prefix=prefix)
    finally:
        await child.kill()


async def test_a_relay_that_lost_its_right_retries(guarded: Guarded, postgres: EmbeddedPostgres) -> None:
    """It says which topic, sends what has waited in order once the right is back, and parks nothing."""
    prefix, topic = "lost.", WORKER_LIFECYCLE.name
    await asyncio.to_thread(guarded.apply_scripts, prefix, PROVISIONER="User:ANONYMOUS")
    name = harness.new_name()
    await harness.make_template(postgres, name)
    database = await connections.connect(postgres.url(name), harness.SERVICE)
    relay = Relay(
        harness.SERVICE,
        database_url=postgres.url(name),
        kafka=guarded.open_address,
        topic_prefix=prefix,
        partitions={topic: 1},
    )
    running = asyncio.create_task(relay.run())

    async def send(word: str) -> None:
        async with database.acquire() as db, db.transaction():
            await outbox.enqueue(db, [harness.report("w1", word)])
        relay.wake(database)

    async def waiting() -> int:
        return int(await database.fetchval("SELECT count(*) FROM outbox"))

    async def all_are_sent() -> bool:
        return await waiting() == 0

    try:
        await send("first")
        await until(all_are_sent, "the relay has its rights")
        await asyncio.to_thread(guarded.change_right, prefix + topic, given=False)
        for word in ("second", "third"):
            await send(word)
        await until(lambda: relay.denied(0.5) == [topic], "the relay says what it may not write to")
        assert await waiting() == 2
        assert await database.fetchval("SELECT count(*) FROM dead_letter") == 0
        await asyncio.to_thread(guarded.change_right, prefix + topic, given=True)
        await until(all_are_sent, "what has waited is sent")
        assert relay.denied(0.0) == []
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await database.close()
    assert await guarded.words(prefix + topic, 3) == ["first", "second", "third"]
