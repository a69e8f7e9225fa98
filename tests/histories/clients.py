"""Clients of lease pools in a process of their own, to be stopped and killed: `python -m tests.histories.clients PLAN
JOURNAL`. They acquire, hold, write, renew and release at random: mostly correctly, now and then like clients that
slept, forget, or confuse their leases."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from slipway_common.base.clock import monotonic_seconds
from tests.histories.actor import Actor, Own
from tests.histories.history import Call, Does, Lease
from tests.histories.journal import Journal

PAUSE_SECONDS: Final = (0.05, 0.3)  # between two leases
PATIENCE_SECONDS: Final = (0.3, 2.0)
CANCELLED: Final = 0.5  # share of clients that cancel when they give up; the others just stop
# Behaviours of a holder.
WAYS: Final = {"well": 0.55, "asleep": 0.15, "confused": 0.15, "forgets": 0.15}


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """One client: it acquires 1…`units` units of `pool` at a time, with jumps of its clock."""

    name: str
    owner: str
    secret: str
    pool: str
    units: int
    ttl_seconds: float
    jumps: Sequence[tuple[float, float]] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a process of clients. `ports` are those of the brokers, `resource` that of the guarded resource."""

    workers: Sequence[Worker]
    ports: Sequence[int]
    resource: int
    seed: str
    skew_seconds: float


class Working:
    """One client at work until it is `over`."""

    def __init__(self, worker: Worker, plan: Plan, journal: Journal, over: asyncio.Event) -> None:
        self.worker = worker
        self.plan = plan
        self.over = over
        self.rng = Random(f"{plan.seed}/{worker.name}")
        self.actor = Actor(
            worker.name,
            owner=worker.owner,
            secret=worker.secret,
            ports=plan.ports,
            journal=journal,
            rng=self.rng,
            resource=plan.resource,
            clock=Own(worker.jumps),
        )
        self._requests = 0

    async def run(self) -> None:
        while not self.over.is_set():
            await asyncio.sleep(self.rng.uniform(*PAUSE_SECONDS))
            granted = await self.get()
            if granted is not None:
                await self.use(granted)

    async def get(self) -> Call | None:
        """Acquire under one id until granted, refused, or given up."""
        self._requests += 1
        request_id = f"{self.worker.name}-{self._requests}-{os.getpid()}"
        units = self.rng.randint(1, self.worker.units)
        until = monotonic_seconds() + self.rng.uniform(*PATIENCE_SECONDS)
        while monotonic_seconds() < until and not self.over.is_set():
            call = await self.actor.acquire(
                self.worker.pool, request_id, units, wait_seconds=self.rng.choice((0.0, 0.2, 0.4))
            )
            if call.answer == "ok":
                return call
            if call.answer == "refused":
                return None
            await asyncio.sleep(self.rng.uniform(0.02, 0.15))
        if self.rng.random() < CANCELLED:
            await self.actor.cancel(self.worker.pool, request_id)
        return None

    async def use(self, granted: Call) -> None:
        assert granted.lease is not None
        lease, pool = granted.lease, self.worker.pool
        (way,) = self.rng.choices(list(WAYS), list(WAYS.values()))
        until = self.sure(granted)
        if way == "asleep":  # as if its machine had stopped: it writes and renews without checking the clock
            await asyncio.sleep(self.worker.ttl_seconds * self.rng.uniform(0.9, 1.4))
            await self.actor.write(pool, lease)
            await self.actor.send("renew", pool, lease)
            return
        for _ in range(self.rng.randint(1, 4)):
            if self.actor.clock.now() >= until or self.over.is_set():
                return
            await self.actor.write(pool, lease)
            await asyncio.sleep(self.worker.ttl_seconds * self.rng.uniform(0.1, 0.3))
            renewed = await self.actor.send("renew" if self.rng.random() < 0.7 else "confirm", pool, lease)
            if renewed.answer == "refused":
                return
            if renewed.answer == "ok":
                until = self.sure(renewed)
        if way == "forgets":
            return
        if way == "confused":
            await self.confuse(lease)
        if lease.units > 1 and self.rng.random() < 0.5:
            await self.actor.send("release", pool, lease, units=1)
            lease = msgspec.structs.replace(lease, units=lease.units - 1)
        for _ in range(self.rng.choice((1, 1, 2))):
            await self.actor.send("release", pool, lease)

    async def confuse(self, lease: Lease) -> None:
        """Send a command for this lease under a token of a former one."""
        former = [token for token in self.actor.tokens[self.worker.pool] if token != lease.fencing_token]
        if former:
            does: Does = "renew" if self.rng.random() < 0.5 else "release"
            await self.actor.send(does, self.worker.pool, lease, token=former[-1])

    def sure(self, call: Call) -> float:
        """Time until which it may hold, by its own clock: counted from before the request."""
        assert call.lease is not None
        asked_for = monotonic_seconds() - call.invoked
        return self.actor.clock.now() - asked_for + call.lease.seconds_left - self.plan.skew_seconds


async def work(plan: Plan, journal: Journal) -> None:
    """Run until SIGTERM; calls in flight are then completed."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with asyncio.TaskGroup() as group:
        for worker in plan.workers:
            group.create_task(Working(worker, plan, journal, over).run())


def main(plan: str, journal: str) -> None:
    file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    kept = Journal(lambda line: os.write(file, line))
    asyncio.run(work(msgspec.json.decode(Path(plan).read_bytes(), type=Plan), kept))


if __name__ == "__main__":
    main(*sys.argv[1:])
