"""The port of a queue that workers are attached to, with its own ledger; and lists of a real Redis, seen by five kinds.

Kinds other than `redis` see the lists through a command, a page, an exporter and a real Prometheus, or a stand-in for
the external metrics API of Kubernetes.
"""

import asyncio
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

import msgspec

from tests.attach.judge import Count, Entry
from tests.attach.worker import RECORD, running_key
from tests.contract.sources.servers import PrometheusWorld, RedisWorld
from tests.contract.sources.worlds import Page

ONCE, AGAIN = "once", "again"
POOLS: Final = (ONCE, AGAIN)
"""Pools whose workers do one task, and do several; also the names of their queues."""
TASK_SECONDS: Final = 0.5


class AttachedQueue(ABC):
    """A queue with its server, and how it is reported, worked on and judged. Times are real."""

    counts: ClassVar[str] = "waiting"
    preset: ClassVar[str] = "generic"
    tasks: ClassVar[dict[str, int]] = {ONCE: 8, AGAIN: 12}
    """Tasks of each pool before the server goes away."""
    idle: ClassVar[int] = 4
    """Workers that wait for the server while it is away."""
    behind_seconds: ClassVar[float] = 0.0

    def __init__(self, kind: str, folder: Path, rng: Random) -> None:
        self.kind, self.folder, self.rng = kind, folder, rng

    @abstractmethod
    async def start(self) -> None:
        """Start the server, with empty queues. Raises NotAvailable."""

    @abstractmethod
    async def close(self) -> None:
        """Stop the server."""

    @abstractmethod
    async def away(self) -> None:
        """Take the server away."""

    @abstractmethod
    async def back(self) -> None:
        """Bring it back, with its tasks and its ledger."""

    @abstractmethod
    def sources(self) -> list[dict[str, Any]]:
        """Entries of the file of sources, with the fields of their kind."""

    @abstractmethod
    async def put(self, pool: str, task: str) -> None:
        """Add a task."""

    @abstractmethod
    async def counted(self) -> dict[str, Count]:
        """Counts by pool, by the queue itself. Raises any exception while it is away."""

    @abstractmethod
    async def ledger(self) -> list[Entry]:
        """All entries that workers have written so far, in their order."""

    async def finished(self) -> int | None:
        """Tasks that have succeeded, by what the queue's library keeps of them; None if it keeps nothing."""
        return None

    @abstractmethod
    def agent(self, pool: str) -> list[str]:
        """The agent of a pool, which `slipway-worker wrap` starts."""

    def environment(self) -> dict[str, str]:
        """Variables of agents."""
        return {}


def program(kind: str, address: str, pool: str) -> list[str]:
    """The program of tests/attach/worker.py."""
    limit = "1" if pool == ONCE else "0"
    return [sys.executable, "-m", "tests.attach.worker", kind, address, pool, limit, str(TASK_SECONDS)]


def entries(lines: list[str] | list[bytes]) -> list[Entry]:
    return [msgspec.json.decode(line, type=Entry) for line in lines]


class Lists(AttachedQueue):
    """Two lists of a real Redis, read by the source `redis`."""

    def __init__(self, kind: str, folder: Path, rng: Random) -> None:
        super().__init__(kind, folder, rng)
        self.server = RedisWorld(folder)

    async def start(self) -> None:
        await self.server.start()

    async def close(self) -> None:
        await self.server.close()

    async def away(self) -> None:
        await self.server.away()

    async def back(self) -> None:
        await self.server.back()

    def sources(self) -> list[dict[str, Any]]:
        return [{"url": f"redis://127.0.0.1:{self.server.port}", "list": "unused", "pools": {p: p for p in POOLS}}]

    async def put(self, pool: str, task: str) -> None:
        async with self.server.client as client:
            await client.rpush(pool, task)

    async def counted(self) -> dict[str, Count]:
        async with self.server.client as client, client.pipeline(transaction=True) as pipe:
            for pool in POOLS:
                pipe.llen(pool)
                pipe.llen(running_key(pool))
            lengths = await pipe.execute()
        counted = dict(zip(POOLS, zip(lengths[::2], lengths[1::2], strict=True), strict=True))
        return {pool: self.count(waiting, running) for pool, (waiting, running) in counted.items()}

    def count(self, waiting: int, running: int) -> Count:
        """The count that the source is to report."""
        return (waiting + running if self.counts == "waiting_and_running" else waiting), None

    async def ledger(self) -> list[Entry]:
        async with self.server.client as client:
            return entries(await client.lrange(RECORD, 0, -1))

    def agent(self, pool: str) -> list[str]:
        return program("redis", str(self.server.port), pool)


