"""A whole Slipway on this machine: servers, topics, schemas, tokens, simulator and services, each its own process.

Decides only what a production deployment would read from its environment. Servers of the user's own are used instead
of embedded ones when SLIPWAY_KAFKA or SLIPWAY_DATABASE_URL say so; nothing else differs.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx2
import msgspec
from aiokafka.errors import KafkaError

from slipway_common import migrate, topic_admin
from slipway_common.declaration import Declaration, load, scaled
from slipway_common.ids import hash_secret, new_id, new_secret
from slipway_local.child import StartFailed
from slipway_local.kafka import EmbeddedKafka
from slipway_local.ports import free_ports
from slipway_local.postgres import EmbeddedPostgres
from slipway_local.supervisor import Service, Supervisor, http_ready

SERVICES: Final = ("provisioner", "weight-calculator", "lease-broker")
# Every time that belongs to the product; SPEED divides these and no others. The same defaults stand in the services'
# settings, except that a demo looks at its accounts more often: it waits for two passes at its end.
PRODUCT_SECONDS: Final[dict[str, dict[str, float]]] = {
    "provisioner": {
        "call_timeout_seconds": 60,
        "visibility_seconds": 10,
        "boot_timeout_seconds": 900,
        "idle_timeout_seconds": 120,
        "give_up_idle_seconds": 300,
        "heard_timeout_seconds": 900,
        "stop_grace_seconds": 120,
        "clock_skew_seconds": 5,
        "resend_seconds": 30,
        "reap_seconds": 10,
        "sweep_seconds": 600,
        "silent_attempt_seconds": 30,
        "silent_half_life_seconds": 600,
    },
    "weight-calculator": {"refresh_seconds": 60, "republish_seconds": 600},
    "lease-broker": {"lost_linger_seconds": 70},
}
PARTITIONS: Final = 4
SERVICE_START_SECONDS: Final = 120.0  # they start beside the broker, which may itself take 90 on a busy machine


class Deployment:
    """Started once under a supervisor; knows where everything is."""

    def __init__(
        self,
        supervisor: Supervisor,
        folder: Path,
        *,
        speed: float,
        seconds: dict[str, float],
        environment: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """`seconds` replaces product times by name, before they are divided by `speed`; `environment` adds variables
        to services by name. A service may be told topics of its own: they are created too."""
        self.supervisor = supervisor
        self.folder = folder
        self.speed = speed
        self.seconds = seconds
        self.environment = environment or {}
        self.run_id = new_id()[-12:]
        self.prefix = f"run-{self.run_id}."
        port, *others = free_ports(5)
        self.ports = dict(zip((*SERVICES, "simulator"), others, strict=True))
        self.kafka_server = EmbeddedKafka(folder / "kafka", port)
        self.postgres_server = EmbeddedPostgres(folder / "postgres")
        self.kafka = os.environ.get("SLIPWAY_KAFKA") or self.kafka_server.bootstrap
        self.own_database = os.environ.get("SLIPWAY_DATABASE_URL", "")
        self.database_url = ""
        self.ledger = folder / "ledger.jsonl"
        self.token = new_secret()
        self.http = httpx2.AsyncClient(timeout=5.0)

    @property
    def call_settle_seconds(self) -> float:
        """Until the reaper may judge what the last call has created."""
        times = PRODUCT_SECONDS["provisioner"] | self.seconds
        return (times["call_timeout_seconds"] + times["visibility_seconds"]) / self.speed

    @property
    def settle_seconds(self) -> float:
        """Until everything older had its call settled and two passes of the reaper, with a second to act."""
        times = PRODUCT_SECONDS["provisioner"] | self.seconds
        return self.call_settle_seconds + 2 * max(1.0, times["reap_seconds"] / self.speed) + 1.0

    @property
    def java_used(self) -> str:
        """What the broker runs on, for people; empty when the broker is somebody else's."""
        java = self.kafka_server.java
        return f" on Java {java.version} ({java.executable})" if java is not None else ""

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.ports[service]}"

    async def start(self) -> None:
        """Everything at once: services wait for what they need by themselves, and starting them takes as long as the
        broker does. Raises StartFailed with the log's tail."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_tokens()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._start_broker())
                group.create_task(self._start_services())
        except* StartFailed as failed:
            raise failed.exceptions[0] from None

    async def _start_broker(self) -> None:
        if not os.environ.get("SLIPWAY_KAFKA"):
            await self.supervisor.start(self.kafka_server)
        await self._create_topics()

    async def _start_services(self) -> None:
        if not self.own_database:
            await self.supervisor.start(self.postgres_server)
        await self._prepare_database()
        await self.supervisor.start(*(self._process(name) for name in ("simulator", *SERVICES)))

    async def _create_topics(self) -> None:
        try:
            for prefix in self._prefixes():
                await topic_admin.create(self.kafka, prefix=prefix, partitions=PARTITIONS)
        except KafkaError as error:
            advice = "unset it for the embedded broker" if os.environ.get("SLIPWAY_KAFKA") else "see its log"
            raise StartFailed(f"SLIPWAY_KAFKA={self.kafka} does not answer ({error}); {advice}") from error

    def _prefixes(self) -> set[str]:
        return {self.prefix, *(more.get("SLIPWAY_TOPIC_PREFIX", self.prefix) for more in self.environment.values())}

    async def _prepare_database(self) -> None:
        name = f"slipway_{self.run_id}"
        if self.own_database:
            try:
                admin = await asyncpg.connect(self.own_database, timeout=10)
                try:
                    await admin.execute(f"CREATE DATABASE {name}")
                finally:
                    await admin.close()
            except (OSError, asyncpg.PostgresError) as error:
                advice = "unset it for the embedded database"
                raise StartFailed(f"SLIPWAY_DATABASE_URL cannot be used ({error}); {advice}") from error
            base, _, query = self.own_database.partition("?")
            self.database_url = base.rsplit("/", 1)[0] + f"/{name}" + (f"?{query}" if query else "")
        else:
            self.database_url = await self.postgres_server.create_database(name)
        for service in SERVICES:
            await migrate.upgrade(self.database_url, service)

    def _write_tokens(self) -> None:
        entry = {"name": "local", "sha256": hash_secret(self.token), "scopes": ["admin"]}
        path = self.folder / "tokens.yaml"
        path.touch(0o600)
        path.write_text(f"- {msgspec.json.encode(entry).decode()}\n")  # a line each: `token create` may add its own

    async def replicate(self, service: str, times: int) -> list[str]:
        """Start so many more processes of a service, beside the one that runs: service-1, service-2 … Their names."""
        numbers = range(1, times + 1)
        ports = dict(zip(numbers, free_ports(times), strict=True))
        self.ports |= {f"{service}-{n}": port for n, port in ports.items()}
        more = {n: {"SLIPWAY_PORT": str(ports[n]), "SLIPWAY_INSTANCE": str(n)} for n in numbers}
        await self.supervisor.start(
            *(self._process(service, as_name=f"{service}-{n}", port=ports[n], more=more[n]) for n in numbers)
        )
        return [f"{service}-{n}" for n in numbers]

    def _process(
        self, service: str, *, as_name: str = "", port: int | None = None, more: Mapping[str, str] | None = None
    ) -> Service:
        name = as_name or service
        ready = "/livez" if service == "simulator" else "/readyz"
        return Service(
            name,
            [sys.executable, "-m", f"slipway_{service.replace('-', '_')}.main"],
            env=self.environment_of(service) | dict(more or {}),
            log=self.folder / f"{name}.log",
            ready=partial(http_ready, port or self.ports[service], ready),
            start_seconds=SERVICE_START_SECONDS,
        )

    def environment_of(self, name: str) -> dict[str, str]:
        """All variables of a service's process."""
        passed_on = "SLIPWAY_BOSKOS_" if name == "lease-broker" else None  # a port that only its user can choose
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("SLIPWAY_") or (passed_on and key.startswith(passed_on))
        }
        env |= {
            "SLIPWAY_KAFKA": self.kafka,
            "SLIPWAY_TOPIC_PREFIX": self.prefix,
            "SLIPWAY_PARTITIONS": str(PARTITIONS),
            "SLIPWAY_DATABASE_URL": self.database_url,
            "SLIPWAY_PORT": str(self.ports[name]),
            "SLIPWAY_TOKENS_FILE": str(self.folder / "tokens.yaml"),
            "SLIPWAY_LEDGER": str(self.ledger),
            "SLIPWAY_REGISTRATION_KEY": hash_secret(self.token),
            "SLIPWAY_DEPLOYMENT": self.run_id,
            "SLIPWAY_SPEED": repr(self.speed),  # the calculator's profiles are its own
        }
        for key, value in PRODUCT_SECONDS.get(name, {}).items():
            env[f"SLIPWAY_{key.upper()}"] = repr(self.seconds.get(key, value) / self.speed)
        return env | dict(self.environment.get(name, {}))

    def declaration(self, path: Path) -> Declaration:
        """slipway.yaml as this run applies it: durations divided by the speed, the simulator at its own port."""
        declared = scaled(load(path.read_text()), self.speed).model_dump(mode="json")
        for account in declared["accounts"]:
            if account["provider"] == "simulated":
                account["settings"]["url"] = self.url("simulator")
        return Declaration.model_validate(declared)

    async def apply(self, declared: Declaration) -> None:
        """Lease pools first: a pool without accounts hurts nobody, an account without its pool waits."""
        body = declared.model_dump(mode="json")
        await self.call("PUT", "lease-broker", "/lease-pools", body["lease_pools"])
        await self.call("PUT", "provisioner", "/declaration", body)

    async def call(self, method: str, service: str, path: str, body: Any = None) -> Any:
        """One authorized request; the decoded answer. Raises httpx2.HTTPStatusError with the service's words."""
        response = await self.http.request(
            method,
            self.url(service) + path,
            headers={"Authorization": f"Bearer {self.token}"},
            **({} if body is None else {"json": body}),
        )
        if response.is_error:
            raise httpx2.HTTPStatusError(
                f"{method} {path}: {response.status_code} {response.text}", request=response.request, response=response
            )
        return response.json() if response.content else None

    async def remove(self) -> None:
        """Leave nothing on servers of the user's own."""
        await self.http.aclose()
        with contextlib.suppress(OSError, KafkaError, asyncpg.PostgresError):  # then there is nothing to leave behind
            if os.environ.get("SLIPWAY_KAFKA"):
                for prefix in self._prefixes():
                    await topic_admin.delete(self.kafka, prefix=prefix)
            if self.own_database and self.database_url:
                admin = await asyncpg.connect(self.own_database, timeout=10)
                try:
                    await admin.execute(f"DROP DATABASE IF EXISTS slipway_{self.run_id} WITH (FORCE)")
                finally:
                    await admin.close()
