"""Queues of the relay: the unacknowledged rows of each partition, and when a batch of them may be sent. Pure.

One batch of a partition is in flight at a time, and the next one follows its acknowledgement. No partition waits for
another: one that cannot be sent to is tried again after a delay of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import Any, Final, TypeAlias

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""
Rows: TypeAlias = Sequence[Mapping[str, Any]]

ROWS_MAX: Final = 500  # of a partition in memory; the others stay in the database
RETRY_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Delays after the first, second … failed batch of a partition in a row."""


def place_of(row: Mapping[str, Any]) -> Place:
    return row["topic"], row["partition"]


class PartitionQueue:
    """Unacknowledged rows of one partition: `rows` are the lowest of them, and with `more` the database may have others
    above these."""

    def __init__(self) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.more = True
        self.sending = False
        self.failures = 0  # in a row
        self.failed_at = 0.0  # the first of them
        self.retry_at = 0.0

    def is_free(self, now: float) -> bool:
        return not self.sending and self.retry_at <= now

    def add(self, rows: Rows) -> None:
        """Append rows that were numbered just now, unless that would leave a gap or take too much memory."""
        if self.more or len(self.rows) + len(rows) > ROWS_MAX:
            self.more = True
        else:
            self.rows += rows


class PartitionQueues:
    """Queues of all partitions. Times are in seconds of one monotonic clock."""

    def __init__(self, places: Iterable[Place]) -> None:
        """`places` may have rows of a predecessor. Other partitions have none."""
        self._queues = {place: PartitionQueue() for place in places}

    def add(self, numbered: Rows) -> None:
        """Add rows that were numbered just now, sorted by partition and sequence number."""
        for place, rows in groupby(numbered, key=place_of):
            if place not in self._queues:
                self._queues[place] = PartitionQueue()
                self._queues[place].more = False
            self._queues[place].add(list(rows))

    def unloaded(self, now: float) -> list[Place]:
        """Partitions whose next rows have to be loaded before a batch can be sent."""
        return [p for p, queue in self._queues.items() if queue.more and not queue.rows and queue.is_free(now)]

    def load(self, places: Iterable[Place], found: Rows) -> None:
        """Set the rows of unloaded partitions: the lowest ones, at most `ROWS_MAX` of each, sorted like those of
        `add`."""
        loaded = {place: list(rows) for place, rows in groupby(found, key=place_of)}
        for place in places:
            queue = self._queues[place]
            queue.rows = loaded.get(place, [])
            queue.more = len(queue.rows) >= ROWS_MAX
            if not queue.rows:  # nothing to retry
                queue.failures, queue.retry_at = 0, 0.0

    def can_send(self, now: float) -> bool:
        """True if a batch of a partition may be sent, or loaded, now."""
        return any(queue.is_free(now) and (queue.rows or queue.more) for queue in self._queues.values())

    def start(self, now: float) -> list[tuple[Place, Rows]]:
        """Begin to send: the rows of which a batch may be sent now, per partition. Each ends with `acknowledge` or
        `fail`."""
        ready = [(place, queue) for place, queue in self._queues.items() if queue.rows and queue.is_free(now)]
        for _, queue in ready:
            queue.sending = True
        return [(place, list(queue.rows)) for place, queue in ready]

    def acknowledge(self, place: Place, count: int) -> Rows:
        """Record that the batch of a partition was acknowledged; returns its rows, the first `count` ones."""
        queue = self._queues[place]
        done, queue.rows = queue.rows[:count], queue.rows[count:]
        queue.sending, queue.failures, queue.retry_at = False, 0, 0.0
        return done

    def fail(self, place: Place, now: float) -> None:
        """Record that the batch of a partition failed. Its rows are loaded again, so that those of many partitions do
        not fill the memory during an outage."""
        queue = self._queues[place]
        queue.rows, queue.more, queue.sending = [], True, False
        queue.failed_at = queue.failed_at if queue.failures else now
        queue.retry_at = now + RETRY_SECONDS[min(queue.failures, len(RETRY_SECONDS) - 1)]
        queue.failures += 1

    def failures(self, place: Place) -> int:
        """Batches of a partition that failed in a row."""
        return self._queues[place].failures

    def failing(self, since: float = inf) -> list[Place]:
        """Partitions whose last batch failed, and whose failures began by `since`."""
        return [place for place, queue in self._queues.items() if queue.failures and queue.failed_at <= since]

    def next_retry_at(self) -> float | None:
        """Time of the next retry of a failed partition; None if none waits for one."""
        return min(
            (queue.retry_at for queue in self._queues.values() if queue.failures and not queue.sending), default=None
        )
