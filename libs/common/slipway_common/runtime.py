"""What a running service has, and how its routes reach it."""

import asyncio
from typing import Annotated

from fastapi import Depends, Request

from slipway_common import kafka
from slipway_common.exclusive import Exclusive
from slipway_common.partitions import Partitions
from slipway_common.postgres import Pool
from slipway_common.problem import Problem
from slipway_common.relay import Relay
from slipway_common.topics import Topic
from slipway_common.views import Reader


class Runtime:
    """What a running service has: set up in the background, so that HTTP answers from the first moment."""

    def __init__(self) -> None:
        self.pool: Pool | None = None
        self.consuming = False
        self.subscriptions: list[kafka.Subscription] = []
        self.exclusive: Exclusive | None = None
        self.readers: list[Reader] = []
        self.relay: Relay | None = None
        self.bells: list[asyncio.Event] = []
        self.stopping = asyncio.Event()

    def ring(self) -> None:
        """Something was committed: every loop looks again, the relay publishes."""
        for bell in self.bells:
            bell.set()
        self.publish()

    def publish(self) -> None:
        """Events were committed, and nothing that a loop has to look at: the relay publishes."""
        if self.relay is not None and self.pool is not None:
            self.relay.ring(self.pool)

    def readings(self) -> list[Partitions]:
        """Every topic that this process consumes."""
        return [*self.subscriptions, *(self.exclusive.readings if self.exclusive is not None else ())]

    def caught_up(self, topic: Topic) -> bool:
        """Whether this process has read the topic to the end it saw when its partitions were claimed."""
        return any(r.consumer.topic is topic and r.assigned and r.caught_up() for r in self.readings())

    def unready(self) -> list[str]:
        reasons = []
        if self.pool is None:
            reasons.append("the database has not answered yet, or lacks the schema")
        elif not self.consuming:
            reasons.append("the broker has not answered yet, or lacks the topics")
        elif self.exclusive is not None:
            reasons += self.exclusive.reasons()
        for reading in self.readings():
            waiting = [p for p in reading.assigned if p not in reading.owned]
            if waiting:
                reasons.append(f"{reading.name}: partitions {waiting} are assigned but not owned")
            reasons.extend(f"{reading.name}/{p}: {why}" for p, why in reading.stopped.items())
        reasons += [f"{reader.name} is not read to its end" for reader in self.readers if not reader.ready]
        return reasons


def runtime_of(request: Request) -> Runtime:
    """FastAPI dependency: the running service."""
    runtime: Runtime = request.app.state.runtime
    return runtime


def database(runtime: Annotated[Runtime, Depends(runtime_of)]) -> Pool:
    """FastAPI dependency: the pool; a Problem 503 until the service has started."""
    if runtime.pool is None:
        raise Problem(503, "starting", "The service is starting", "try again in a moment")
    return runtime.pool


def ring(request: Request) -> None:
    """Call after a write has committed: loops and relay look at once."""
    runtime_of(request).ring()
