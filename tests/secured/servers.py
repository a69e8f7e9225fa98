"""Servers as on a network: Apache Kafka with SASL_SSL, client certificates and its authorizer; Debian's PostgreSQL with
hostssl alone; services over HTTPS."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import asyncpg
import httpx2
from confluent_kafka.admin import (  # type: ignore[attr-defined] # it names them, but not in __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from generate import kafka_scripts
from slipway_common.base.tls import client_context
from slipway_common.messaging.clients import KafkaAccess
from slipway_local.servers.child import Child
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from tests.support.authority import Authority

SLIPWAY: Final = str(Path(sys.executable).with_name("slipway"))
POSTGRES: Final = Path("/usr/lib/postgresql/15/bin")
MODULES: Final = {
    "provisioner": "slipway_provisioner.main",
    "weight-calculator": "slipway_weight_calculator.main",
    "lease-broker": "slipway_lease_broker.main",
}
JAAS: Final = "listener.name.client.scram-sha-512.sasl.jaas.config"
SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"
REAUTHENTICATION_SECONDS: Final = 10
OPERATIONS: Final = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


class SecuredKafka:
    """One broker. Users of SCRAM on one listener, client certificates on another, no listener without TLS."""

    def __init__(self, folder: Path, authority: Authority, passwords: dict[str, str]) -> None:
        self.folder = folder
        self.authority = authority
        self.passwords = passwords
        (self._certificate_port,) = free_ports(1)
        for user, password in passwords.items():
            self.write_password(user, password)
        self.broker = EmbeddedKafka(folder / "kafka", settings=self._settings(), access=self.access, scram=passwords)

    def _settings(self) -> dict[str, str]:
        server = self.authority.issue("broker", hosts=("127.0.0.1",))
        listeners = (
            "CLIENT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port},"
            f"CERTIFICATE://127.0.0.1:{self._certificate_port}"
        )
        return {
            "listeners": listeners,
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "CONTROLLER:SSL,CLIENT:SASL_SSL,CERTIFICATE:SSL",
            "inter.broker.listener.name": "CLIENT",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.client.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            JAAS: own_login(self.passwords["admin"]),
            "listener.name.client.connections.max.reauth.ms": str(REAUTHENTICATION_SECONDS * 1000),
            "listener.name.certificate.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.ca_file),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin;User:broker",
        }

    def password_file(self, user: str) -> Path:
        return self.folder / f"{user}.password"

    def write_password(self, user: str, password: str) -> None:
        path = self.password_file(user)
        path.touch(mode=0o600)
        path.write_text(password)

    def access(self, bootstrap: str = "", user: str = "admin", **changes: Any) -> KafkaAccess:
        given: dict[str, Any] = {
            "bootstrap_servers": bootstrap or self.broker.bootstrap,
            "security_protocol": "SASL_SSL",
            "username": user,
            "password_file": self.password_file(user),
            "ca_file": self.authority.ca_file,
        }
        return KafkaAccess(**given | changes)

    def by_certificate(self, certificate: Path | None, **changes: Any) -> KafkaAccess:
        given: dict[str, Any] = {
            "bootstrap_servers": f"127.0.0.1:{self._certificate_port}",
            "security_protocol": "SSL",
            "ca_file": self.authority.ca_file,
            "certificate_file": certificate,
        }
        return KafkaAccess(**given | changes)

    def administrator(self) -> AdminClient:
        return AdminClient(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "admin",
                "sasl.password": self.password_file("admin").read_text(),
                "ssl.ca.location": str(self.authority.ca_file),
            }
        )

    def apply_acls(self) -> None:
        """The access control list that infra/kafka/acls.sh applies."""
        bindings = [
            AclBinding(
                ResourceType[right.resource.upper()],
                right.name,
                ResourcePatternType[right.pattern.upper()],
                f"User:{right.principal}",
                "*",
                OPERATIONS[right.operation],
                AclPermissionType.ALLOW,
            )
            for right in kafka_scripts.rights()
        ]
        administrator = self.administrator()  # its requests end with it
        for future in administrator.create_acls(bindings).values():
            future.result(30)

    def remove_acls(self, user: str) -> None:
        anything: Any = None
        every = AclBindingFilter(
            ResourceType.ANY,
            anything,
            ResourcePatternType.ANY,
            f"User:{user}",
            anything,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        administrator = self.administrator()  # its requests end with it
        for future in administrator.delete_acls([every]).values():
            future.result(30)

    def change_password(self, user: str, password: str) -> None:
        """First on the broker, then in the file: between the two, new connections are refused and try again."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(user, info, password.encode())
        administrator = self.administrator()  # its requests end with it
        for future in administrator.alter_user_scram_credentials([change]).values():
            future.result(30)
        self.write_password(user, password)

    def change_own_password(self, password: str) -> None:
        """Of the administrator, as whom the broker logs in at others, too."""
        self.change_password("admin", password)
        self._configure({JAAS: own_login(password)})

    def renew_certificate(self) -> None:
        """Replace the broker's certificate, and have both listeners read their file again."""
        certificate = str(self.authority.issue("broker", hosts=("127.0.0.1",)))
        listeners = ("client", "certificate")
        self._configure({f"listener.name.{listener}.ssl.keystore.location": certificate for listener in listeners})

    def _configure(self, settings: dict[str, str]) -> None:
        """Change settings of the running broker."""
        changes = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
        ]
        broker = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=changes)
        administrator = self.administrator()  # its requests end with it
        for future in administrator.incremental_alter_configs([broker]).values():
            future.result(30)

    def revoke(self, user: str) -> None:
        change = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)
        administrator = self.administrator()  # its requests end with it
        for future in administrator.alter_user_scram_credentials([change]).values():
            future.result(30)


