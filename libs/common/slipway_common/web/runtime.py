"""State of a running service, and the FastAPI dependencies that give routes access to it."""

import asyncio
from typing import Any, Final

from fastapi import Request

from slipway_api.events.topics import Topic
from slipway_common.database.postgres import Database
from slipway_common.messaging import kafka
from slipway_common.messaging.leader_loop import LeaderLoop
from slipway_common.messaging.partitions import Partitions
from slipway_common.messaging.relay import Relay
from slipway_common.messaging.views import Reader
from slipway_common.web.problem import Problem

PROBE_SECONDS: Final = 2.0


class Runtime:
    """State of a running service. Filled in the background, so that HTTP is served from the start.

    `database` has the connections of loops and consumers. Requests of people, and reports of workers and holders of
    leases, have some of their own, so that none of the three waits for another's."""

    def __init__(self) -> None:
        self.database: Database | None = None
        self.people_database: Database | None = None
        self.reports_database: Database | None = None
        self.consuming = False
        self.subscriptions: list[kafka.Subscription] = []
        self.leader_loop: LeaderLoop | None = None
        self.readers: list[Reader] = []
        self.relay: Relay | None = None
        self.wakeups: dict[str, asyncio.Event] = {}
        self.stopping = asyncio.Event()
        self._asked: asyncio.Task[Any] | None = None

    def connected(self) -> Database:
        """The database, for code that runs with the loops only. Raises ConnectionError until the service has
        connected."""
        if self.database is None:
            raise ConnectionError("the database is not connected yet")
        return self.database

    async def ask_database(self, database: Database) -> None:
        """Have the database answer, once for all probes that wait: they need no token, and have no limit. Raises the
        error of it, also if it takes long."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.create_task(asyncio.wait_for(database.fetchval("SELECT 1"), PROBE_SECONDS))
        await asyncio.shield(self._asked)

    def wake(self, *, but: str = "") -> None:
        """Wake every loop and the relay after a commit, `but` the loop of this name, if it has found all there was."""
        for name, wakeup in self.wakeups.items():
            if name != but:
                wakeup.set()
        self.publish()

    def publish(self) -> None:
        """Wake the relay only, after a commit of events that no loop has to handle."""
        if self.relay is not None and self.database is not None:
            self.relay.wake(self.database)

    def readings(self) -> list[Partitions]:
        """Topics that this process consumes."""
        return [*self.subscriptions, *(self.leader_loop.readings if self.leader_loop is not None else ())]

    def caught_up(self, topic: Topic) -> bool:
        """True if this process has read the topic up to the end offsets seen when its partitions were claimed."""
        return any(r.consumer.topic is topic and r.assigned and r.caught_up() for r in self.readings())

    def unready(self) -> list[str]:
        reasons = []
        if self.database is None:
            reasons.append("the database is unavailable or not migrated")
        elif not self.consuming:
            reasons.append("the broker is unavailable or lacks the topics")
        elif self.leader_loop is not None:
            reasons += self.leader_loop.reasons()
        for reading in self.readings():
            waiting = [p for p in reading.assigned if p not in reading.owned]
            if waiting:
                reasons.append(f"{reading.name}: partitions {waiting} are assigned but not owned")
            reasons.extend(f"{reading.name}/{p}: {reason}" for p, reason in reading.stopped.items())
        reasons += [f"{reader.name} is not caught up" for reader in self.readers if not reader.ready]
        return reasons


def runtime_of(request: Request) -> Runtime:
    """FastAPI dependency: the running service."""
    runtime: Runtime = request.app.state.runtime
    return runtime


async def database(request: Request) -> Database:
    """FastAPI dependency: the database, by the connections of people's requests. Raises Problem 503 until the service
    has started. Not a plain function, which would run in a thread."""
    runtime = runtime_of(request)
    return _started(runtime.people_database or runtime.database)


async def reports_database(request: Request) -> Database:
    """FastAPI dependency: the database, by the connections of reports. Raises Problem 503 until the service has
    started."""
    runtime = runtime_of(request)
    return _started(runtime.reports_database or runtime.database)


def _started(database: Database | None) -> Database:
    if database is None:
        raise Problem(503, "starting", "The service is starting", "try again in a moment")
    return database


def wake(request: Request) -> None:
    """Wake loops and relay; call after a write has committed."""
    runtime_of(request).wake()
