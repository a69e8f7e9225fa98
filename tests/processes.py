"""The probe, or a part of it, in a process of its own, to be stopped and killed. Says a word a line on stdout.

`python -m tests.processes consumer|exclusive|relay|service DATABASE_URL BOOTSTRAP PREFIX [STALLED_SECONDS or PORT]`
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipway_common import kafka, postgres
from slipway_common.consume import Batch, Consumer
from slipway_common.exclusive import Exclusive
from slipway_common.owner import Turn
from slipway_common.postgres import Connection, Pool
from slipway_common.records import Received
from slipway_common.relay import Relay
from slipway_common.service import Loop, Service, ServiceSettings
from slipway_common.topic_admin import partition_counts
from slipway_common.topics import WORKER_LIFECYCLE
from tests import harness
from tests.harness import PARTITIONS, QUICK, SERVICE, Place, until

INSTANCE = "twin"


class Process:
    """Started by a test, always killed by it."""

    def __init__(self, role: str, url: str, bootstrap: str, prefix: str, *rest: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.processes", role, url, bootstrap, prefix, *rest],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._output = b""

    def said(self, word: str) -> bool:
        assert self._process.stdout is not None
        self._output += self._process.stdout.read() or b""
        return word.encode() in self._output

    async def until_said(self, word: str) -> None:
        try:
            await until(lambda: self.said(word), f"the process says {word}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._output.decode()}") from None

    @classmethod
    def at(cls, place: Place, role: str, *rest: str) -> "Process":
        return cls(role, place.url, place.kafka.bootstrap, place.prefix, *rest)

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


async def consume(url: str, bootstrap: str, prefix: str) -> None:
    """Applies a batch, but before it commits it waits to be stopped and to go on."""
    going_on = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, going_on.set)

    async def record_slowly(tx: Connection, events: Sequence[Received]) -> None:
        await harness.record_words(tx, events)
        print("inside", flush=True)
        await going_on.wait()

    broker = kafka.connect(bootstrap, SERVICE)
    pool = await postgres.connect(url, SERVICE, settings=QUICK)
    kafka.Subscription(
        broker,
        pool,
        Consumer(SERVICE, WORKER_LIFECYCLE, record_slowly),
        prefix=prefix,
        instance=INSTANCE,
        cluster=await kafka.cluster_id(bootstrap),
        ring=lambda: None,
        heartbeat_seconds=0.1,
    )
    await broker.start()
    await asyncio.Event().wait()


async def alone(url: str, bootstrap: str, prefix: str) -> None:
    """The active instance; a word "wait" makes it wait, in its transaction, to be stopped and to go on."""
    going_on = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, going_on.set)

    class Waiting(harness.Diary):
        async def store(self, tx: Connection, turn: Turn, batch: Batch | None) -> None:
            await super().store(tx, turn, batch)
            if batch is not None and any(received.event.kind == "wait" for _, _, received in batch.fresh):
                print("inside", flush=True)
                await going_on.wait()

    pool = await postgres.connect(url, SERVICE, settings=QUICK)
    await Exclusive(
        Waiting(),
        service=SERVICE,
        bootstrap_servers=bootstrap,
        prefix=prefix,
        instance=INSTANCE,
        ring=lambda: print("turned", flush=True),
    ).run(pool)


async def relay(url: str, bootstrap: str, prefix: str, stalled_seconds: str) -> None:
    """Publishes; in pieces so small that it is always in the middle of something."""
    relay = Relay(
        SERVICE,
        database_url=url,
        kafka=bootstrap,
        topic_prefix=prefix,
        partitions=partition_counts((WORKER_LIFECYCLE,), PARTITIONS),
        stalled_seconds=float(stalled_seconds),
    )
    publish = relay.publish

    async def told(*arguments: Any) -> int:
        published = await publish(*arguments)
        if published:
            print("published", flush=True)
        return published

    relay.publish = told  # type: ignore[method-assign, assignment]
    print("up", flush=True)
    await relay.run()


def service(url: str, bootstrap: str, prefix: str, port: str) -> None:
    """All that a service has: something to consume, a view, a loop."""

    async def count(pool: Pool) -> bool:
        print("effects", await pool.fetchval("SELECT count(*) FROM effect"), flush=True)
        return False

    settings = ServiceSettings(
        database_url=url,
        kafka=bootstrap,
        topic_prefix=prefix,
        partitions=PARTITIONS,
        port=int(port),
        heartbeat_seconds=0.5,
    )
    Service(
        SERVICE,
        settings,
        consumes={WORKER_LIFECYCLE: harness.record_words},
        views=[harness.Words()],
        loops=[Loop("count", count)],
    ).run()


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    if role == "service":
        service(*arguments)
    else:
        roles: dict[str, Any] = {"consumer": consume, "exclusive": alone, "relay": relay}
        asyncio.run(roles[role](*arguments))
