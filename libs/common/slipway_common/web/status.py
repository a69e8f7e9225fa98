"""Status report of a service: version, readiness, database, positions and lag.

Always answers within a second; values that a server does not deliver in time are null. Contains no addresses and no
secrets.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from slipway_api.http.service import PartitionStatus, ServiceStatus, StoppedPartition
from slipway_common.base.clock import utc_now
from slipway_common.messaging.partitions import Partitions
from slipway_common.web.runtime import Runtime

Answer = TypeVar("Answer")

ANSWER_SECONDS: Final = 0.7
# The oldest row of the outbox is its first, since identities are drawn nearly in the order of commits.
DATABASE: Final = """
SELECT slipway_clock() AS database_now, (SELECT version_num FROM alembic_version) AS schema_revision,
    (SELECT count(*) FROM dead_letter) AS dead_letters, greatest(0, coalesce(
        (SELECT extract(epoch FROM slipway_clock() - at) FROM outbox ORDER BY id LIMIT 1), 0))::float8
        AS outbox_oldest_seconds,
    coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false) AS database_tls"""


class Status:
    """Status report of one process of a service."""

    def __init__(self, runtime: Runtime, *, service: str, version: str, instance: str) -> None:
        self.runtime = runtime
        self.itself: dict[str, Any] = {"service": service, "version": version, "instance": instance}
        self._pending: dict[str, asyncio.Task[Any]] = {}

    async def read(self) -> ServiceStatus:
        """Return the whole status; never raises."""
        database, *ends = await asyncio.gather(
            self._within("database", self._read_database),
            *(self._within(reading.name, reading.ends) for reading in self.runtime.readings()),
        )
        reasons = self.runtime.unready()
        if self.runtime.database is not None and database is None:
            reasons.append("the database is unavailable")
        partitions = [
            row
            for reading, known in zip(
                self.runtime.readings(), ends, strict=False
            )  # subscriptions may have started since
            for row in _partitions(reading, known or {})
        ]
        return ServiceStatus(
            **self.itself,
            ready=not reasons,
            reasons=reasons,
            now=utc_now(),
            **(database or {}),
            partitions=partitions,
            stopped_partitions=stopped_partitions(self.runtime),
            leadership=None if self.runtime.leader_loop is None else self.runtime.leader_loop.status,
        )

    async def _read_database(self) -> dict[str, Any] | None:
        database = self.runtime.people_database or self.runtime.database
        return None if database is None else dict(await database.fetchrow(DATABASE))

    async def _within(self, name: str, read: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """Result of `read` if it arrives in time; None if it fails or hangs.

        A hanging call is neither repeated nor cancelled: releasing its connection would wait for the server."""
        task = self._pending.get(name)
        if task is None or task.done():
            task = self._pending[name] = asyncio.ensure_future(_quietly(read))
        await asyncio.wait({task}, timeout=ANSWER_SECONDS)
        answer: Answer | None = task.result() if task.done() and not task.cancelled() else None
        return answer


async def _quietly(read: Callable[[], Awaitable[Answer]]) -> Answer | None:
    try:
        return await read()
    except Exception:  # the cause is in /readyz and the log
        return None


def _partitions(reading: Partitions, ends: dict[int, int]) -> list[PartitionStatus]:
    """Partitions assigned to this process, with position and lag."""
    rows = []
    for partition in sorted(reading.assigned):
        owned, end = reading.owned.get(partition), ends.get(partition)
        lag = None if owned is None or end is None else max(0, end - owned.next_offset)
        rows.append(
            PartitionStatus(
                topic=reading.consumer.topic.name,
                partition=partition,
                owned=owned is not None,
                next_offset=None if owned is None else owned.next_offset,
                end_offset=end,
                lag=lag,
            )
        )
    return rows


def stopped_partitions(runtime: Runtime) -> list[StoppedPartition]:
    """Partitions that only an operator can resume, with the reason."""
    return [
        StoppedPartition(topic=reading.consumer.topic.name, partition=partition, reason=reason)
        for reading in runtime.readings()
        for partition, reason in sorted(reading.stopped.items())
    ]
