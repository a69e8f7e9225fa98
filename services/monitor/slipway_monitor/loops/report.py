"""Reading one source at intervals, and reporting what it counts, while this replica leads it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Final, Protocol

import msgspec
from aiokafka.errors import KafkaError

from slipway_api.events.pool import DemandReported
from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.observability.telemetry import logger
from slipway_monitor import metrics
from slipway_monitor.domain import schedule
from slipway_monitor.domain.counts import Counts, Unreadable, reports
from slipway_monitor.source_file import Entry, mistake_of
from slipway_monitor.sources.port import Source

LOG = logger(__name__)

LOG_EVERY: Final = 30
"""Unreadable answers in a row of which one is logged."""

LOST_SECONDS: Final = 0.5
"""Pause after leadership was lost."""
CLOSE_SECONDS: Final = 5.0

Publish = Callable[[DemandReported], Awaitable[None]]


class Leads(Protocol):
    """Leadership of this replica: of which sources, and since which epoch."""

    async def gained(self, name: str) -> None: ...

    def leads(self, name: str) -> bool: ...

    def epoch(self, name: str) -> int | None: ...


class Read(msgspec.Struct, frozen=True):
    """Counts of a source, and the time before it was asked."""

    observed_at: datetime
    counts: Sequence[Counts]


async def read_once(source: Source, timeout_seconds: float, behind_seconds: float = 0.0) -> Read:
    """Read a source once, in time. Raises Unreadable, whatever fails in it."""
    # Before the request, and before what it shows was made: what has changed since belongs to the next report.
    observed_at = utc_now() - timedelta(seconds=behind_seconds)
    try:
        async with asyncio.timeout(timeout_seconds):
            return Read(observed_at, list(await source.read()))
    except Unreadable:
        raise
    except TimeoutError:
        raise Unreadable(f"no answer within {timeout_seconds:g} s") from None
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        raise mistake_of(error, "its source") from error  # of a call of its own: this task was not cancelled
    except (Exception, SystemExit) as error:  # a source from elsewhere
        raise mistake_of(error, "its source") from error


async def close(source: Source, name: str) -> None:
    """Close a source, in time and whatever fails in it."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await source.close()
    except (Exception, SystemExit) as error:  # a source from elsewhere
        LOG.warning("a source could not be closed", source=name, reason=str(mistake_of(error, "its closing")))


class Reporter:
    """Reports of one source. It is opened when this replica begins to lead it, and closed with its leadership."""

    def __init__(self, entry: Entry, leadership: Leads, publish: Publish, rng: Random) -> None:
        self._entry = entry
        self._settings = entry.settings
        self._leadership = leadership
        self._publish = publish
        self._rng = rng
        self._source: Source | None = None
        self._is_connected = False
        self._failures = 0

    async def run(self, sources: int) -> None:
        """Report until cancelled, whenever this replica leads the source, as one of so many."""
        name, interval = self._settings.name, self._settings.interval_seconds
        leads = metrics.LEADS.labels(name)
        try:
            while True:
                leads.set(0)
                await self._leadership.gained(name)
                leads.set(1)
                due = schedule.first_read(monotonic_seconds(), interval, sources, self._rng.random())
                while self._leadership.leads(name):
                    await asyncio.sleep(due - monotonic_seconds())
                    metrics.LAG_SECONDS.observe(max(0.0, monotonic_seconds() - due))
                    wait_seconds = await self.report()
                    due = schedule.next_read(due, monotonic_seconds(), interval, self._rng.random(), wait_seconds)
                await self.close()
                await asyncio.sleep(LOST_SECONDS)
        finally:
            leads.set(0)
            await self.close()

    async def report(self) -> float:
        """Read the source and publish what it counts; returns for how long it asks not to be read."""
        settings, epoch = self._settings, self._leadership.epoch(self._settings.name)
        try:
            if self._source is None:
                self._source = self._entry.open()
            read = await read_once(self._source, settings.timeout_seconds, settings.behind_seconds)
            if not self._is_connected:
                # A connection took time, in which workers may have taken tasks that are counted as running: their
                # claims would seem later than the report, and the ends of those tasks would not count.
                read = await read_once(self._source, settings.timeout_seconds, settings.behind_seconds)
                self._is_connected = True
            made, missing = reports(settings.reporting, read.counts, read.observed_at, epoch)
            if not self._leadership.leads(settings.name) or self._leadership.epoch(settings.name) != epoch:
                return 0.0
            await asyncio.gather(*(self._publish(each) for each in made))
        except Unreadable as error:
            self._is_connected = False
            self._failed(str(error))
            return error.retry_after_seconds
        except (KafkaError, OSError, TimeoutError) as error:
            self._failed(f"not published: {error!r}")
            return 0.0
        metrics.TASKS.labels(settings.name).set(sum(each.tasks for each in read.counts))
        if made:
            metrics.REPORTS.labels(settings.name).inc(len(made))
        if missing:
            self._failed(f"no count of {', '.join(missing)}")
        elif self._failures:
            LOG.info("source is readable again", source=settings.name)
            self._failures = 0
        return 0.0

    def _failed(self, reason: str) -> None:
        metrics.UNREADABLE.labels(self._settings.name).inc()
        if self._failures % LOG_EVERY == 0:
            LOG.warning("no report of a source", source=self._settings.name, reason=reason)
        self._failures += 1

    async def close(self) -> None:
        """Close the source, if it is open."""
        if self._source is not None:
            source, self._source, self._is_connected = self._source, None, False
            await close(source, self._settings.name)
