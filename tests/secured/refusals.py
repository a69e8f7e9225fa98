"""Who is refused on each wire, and why."""

import asyncio
import contextlib
import re
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx2
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from slipway_common.base.tls import client_context
from slipway_common.messaging.clients import KafkaAccess, client_options
from slipway_common.messaging.partitions import closed
from slipway_provisioner.domain.registration import RegistrationKeys
from tests.secured.servers import SLIPWAY

if TYPE_CHECKING:
    from tests.secured.deployment import Deployment

Case = tuple[str, Callable[[], Awaitable[Any]]]
DAY = timedelta(days=1)
TOPIC = "slipway.pool.lifecycle.v1"


class Refused(Exception):
    """The other side refused; the text is its reason."""


def certificates(deployment: "Deployment", name: str) -> dict[str, Path]:
    """Client certificates that nobody accepts."""
    return {
        "expired": deployment.authority.issue(name, begins=-9 * DAY, ends=-DAY, file=f"{name}-expired"),
        "not yet valid": deployment.authority.issue(name, begins=DAY, file=f"{name}-early"),
        "of another authority": deployment.other.issue(name, file=f"{name}-foreign"),
    }


def kafka_cases(deployment: "Deployment") -> list[Case]:
    kafka = deployment.kafka
    port = kafka.broker.bootstrap.rpartition(":")[2]

    def known(access: KafkaAccess) -> Callable[[], Awaitable[Any]]:
        return lambda: connect(access)

    async def after(change: Callable[[], None], work: Callable[[], Awaitable[Any]]) -> Any:
        change()
        return await work()

    wrong, unknown = kafka.folder / "wrong.password", kafka.folder / "unknown.password"
    for path in (wrong, unknown):
        path.write_text("wrong")
    replaced = {user: kafka.folder / f"{user}-replaced.password" for user in ("operators", "admin")}
    for user, path in replaced.items():
        path.write_text(deployment.replaced[user])
    plain = KafkaAccess(bootstrap_servers=kafka.broker.bootstrap)
    by_address = kafka.access(user="operators")
    cases: list[Case] = [
        ("kafka: without TLS", known(plain)),
        ("kafka: password absent", known(kafka.by_certificate(None, bootstrap_servers=kafka.broker.bootstrap))),
        ("kafka: password wrong", known(kafka.access(user="operators", password_file=wrong))),
        *(
            (f"kafka: password of {user} replaced", known(kafka.access(user=user, password_file=path)))
            for user, path in replaced.items()
        ),
        ("kafka: user unknown", known(kafka.access(user="nobody", password_file=unknown))),
        ("kafka: mechanism not offered", known(kafka.access(user="operators", sasl_mechanism="PLAIN"))),
        ("kafka: broker of another authority", known(kafka.access(ca_file=deployment.other.ca_file))),
        ("kafka: broker under another name", known(kafka.access(f"localhost:{port}"))),
        ("kafka: user revoked", lambda: after(lambda: kafka.revoke("revoked"), known(kafka.access(user="revoked")))),
        ("kafka: certificate absent", known(kafka.by_certificate(None))),
        ("kafka: no right to read", lambda: read_topic(kafka.access(user="bare"))),
        ("kafka: no right to write", lambda: write_topic(by_address)),
        (
            "kafka: right to read removed",
            lambda: after(lambda: kafka.remove_acls("operators"), lambda: read_topic(by_address)),
        ),
    ]
    for reason, certificate in certificates(deployment, "machine").items():
        cases.append((f"kafka: certificate {reason}", known(kafka.by_certificate(certificate))))
    return cases


async def connect(access: KafkaAccess) -> str:
    consumer = AIOKafkaConsumer(**client_options(access), enable_auto_commit=False, request_timeout_ms=5000)
    try:
        await consumer.start()
    except (KafkaError, OSError) as error:
        raise Refused(str(error).partition("\n")[0] or type(error).__name__) from None
    finally:
        await closed(consumer.stop)
    return "connected"


