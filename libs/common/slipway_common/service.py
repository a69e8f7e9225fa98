"""The one shape of a service: what it consumes, its views, loops and routes; start, readiness, drain.

Holds no rule of any service. Starting never fails for want of a database or a broker: the process is live, not
ready, and tries again.
"""

import asyncio
import contextlib
import gc
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import uvicorn
from fastapi import APIRouter, FastAPI

from slipway_common import kafka, outbox, postgres, problem, routes, telemetry
from slipway_common.access import Tokens
from slipway_common.clock import monotonic_seconds, utc_now
from slipway_common.consume import Consumer, Handler
from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_common.events.service import ServiceHeartbeat
from slipway_common.exclusive import Exclusive
from slipway_common.measure import MEASURE_SECONDS, PLUMBING, Measure, plumbing
from slipway_common.owner import Work
from slipway_common.postgres import Pool
from slipway_common.relay import Relay
from slipway_common.runtime import Runtime
from slipway_common.settings import EnvironmentSettings
from slipway_common.status import Status
from slipway_common.topic_admin import partition_counts
from slipway_common.topics import TOPICS, Topic
from slipway_common.views import Reader, View

LOG = telemetry.logger(__name__)
VERSION: Final = "0.1.0"
GARBAGE_OBJECTS: Final = 50_000
# As long as the longest retention of a topic that outsiders write, and of one whose subjects end, plus a day.
FORGET_OUTSIDERS: Final = "DELETE FROM seen_event WHERE seen_at < slipway_clock() - interval '7 days'"
FORGET_SUBJECTS: Final = """
DELETE FROM outbox_subject WHERE topic = ANY($1) AND touched_at < slipway_clock() - interval '8 days'"""


class ServiceSettings(EnvironmentSettings):
    """Settings of every service, from SLIPWAY_* variables. Durations are in seconds."""

    database_url: str
    kafka: str
    """Bootstrap servers, host:port,…"""
    topic_prefix: str = ""
    """Put before every topic name, so that several deployments can share a cluster."""
    partitions: int | None = None
    """Partitions of every topic; unset: the registry's 32. May never change for a deployment."""
    host: str = "127.0.0.1"
    port: int = 0
    instance: str = "0"
    """Names this replica: static group membership, so that a quick restart moves no partition."""
    tokens_file: Path | None = None
    heartbeat_seconds: float = 5.0


class Loop(msgspec.Struct, frozen=True):
    """`step(pool)` does one piece of work; True: there may be more. Else it waits for a ring or the tick."""

    name: str
    step: Callable[[Pool], Awaitable[bool]]
    tick_seconds: float = 1.0


