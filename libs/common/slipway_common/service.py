"""Framework of a service: consumers, views, loops and routes; start-up, readiness and graceful shutdown.

Contains no business rule. Start-up never fails because the database or the broker is unavailable: the process is live
but not ready, and retries.
"""

import asyncio
import contextlib
import gc
import os
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import uvicorn
from fastapi import APIRouter, FastAPI
from pydantic import Field
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute

from slipway_api.events.alert import START_SECONDS
from slipway_api.events.service import ServiceHeartbeat
from slipway_api.events.topics import SERVICE_HEARTBEAT, TOPICS, Topic, compared_topics
from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.base.process.groups import keep_private
from slipway_common.base.settings import Secret, has_password, variable_of
from slipway_common.base.text import listed
from slipway_common.database import alerts, outage, postgres
from slipway_common.database import tokens as token_rows
from slipway_common.database.postgres import Connection, Database
from slipway_common.database.process_alerts import PartitionAlert, StartNotice
from slipway_common.database.retention import EVERY_SECONDS, PRUNE_LOOP, PruneLoop, Retention
from slipway_common.measure import MEASURE_SECONDS, SERVICE_GAUGES, Measure, service_readings
from slipway_common.messaging import kafka, outbox
from slipway_common.messaging.broker import connect
from slipway_common.messaging.clients import KafkaSettings
from slipway_common.messaging.consume import Consumer, Handler
from slipway_common.messaging.incarnation import Renewed, stop_nothing
from slipway_common.messaging.leader_loop import LeaderLoop
from slipway_common.messaging.leadership import Work
from slipway_common.messaging.records import Received
from slipway_common.messaging.relay import Relay
from slipway_common.messaging.retention import RETENTION
from slipway_common.messaging.topic_admin import partition_counts
from slipway_common.messaging.views import Reader, View
from slipway_common.observability import telemetry
from slipway_common.web import access, limits, openapi, problem, routes
from slipway_common.web.certificates import EVERY_SECONDS as CERTIFICATES_SECONDS
from slipway_common.web.certificates import CertificateWatch
from slipway_common.web.conditional import Conditional
from slipway_common.web.limits import CallerLimits
from slipway_common.web.listening import ForHost, ListenerSettings, divided, server_options
from slipway_common.web.paths import FromAddress, InTrace, PathAsSent
from slipway_common.web.runtime import Runtime
from slipway_common.web.status import Status
from slipway_common.web.tokens import Tokens

LOG = telemetry.logger(__name__)
VERSION: Final = "0.1.0"
GARBAGE_OBJECTS: Final = 50_000
UNSENDABLE_ALERT_SECONDS: Final = 10.0
ALERTS_SECONDS: Final = 60.0
TOKENS_SECONDS: Final = 2.0
"""Time after which a token that was revoked on another replica is refused."""
USES_SECONDS: Final = 30.0
REFUSED_SHOWN: Final = 3
COMPRESSED_BYTES_MIN: Final = 4_096


class ServiceSettings(KafkaSettings, ListenerSettings):
    """Settings of every service, from SLIPWAY_* variables. Durations are in seconds."""

    database_url: Annotated[str, Secret(has_password)]
    topic_prefix: str = ""
    """Prefix of every topic name, so that several deployments can share a cluster."""
    partitions: int | None = None
    """Partitions of every topic [default: 32]. Must never change for a deployment."""
    instance: str = "0"
    """Name of this replica for static group membership, so that a quick restart moves no partition."""
    tokens_file: Path | None = None
    requests_per_second_max: Annotated[float, Field(gt=0)] = 200.0
    """Requests that a token may send per second over HTTP, of which those of ten seconds may come at once; renewals and
    releases of leases are not counted. Each replica counts for itself."""
    heartbeat_seconds: float = 5.0
    audit_kept_days: float = 60.0
    """Retention of the audit, in days."""


class Loop(msgspec.Struct, frozen=True):
    """Periodic work. `step(database)` does one piece and returns true if there may be more; otherwise the loop waits
    until it is woken or the tick has passed. One that is not `woken` waits for its tick: time makes its work due, and
    hundreds of events a second would have it look for some each time. One that is woken takes its next step
    `pause_seconds` after the last one that found nothing more, so that events that come meanwhile share it. `stop` is
    called after the last step, to end what steps have begun while the database is still connected."""

    name: str
    step: Callable[[Database], Awaitable[bool]]
    tick_seconds: float = 1.0
    stop: Callable[[], Awaitable[None]] | None = None
    woken: bool = True
    pause_seconds: float = 0.0