async def read_topic(access: KafkaAccess) -> str:
    consumer = AIOKafkaConsumer(**client_options(access), enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    try:
        if TOPIC not in await consumer.topics():
            raise Refused("the topic is not visible")
        consumer.assign([TopicPartition(TOPIC, 0)])
        await consumer.getmany(timeout_ms=3000)
    except KafkaError as error:
        raise Refused(type(error).__name__) from None
    finally:
        await closed(consumer.stop)
    return "read"


async def write_topic(access: KafkaAccess) -> str:
    producer = AIOKafkaProducer(**client_options(access))
    await producer.start()
    try:
        await producer.send_and_wait(TOPIC, b"{}", key=b"k", partition=0)
    except KafkaError as error:
        raise Refused(type(error).__name__) from None
    finally:
        await producer.stop()
    return "written"


def http_cases(deployment: "Deployment") -> list[Case]:
    url = deployment.url("provisioner")
    port = deployment.ports["provisioner"]
    trusted, client = deployment.authority.ca_file, deployment.client

    def asked(
        token: str | None = None,
        *,
        certificate: Path | None = client,
        ca_file: Path = trusted,
        at: str = url,
        host: str = "",
        context: ssl.SSLContext | None = None,
    ) -> Callable[[], Awaitable[str]]:
        async def ask() -> str:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            headers |= {"Host": host} if host else {}
            verify = context or client_context(ca_file=ca_file, certificate_file=certificate)
            async with httpx2.AsyncClient(verify=verify, trust_env=False) as http:
                try:
                    answer = await http.get(f"{at}/pools", headers=headers)
                except httpx2.TransportError as error:
                    raise Refused(str(error) or type(error).__name__) from None
            if answer.is_success:
                return answer.text[:80]
            raise Refused(f"{answer.status_code} {answer.json()['title']}")

        return ask

    old = ssl.create_default_context(cafile=trusted)
    old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.load_cert_chain(client)
    revoked = deployment.token

    async def by_removed_key() -> str:
        """Of the batch of a machine that has registered."""
        worker = (await deployment.call("GET", "provisioner", "/workers?limit=1"))["items"][0]
        key = RegistrationKeys(deployment.replaced["registration_keys"])
        batch_id = worker["batch_id"]
        body = {"batch_id": batch_id, "secret": key.secret(batch_id), "instance_id": worker["instance_id"]}
        try:
            return str(await deployment.call("POST", "provisioner", "/workers/register", body))
        except httpx2.HTTPStatusError as error:
            raise Refused(f"{error.response.status_code} {error.response.json()['title']}") from None

    async def after_revocation() -> str:
        deployment.tokens_file.write_text("[]\n")
        return await asked(revoked)()

    async def created(name: str, scope: str, *more: str) -> str:
        """Secret of a new token."""
        command = [SLIPWAY, "token", "create", "--name", name, "--scope", scope, *more]
        command += ["--file", str(deployment.tokens_file)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        return done.stdout.split()[-1]

    async def with_another_scope() -> str:
        return await asked(await created("machine", "demand:write:linux"))()

    async def with_metrics_alone() -> str:
        return await asked(await created("prometheus", "read:metrics"))()

    async def expired() -> str:
        secret = await created("short", "read", "--expires-in-days", "0.001")
        text = deployment.tokens_file.read_text()
        deployment.tokens_file.write_text(re.sub(r"expires_at: '\d{4}", "expires_at: '2020", text))
        return await asked(secret)()

    async def revoked_by_the_api() -> str:
        """The tokens file has it still."""
        secret = await created("stolen", "read")
        context = client_context(ca_file=trusted, certificate_file=client)
        headers = {"Authorization": f"Bearer {revoked}"}
        async with httpx2.AsyncClient(verify=context, trust_env=False, headers=headers) as http:
            body = {"reason": "stolen"}
            (await http.post(f"{url}/tokens/stolen/revoke", json=body)).raise_for_status()
        return await asked(secret)()

    cases: list[Case] = [
        ("http: without TLS", asked("of-nobody", at=f"http://localhost:{port}")),
        ("http: TLS 1.1", asked(revoked, context=old)),
        ("http: service of another authority", asked(revoked, ca_file=deployment.other.ca_file)),
        ("http: service under another name", asked(revoked, at=f"https://127.0.0.1:{port}")),
        ("http: Host of another name", asked(revoked, host="slipway.evil.example")),
        ("http: certificate absent", asked(revoked, certificate=None)),
        ("http: token absent", asked()),
        ("http: token wrong", asked("wrong")),
        ("http: token replaced", asked(deployment.replaced["token"])),
        ("http: secret of a removed key", by_removed_key),
        ("http: token of another scope", with_another_scope),
        ("http: token for metrics", with_metrics_alone),
        ("http: token expired", expired),
        ("http: token revoked without its file", revoked_by_the_api),
        ("http: token revoked", after_revocation),
    ]
    for reason, certificate in certificates(deployment, "caller").items():
        cases.append((f"http: certificate {reason}", asked(revoked, certificate=certificate)))
    return cases


async def postgres_cases(deployment: "Deployment") -> list[Case]:
    postgres = deployment.postgres
    by_password, by_certificate = "slipway_provisioner", "slipway_lease_broker"
    password = deployment.database_passwords["provisioner"]

    def asked(user: str, statement: str = "SELECT 1", **given: Any) -> Callable[[], Awaitable[Any]]:
        async def ask() -> Any:
            async with connected(postgres.url(user, **given)) as connection:
                return await connection.fetchval(statement)

        return ask

    async def after_revocation() -> Any:
        async with connected(postgres.administrator()) as administrator:
            await administrator.execute("ALTER ROLE slipway_provisioner NOLOGIN")
        return await asked(by_password, password=password)()

    other_file = deployment.folder / "absent-pgpass"
    cases: list[Case] = [
        ("postgres: without TLS", asked(by_password, password=password, sslmode="disable", sslrootcert=None)),
        ("postgres: password absent", asked(by_password, passfile=other_file)),
        ("postgres: password wrong", asked(by_password, password="wrong")),
        ("postgres: password replaced", asked(by_password, password=deployment.replaced[by_password])),
        ("postgres: role unknown", asked("nobody", password="wrong")),
        (
            "postgres: server of another authority",
            asked(by_password, password=password, sslrootcert=deployment.other.ca_file),
        ),
        ("postgres: server under another name", asked(by_password, password=password, host="localhost")),
        (
            "postgres: schema of another service",
            asked(by_password, "SELECT count(*) FROM lease_broker.outbox", password=password),
        ),
        ("postgres: role of another service", asked(by_password, "SET ROLE slipway_lease_broker", password=password)),
        ("postgres: certificate absent", asked(by_certificate)),
    ]
    named = {"under another name": deployment.authority.issue("slipway_weight_calculator", file="named-otherwise")}
    for reason, certificate in (certificates(deployment, by_certificate) | named).items():
        certificate.chmod(0o600)
        cases.append(
            (f"postgres: certificate {reason}", asked(by_certificate, sslcert=certificate, sslkey=certificate))
        )
    cases.append(("postgres: role revoked", after_revocation))
    return cases


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    try:
        connection = await asyncpg.connect(url, timeout=20)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Refused(str(error)) from None
    try:
        yield connection
    except asyncpg.PostgresError as error:
        raise Refused(str(error)) from None
    finally:
        await connection.close()