class SecuredPostgres:
    """Debian's PostgreSQL, as its own user: passwords for one role, client certificates for the others."""

    def __init__(self, folder: Path, authority: Authority, password: str) -> None:
        self.folder = folder
        self.authority = authority
        self.data = folder / "postgres"
        (self.port,) = free_ports(1)
        self._password = password
        self._child: Child | None = None

    async def start(self) -> None:
        password_file = self.folder / "administrator"
        password_file.write_text(self._password)
        self.data.mkdir()
        for path in (password_file, self.data):
            shutil.chown(path, "postgres", "postgres")
        as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        initdb: list[str | Path] = [
            POSTGRES / "initdb",
            "-D",
            self.data,
            "-U",
            "admin",
            "-A",
            "scram-sha-256",
            "--pwfile",
            password_file,
        ]
        command: list[str | Path] = [*as_postgres, *initdb, "--locale=C.UTF-8"]
        await asyncio.to_thread(partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL))
        self._install("ca.pem", self.authority.ca_file)
        self.install_certificate()
        (self.data / "pg_hba.conf").write_text(
            "hostssl slipway slipway_lease_broker 127.0.0.1/32 cert\nhostssl all all 127.0.0.1/32 scram-sha-256\n"
        )
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "ssl": "on",
            "ssl_cert_file": "server.pem",
            "ssl_key_file": "server.pem",
            "ssl_ca_file": "ca.pem",
            "password_encryption": "scram-sha-256",
        }
        serve: list[str | Path] = [*as_postgres, POSTGRES / "postgres", "-D", self.data]
        serve += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self._child = Child("postgres", serve, log=self.folder / "postgres.log")
        self._child.start()
        await self._child.ready(self._answers, 60)

    def install_certificate(self) -> None:
        """A new certificate, which connections have from the next reload on."""
        self._install("server.pem", self.authority.issue("postgres", hosts=("127.0.0.1",)))

    def _install(self, name: str, source: Path) -> None:
        new = self.data / f"{name}.new"
        shutil.copy(source, new)
        shutil.chown(new, "postgres", "postgres")
        new.chmod(0o600)
        new.replace(self.data / name)

    @contextlib.asynccontextmanager
    async def administered(self, database: str = "slipway") -> AsyncIterator[asyncpg.Connection]:
        """Connection of the administrator."""
        connection = await asyncpg.connect(self.administrator(database))
        try:
            yield connection
        finally:
            await connection.close()

    async def change_password(self, password: str) -> None:
        """Of the administrator."""
        async with self.administered() as administrator:
            await administrator.execute(f"ALTER ROLE admin PASSWORD '{password}'")
        self._password = password

    async def _answers(self) -> bool:
        try:
            await (await asyncpg.connect(self.administrator("postgres"))).close()
        except (OSError, asyncpg.PostgresError):
            return False
        return True

    def administrator(self, database: str = "slipway") -> str:
        return self.url("admin", database=database, password=self._password)

    def url(
        self, user: str, *, database: str = "slipway", host: str = "127.0.0.1", password: str = "", **more: Any
    ) -> str:
        """URL with verify-full; `more` are parameters of the driver, None to leave one out."""
        given = {"sslmode": "verify-full", "sslrootcert": self.authority.ca_file} | more
        query = "&".join(f"{name}={quote(str(value), safe='/')}" for name, value in given.items() if value is not None)
        return f"postgresql://{user}{':' + quote(password) if password else ''}@{host}:{self.port}/{database}?{query}"

    async def stop(self) -> None:
        if self._child is not None:
            await self._child.stop()


def own_login(password: str) -> str:
    """Setting by which brokers log in at each other."""
    return f'{SCRAM} username="admin" password="{password}";'


def service(name: str, folder: Path, settings: dict[str, str]) -> Child:
    """Process of a service with these settings and no other variables of ours."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("SLIPWAY_")}
    env = own | {f"SLIPWAY_{key}": value for key, value in settings.items()}
    child = Child(name, [sys.executable, "-m", MODULES[name]], log=folder / f"{name}.log", env=env)
    child.start()
    return child


async def unready(url: str, ca_file: Path, certificate: Path) -> str:
    """Why a service is not ready; empty if it is."""
    context = client_context(ca_file=ca_file, certificate_file=certificate)
    try:
        async with httpx2.AsyncClient(verify=context, trust_env=False) as http:
            answer = await http.get(f"{url}/readyz")
    except httpx2.TransportError as error:
        return repr(error)
    return "" if answer.status_code == 200 else answer.text
