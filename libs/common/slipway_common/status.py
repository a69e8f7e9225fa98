"""What a service says of itself to people: version, readiness, database, positions and lag.

Answers within a second whatever its servers do: what they do not tell in time is null. Shows no address and no secret.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from slipway_common.clock import utc_now
from slipway_common.partitions import Partitions
from slipway_common.runtime import Runtime

Answer = TypeVar("Answer")

ANSWER_SECONDS: Final = 0.7
# The oldest row of the outbox is its first: identities are drawn in the order of commits, nearly.
DATABASE: Final = """
SELECT slipway_clock() AS database_now, (SELECT version_num FROM alembic_version) AS schema_revision,
    (SELECT count(*) FROM dead_letter) AS dead_letters, greatest(0, coalesce(
        (SELECT extract(epoch FROM slipway_clock() - at) FROM outbox ORDER BY id LIMIT 1), 0))::float8
        AS outbox_oldest_seconds"""
UNKNOWN: Final = dict.fromkeys(("database_now", "schema_revision", "dead_letters", "outbox_oldest_seconds"))


class Status:
    """The status of one process of a service."""

    def __init__(self, runtime: Runtime, *, service: str, version: str, instance: str) -> None:
        self.runtime = runtime
        self.itself = {"service": service, "version": version, "instance": instance}
        self._asked: dict[str, asyncio.Task[Any]] = {}

    async def told(self) -> dict[str, Any]:
        """The whole status; never raises."""
        database, *ends = await asyncio.gather(
            self._within("database", self._ask_database),
            *(self._within(reading.name, reading.ends) for reading in self.runtime.readings()),
        )
        reasons = self.runtime.unready()
        if self.runtime.pool is not None and database is None:
            reasons.append("the database does not answer")
        partitions = [
            row
            for reading, known in zip(self.runtime.readings(), ends, strict=False)  # they may have come since
            for row in _partitions(reading, known or {})
        ]
        return self.itself | {
            "ready": not reasons,
            "reasons": reasons,
            "now": utc_now(),
            **(database or UNKNOWN),
            "partitions": partitions,
            "stopped_partitions": stopped_partitions(self.runtime),
            "standing": None if self.runtime.exclusive is None else self.runtime.exclusive.standing,
        }

    async def _ask_database(self) -> dict[str, Any] | None:
        pool = self.runtime.pool
        return None if pool is None else dict(await pool.fetchrow(DATABASE))

    async def _within(self, name: str, ask: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """What `ask` answers in time; None when it fails or hangs. While it hangs it is not asked anew, and it is not
        cancelled: giving a connection back would wait for the server that hangs."""
        task = self._asked.get(name)
        if task is None or task.done():
            task = self._asked[name] = asyncio.ensure_future(_quietly(ask))
        await asyncio.wait({task}, timeout=ANSWER_SECONDS)
        answer: Answer | None = task.result() if task.done() and not task.cancelled() else None
        return answer


async def _quietly(ask: Callable[[], Awaitable[Answer]]) -> Answer | None:
    try:
        return await ask()
    except Exception:  # whatever it is, the caller asks what is known and not why; /readyz and the log say that
        return None


def _partitions(reading: Partitions, ends: dict[int, int]) -> list[dict[str, Any]]:
    """Partitions that this process has been given, or has taken."""
    rows = []
    for partition in sorted(reading.assigned):
        owned, end = reading.owned.get(partition), ends.get(partition)
        lag = None if owned is None or end is None else max(0, end - owned.next_offset)
        rows.append(
            {
                "topic": reading.consumer.topic.name,
                "partition": partition,
                "owned": owned is not None,
                "next_offset": None if owned is None else owned.next_offset,
                "end_offset": end,
                "lag": lag,
            }
        )
    return rows


def stopped_partitions(runtime: Runtime) -> list[dict[str, Any]]:
    """Partitions that only an operator can set going again, and why."""
    return [
        {"topic": reading.consumer.topic.name, "partition": partition, "why": why}
        for reading in runtime.readings()
        for partition, why in sorted(reading.stopped.items())
    ]