class Command(Lists):
    """The lists as a command counts them."""

    def sources(self) -> list[dict[str, Any]]:
        call = f"redis-cli -p {self.server.port} llen"
        reads = " ".join(f"{pool}=$({call} {pool}); test ${pool} -ge 0;" for pool in POOLS)
        shown = ", ".join(f'"{pool}": %s' for pool in POOLS)
        script = f"set -e; {reads} printf '{{{shown}}}' {' '.join(f'${pool}' for pool in POOLS)}"
        return [{"command": ["sh", "-c", script], "pools": {pool: pool for pool in POOLS}}]


class Shown(Lists):
    """The lists on a page that is made anew all the time, as an exporter does; nothing while Redis does not answer."""

    behind_seconds = 0.5

    def __init__(self, kind: str, folder: Path, rng: Random) -> None:
        super().__init__(kind, folder, rng)
        self.page = Page()
        self.showing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await super().start()
        self.showing = asyncio.create_task(self._show())

    async def close(self) -> None:
        if self.showing is not None:
            self.showing.cancel()
        self.page.shut()
        await super().close()

    async def _show(self) -> None:
        while True:
            try:
                async with asyncio.timeout(0.3):  # the client tries again for longer
                    self.page.bodies = self.bodies(await self.counted())
            except Exception:
                self.page.bodies = {}
            await asyncio.sleep(0.05)

    def bodies(self, counts: dict[str, Count]) -> dict[str, Any]:
        """Bodies by path."""
        return {"/queue": {pool: tasks for pool, (tasks, _) in counts.items()}}

    def sources(self) -> list[dict[str, Any]]:
        pools = {pool: pool for pool in POOLS}
        return [{"url": f"{self.page.url}/queue", "behind_seconds": self.behind_seconds, "pools": pools}]


class Scraped(Shown):
    """The lists as series of a real Prometheus, which scrapes an exporter."""

    behind_seconds = 1.0

    def __init__(self, kind: str, folder: Path, rng: Random) -> None:
        super().__init__(kind, folder, rng)
        self.page.shut()
        self.prometheus = PrometheusWorld(folder)
        self.page = self.prometheus.exporter
        self.page.headers = {"Content-Type": "text/plain; version=0.0.4"}

    async def start(self) -> None:
        await super().start()
        await self.prometheus.start()

    async def close(self) -> None:
        await super().close()
        await self.prometheus.close()

    def bodies(self, counts: dict[str, Count]) -> dict[str, Any]:
        lines = [f'jobs{{queue="{pool}"}} {tasks}' for pool, (tasks, _) in counts.items()]
        lines += [f'queue_jobs{{state="{state}"}} 0' for state in ("waiting", "running")]
        return {"/metrics": ("\n".join(lines) + "\n").encode()}

    def sources(self) -> list[dict[str, Any]]:
        query = {"tasks": "sum by (queue) (jobs)", "label": "queue", "pools": {pool: pool for pool in POOLS}}
        url = f"http://127.0.0.1:{self.prometheus.port}"
        return [query | {"url": url, "behind_seconds": self.behind_seconds}]


class Scaled(Shown):
    """The lists as KEDA shows them: a stand-in for the external metrics API of Kubernetes, which has no server here. It
    answers only the right selector, and writes numbers as quantities."""

    counts = "waiting_and_running"

    def bodies(self, counts: dict[str, Count]) -> dict[str, Any]:
        return {
            f"{self._path(pool)}?labelSelector=scaledobject.keda.sh%2Fname%3D{pool}": {
                "kind": "ExternalMetricValueList",
                "items": [{"metricName": f"s0-redis-{pool}", "value": self._quantity(tasks)}],
            }
            for pool, (tasks, _) in counts.items()
        }

    def _path(self, pool: str) -> str:
        return f"/apis/external.metrics.k8s.io/v1beta1/namespaces/ci/s0-redis-{pool}"

    def _quantity(self, tasks: int) -> str:
        return self.rng.choice((f"{tasks}", f"{tasks * 1000}m", f"{tasks * 10**6}u"))

    def sources(self) -> list[dict[str, Any]]:
        usual = {"url": self.page.url, "namespace": "ci", "behind_seconds": self.behind_seconds}
        return [usual | {"scaled_object": pool, "metric": f"s0-redis-{pool}", "pool": pool} for pool in POOLS]
