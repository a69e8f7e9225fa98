"""`make try-secured`: a deployment as on a network. Its services work, everything else is refused, and no secret can be
read from its wires, also while each secret is replaced once.

Prints each refusal with its reason, and last `path ok`, `refused N of N` and what the capture of loopback holds.
"""

import asyncio
import base64
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from slipway_common.database import migrate
from slipway_common.messaging import topic_admin
from slipway_common.messaging.clients import KafkaAccess
from slipway_local.servers.child import Child
from slipway_local.servers.ports import free_ports
from tests.secured.refusals import Refused, http_cases, kafka_cases, postgres_cases
from tests.secured.servers import MODULES, SLIPWAY, SecuredKafka, SecuredPostgres, ready, service
from tests.support.authority import Authority

READY_SECONDS: Final = 180.0
PARTITIONS: Final = 4
ETHERNET_EVERYTHING: Final = 3  # ETH_P_ALL
DATABASE_USERS: Final = {name: f"slipway_{name.replace('-', '_')}" for name in MODULES}
END_SESSIONS: Final = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
ROLES: Final = Path(__file__).parents[2] / "infra/postgres/roles.sql"


class Capture:
    """Everything that passes loopback, searched for texts as it passes."""

    def __init__(self, texts: set[str]) -> None:
        self.texts = texts
        self.found: set[str] = set()
        self.packets = 0
        self._ended = Event()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERNET_EVERYTHING))
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.2)
        self._thread = Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.is_set():
            try:
                packet = self._socket.recv(1 << 17)
            except TimeoutError:
                continue
            self.packets += 1
            self.found |= {text for text in self.texts if text.encode() in packet}

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()


class Deployment:
    """Servers and services of one run, with their secrets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.other = Authority(folder, "other")
        self.passwords = {user: secrets.token_hex(16) for user in ("admin", *MODULES, "operators", "revoked", "bare")}
        self.kafka = SecuredKafka(folder, self.authority, self.passwords)
        self.database_password = secrets.token_hex(16)
        self.postgres = SecuredPostgres(folder, self.authority, secrets.token_hex(16))
        self.ports = dict(zip(MODULES, free_ports(len(MODULES)), strict=True))
        self.token = secrets.token_hex(16)
        self.tokens_file = folder / "tokens.yaml"
        self.registration_keys_file = folder / "registration_keys"
        self.registration_keys = [registration_key()]
        self.write_registration_keys()
        self.certificate = self.authority.issue("service", hosts=("localhost",))
        self.client = self.authority.issue("operator")
        self.children: dict[str, Child] = {}

    def url(self, name: str) -> str:
        return f"https://localhost:{self.ports[name]}"

    @property
    def secrets(self) -> set[str]:
        return {*self.passwords.values(), self.database_password, self.token, *self.registration_keys}

    def write_registration_keys(self) -> None:
        """The newest one first: it derives, and all verify."""
        new = self.registration_keys_file.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text("\n".join(reversed(self.registration_keys)))
        new.replace(self.registration_keys_file)

    def passfile(self) -> Path:
        path = self.folder / "pgpass"
        path.touch(mode=0o600)
        path.write_text(f"127.0.0.1:*:*:slipway_provisioner:{self.database_password}\n")
        return path

    def write_token(self) -> None:
        command = [SLIPWAY, "token", "create", "--name", "operator"]
        command += ["--scope", "admin", "--file", str(self.tokens_file)]
        self.tokens_file.unlink(missing_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        self.token = done.stdout.split()[-1]

    def database_url(self, name: str) -> str:
        user = DATABASE_USERS[name]
        if name == "provisioner":
            return self.postgres.url(user, passfile=self.passfile())
        certificate = self.authority.issue(user)
        key = certificate.with_suffix(".key")
        key.touch(mode=0o600)
        key.write_bytes(certificate.read_bytes())
        return self.postgres.url(user, sslcert=certificate, sslkey=key)

    async def start(self) -> None:
        await asyncio.gather(self.kafka.broker.start(), self.postgres.start())
        access = self.kafka.access()
        await topic_admin.create(access, partitions=PARTITIONS)
        await asyncio.to_thread(self.kafka.apply_acls)
        await self._prepare_database()
        self.write_token()
        for name in MODULES:
            await migrate.upgrade(self.database_url(name), name)
            self.children[name] = service(name, self.folder, self._settings(name))
        await self.until_ready()

    async def _prepare_database(self) -> None:
        import asyncpg

        first = await asyncpg.connect(self.postgres.administrator("postgres"))
        await first.execute("CREATE DATABASE slipway")
        await first.close()
        administrator = await asyncpg.connect(self.postgres.administrator())
        await administrator.execute(ROLES.read_text())
        await administrator.execute(f"ALTER ROLE slipway_provisioner PASSWORD '{self.database_password}'")
        await administrator.close()

    def _settings(self, name: str) -> dict[str, str]:
        return {
            "DATABASE_URL": self.database_url(name),
            "KAFKA": self.kafka.broker.bootstrap,
            "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "KAFKA_USERNAME": name,
            "KAFKA_PASSWORD_FILE": str(self.kafka.password_file(name)),
            "KAFKA_CA_FILE": str(self.authority.ca_file),
            "PARTITIONS": str(PARTITIONS),
            "PORT": str(self.ports[name]),
            "TLS_CERTIFICATE_FILE": str(self.certificate),
            "TLS_CLIENT_CA_FILE": str(self.authority.ca_file),
            "ALLOWED_HOSTS": "localhost",
            "TOKENS_FILE": str(self.tokens_file),
            "REGISTRATION_KEYS_FILE": str(self.registration_keys_file),
            "REGISTER_URL": f"https://localhost:{self.ports['provisioner']}",
            "REGISTER_CA_FILE": str(self.authority.ca_file),
        }

    async def until_ready(self) -> None:
        async with asyncio.timeout(READY_SECONDS):
            for name in MODULES:
                while not await ready(self.url(name), self.authority.ca_file, self.client):
                    if not self.children[name].alive:
                        raise RuntimeError(f"{name} ended\n{self.children[name].log_tail()}")
                    await asyncio.sleep(0.5)

    async def doctor(self) -> str:
        """What `slipway doctor` prints, over all wires; its exit code tells if something does not work."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("SLIPWAY_")} | {
            f"SLIPWAY_{key}": value
            for key, value in {
                **{f"{name.upper().replace('-', '_')}_URL": self.url(name) for name in MODULES},
                "TOKEN": self.token,
                "CA_FILE": str(self.authority.ca_file),
                "CLIENT_CERTIFICATE_FILE": str(self.client),
                "KAFKA": self.kafka.broker.bootstrap,
                "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
                "KAFKA_USERNAME": "operators",
                "KAFKA_PASSWORD_FILE": str(self.kafka.password_file("operators")),
                "KAFKA_CA_FILE": str(self.authority.ca_file),
                "PARTITIONS": str(PARTITIONS),
            }.items()
        }
        for last in (
            False,
            False,
            False,
            True,
        ):  # it gives Kafka 8 s, which a busy computer may need for the handshakes
            command = [SLIPWAY, "doctor"]
            done = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True)
            if done.returncode == 0:
                break
            if last:
                raise RuntimeError(f"slipway doctor exits with {done.returncode}\n{done.stdout}{done.stderr}")
        return str(done.stdout)

    async def rotate(self) -> None:
        """Replace every secret once: passwords of Kafka and PostgreSQL, certificates, the token, registration keys."""
        import asyncpg

        for user in (*MODULES, "operators"):
            self.passwords[f"{user} again"] = password = secrets.token_hex(16)
            await asyncio.to_thread(self.kafka.change_password, user, password)
        self.database_password = secrets.token_hex(16)
        administrator = await asyncpg.connect(self.postgres.administrator())
        await administrator.execute(f"ALTER ROLE slipway_provisioner PASSWORD '{self.database_password}'")
        self.passfile()
        await administrator.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        )
        await administrator.close()
        self.authority.issue("service", hosts=("localhost",))
        self.client = self.authority.issue("operator")
        self.write_token()
        self.registration_keys.append(registration_key())
        self.write_registration_keys()

    async def stop(self) -> None:
        for child in self.children.values():
            await child.stop()
        await self.kafka.broker.kill()
        await self.postgres.stop()


