"""Servers and services of a deployment as on a network, with their secrets, each in a file of its own."""

import asyncio
import base64
import os
import secrets
import subprocess
from pathlib import Path
from typing import Any, Final

import httpx2

from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.tls import client_context
from slipway_common.database import migrate
from slipway_common.messaging import topic_admin
from slipway_local.servers.child import Child
from slipway_local.servers.ports import free_ports
from tests.secured.capture import Capture
from tests.secured.machines import USER, Machines
from tests.secured.servers import MODULES, SLIPWAY, SecuredKafka, SecuredPostgres, service, unready
from tests.support.authority import Authority

READY_SECONDS: Final = 180.0
PARTITIONS: Final = 4
DATABASE_USERS: Final = {name: f"slipway_{name.replace('-', '_')}" for name in MODULES}
PASSWORDS: Final = ("provisioner", "weight-calculator")
"""Services that PostgreSQL knows by a password: one in a `passfile`, one in the file of its URL. The third has a
certificate."""
ROLES: Final = Path(__file__).parents[2] / "infra/postgres/roles.sql"


class Deployment:
    """Servers and services of one run, with their secrets."""

    def __init__(self, folder: Path, capture: Capture) -> None:
        self.folder = folder
        self.capture = capture
        self.authority = Authority(folder)
        self.other = Authority(folder, "other")
        self.passwords = {user: secrets.token_hex(16) for user in ("admin", *MODULES, "operators", "revoked", "bare")}
        self.kafka = SecuredKafka(folder, self.authority, self.passwords)
        self.database_passwords = {name: secrets.token_hex(16) for name in PASSWORDS}
        self.postgres = SecuredPostgres(folder, self.authority, secrets.token_hex(16))
        self.ports = dict(zip(MODULES, free_ports(len(MODULES)), strict=True))
        self.token = ""
        self.tokens_file = folder / "tokens.yaml"
        self.keys = {name: new_key() for name in ("registration_keys", "state_keys")}
        """Lines of each file of keys."""
        self.certificate = self.authority.issue("service", hosts=("localhost",))
        self.client = self.authority.issue("operator")
        self.machines = Machines(folder, self.authority, self.call, capture.search)
        self.replaced: dict[str, str] = {}
        """Secrets that were replaced, by what they are for."""
        self.children: dict[str, Child] = {}
        for user, password in self.passwords.items():
            capture.search({password})
            self.kafka.write_password(user, password)
        for name in self.keys:
            self.write_keys(name, self.keys[name])

    def url(self, name: str) -> str:
        return f"https://localhost:{self.ports[name]}"

    async def call(self, method: str, service: str, path: str, body: Any = None) -> Any:
        """Send a request of the operator; the answer, decoded if it is JSON. Raises httpx2.HTTPError."""
        context = client_context(ca_file=self.authority.ca_file, certificate_file=self.client)
        headers = {"Authorization": f"Bearer {self.token}"}
        async with httpx2.AsyncClient(verify=context, trust_env=False, headers=headers, timeout=60) as http:
            answer = await http.request(method, self.url(service) + path, **({} if body is None else {"json": body}))
        if answer.is_error:
            raise httpx2.HTTPStatusError(f"{method} {path}: {answer.text}", request=answer.request, response=answer)
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text

    def write(self, name: str, text: str) -> Path:
        """A file of its owner alone, replaced at once."""
        path = self.folder / name
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(text)
        new.replace(path)
        return path

    def write_keys(self, name: str, lines: str) -> None:
        self.capture.search(set(lines.split()))
        self.keys[name] = lines
        self.write(name, lines)

    def write_database_password(self, name: str, password: str) -> None:
        self.capture.search({password})
        self.database_passwords[name] = password
        if name == PASSWORDS[0]:
            self.write("pgpass", f"127.0.0.1:*:*:{DATABASE_USERS[name]}:{password}\n")
        else:
            self.write(f"{name}.url", self.postgres.url(DATABASE_USERS[name], password=password))

    def create_token(self, name: str) -> None:
        """Another token of the operator, which is used from now on."""
        command = [SLIPWAY, "token", "create", "--name", name, "--scope", "admin", "--file", str(self.tokens_file)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        self.token = done.stdout.split()[-1]
        self.capture.search({self.token})

    def issue_database_certificate(self) -> Path:
        """Certificate by which PostgreSQL knows the service that has no password, with its key in a file of its own."""
        certificate = self.authority.issue(DATABASE_USERS["lease-broker"])
        self.write(certificate.with_suffix(".key").name, certificate.read_text())
        return certificate

    def database_url(self, name: str) -> str:
        user = DATABASE_USERS[name]
        if name == PASSWORDS[0]:
            return self.postgres.url(user, passfile=self.folder / "pgpass")
        if name == PASSWORDS[1]:
            return (self.folder / f"{name}.url").read_text()
        certificate = self.folder / f"{user}.pem"
        return self.postgres.url(user, sslcert=certificate, sslkey=certificate.with_suffix(".key"))

    async def start(self) -> None:
        await asyncio.gather(self.kafka.broker.start(), self.postgres.start())
        access = self.kafka.access()
        await topic_admin.create(access, partitions=PARTITIONS)
        await asyncio.to_thread(self.kafka.apply_acls)
        await self._prepare_database()
        self.create_token("operator")
        for name in MODULES:
            await migrate.upgrade(self.database_url(name), name)
            self.children[name] = service(name, self.folder, self._settings(name))
        await self.until_ready()
        await self.machines.declare()

    async def _prepare_database(self) -> None:
        async with self.postgres.administered("postgres") as administrator:
            await administrator.execute("CREATE DATABASE slipway")
        async with self.postgres.administered() as administrator:
            await administrator.execute(ROLES.read_text())
            for name, password in self.database_passwords.items():
                await administrator.execute(f"ALTER ROLE {DATABASE_USERS[name]} PASSWORD '{password}'")
                self.write_database_password(name, password)
        self.issue_database_certificate()

    def _settings(self, name: str) -> dict[str, str]:
        by_file = name == PASSWORDS[1]  # the URL has the password
        database = {"DATABASE_URL_FILE": str(self.folder / f"{name}.url")} if by_file else {}
        own = {
            "PROVIDERS": self.machines.providers,
            "CHILD_USER": USER,
            "REGISTRATION_KEYS_FILE": str(self.folder / "registration_keys"),
            "STATE_KEYS_FILE": str(self.folder / "state_keys"),
            "REGISTER_URL": self.url("provisioner"),
            "REGISTER_CA_FILE": str(self.authority.ca_file),
            "IDLE_TIMEOUT_SECONDS": "2",
            "REAP_SECONDS": "1",
            "VISIBILITY_SECONDS": "1",
        }
        return (
            (database or {"DATABASE_URL": self.database_url(name)})
            | (own if name == "provisioner" else {})
            | {
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
            }
        )

    async def until_ready(self) -> None:
        for name in MODULES:
            deadline = monotonic_seconds() + READY_SECONDS
            while problem := await unready(self.url(name), self.authority.ca_file, self.client):
                if not self.children[name].alive or monotonic_seconds() > deadline:
                    raise RuntimeError(f"{name}: {problem}\n{self.children[name].log_tail()}")
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
        for is_last in (False, False, False, True):  # it gives Kafka 8 s, and a busy computer needs more for handshakes
            done = await asyncio.to_thread(subprocess.run, [SLIPWAY, "doctor"], env=env, capture_output=True, text=True)
            if done.returncode == 0:
                break
            if is_last:
                raise RuntimeError(f"slipway doctor exits with {done.returncode}\n{done.stdout}{done.stderr}")
        return str(done.stdout)

    async def stop(self) -> None:
        for child in self.children.values():
            await child.stop()
        self.machines.end()
        await self.kafka.broker.kill()
        await self.postgres.stop()


def new_key() -> str:
    """Key of registrations or states."""
    return base64.b64encode(secrets.token_bytes(32)).decode()