class Service:
    """A service process, composed in `main.py` and started by `run()`."""

    def __init__(
        self,
        name: str,
        settings: ServiceSettings,
        *,
        runtime: Runtime | None = None,
        consumes: Mapping[Topic, Handler] | None = None,
        work: Work | None = None,
        views: Sequence[View] = (),
        loops: Sequence[Loop] = (),
        routers: Sequence[APIRouter] = (),
        resources: Sequence[contextlib.AbstractAsyncContextManager[Any]] = (),
        state: Mapping[str, Any] | None = None,
        retention: Retention = (),
        schema_minimum: str = "0001",
        renewed: Renewed | None = None,
        start_notices: Sequence[StartNotice] = (),
        tokens: Tokens | None = None,
    ) -> None:
        """`runtime` is passed if other objects need it before the service exists. `work` is done by the leader only.
        `retention` is that of the service's own tables.
        `schema_minimum` is the oldest schema revision that this code supports; newer ones are accepted. `renewed` is
        called in the transaction that renews the incarnation of the database, and when a person reports a
        restore."""
        self.name = name
        self.settings = settings
        self.consumers = [Consumer(name, topic, handle) for topic, handle in (consumes or {}).items()]
        self.views = views
        self.runtime = runtime or Runtime()
        if work is not None:
            self.runtime.leader_loop = LeaderLoop(
                work,
                service=name,
                kafka=settings.kafka_access,
                prefix=settings.topic_prefix,
                instance=settings.instance,
                wake=self.runtime.wake,
            )
        self.retention = (*RETENTION, *retention)
        self.loops = [*loops, *self._own_loops()]
        self.routers = routers
        self.resources = resources
        self.state = state or {}
        self.schema_minimum = schema_minimum
        self.renewed = renewed or stop_nothing
        self._began = monotonic_seconds()
        self.tokens = tokens or Tokens(settings.tokens_file)
        self._start_notices = [(one, PartitionAlert(one.kind, name, settings.instance)) for one in start_notices]
        self._refused_tokens = PartitionAlert("tokens-refused", name, settings.instance)
        self._unowned = PartitionAlert("unowned-partition", name, settings.instance)
        self._unsendable = PartitionAlert("unsendable-partition", name, settings.instance)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then finish the steps in progress and stop. Exits with 1 if the port is in
        use."""
        telemetry.configure_logs(self.name)
        keep_private()
        listening = self._listening()
        # A batch creates many objects and no cycles; collecting more often would take a third of the time.
        gc.set_threshold(GARBAGE_OBJECTS)
        app = self.app()
        # Objects created so far live forever; without freeze each full collection would scan them for 40 ms.
        gc.collect()
        gc.freeze()
        config = uvicorn.Config(
            app, log_config=None, access_log=False, timeout_graceful_shutdown=5, **server_options(self.settings)
        )
        uvicorn.Server(config).run([listening])

    def _listening(self) -> socket.socket:
        """Socket of the HTTP API, bound before anything starts."""
        host, port = self.settings.host, self.settings.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, port), family=family, backlog=2048)
        except OSError as error:
            advice = "stop what listens there, or set SLIPWAY_HOST and SLIPWAY_PORT"
            sys.exit(f"{self.name} cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}; {advice}")

    def app(self) -> FastAPI:
        # The pages that show the API would load scripts from elsewhere into the browsers of operators.
        app = FastAPI(
            title=f"Slipway {self.name}",
            version=VERSION,
            lifespan=self._lifespan,
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            routes=self._routes(),
        )
        app.state.runtime = self.runtime
        app.state.status = Status(self.runtime, service=self.name, version=VERSION, instance=self.settings.instance)
        app.state.tokens = self.tokens
        app.state.limits = CallerLimits(self.settings.requests_per_second_max)
        for name, value in self.state.items():
            setattr(app.state, name, value)
        problem.install(app)
        app.add_middleware(PathAsSent)
        if allowed := divided(self.settings.allowed_hosts):
            app.add_middleware(ForHost, allowed=allowed)
        app.add_middleware(FromAddress)
        app.add_middleware(InTrace)
        app.add_middleware(Conditional)
        app.add_middleware(GZipMiddleware, minimum_size=COMPRESSED_BYTES_MIN, compresslevel=1)
        limits.install(app)  # last: what is refused passes no other middleware
        app.state.renewed = self.renewed
        viewers = [Consumer(self.name, view.topic, partial(self._apply_again, view)) for view in self.views]
        app.state.consumers = {consumer.topic.name: consumer for consumer in [*self.consumers, *viewers]}
        app.state.open_paths = access.open_paths(app)
        app.state.counted_of_workers = access.counted_of_workers(app)
        app.openapi = cache(partial(openapi.document, app))  # type: ignore[method-assign]
        return app

    def _routes(self) -> list[BaseRoute]:
        """Routes of the API. They are one list: an included router would be compared with each request route by route,
        and those with the right route twice. Those of the service itself come first, as they are called most."""
        routers = [*self.routers, routes.health, routes.measured, routes.described, routes.about, routes.restores]
        routers += [routes.audits, routes.raised, routes.tokened]
        if self.consumers or self.runtime.leader_loop is not None:
            routers += [routes.letters, routes.positions]
        return [route for router in routers for route in router.routes]

    async def _apply_again(self, view: View, _: Connection, events: Sequence[Received]) -> None:
        """Apply dead letters of a view, which has transactions of its own."""
        await view.apply(self.runtime.database, events)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        main = asyncio.create_task(self._main())
        main.add_done_callback(_end_process_on_failure)
        try:
            yield
        finally:
            self.runtime.stopping.set()
            self.runtime.wake()
            main.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await main
            LOG.info("stopped")

    async def _main(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for resource in self.resources:
                await stack.enter_async_context(resource)
            database = await self._start_database(stack)
            tasks: list[asyncio.Task[None]] = []
            stack.push_async_callback(_cancel, tasks)
            settings, runtime = self.settings, self.runtime
            runtime.relay = Relay(
                self.name,
                database_url=settings.database_url,
                kafka=settings.kafka_access,
                topic_prefix=settings.topic_prefix,
                partitions=partition_counts(TOPICS, settings.partitions),
                compared_topics=compared_topics(self.name),
                renewed=self.renewed,
            )
            tasks.append(asyncio.create_task(runtime.relay.run()))
            for view in self.views:
                reader = Reader(
                    view, self.name, kafka=settings.kafka_access, prefix=settings.topic_prefix, wake=runtime.wake
                )
                runtime.readers.append(reader)
                tasks.append(asyncio.create_task(reader.run(database)))
            # HTTP requests and timers do not wait for the broker: launch stops work without it.
            runtime.people_database = await self._more_connections(stack, postgres.PEOPLE_CONNECTIONS)
            runtime.reports_database = await self._more_connections(stack, postgres.REPORTS_CONNECTIONS)
            runtime.database = database
            loops = [asyncio.create_task(self._run_loop(loop, database)) for loop in self.loops]
            if runtime.leader_loop is not None:
                loops.append(asyncio.create_task(runtime.leader_loop.run(database)))
            try:
                await self._start_consumers(stack, database)
                runtime.consuming = True
                LOG.info("started", version=VERSION, instance=settings.instance)
                await asyncio.Event().wait()
            finally:
                # Loops finish their current step, since every action must be recorded. The stack closes the rest.
                if runtime.leader_loop is not None:
                    runtime.leader_loop.stop()
                await asyncio.wait(loops, timeout=5)
                await _cancel(loops)
                await asyncio.gather(*(_stopped(loop) for loop in self.loops))

    async def _start_database(self, stack: contextlib.AsyncExitStack) -> Database:
        while True:
            async with contextlib.AsyncExitStack() as attempt:
                try:
                    database = await postgres.connect(self.settings.database_url, self.name)
                    attempt.push_async_callback(_close_database, database)
                    schema = await postgres.schema_revision(database)
                    if schema is None or schema < self.schema_minimum:
                        raise OSError(
                            f"schema revision {schema} is older than {self.schema_minimum}; run the migrations"
                        )
                    # Before the first request that needs the database: a revoked token has no moment of a restart.
                    self.tokens.revoked = await token_rows.revoked(database)
                except Exception as error:
                    outage.warn(LOG, "database not usable, retrying", error)
                else:
                    stack.push_async_callback(attempt.pop_all().aclose)
                    return database
            await asyncio.sleep(0.5)

    async def _more_connections(self, stack: contextlib.AsyncExitStack, most: int) -> Database:
        """Connections to the database for one kind of requests, none of which is opened yet."""
        more = await postgres.connect(self.settings.database_url, self.name, size=most, opened_at_once=0)
        stack.push_async_callback(_close_database, more)
        return more

    async def _start_consumers(self, stack: contextlib.AsyncExitStack, database: Database) -> None:
        if not self.consumers:
            return
        settings, runtime = self.settings, self.runtime
        while True:
            broker = connect(settings.kafka_access, self.name)
            try:
                runtime.subscriptions = [
                    kafka.Subscription(
                        broker,
                        database,
                        consumer,
                        prefix=settings.topic_prefix,
                        instance=settings.instance,
                        wake=runtime.wake,
                    )
                    for consumer in self.consumers
                ]
                await broker.start()
            except Exception as error:
                LOG.warning("broker not usable, retrying", error=repr(error))
                with contextlib.suppress(Exception):
                    await broker.stop()
                await asyncio.sleep(0.5)
                continue
            stack.push_async_callback(self._stop_consumers, broker)
            return

    async def _stop_consumers(self, broker: Any) -> None:
        for subscription in self.runtime.subscriptions:
            await subscription.stop()
        await broker.stop()

    async def _run_loop(self, loop: Loop, database: Database) -> None:
        wakeup = asyncio.Event()
        if loop.woken:
            self.runtime.wakeups[loop.name] = wakeup
        failures = 0
        while not self.runtime.stopping.is_set():
            wakeup.clear()
            try:
                started = monotonic_seconds()
                more = await loop.step(database)
                telemetry.LOOP_SECONDS.labels(loop.name).observe(monotonic_seconds() - started)
                failures = 0
            except Exception as error:
                failures += 1
                telemetry.LOOP_FAILURES.labels(loop.name).inc()
                if postgres.is_infrastructure(error):
                    outage.warn(LOG, "loop step failed, retrying", error, loop=loop.name)
                else:
                    LOG.exception("loop failed", loop=loop.name)
                await asyncio.sleep(kafka.BACKOFF_SECONDS[min(failures, len(kafka.BACKOFF_SECONDS)) - 1])
                continue
            if more:
                self.runtime.wake()
                await asyncio.sleep(0)
                continue
            if loop.pause_seconds:
                await asyncio.sleep(loop.pause_seconds)
            # Not wait_for, which in Python 3.11 loses a cancellation that comes with the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(loop.tick_seconds):
                    await (wakeup if loop.woken else self.runtime.stopping).wait()

    def _own_loops(self) -> list[Loop]:
        watch = CertificateWatch(
            self.name, self.settings.instance, certificate_files(self.settings), self.runtime.publish
        )
        return [
            *([Loop("certificates", watch.step, CERTIFICATES_SECONDS, woken=False)] if watch.files else []),
            Loop("tokens", self._follow_tokens, TOKENS_SECONDS, woken=False),
            Loop("heartbeat", self._beat, self.settings.heartbeat_seconds, woken=False),
            Loop(PRUNE_LOOP, PruneLoop(self.retention, self.settings).step, EVERY_SECONDS, woken=False),
            Loop("watch-partitions", self._watch_partitions, 2.0, woken=False),
            Loop("alerts", self._republish_alerts, ALERTS_SECONDS, woken=False),
            Loop(
                "measure-service",
                Measure(SERVICE_GAUGES, partial(service_readings, runtime=self.runtime)).step,
                MEASURE_SECONDS,
                woken=False,
            ),
        ]

    async def _follow_tokens(self, database: Database) -> bool:
        """Refuse the tokens that were revoked on any replica, and record when tokens were used."""
        async with database.acquire() as db:
            self.tokens.revoked = await token_rows.revoked(db)
            if monotonic_seconds() - self._uses_at >= USES_SECONDS:
                uses = self.tokens.take_uses()
                try:
                    await token_rows.record_uses(db, uses)
                except BaseException:
                    self.tokens.put_back(uses)
                    raise
                self._uses_at = monotonic_seconds()
        return False

    _uses_at = 0.0
    _beat_at = 0.0

    async def _beat(self, database: Database) -> bool:
        if monotonic_seconds() - self._beat_at < self.settings.heartbeat_seconds * 0.9:
            return False  # woken early
        if self.runtime.leader_loop is not None and not self.runtime.leader_loop.working():
            return False  # heartbeats of a standby must not hide that there is no leader
        self._beat_at = monotonic_seconds()
        beat = ServiceHeartbeat(service=self.name, instance=self.settings.instance, at=utc_now(), version=VERSION)
        async with database.acquire() as db, db.transaction():
            await outbox.enqueue(db, [beat])
        if self.runtime.relay is not None:
            self.runtime.relay.wake(database)
        return False

    async def _republish_alerts(self, database: Database) -> bool:
        """Publish open alerts again each day, resolve those of processes that have ended, and delete the keys of those
        closed long ago from their topic."""
        async with database.acquire() as db, db.transaction():
            events = [
                *await alerts.claim_unpublished(db),
                *await alerts.passed(db),
                *await alerts.abandoned(db, [alert.kind for alert in self._own_alerts()]),
                *map(outbox.Tombstone, await alerts.claim_closed(db)),
            ]
            await outbox.enqueue(db, events)
        if events:
            self.runtime.publish()
        return bool(events)

    def _own_alerts(self) -> list[PartitionAlert]:
        """Alerts that this process confirms while they are open."""
        return [self._unowned, self._unsendable, self._refused_tokens, *(alert for _, alert in self._start_notices)]

    async def _watch_partitions(self, database: Database) -> bool:
        """Raise an alert while an assigned partition cannot be claimed, and one while a partition cannot be sent to;
        resolve each afterwards. In the first minutes only if there are records: more than heartbeats to send."""
        readings, relay = self.runtime.readings(), self.runtime.relay
        publication = None if relay is None else relay.publication
        places = [] if publication is None else publication.unsendable(UNSENDABLE_ALERT_SECONDS)
        late = [r for r in readings if r.unowned_for_seconds() > kafka.UNOWNED_ALERT_SECONDS]
        denied = [] if relay is None else relay.denied(UNSENDABLE_ALERT_SECONDS)
        broker, prefix = shlex.quote(self.settings.kafka), shlex.quote(self.settings.topic_prefix)
        acls = f"infra/kafka/acls.sh {broker} {prefix} admin.properties  # rights of administrators"
        mending = acls if denied else "slipway doctor  # then read the log of the service"
        is_starting = monotonic_seconds() - self._began < START_SECONDS
        for alert in self._own_alerts():
            if not is_starting:
                await alert.take_over(database)
            await alert.confirm(database)
        unowned = [r.name for r in late if not is_starting or await r.work_waits()]
        unsent = {*denied, *(topic for topic, _ in places)}
        unsendable = sorted(topic for topic in unsent if not is_starting or topic != SERVICE_HEARTBEAT.name)
        await asyncio.to_thread(self.tokens.load)
        refused = self.tokens.refused
        events = [
            *self._refused_tokens.changes(
                refused,
                summary=f"{self.name} refuses entries of its tokens file: {'; '.join(refused[:REFUSED_SHOWN])}",
                effect="requests with these tokens are refused; all other tokens work",
                doing="reads the file again when it changes",
                command="slipway token check --file TOKENS",
            ),
            *(
                event
                for one, alert in self._start_notices
                for event in alert.changes([one.kind] if one.applies else [], **one.texts)
            ),
            *self._unowned.changes(
                unowned,
                summary=f"{self.name} cannot claim its assigned partitions of {listed(unowned)}",
                effect="events on these partitions are not processed",
            ),
            *self._unsendable.changes(
                unsendable,
                summary=f"{self.name} cannot publish to all partitions of {listed(unsendable)}",
                effect="events on some partitions wait in the outbox; other partitions are not delayed",
                doing="retries every few seconds, and parks nothing",
                command=mending,
            ),
        ]
        if events:
            async with database.acquire() as db, db.transaction():
                await outbox.enqueue(db, events)
            self.runtime.publish()
        self._unowned.raised, self._unsendable.raised = bool(unowned), bool(unsendable)
        self._refused_tokens.raised = bool(refused)
        for one, alert in self._start_notices:
            alert.raised = one.applies
        return False


def certificate_files(settings: ServiceSettings) -> dict[str, Path]:
    """Certificates that a service presents: variable → file."""
    files = {name: getattr(settings, name) for name in ("tls_certificate_file", "kafka_certificate_file")}
    return {variable_of(name): path for name, path in files.items() if path is not None}


def _end_process_on_failure(main: asyncio.Task[None]) -> None:
    """Terminate the process if its main task failed; it would otherwise look alive and do nothing."""
    if not main.cancelled() and (error := main.exception()) is not None:
        LOG.error("service failed", exc_info=error)
        signal.raise_signal(signal.SIGTERM)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _stopped(loop: Loop) -> None:
    """End what a loop has begun. An error must not keep the rest from being closed."""
    try:
        if loop.stop is not None:
            await loop.stop()
    except Exception:
        LOG.exception("loop failed to stop", loop=loop.name)


async def _close_database(database: Database) -> None:
    try:
        await asyncio.wait_for(database.close(), 3)
    except TimeoutError:
        database.terminate()
