"""Parts of a test service in a separate process, which tests stop and kill. Prints one event per line on stdout.

`python -m tests.support.processes consumer|leader|relay|service DATABASE_URL BOOTSTRAP PREFIX [STALLED_SECONDS|PORT]`
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipway_api.events.topics import WORKER_LIFECYCLE
from slipway_common.database import postgres
from slipway_common.database.postgres import Connection, Database
from slipway_common.messaging import kafka
from slipway_common.messaging import relay as relay_module
from slipway_common.messaging.broker import connect
from slipway_common.messaging.consume import Batch, Consumer
from slipway_common.messaging.leader_loop import LeaderLoop
from slipway_common.messaging.leadership import Turn
from slipway_common.messaging.partition_queues import Rows
from slipway_common.messaging.records import Received
from slipway_common.messaging.relay import Relay
from slipway_common.messaging.topic_admin import partition_counts
from slipway_common.service import Loop, Service, ServiceSettings
from tests.support import harness
from tests.support.harness import PARTITIONS, QUICK, SERVICE, Place, until
from tests.support.readers import TOKENS_FILE

INSTANCE = "twin"


class Process:
    """A child process, always killed at the end of the test."""

    def __init__(self, role: str, url: str, bootstrap: str, prefix: str, *rest: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes", role, url, bootstrap, prefix, *rest],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._output = b""

    def printed(self, word: str) -> bool:
        return word in self.output

    @property
    def output(self) -> str:
        """All that it has printed so far."""
        assert self._process.stdout is not None
        self._output += self._process.stdout.read() or b""
        return self._output.decode()

    async def until_printed(self, *words: str) -> None:
        """Wait until the process has printed one of the words."""
        try:
            await until(lambda: any(map(self.printed, words)), f"the process prints {' or '.join(words)}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}") from None

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

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


async def consume(url: str, bootstrap: str, prefix: str) -> None:
    """Apply a batch, but wait before the commit to be stopped and resumed."""
    resumed = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, resumed.set)

    async def record_slowly(tx: Connection, events: Sequence[Received]) -> None:
        await harness.record_words(tx, events)
        print("inside", flush=True)
        await resumed.wait()

    broker = connect(bootstrap, SERVICE)
    database = await postgres.connect(url, SERVICE, settings=QUICK)
    kafka.Subscription(
        broker,
        database,
        Consumer(SERVICE, WORKER_LIFECYCLE, record_slowly),
        prefix=prefix,
        instance=INSTANCE,
        wake=lambda: None,
        heartbeat_seconds=0.1,
    )
    await broker.start()
    await asyncio.Event().wait()


async def alone(url: str, bootstrap: str, prefix: str) -> None:
    """Run the leader; the word "wait" makes it wait inside its transaction to be stopped and resumed."""
    resumed = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGCONT, resumed.set)

    class Waiting(harness.Diary):
        async def store(self, tx: Connection, turn: Turn, batch: Batch | None) -> None:
            await super().store(tx, turn, batch)
            if batch is not None and any(received.event.kind == "wait" for _, _, received in batch.fresh):
                print("inside", flush=True)
                await resumed.wait()

    database = await postgres.connect(url, SERVICE, settings=QUICK)
    await LeaderLoop(
        Waiting(),
        service=SERVICE,
        kafka=bootstrap,
        prefix=prefix,
        instance=INSTANCE,
        wake=lambda: print("turned", flush=True),
    ).run(database)


async def relay(url: str, bootstrap: str, prefix: str, stalled_seconds: str) -> None:
    """Run the relay with batches so small that it is always busy."""
    relay = Relay(
        SERVICE,
        database_url=url,
        kafka=bootstrap,
        topic_prefix=prefix,
        partitions=partition_counts((WORKER_LIFECYCLE,), PARTITIONS),
        stalled_seconds=float(stalled_seconds),
    )
    send = relay_module.send_batch

    async def told(producer: Any, prefix: str, source: str, rows: Rows) -> int:
        published = await send(producer, prefix, source, rows)
        print("published", flush=True)
        return published

    relay_module.send_batch = told
    print("up", flush=True)
    await relay.run()


def service(url: str, bootstrap: str, prefix: str, port: str) -> None:
    """Run a service with a consumer, a view and a loop."""

    async def count(database: Database) -> bool:
        print("effects", await database.fetchval("SELECT count(*) FROM effect"), flush=True)
        return False

    settings = ServiceSettings(
        database_url=url,
        kafka=bootstrap,
        topic_prefix=prefix,
        partitions=PARTITIONS,
        port=int(port),
        heartbeat_seconds=0.5,
        tokens_file=TOKENS_FILE,
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
        roles: dict[str, Any] = {"consumer": consume, "leader": alone, "relay": relay}
        asyncio.run(roles[role](*arguments))
