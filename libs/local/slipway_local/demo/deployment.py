"""A whole Slipway on this machine: servers, topics, schemas, tokens, simulator and services, each its own process.

Decides only what a production deployment would read from its environment. SLIPWAY_KAFKA and SLIPWAY_DATABASE_URL name
existing servers to use instead of the embedded ones; nothing else differs.
"""

import asyncio
import base64
import contextlib
import os
import sys
from collections.abc import Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx2
import msgspec
from aiokafka.errors import KafkaError

from slipway_client.transport.http import pause_seconds
from slipway_common.base.ids import hash_secret, new_id, new_secret
from slipway_common.database import migrate
from slipway_common.declaration.models import Declaration
from slipway_common.declaration.parsing import load, parse
from slipway_common.declaration.scaling import scaled
from slipway_common.messaging import topic_admin
from slipway_local.servers.child import StartFailed
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.ports import free_ports
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Service, Supervisor, http_ready

SERVICES: Final = ("provisioner", "weight-calculator", "lease-broker")
# All product times; SPEED divides these and no others. The values are the defaults of the services' settings, except
# that the instance reaper runs more often, because a demo waits for two of its passes at the end.
PRODUCT_SECONDS: Final[dict[str, dict[str, float]]] = {
    "provisioner": {
        "call_timeout_seconds": 60,
        "accepted_timeout_seconds": 3600,
        "poll_seconds": 5,
        "visibility_seconds": 10,
        "boot_timeout_seconds": 900,
        "identity_grace_seconds": 600,
        "idle_timeout_seconds": 120,
        "give_up_idle_seconds": 300,
        "stale_demand_seconds": 3600,
        "unresponsive_timeout_seconds": 900,
        "stop_grace_seconds": 120,
        "stuck_after_seconds": 600,
        "starved_after_seconds": 600,
        "clock_skew_seconds": 5,
        "unreachable_after_seconds": 120,
        "throttled_after_seconds": 60,
        "resend_seconds": 30,
        "reap_seconds": 10,
        "console_retry_seconds": 60,
        "account_check_seconds": 3600,
        "sweep_seconds": 600,
        "unavailable_attempt_seconds": 30,
        "weight_half_life_seconds": 600,
        "hour_seconds": 3600,
        "day_seconds": 86_400,
    },
    "weight-calculator": {"refresh_seconds": 60, "republish_seconds": 600},
    "lease-broker": {"lost_linger_seconds": 70},
}
PARTITIONS: Final = 4
OWNER: Final = "slipway.yaml"  # of declarations without one
SERVICE_START_SECONDS: Final = 120.0  # services start beside the broker, which may take 90 s on a busy machine