def registration_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


async def refused(cases: list[tuple[str, Callable[[], Awaitable[Any]]]]) -> tuple[int, int]:
    """Number of cases that were refused, and of all; prints each with its reason."""
    count = 0
    for title, attempt in cases:
        try:
            async with asyncio.timeout(60):
                answer = await attempt()
        except Refused as reason:
            count += 1
            print(f"  refused  {title}: {reason}", flush=True)
        except Exception as error:
            print(f"  FAILED   {title}: {error!r}", flush=True)
        else:
            print(f"  ACCEPTED {title}: {answer!r}", flush=True)
    return count, len(cases)


async def attempt(folder: Path) -> bool:
    deployment = Deployment(folder)
    capture = Capture(deployment.secrets)
    try:
        await deployment.start()
        capture.texts = deployment.secrets
        print(await deployment.doctor(), flush=True)
        await deployment.rotate()
        capture.texts = capture.texts | deployment.secrets
        await deployment.until_ready()
        await deployment.doctor()
        access: KafkaAccess = deployment.kafka.access()
        print(f"path ok, before and after every secret was replaced, over {access.security_protocol}, TLS, verify-full")
        cases = [*kafka_cases(deployment), *http_cases(deployment), *await postgres_cases(deployment)]
        count, total = await refused(cases)
    finally:
        await deployment.stop()
        capture.end()
    print(f"refused {count} of {total}")
    print(f"loopback: {capture.packets:,} packets, {len(capture.found)} secrets in clear", flush=True)
    return count == total >= 30 and capture.packets > 0 and not capture.found


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="slipway-secured-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        sys.exit(0 if asyncio.run(attempt(Path(folder))) else 1)


if __name__ == "__main__":
    main()
