"""Observation of a deployment from outside: polls its services and follows its topics, and makes snapshots and narrated
lines of both."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import httpx2
import msgspec
from aiokafka.errors import KafkaError
from msgspec.structs import replace

from slipway_api.events.alert import Alert
from slipway_api.events.pool import PoolRolledBack
from slipway_api.events.topics import ALERT, EVENT_OF, LAUNCH_CONFIG_WEIGHT, POOL_LIFECYCLE, WORKER_LIFECYCLE
from slipway_api.events.weight import WeightChanged
from slipway_api.events.worker import WorkerEvent
from slipway_api.http.pages import Items, Page
from slipway_api.http.provisioner.pools import LaunchStop
from slipway_api.http.service import ListedAlert
from slipway_client.transport import trust
from slipway_client.transport.decoding import UNREADABLE
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import PAGE_ITEMS, pause_seconds
from slipway_client.transport.log import Entry, Log
from slipway_client.view import narration
from slipway_client.view.snapshot import Config, Demo, EventLine, LeasePool, Pool, Service, Snapshot, label, pages_first
from slipway_common.base.clock import monotonic_seconds, utc_now

KAFKA: Final = "kafka"
TOPICS: Final = (LAUNCH_CONFIG_WEIGHT, ALERT, WORKER_LIFECYCLE, POOL_LIFECYCLE)
ANSWER_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 1.0
LINES_KEPT: Final = 500
ANSWERS_KEPT: Final = 32
"""Answers that are kept, the newest ones: each alert moves the cursors of later pages, which are asked for no more."""

Fetch = Callable[[str, str], Awaitable[bytes]]
"""(service, path) → the answer in JSON; raises Failed with the reason as text."""
ZonesOut = Callable[[], Awaitable[frozenset[str]]]
"""The zones of a simulated cloud that have no capacity; raises Failed."""


@contextlib.asynccontextmanager
async def fetcher(urls: Mapping[str, str], headers: Mapping[str, str]) -> AsyncIterator[Fetch]:
    """A client of all services; requests may run in parallel. An answer that has not changed is not sent again."""
    answers: dict[str, tuple[str, bytes]] = {}  # entity tag and body by URL
    verify = trust.context() if any(url.startswith("https:") for url in urls.values()) else False
    async with httpx2.AsyncClient(
        headers=dict(headers), timeout=ANSWER_SECONDS, trust_env=False, verify=verify
    ) as client:

        async def fetch(service: str, path: str) -> bytes:
            url = urls[service] + path
            tag, before = answers.get(url, ("", b""))
            try:
                headers = {"If-None-Match": tag} if tag else {}
                answer = await client.get(url, headers=headers)
                while (pause := pause_seconds(answer.status_code, answer.headers)) is not None:
                    await asyncio.sleep(pause)
                    answer = await client.get(url, headers=headers)
                if answer.status_code == httpx2.codes.NOT_MODIFIED:
                    return before
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise Failed(str(error) or type(error).__name__) from error
            if answer.is_error:
                raise Failed(f"{answer.status_code} {_reason(answer.content) or answer.reason_phrase}")
            answers.pop(url, None)
            answers[url] = (answer.headers.get("etag", ""), answer.content)
            if len(answers) > ANSWERS_KEPT:
                del answers[next(iter(answers))]
            return answer.content

        yield fetch


class _Refusal(msgspec.Struct):
    """A problem, or what a service that is not ready says."""

    title: str = ""
    detail: str = ""
    reasons: list[str] = []


def _reason(content: bytes) -> str:
    try:
        refusal = msgspec.json.decode(content, type=_Refusal)
    except UNREADABLE:
        return ""
    return refusal.detail or refusal.title or "; ".join(refusal.reasons)


class Watch:
    """Snapshots and lines of one deployment. `run` it as a task; `changed` is set whenever there is something new."""

    def __init__(
        self,
        fetch: Fetch,
        *,
        title: str,
        kafka: str = "",
        prefix: str = "",
        interval_seconds: float = 1.0,
        history_seconds: float = 0.0,
        demo: Demo | None = None,
        zones_out: ZonesOut | None = None,
    ) -> None:
        """Without a Kafka address lines about health come from the services' answers. `history_seconds` of the topics
        are narrated at the start. `zones_out` polls a simulated cloud."""
        self.changed = asyncio.Event()
        self._fetch = fetch
        self._kafka = kafka
        self._prefix = prefix
        self._interval_seconds = interval_seconds
        self._since = utc_now() - timedelta(seconds=history_seconds)
        self._read = Snapshot(now=utc_now(), title=title, demo=demo)  # what services have answered last
        self._reads: dict[str, Callable[[], Awaitable[object]]] = {
            "provisioner": self._read_provisioner,
            "weight-calculator": partial(fetch, "weight-calculator", "/readyz"),
            "lease-broker": self._read_broker,
        }
        self._alerts: dict[str, Sequence[ListedAlert]] = dict.fromkeys(self._reads, ())  # open ones, by service
        if zones_out is not None:
            self._reads["simulator"] = partial(self._read_zones, zones_out)
        self._zones: frozenset[str] = frozenset()
        self._answered_at: dict[str, float] = {}
        self._problems: dict[str, str | None] = dict.fromkeys([*self._reads, *([KAFKA] if kafka else [])])
        self._began_at = monotonic_seconds()
        self._lines: deque[EventLine] = deque(maxlen=LINES_KEPT)
        self._new: list[EventLine] = []
        self._health: dict[str, narration.Health] = {}
        self._health_until = datetime.min.replace(tzinfo=UTC)
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
        """True if every service has answered or failed once."""
        return None not in self._problems.values()

    async def until_complete(self) -> None:
        while not self.complete:
            self.changed.clear()
            await self.changed.wait()

    @property
    def problems(self) -> dict[str, str]:
        """The services that do not answer, with the error of each."""
        return {name: problem for name, problem in self._problems.items() if problem}

    def snapshot(self) -> Snapshot:
        return replace(
            self._read,
            now=utc_now().astimezone(),
            services=[self._service(name) for name in self._problems],
            alerts=pages_first(alert for alerts in self._alerts.values() for alert in alerts),
            lines=sorted(self._lines, key=lambda line: line.at),
        )

    def take(self) -> list[EventLine]:
        """Lines that were not taken before, in the order of their times."""
        new, self._new = self._new, []
        return sorted(new, key=lambda line: line.at)

    def _service(self, name: str) -> Service:
        problem = self._problems[name]
        age_seconds = monotonic_seconds() - self._answered_at.get(name, self._began_at)
        return Service(
            name=name,
            unavailable_seconds=None if problem == "" else age_seconds,
            answered=name in self._answered_at,
            problem=problem or "",
        )

    def _add(self, lines: Sequence[EventLine | None]) -> None:
        for line in lines:
            if line is not None:
                self._new = [*_without(self._new, line), line]
                self._lines = deque([*_without(self._lines, line), line], maxlen=LINES_KEPT)

    async def _poll(self, service: str, read: Callable[[], Awaitable[object]]) -> None:
        while True:
            began, problem = monotonic_seconds(), ""
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await read()
                    if service in self._alerts:
                        await self._read_alerts(service)
            except TimeoutError:
                problem = f"no answer within {ANSWER_SECONDS:g} s"
            except UNREADABLE as error:
                problem = f"the answer is not from a {service} of this version: {error}"
            except Failed as error:
                problem = str(error)
            self._record_answer(service, problem)
            await asyncio.sleep(max(0.05, began + self._interval_seconds - monotonic_seconds()))

    async def _read_provisioner(self) -> None:
        pools, configs, launch_stops = await asyncio.gather(
            *(self._fetch("provisioner", path) for path in ("/pools", "/launch-configs", "/launch-stops"))
        )
        known = msgspec.json.decode(configs, type=Items[Config]).items
        shown = [config for config in known if config.state != "archived" or config.live]
        self._read = replace(
            self._read,
            launch_stops=msgspec.json.decode(launch_stops, type=Items[LaunchStop]).items,
            pools=msgspec.json.decode(pools, type=Items[Pool]).items,
            configs=sorted(shown, key=lambda config: (config.pool_id, config.name, not config.current, config.id)),
        )

    async def _read_broker(self) -> None:
        answer = await self._fetch("lease-broker", "/lease-pools")
        self._read = replace(self._read, lease_pools=msgspec.json.decode(answer, type=Items[LeasePool]).items)

    async def _read_alerts(self, service: str) -> None:
        """All pages: the page of an outage may be older than a thousand notices that followed it."""
        rows: list[ListedAlert] = []
        path = place = f"/alerts?open=true&limit={PAGE_ITEMS}"
        while place:
            page = msgspec.json.decode(await self._fetch(service, place), type=Page[ListedAlert])
            rows += page.items
            place = f"{path}&cursor={page.next}" if page.next else ""
        self._alerts[service] = rows

    async def _read_zones(self, zones_out: ZonesOut) -> None:
        out = await zones_out()
        self._add(narration.zones(self._zones, out, utc_now()))
        self._zones = out

    def _label(self, config_id: str) -> str:
        return label(config_id, self._read.configs)

    def _record_answer(self, service: str, problem: str) -> None:
        """Record that a service has answered, or its `problem`, and add lines for the differences."""
        self._problems[service] = problem
        if not problem:
            self._answered_at[service] = monotonic_seconds()
        if service == "provisioner" and not problem:
            self._read_health()
        now = self.snapshot()
        self._add(narration.differences(self._before, now))
        self._before = now
        self._add(self._failures.due(now.now, label=self._label))
        self.changed.set()

    def _read_health(self) -> None:
        """Add lines about health from the provisioner's answers, unless the topic reports the same changes sooner."""
        if self._kafka and self._problems[KAFKA] is None:
            return
        listening = bool(self._kafka) and not self._problems[KAFKA]
        now = utc_now()
        for config in self._read.configs:
            seen, known = narration.Health.of(config), self._health.get(config.id)
            if not listening or known is None:
                self._add([narration.changed(known, seen, at=now, label=self._label)])
                self._health[config.id] = seen
        if not listening:
            self._health_until = now

    async def _listen(self) -> None:
        """Consume every event of the topics once; reconnects forever."""
        since = self._since
        while True:
            try:
                async with Log(self._kafka, self._prefix) as log:
                    await log.open([topic.name for topic in TOPICS], last=None, since=since)
                    since = utc_now()
                    async for entry in log.past():
                        self._receive(entry)
                    self._record_answer(KAFKA, "")
                    async for entry in log.follow(self._record_kafka):
                        self._receive(entry)
            except Failed as error:
                text = str(error).partition("\n")[0]
                self._record_answer(KAFKA, text.removeprefix(f"Kafka at {self._kafka} is unavailable: "))
            except (KafkaError, OSError) as error:
                self._record_answer(KAFKA, str(error) or type(error).__name__)
            await asyncio.sleep(AGAIN_SECONDS)

    def _record_kafka(self, answers: bool) -> None:
        self._record_answer(KAFKA, "" if answers else f"no answer from {self._kafka}")

    def _receive(self, entry: Entry) -> None:
        """Apply one record; unknown and malformed ones are skipped."""
        if entry.envelope is None or entry.envelope.type not in EVENT_OF:
            return
        try:
            event = msgspec.convert(entry.data, EVENT_OF[entry.envelope.type])
        except msgspec.ValidationError:
            return
        if isinstance(event, WeightChanged):
            now = narration.Health.of(event)
            known = self._health.get(event.launch_config_id)
            line = narration.changed(known, now, at=entry.time, label=self._label)
            self._health[event.launch_config_id] = now
            if entry.time > self._health_until:
                self._add([line])
        elif isinstance(event, Alert):
            self._add([narration.alert(event, entry.time)])
        elif isinstance(event, PoolRolledBack):
            self._add([narration.rolled_back(event, entry.time)])
        elif isinstance(event, WorkerEvent):
            self._failures.add(entry.time, event)


def _without(lines: Iterable[EventLine], newer: EventLine) -> list[EventLine]:
    """The lines without the newest line with the key of `newer`, if its mood is also the same."""
    kept = list(lines)
    same = [line for line in kept if line.key and line.key == newer.key]
    if same and same[-1].mood == newer.mood:
        kept.remove(same[-1])
    return kept