class Service:
    """Compose one in `main.py`, then `run()`."""

    def __init__(
        self,
        name: str,
        settings: ServiceSettings,
        *,
        consumes: Mapping[Topic, Handler] | None = None,
        work: Work | None = None,
        views: Sequence[View] = (),
        loops: Sequence[Loop] = (),
        routers: Sequence[APIRouter] = (),
        resources: Sequence[contextlib.AbstractAsyncContextManager[Any]] = (),
        state: Mapping[str, Any] | None = None,
        schema_minimum: str = "0001",
    ) -> None:
        """`work` is done by one replica at a time. `schema_minimum` is the oldest migration that this code runs on; a
        newer schema is fine."""
        self.name = name
        self.settings = settings
        self.consumers = [Consumer(name, topic, handle) for topic, handle in (consumes or {}).items()]
        self.views = views
        self.runtime = Runtime()
        if work is not None:
            self.runtime.exclusive = Exclusive(
                work,
                service=name,
                bootstrap_servers=settings.kafka,
                prefix=settings.topic_prefix,
                instance=settings.instance,
                ring=self.runtime.ring,
            )
        self.loops = [*loops, *self._own_loops()]
        self.routers = routers
        self.resources = resources
        self.state = state or {}
        self.schema_minimum = schema_minimum

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; then finish the steps under way and stop."""
        telemetry.configure_logs(self.name)
        # A batch of records is many objects and no garbage: looking for cycles among them takes a third of the time.
        gc.set_threshold(GARBAGE_OBJECTS)
        app = self.app()
        # What is there by now stays: each full collection would stop the process for 40 ms to look at it again.
        gc.collect()
        gc.freeze()
        uvicorn.run(
            app,
            host=self.settings.host,
            port=self.settings.port,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=5,
        )

    def app(self) -> FastAPI:
        app = FastAPI(title=f"Slipway {self.name}", version=VERSION, lifespan=self._lifespan)
        app.state.runtime = self.runtime
        app.state.status = Status(self.runtime, service=self.name, version=VERSION, instance=self.settings.instance)
        app.state.tokens = Tokens(self.settings.tokens_file)
        for name, value in self.state.items():
            setattr(app.state, name, value)
        problem.install(app)
        app.include_router(routes.health)
        app.include_router(routes.about)
        if self.consumers or self.runtime.exclusive is not None:
            app.state.consumers = {consumer.topic.name: consumer for consumer in self.consumers}
            app.include_router(routes.letters)
            app.include_router(routes.positions)
        for router in self.routers:
            app.include_router(router)
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        main = asyncio.create_task(self._main())
        main.add_done_callback(_end_process_on_failure)
        try:
            yield
        finally:
            self.runtime.stopping.set()
            self.runtime.ring()
            main.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await main
            LOG.info("stopped")

    async def _main(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for resource in self.resources:
                await stack.enter_async_context(resource)
            pool = await self._start_database(stack)
            tasks: list[asyncio.Task[None]] = []
            stack.push_async_callback(_cancel, tasks)
            settings, runtime = self.settings, self.runtime
            runtime.relay = Relay(
                self.name,
                database_url=settings.database_url,
                kafka=settings.kafka,
                topic_prefix=settings.topic_prefix,
                partitions=partition_counts(TOPICS, settings.partitions),
            )
            tasks.append(asyncio.create_task(runtime.relay.run()))
            for view in self.views:
                reader = Reader(view, bootstrap_servers=settings.kafka, prefix=settings.topic_prefix, ring=runtime.ring)
                runtime.readers.append(reader)
                tasks.append(asyncio.create_task(reader.run(pool)))
            # What people ask and what is due does not wait for the broker: brakes work without it.
            runtime.pool = pool
            loops = [asyncio.create_task(self._run_loop(loop, pool)) for loop in self.loops]
            if runtime.exclusive is not None:
                loops.append(asyncio.create_task(runtime.exclusive.run(pool)))
            try:
                await self._start_consumers(stack, pool)
                runtime.consuming = True
                LOG.info("started", version=VERSION, instance=settings.instance)
                await asyncio.Event().wait()
            finally:
                # Loops finish the step they are in: an action taken must be recorded. The stack undoes the rest.
                if runtime.exclusive is not None:
                    runtime.exclusive.stop()
                await asyncio.wait(loops, timeout=5)
                await _cancel(loops)

    async def _start_database(self, stack: contextlib.AsyncExitStack) -> Pool:
        while True:
            async with contextlib.AsyncExitStack() as attempt:
                try:
                    pool = await postgres.connect(self.settings.database_url, self.name)
                    attempt.push_async_callback(_close_pool, pool)
                    schema = await postgres.schema_revision(pool)
                    if schema is None or schema < self.schema_minimum:
                        raise OSError(f"schema {schema} is below {self.schema_minimum}: run the migrations first")
                except Exception as error:
                    LOG.warning("database not usable yet", error=repr(error))
                else:
                    stack.push_async_callback(attempt.pop_all().aclose)
                    return pool
            await asyncio.sleep(0.5)

    async def _start_consumers(self, stack: contextlib.AsyncExitStack, pool: Pool) -> None:
        if not self.consumers:
            return
        settings, runtime = self.settings, self.runtime
        while True:
            broker = kafka.connect(settings.kafka, self.name)
            try:
                cluster = await kafka.cluster_id(settings.kafka)
                runtime.subscriptions = [
                    kafka.Subscription(
                        broker,
                        pool,
                        consumer,
                        prefix=settings.topic_prefix,
                        instance=settings.instance,
                        cluster=cluster,
                        ring=runtime.ring,
                    )
                    for consumer in self.consumers
                ]
                await broker.start()
            except Exception as error:
                LOG.warning("broker not usable yet", error=repr(error))
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

    async def _run_loop(self, loop: Loop, pool: Pool) -> None:
        bell = asyncio.Event()
        self.runtime.bells.append(bell)
        failures = 0
        while not self.runtime.stopping.is_set():
            bell.clear()
            try:
                started = monotonic_seconds()
                more = await loop.step(pool)
                telemetry.LOOP_SECONDS.labels(loop.name).observe(monotonic_seconds() - started)
                failures = 0
            except Exception as error:
                failures += 1
                telemetry.LOOP_FAILURES.labels(loop.name).inc()
                if postgres.is_infrastructure(error):
                    LOG.warning("loop will try again", loop=loop.name, error=repr(error))
                else:
                    LOG.exception("loop failed", loop=loop.name)
                await asyncio.sleep(kafka.BACKOFF_SECONDS[min(failures, len(kafka.BACKOFF_SECONDS)) - 1])
                continue
            if more:
                self.runtime.ring()
                await asyncio.sleep(0)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(bell.wait(), loop.tick_seconds)

    def _own_loops(self) -> list[Loop]:
        return [
            Loop("heartbeat", self._beat, self.settings.heartbeat_seconds),
            Loop("housekeeping", self._keep_house, 600.0),
            Loop("watch-ownership", self._watch_ownership, 2.0),
            Loop("measure-plumbing", Measure(PLUMBING, partial(plumbing, runtime=self.runtime)).step, MEASURE_SECONDS),
        ]

    _beat_at = 0.0

    async def _beat(self, pool: Pool) -> bool:
        if monotonic_seconds() - self._beat_at < self.settings.heartbeat_seconds * 0.9:
            return False  # rung, not due
        if self.runtime.exclusive is not None and not self.runtime.exclusive.working():
            return False  # who stands by must not hide that nobody works
        self._beat_at = monotonic_seconds()
        beat = ServiceHeartbeat(service=self.name, instance=self.settings.instance, at=utc_now(), version=VERSION)
        async with pool.acquire() as db, db.transaction():
            await outbox.enqueue(db, [beat])
        if self.runtime.relay is not None:
            self.runtime.relay.ring(pool)
        return False

    _house_kept_at = -1e9

    async def _keep_house(self, pool: Pool) -> bool:
        """Forget what can no longer be repeated: outsiders' ids, revisions of subjects that ended long ago."""
        if monotonic_seconds() - self._house_kept_at < 600:
            return False
        self._house_kept_at = monotonic_seconds()
        ended = [topic.name for topic in TOPICS if not topic.compacted]
        await pool.execute(FORGET_OUTSIDERS)
        await pool.execute(FORGET_SUBJECTS, ended)
        return False

    _alerted = False

    async def _watch_ownership(self, pool: Pool) -> bool:
        """An assigned partition never stays un-owned unnoticed."""
        stuck = [r for r in self.runtime.readings() if r.unowned_for_seconds() > kafka.UNOWNED_ALERT_SECONDS]
        if bool(stuck) != self._alerted:
            names = ", ".join(reading.name for reading in stuck)
            alert = (AlertRaised if stuck else AlertResolved)(
                dedup_key=f"{self.name}/unowned/{self.settings.instance}",
                subject_id=self.name,
                kind="unowned-partition",
                summary=f"{self.name} was assigned partitions of {names} but cannot claim them" if stuck else "",
                effect="their events wait",
                doing="tries again each second",
                command="look at the service's log and at /readyz",
            )
            async with pool.acquire() as db, db.transaction():
                await outbox.enqueue(db, [alert])
        self._alerted = bool(stuck)
        return False


def _end_process_on_failure(main: asyncio.Task[None]) -> None:
    """A service whose main task died would look alive and do nothing."""
    if not main.cancelled() and (error := main.exception()) is not None:
        LOG.error("service failed", exc_info=error)
        signal.raise_signal(signal.SIGTERM)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _close_pool(pool: Pool) -> None:
    try:
        await asyncio.wait_for(pool.close(), 3)
    except TimeoutError:
        pool.terminate()
