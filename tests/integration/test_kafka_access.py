"""Clients of a broker that accepts TLS alone, with passwords or client certificates, and ends each session of an
authentication after two seconds, as `connections.max.reauth.ms` has it."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qs

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from confluent_kafka.admin import (  # type: ignore[attr-defined] # it names them, but not in __all__
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from slipway_api.events.topics import ALERT, LAUNCH_CONFIG_SIGNAL, WORKER_LIFECYCLE
from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.base.tls import server_context
from slipway_common.messaging import kafka, topic_admin
from slipway_common.messaging.broker import connect
from slipway_common.messaging.clients import KafkaAccess, client_options
from slipway_common.messaging.consume import Consumer
from slipway_common.messaging.partitions import closed
from slipway_common.messaging.relay import Relay
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.contract.examples.outside import example, publish, raised
from tests.support import harness
from tests.support.authority import Authority
from tests.support.harness import PARTITIONS, SERVICE, enqueue, record_words, report, until

SESSION_SECONDS: Final = 2.0
SESSIONS: Final = 4
SUBJECTS: Final = 8
OVERDUE_SECONDS: Final = 5.0
"""Half of the time after which an alert says that a partition cannot be sent to."""
SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
PLAIN: Final = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_plain="plain-password";'
TOKENS: Final = (
    'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="x";'
)
PASSWORDS: Final = {"admin": "admin-password", "service": "service-password"}


def settings(authority: Authority, ports: list[int]) -> dict[str, str]:
    password_port, certificate_port = ports
    server = authority.issue("broker")
    listeners = ",".join(
        (
            "CONTROLLER://127.0.0.1:{controller_port}",
            "PLAINTEXT://127.0.0.1:{port}",
            f"PASSWORDS://127.0.0.1:{password_port}",
            f"CERTIFICATES://127.0.0.1:{certificate_port}",
        )
    )
    return {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PASSWORDS:SASL_SSL,CERTIFICATES:SSL"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca_file),
        "listener.name.certificates.ssl.client.auth": "required",
        "listener.name.passwords.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN,OAUTHBEARER",
        "listener.name.passwords.oauthbearer.sasl.jaas.config": TOKENS,
        "listener.name.passwords.scram-sha-512.sasl.jaas.config": SCRAM,
        "listener.name.passwords.plain.sasl.jaas.config": PLAIN,
        "listener.name.passwords.connections.max.reauth.ms": str(int(SESSION_SECONDS * 1000)),
    }


class Secured:
    """A broker, its authority, and how clients reach it."""

    def __init__(self, broker: EmbeddedKafka, authority: Authority, ports: list[int], folder: Path) -> None:
        self.broker = broker
        self.authority = authority
        self.passwords, self.certificates = (f"127.0.0.1:{port}" for port in ports)
        self.folder = folder

    def password_file(self, name: str, password: str) -> Path:
        path = self.folder / f"{name}.password"
        path.write_text(password + "\n")
        return path

    def by_password(self, user: str = "service", **changes: Any) -> KafkaAccess:
        given: dict[str, Any] = {
            "bootstrap_servers": self.passwords,
            "security_protocol": "SASL_SSL",
            "username": user,
            "ca_file": self.authority.ca_file,
        } | changes
        if "password_file" not in given:
            given["password_file"] = self.password_file(user, PASSWORDS.get(user, f"{user}-password"))
        return KafkaAccess(**given)

    def by_certificate(self, **changes: Any) -> KafkaAccess:
        given: dict[str, Any] = {
            "bootstrap_servers": self.certificates,
            "security_protocol": "SSL",
            "ca_file": self.authority.ca_file,
            "certificate_file": self.authority.issue("client"),
        }
        return KafkaAccess(**given | changes)

    def change_password(self, user: str, password: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        credential = UserScramCredentialUpsertion(
            user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode()
        )
        for future in admin.alter_user_scram_credentials([credential]).values():
            future.result(30)


@pytest.fixture(scope="module")
async def secured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority, ports = Authority(folder), free_ports(2)
    broker = EmbeddedKafka(folder / "kafka", settings=settings(authority, ports), scram=PASSWORDS)
    await broker.start()
    try:
        yield Secured(broker, authority, ports, folder)
    finally:
        await broker.kill()


async def answers(access: KafkaAccess) -> bool:
    """True if an admin client, a consumer and a producer get their metadata."""
    for kind in (AIOKafkaAdminClient, AIOKafkaConsumer, AIOKafkaProducer):
        client = kind(**client_options(access))
        try:
            await client.start()
        except KafkaError:
            return False
        finally:
            await closed(client.close if kind is AIOKafkaAdminClient else client.stop)
    return True


async def test_each_way_in(secured: Secured) -> None:
    assert await answers(secured.by_password())
    assert await answers(secured.by_password("plain", sasl_mechanism="PLAIN"))
    assert await answers(secured.by_certificate())


class TokenEndpoint(BaseHTTPRequestHandler):
    """Issues unsigned tokens, which the broker accepts as long as no keys are configured, for one client secret."""

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        is_known = form["client_secret"] == ["client-secret"] and form["grant_type"] == ["client_credentials"]
        now = utc_now().timestamp()
        claims = {"sub": form["client_id"][0], "iat": now, "exp": now + 60, "scope": "kafka"}
        token = ".".join(
            base64.urlsafe_b64encode(part).decode().rstrip("=")
            for part in (b'{"alg":"none"}', json.dumps(claims).encode(), b"")
        )
        self.send_response(200 if is_known else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"access_token": token, "expires_in": 60}).encode() if is_known else b"{}")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def token_url(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("SSL_CERT_FILE", str(secured.authority.ca_file))
    server = ThreadingHTTPServer(("127.0.0.1", 0), TokenEndpoint)
    context = server_context(certificate_file=secured.authority.issue("issuer"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}/token"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


async def test_tokens_of_an_issuer(secured: Secured, token_url: str) -> None:
    access: dict[str, Any] = {
        "bootstrap_servers": secured.passwords,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "ca_file": secured.authority.ca_file,
        "oauth_token_url": token_url,
        "oauth_client_id": "provisioner",
        "oauth_client_secret_file": secured.password_file("oauth", "client-secret"),
    }
    assert await answers(KafkaAccess(**access))
    wrong = secured.password_file("wrong-oauth", "wrong")
    assert not await answers(KafkaAccess(**access | {"oauth_client_secret_file": wrong}))


async def test_the_examples_reach_it(secured: Secured, templated: EmbeddedPostgres, tmp_path: Path) -> None:
    access = {
        "KAFKA": secured.passwords,
        "KAFKA_USERNAME": "service",
        "KAFKA_PASSWORD_FILE": str(secured.by_password().password_file),
        "KAFKA_CA_FILE": str(secured.authority.ca_file),
    }
    async with harness.new_place((secured.broker, templated)) as place:
        await place.create(ALERT, WORKER_LIFECYCLE, LAUNCH_CONFIG_SIGNAL)
        await publish(place, raised("x"))
        for name in ("alerts_aiokafka", "alerts_faststream"):
            (tmp_path / name).mkdir()
            with example(place, name, tmp_path / name, **access) as subscriber:
                subscriber.start()
                await subscriber.until_printed("trigger test/x")
        (tmp_path / "status").write_text("all is well")
        with example(place, "monitor_signal", tmp_path, **access) as monitor:
            monitor.start("zone", "zone-c", str(tmp_path / "status"))
            await monitor.until_printed("zone zone-c: recovered")


async def test_what_is_refused(secured: Secured, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    assert not await answers(secured.by_password(password_file=secured.password_file("wrong", "wrong")))
    assert not await answers(secured.by_password(ca_file=other.ca_file))
    assert not await answers(secured.by_certificate(certificate_file=None))
    assert not await answers(secured.by_certificate(certificate_file=other.issue("client")))


async def test_a_file_is_read_again_at_each_connection(secured: Secured) -> None:
    """A password and a certificate are replaced while a client is connected: its next connections use the new ones."""
    access = secured.by_password("rotated", password_file=secured.password_file("rotated", "first"))
    secured.change_password("rotated", "first")
    certified = secured.by_certificate(certificate_file=secured.authority.issue("early", file="rotated"))
    async with (
        AIOKafkaProducer(**client_options(access)) as by_password,
        AIOKafkaProducer(**client_options(certified)) as by_certificate,
    ):
        secured.change_password("rotated", "second")
        secured.password_file("rotated", "second")
        secured.authority.issue("late", file="rotated")
        for client in (by_password, by_certificate):
            for connection in list(client.client._conns.values()):
                connection.close()
            assert await client.client.force_metadata_update()


class CountingSubscription(kafka.Subscription):
    """Counts the assignments of its group."""

    assignments = 0

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self.assignments += 1
        await super().on_partitions_assigned(assigned)


async def test_work_goes_on_while_sessions_end(
    secured: Secured, templated: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """The relay sends each partition in order and a consumer applies each event once, without a rebalance and without a
    partition that counts as unsendable or unowned, while the broker ends their connections every two seconds."""
    caplog.set_level(logging.INFO, "aiokafka.conn")
    async with harness.new_place((secured.broker, templated)) as place:
        await place.create(WORKER_LIFECYCLE)
        relay = Relay(
            SERVICE,
            database_url=place.url,
            kafka=secured.by_password(),
            topic_prefix=place.prefix,
            partitions=topic_admin.partition_counts((WORKER_LIFECYCLE,), PARTITIONS),
        )
        broker = connect(secured.by_password(), SERVICE)
        subscription = CountingSubscription(
            broker,
            place.database,
            Consumer(SERVICE, WORKER_LIFECYCLE, record_words),
            prefix=place.prefix,
            instance="one",
            wake=lambda: None,
        )
        await broker.start()
        try:
            relaying = asyncio.create_task(relay.run())
            try:
                await until(lambda: set(subscription.owned) == set(range(PARTITIONS)), "all partitions are owned")
                await until(lambda: relay.leading, "the relay leads")
                caplog.clear()
                written, ends_at = 0, monotonic_seconds() + SESSIONS * SESSION_SECONDS
                while monotonic_seconds() < ends_at:
                    await enqueue(place.database, *(report(f"w{n}", str(written)) for n in range(SUBJECTS)))
                    relay.wake(place.database)
                    written += 1
                    assert relay.publication is not None
                    assert relay.publication.unsendable(OVERDUE_SECONDS) == []
                    assert set(subscription.owned) == set(range(PARTITIONS))
                    await asyncio.sleep(0.02)

                async def all_applied() -> bool:
                    return sum((await place.effects()).values()) >= written * SUBJECTS

                await until(all_applied, "all events are applied")
            finally:
                relaying.cancel()
                await asyncio.gather(relaying, return_exceptions=True)
        finally:
            await subscription.stop()
            await broker.stop()
        authenticated = [record for record in caplog.records if record.message.startswith("Authenticated as service")]
        assert len(authenticated) >= 2 * (SESSIONS - 1)
        assert subscription.assignments == 1
        assert set((await place.effects()).values()) == {1}
        for n in range(SUBJECTS):
            assert await place.words(f"w{n}") == [str(word) for word in range(written)]
        assert await place.gaps() == []
        assert await place.alerts() == []
