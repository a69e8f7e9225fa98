"""Queues of Celery and RQ in a real Redis, with their real workers."""

import asyncio
import sys
from typing import Any, ClassVar, Final

import redis
from celery import Celery
from rq import Queue
from rq.registry import FinishedJobRegistry

from tests.attach.judge import Count
from tests.attach.queues import AGAIN, ONCE, POOLS, TASK_SECONDS, Lists

KEPT_SECONDS: Final = 3_600


class LibraryQueue(Lists):
    """Queues of a library in a real Redis. Tasks write the same ledger as those of lists."""

    tasks: ClassVar[dict[str, int]] = {ONCE: 4, AGAIN: 8}
    idle = 3

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server.port}"

    def environment(self) -> dict[str, str]:
        return {"QUEUE_URL": self.url, "TASK_SECONDS": str(TASK_SECONDS)}

    @property
    def connection(self) -> Any:
        return redis.Redis.from_url(self.url)


class CeleryQueue(LibraryQueue):
    """Queues of Celery. One-task workers have the pool `solo` and leave after a task; the others fork."""

    preset = "celery"

    def app(self) -> Any:
        return Celery(broker=self.url, backend=self.url)

    def sources(self) -> list[dict[str, Any]]:
        return [{"url": self.url, "celery": "unused", "pools": {pool: pool for pool in POOLS}}]

    async def put(self, pool: str, task: str) -> None:
        with self.app() as app:
            sent = {"args": [task], "task_id": task, "queue": pool}
            await asyncio.to_thread(app.send_task, "attach.run", **sent)

    async def finished(self) -> int:
        keys = self.connection.keys("celery-task-meta-*")
        return sum(b'"status": "SUCCESS"' in self.connection.get(key) for key in keys)

    def agent(self, pool: str) -> list[str]:
        app = "tests.attach.celery_once" if pool == ONCE else "tests.attach.celery_tasks"
        kind = ["--pool=solo"] if pool == ONCE else ["--concurrency=1"]
        quick = ["--without-gossip", "--without-mingle", "--loglevel=info"]
        return [sys.executable, "-m", "celery", "-A", app, "worker", "-Q", pool, *kind, *quick]


class RqQueue(LibraryQueue):
    """Queues of RQ, whose worker exits if it cannot reach Redis at its start, so that it waits for it."""

    preset = "rq"

    def sources(self) -> list[dict[str, Any]]:
        return [{"url": self.url, "list": "unused", "pools": {f"rq:queue:{pool}": pool for pool in POOLS}}]

    async def put(self, pool: str, task: str) -> None:
        queue: Any = Queue(pool, connection=self.connection)
        call = {"args": (task,), "job_id": task, "result_ttl": KEPT_SECONDS}
        await asyncio.to_thread(queue.enqueue_call, "tests.attach.record.run", **call)

    async def counted(self) -> dict[str, Count]:
        async with self.server.client as client, client.pipeline(transaction=True) as pipe:
            for pool in POOLS:
                pipe.llen(f"rq:queue:{pool}")
            return {pool: (length, None) for pool, length in zip(POOLS, await pipe.execute(), strict=True)}

    async def finished(self) -> int:
        return sum(len(FinishedJobRegistry(pool, connection=self.connection)) for pool in POOLS)

    def agent(self, pool: str) -> list[str]:
        there = f'until redis-cli -p {self.server.port} ping >/dev/null 2>&1; do sleep 0.3; done; exec "$@"'
        once = ["--max-jobs", "1"] if pool == ONCE else []
        rq = [sys.executable, "-m", "rq.cli", "worker", "--url", self.url, pool, *once]
        return ["sh", "-c", there, "sh", *rq]