class Deployment:
    """A local deployment under a supervisor, and its addresses. Started once."""

    def __init__(
        self,
        supervisor: Supervisor,
        folder: Path,
        *,
        speed: float,
        seconds: dict[str, float],
        environment: Mapping[str, Mapping[str, str]] | None = None,
        beside: "Deployment | None" = None,
        kafka_settings: Mapping[str, str] | None = None,
    ) -> None:
        """`seconds` replaces product times by name, before they are divided by `speed`; `environment` adds variables
        to services by name. If these set another topic prefix for a service, its topics are created too. `beside`: a
        running deployment whose Kafka and PostgreSQL this one uses, with topics and a database of its own.
        `kafka_settings` extend those of the embedded broker."""
        self.supervisor = supervisor
        self.folder = folder
        self.speed = speed
        self.seconds = seconds
        self.environment = environment or {}
        self.run_id = new_id()[-12:]
        self.prefix = f"run-{self.run_id}."
        port, *others = free_ports(5)
        self.ports = dict(zip((*SERVICES, "simulator"), others, strict=True))
        self.kafka_server = EmbeddedKafka(folder / "kafka", port, kafka_settings)
        self.postgres_server = EmbeddedPostgres(folder / "postgres")
        self.own_kafka = beside.kafka if beside else os.environ.get("SLIPWAY_KAFKA", "")
        self.kafka: str = self.own_kafka or self.kafka_server.bootstrap
        self.own_database = beside.server_url if beside else os.environ.get("SLIPWAY_DATABASE_URL", "")
        self.database_url = ""
        self.id = ""  # drawn by the migration
        self.ledger = folder / "ledger.jsonl"
        self._replaced: dict[str, int] = {}  # how many times, by service
        self.token = new_secret()
        self.registration_keys = base64.b64encode(os.urandom(32)).decode()
        self.providers: dict[str, Any] = {"simulated": {"entries": {"default": {"url": self.url("simulator")}}}}
        """Operator's settings of the provisioner's providers, until it starts."""
        self.tokens_file = folder / "tokens.yaml"
        # A busy machine answers late. A service may close an idle connection just when it is used again.
        self.http = httpx2.AsyncClient(timeout=30.0, limits=httpx2.Limits(max_keepalive_connections=0))

    @property
    def call_settle_seconds(self) -> float:
        """Seconds until the instance reaper may judge the instances of the last create call."""
        times = PRODUCT_SECONDS["provisioner"] | self.seconds
        return (times["call_timeout_seconds"] + times["visibility_seconds"]) / self.speed

    @property
    def settle_seconds(self) -> float:
        """Seconds until create calls are settled and the instance reaper has passed twice, plus a second to act."""
        times = PRODUCT_SECONDS["provisioner"] | self.seconds
        return self.call_settle_seconds + 2 * max(1.0, times["reap_seconds"] / self.speed) + 1.0

    @property
    def server_url(self) -> str:
        """URL of the running PostgreSQL server, by which databases are created."""
        return self.own_database or self.postgres_server.url()

    @property
    def java_used(self) -> str:
        """The broker's Java, as part of a sentence; empty when the broker is not embedded."""
        java = self.kafka_server.java
        return f" on Java {java.version} ({java.executable})" if java is not None else ""

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.ports[service]}"

    async def start(self, *beside: Coroutine[Any, Any, None]) -> None:
        """Start everything at the same time: services wait for their dependencies by themselves, and their start takes
        as long as the broker's. `beside`: starts of what does not belong to the deployment. Raises StartFailed with the
        end of the log."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_tokens()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._start_broker())
                group.create_task(self._start_services())
                for other in beside:
                    group.create_task(other)
        except* StartFailed as failed:
            raise failed.exceptions[0] from None

    async def _start_broker(self) -> None:
        if not self.own_kafka:
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
            own = "unset SLIPWAY_KAFKA to use the embedded broker"
            advice = own if self.own_kafka else "see its log"
            raise StartFailed(f"Kafka at {self.kafka} does not answer ({error}); {advice}") from error

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
                advice = "unset it to use the embedded database"
                raise StartFailed(f"SLIPWAY_DATABASE_URL cannot be used ({error}); {advice}") from error
            base, _, query = self.own_database.partition("?")
            self.database_url = base.rsplit("/", 1)[0] + f"/{name}" + (f"?{query}" if query else "")
        else:
            self.database_url = await self.postgres_server.create_database(name)
        for service in SERVICES:
            await migrate.upgrade(self.database_url, service)
        db = await asyncpg.connect(self.database_url, timeout=30)
        try:
            self.id = await db.fetchval("SELECT id FROM provisioner.deployment")
        finally:
            await db.close()

    def _write_tokens(self) -> None:
        entry = {"name": "local", "sha256": hash_secret(self.token), "scopes": ["admin"]}
        self.tokens_file.touch(0o600)
        self.tokens_file.write_text(
            f"- {msgspec.json.encode(entry).decode()}\n"
        )  # one entry a line, so that `token create` can append

    async def replicate(self, service: str, times: int) -> list[str]:
        """Start more replicas of a running service; returns their names, SERVICE-1, SERVICE-2 and so on."""
        numbers = range(1, times + 1)
        ports = dict(zip(numbers, free_ports(times), strict=True))
        self.ports |= {f"{service}-{n}": port for n, port in ports.items()}
        more = {n: {"SLIPWAY_PORT": str(ports[n]), "SLIPWAY_INSTANCE": str(n)} for n in numbers}
        await self.supervisor.start(
            *(self._process(service, as_name=f"{service}-{n}", port=ports[n], more=more[n]) for n in numbers)
        )
        return [f"{service}-{n}" for n in numbers]

    async def replace(self, service: str, more: Mapping[str, str]) -> None:
        """Kill a service, and start it anew on its port with further variables, as SERVICE.1, SERVICE.2 and so on."""
        number = self._replaced.get(service, 0)
        self._replaced[service] = number + 1
        await self.supervisor.kill(f"{service}.{number}" if number else service)
        await self.supervisor.start(self._process(service, as_name=f"{service}.{number + 1}", more=more))

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
        """The whole environment of a service's process."""
        passed_on = "SLIPWAY_BOSKOS_" if name == "lease-broker" else None  # a port that only the user can choose
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
            "SLIPWAY_TOKENS_FILE": str(self.tokens_file),
            "SLIPWAY_LEDGER": str(self.ledger),
            "SLIPWAY_REGISTRATION_KEYS": self.registration_keys,
            "SLIPWAY_PROVIDERS": msgspec.json.encode(self.providers).decode(),
            "SLIPWAY_COMMANDS_AS_SERVICE": "yes",
            "SLIPWAY_SECRETS_IN_ENVIRONMENT": "yes",
            "SLIPWAY_LEASE_BROKER_URL": self.url("lease-broker"),
            "SLIPWAY_SPEED": repr(self.speed),  # the weight-calculator divides the times of its profiles itself
        }
        for key, value in PRODUCT_SECONDS.get(name, {}).items():
            env[f"SLIPWAY_{key.upper()}"] = repr(self.seconds.get(key, value) / self.speed)
        return env | dict(self.environment.get(name, {}))

    def declaration(self, path: Path) -> Declaration:
        """The declaration in `path` with durations divided by the speed.

        Its owner is the one that `slipway apply` takes for a file of this name."""
        declared = scaled(load(path.read_text()), self.speed).model_dump(mode="json")
        declared["metadata"]["owner"] = declared["metadata"]["owner"] or path.name
        return parse(declared)

    async def apply(self, declared: Declaration, *, confirm: str = "") -> None:
        """Apply a declaration, lease pools first: accounts cannot launch without their lease pool. `confirm`: digest
        of dangerous changes."""
        body = declared.model_dump(mode="json")
        owner = body["metadata"]["owner"] or OWNER
        limits = {"documents": [{"owner": owner, "lease_pools": body.pop("lease_pools")}]}
        await self.call("PUT", "lease-broker", "/lease-pools", limits)
        path = f"/declaration?confirm={confirm}" if confirm else "/declaration"
        await self.call("PUT", "provisioner", path, body | {"metadata": {"owner": owner}})

    async def call(self, method: str, service: str, path: str, body: Any = None) -> Any:
        """Send an authorized request, again if it was one too many, and return the decoded answer. Raises
        httpx2.HTTPStatusError with its text."""
        while True:
            response = await self.http.request(
                method,
                self.url(service) + path,
                headers={"Authorization": f"Bearer {self.token}"},
                **({} if body is None else {"json": body}),
            )
            if (pause := pause_seconds(response.status_code, response.headers)) is None:
                break
            await asyncio.sleep(pause)
        if response.is_error:
            raise httpx2.HTTPStatusError(
                f"{method} {path}: {response.status_code} {response.text}", request=response.request, response=response
            )
        return response.json() if response.content else None

    async def remove(self) -> None:
        """Delete this run's topics and database from servers that are not embedded."""
        await self.http.aclose()
        with contextlib.suppress(
            OSError, KafkaError, asyncpg.PostgresError
        ):  # an unreachable server cannot be cleaned up
            if self.own_kafka:
                for prefix in self._prefixes():
                    await topic_admin.delete(self.kafka, prefix=prefix)
            if self.own_database and self.database_url:
                admin = await asyncpg.connect(self.own_database, timeout=10)
                try:
                    await admin.execute(f"DROP DATABASE IF EXISTS slipway_{self.run_id} WITH (FORCE)")
                finally:
                    await admin.close()
