"""A deployment watched from outside: its services are asked again and again, its topics are listened to. What they say
becomes snapshots and narrated lines; how those look is decided elsewhere."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx2
import msgspec
from aiokafka.errors import KafkaError

from slipway_client import narration
from slipway_client.http import Failed
from slipway_client.log import Entry, Log
from slipway_client.snapshot import Brake, Config, Demo, LeasePool, Line, Pool, Service, Snapshot
from slipway_common.clock import monotonic_seconds, utc_now
from slipway_common.events.alert import Alert
from slipway_common.events.weight import WeightChanged
from slipway_common.events.worker import WorkerEvent
from slipway_common.topics import ALERT, EVENT_OF, LAUNCH_CONFIG_WEIGHT, WORKER_LIFECYCLE

KAFKA: Final = "kafka"
TOPICS: Final = (LAUNCH_CONFIG_WEIGHT, ALERT, WORKER_LIFECYCLE)
ANSWER_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 1.0
LINES_KEPT: Final = 500

Ask = Callable[[str, str], Awaitable[Any]]
"""(service, path) → the decoded answer; raises Failed with a reason for people."""
ZonesOut = Callable[[], Awaitable[frozenset[str]]]
"""Which zones of a simulated cloud have no capacity; raises Failed."""


@contextlib.asynccontextmanager
async def asking(urls: Mapping[str, str], headers: Mapping[str, str]) -> AsyncIterator[Ask]:
    """Ask services at their addresses, all at the same time."""
    async with httpx2.AsyncClient(headers=dict(headers), timeout=ANSWER_SECONDS, trust_env=False) as client:

        async def ask(service: str, path: str) -> Any:
            try:
                answer = await client.get(urls[service] + path)
                body = answer.json() if answer.content else None
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise Failed(str(error) or type(error).__name__) from error
            except ValueError as error:
                raise Failed(f"it answers {path} with something other than JSON") from error
            if answer.is_error:
                known = body if isinstance(body, dict) else {}
                why = known.get("detail") or known.get("title") or "; ".join(map(str, known.get("reasons", [])))
                raise Failed(f"{answer.status_code} {why or answer.reason_phrase}")
            return body

        yield ask


class Watch:
    """`run` it as a task; `changed` is set whenever there is something new to show."""

    def __init__(
        self,
        ask: Ask,
        *,
        title: str,
        kafka: str = "",
        prefix: str = "",
        interval_seconds: float = 1.0,
        history_seconds: float = 0.0,
        demo: Demo | None = None,
        zones_out: ZonesOut | None = None,
    ) -> None:
        """Without a Kafka address circuits are told from the services' answers. `history_seconds` of the topics are
        told at the start. `zones_out` asks a simulated cloud."""
        self.changed = asyncio.Event()
        self._ask = ask
        self._title = title
        self._kafka = kafka
        self._prefix = prefix
        self._interval_seconds = interval_seconds
        self._began = utc_now()
        self._history_seconds = history_seconds
        self._demo = demo
        self._reads: dict[str, Callable[[], Awaitable[None]]] = {
            "provisioner": self._read_provisioner,
            "weight-calculator": self._read_calculator,
            "lease-broker": self._read_broker,
        }
        if zones_out is not None:
            self._reads["simulator"] = self._read_zones
        self._zones_out = zones_out
        self._zones: frozenset[str] = frozenset()
        self._brakes: Sequence[Brake] = ()
        self._pools: Sequence[Pool] = ()
        self._configs: Sequence[Config] = ()
        self._lease_pools: Sequence[LeasePool] = ()
        self._answered_at: dict[str, float] = {}
        self._problems: dict[str, str | None] = dict.fromkeys([*self._reads, *([KAFKA] if kafka else [])])
        self._began_at = monotonic_seconds()
        self._lines: deque[Line] = deque(maxlen=LINES_KEPT)
        self._told = 0
        self._circuits: dict[str, narration.Circuit] = {}
        self._circuits_told_until = datetime.min.replace(tzinfo=UTC)
        self._failures = narration.Failures()
        self._before = self.snapshot()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for service, read in self._reads.items():
                group.create_task(self._poll(service, read))
            if self._kafka:
                group.create_task(self._listen())

    @property
    def complete(self) -> bool:
        """Whether everything that is asked has answered or failed once."""
        return None not in self._problems.values()

    @property
    def problems(self) -> dict[str, str]:
        """Who does not answer, and why."""
        return {name: problem for name, problem in self._problems.items() if problem}

    def snapshot(self) -> Snapshot:
        return Snapshot(
            now=utc_now().astimezone(),
            title=self._title,
            services=[self._service(name) for name in self._problems],
            brakes=self._brakes,
            pools=self._pools,
            configs=self._configs,
            lease_pools=self._lease_pools,
            lines=sorted(self._lines, key=lambda line: line.at),
            demo=self._demo,
        )

    def take(self) -> list[Line]:
        """Lines that were not taken before, in the order of their times."""
        new = list(self._lines)[max(0, len(self._lines) - self._told) :] if self._told else []
        self._told = 0
        return sorted(new, key=lambda line: line.at)

    def _service(self, name: str) -> Service:
        problem = self._problems[name]
        if problem == "":
            return Service(name=name)
        since = self._answered_at.get(name, self._began_at)
        return Service(
            name=name,
            silent_seconds=monotonic_seconds() - since,
            answered=name in self._answered_at,
            problem=problem or "",
        )

    def _tell(self, lines: Sequence[Line | None]) -> None:
        for line in lines:
            if line is not None:
                self._lines.append(line)
                self._told += 1

    async def _poll(self, service: str, read: Callable[[], Awaitable[None]]) -> None:
        while True:
            began = monotonic_seconds()
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await read()
            except TimeoutError:
                self._fresh(service, f"nothing in {ANSWER_SECONDS:g} s")
            except (KeyError, TypeError, msgspec.ValidationError) as error:
                self._fresh(service, f"it is no {service}, or of another version: {error}")
            except Failed as error:
                self._fresh(service, str(error))
            else:
                self._fresh(service, "")
            await asyncio.sleep(max(0.05, began + self._interval_seconds - monotonic_seconds()))

    async def _read_provisioner(self) -> None:
        pools, configs, brakes = await asyncio.gather(
            *(self._ask("provisioner", path) for path in ("/pools", "/launch-configs", "/brakes"))
        )
        known = msgspec.convert(pools["items"], list[Pool]), msgspec.convert(configs["items"], list[Config])
        self._brakes = msgspec.convert(brakes["items"], list[Brake])
        self._pools = known[0]
        self._configs = [c for c in known[1] if c.state != "archived" or c.starting + c.running]

    async def _read_calculator(self) -> None:
        await self._ask("weight-calculator", "/readyz")

    async def _read_broker(self) -> None:
        answer = await self._ask("lease-broker", "/lease-pools")
        self._lease_pools = msgspec.convert(answer["items"], list[LeasePool])

    async def _read_zones(self) -> None:
        assert self._zones_out is not None
        out = await self._zones_out()
        self._tell(narration.zones(self._zones, out, utc_now()))
        self._zones = out

    def _fresh(self, service: str, problem: str) -> None:
        """A service has answered, or has not: tell what is different."""
        self._problems[service] = problem
        if not problem:
            self._answered_at[service] = monotonic_seconds()
        if service == "provisioner" and not problem:
            self._see_circuits()
        now = self.snapshot()
        self._tell(narration.differences(self._before, now))
        self._before = now
        self._tell(self._failures.due(now.now))
        self.changed.set()

    def _see_circuits(self) -> None:
        """Circuits as the provisioner knows them; told while the topic does not tell them, which is sooner."""
        if self._kafka and self._problems[KAFKA] is None:
            return
        listening = bool(self._kafka) and not self._problems[KAFKA]
        now = utc_now()
        for config in self._configs:
            seen, known = narration.Circuit.seen(config), self._circuits.get(config.id)
            if not listening or known is None:
                self._tell([narration.changed(known, seen, at=now, speed=self._speed)])
                self._circuits[config.id] = seen
        if not listening:
            self._circuits_told_until = now

    async def _listen(self) -> None:
        """Every event of our topics once, for as long as the process lives."""
        since = self._began - timedelta(seconds=self._history_seconds)
        while True:
            try:
                async with Log(self._kafka, self._prefix) as log:
                    await log.open([topic.name for topic in TOPICS], last=None, since=since)
                    since = utc_now()
                    async for entry in log.past():
                        self._hear(entry)
                    self._fresh(KAFKA, "")
                    async for entry in log.follow(self._heard):
                        self._hear(entry)
            except Failed as error:
                said = str(error).partition("\n")[0]
                self._fresh(KAFKA, said.removeprefix(f"Kafka at {self._kafka} does not answer: "))
            except (KafkaError, OSError) as error:
                self._fresh(KAFKA, str(error) or type(error).__name__)
            await asyncio.sleep(AGAIN_SECONDS)

    def _heard(self, answers: bool) -> None:
        self._fresh(KAFKA, "" if answers else f"nothing from {self._kafka}")

    def _hear(self, entry: Entry) -> None:
        """One record; what this version does not understand is passed over."""
        if entry.envelope is None or entry.envelope.type not in EVENT_OF:
            return
        try:
            event = msgspec.convert(entry.data, EVENT_OF[entry.envelope.type])
        except msgspec.ValidationError:
            return
        if isinstance(event, WeightChanged):
            now = narration.Circuit.of(event)
            line = narration.changed(self._circuits.get(event.launch_config_id), now, at=entry.time, speed=self._speed)
            self._circuits[event.launch_config_id] = now
            if entry.time > self._circuits_told_until:
                self._tell([line])
        elif isinstance(event, Alert):
            self._tell([narration.alert(event, entry.time)])
        elif isinstance(event, WorkerEvent):
            self._failures.add(entry.time, event)

    @property
    def _speed(self) -> float:
        return self._demo.speed if self._demo else 1.0
