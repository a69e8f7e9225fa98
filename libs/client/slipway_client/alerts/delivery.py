"""Delivery of alerts to one sink: each until the sink has taken it, those of one alert in order."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

import msgspec

from slipway_api.events.alert import Alert, AlertRaised
from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.observability import telemetry

LOG = telemetry.logger(__name__)
RETRY_SECONDS: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
TRIES: Final = 3
"""Tries of an alert at which the sink fails, before those behind it are sent."""
ASIDE_MAX: Final = 100
"""Alerts that wait while those behind them are sent. With more of them the sink itself has failed."""


class Problem(msgspec.Struct, frozen=True):
    """Reason why an alert has to be sent again. `of_alert`: perhaps the sink fails at this one alone."""

    reason: str
    of_alert: bool = False


Body = Callable[[Alert, datetime], object]
"""Make the body of the request of one alert."""
Send = Callable[[object, str], Awaitable[Problem | None]]
"""Send a body with its idempotency key; returns None once the sink has settled it."""


class Sink(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver of alerts. One with `refresh_seconds` forgets them: open ones are sent to it again after so long, and
    at each start."""

    name: str
    body: Body
    send: Send
    refresh_seconds: float | None = None


class Change(msgspec.Struct, frozen=True):
    """An alert that was raised or resolved, and the partition and offset of its record; None for one that was open
    before the first record."""

    event: Alert
    place: tuple[object, int] | None = None


class Waiting(msgspec.Struct):
    """Changes of one alert at which the sink fails, the earliest first."""

    changes: list[Change]
    failures: int
    due_at: float


class Delivery:
    """Deliveries to one sink until `stopping` is set."""

    def __init__(self, sink: Sink, stopping: asyncio.Event) -> None:
        self._sink = sink
        self._stopping = stopping
        self._aside: dict[str, Waiting] = {}  # by deduplication key

    async def send(self, change: Change) -> bool:
        """Send a change until the sink has taken it, or set it aside if the sink fails at it alone; False if `stopping`
        is set before. It waits behind those of its alert that were set aside."""
        key = change.event.dedup_key
        if (waiting := self._aside.get(key)) is not None:
            waiting.changes.append(change)
            return True
        failures = 0
        while (problem := await self._try(change)) is not None:
            failures += 1
            if problem.of_alert and failures >= TRIES and len(self._aside) < ASIDE_MAX:
                self._aside[key] = Waiting([change], failures, _due_at(failures))
                return True
            await pause(self._stopping, failures)
            if self._stopping.is_set():
                return False
        return True

    async def send_again(self) -> None:
        """Send what was set aside and is due, once."""
        for key, waiting in list(self._aside.items()):
            while waiting.changes and waiting.due_at <= monotonic_seconds() and not self._stopping.is_set():
                if await self._try(waiting.changes[0]) is not None:
                    waiting.failures += 1
                    waiting.due_at = _due_at(waiting.failures)
                else:
                    del waiting.changes[0]
            if not waiting.changes:
                del self._aside[key]

    def waits(self, dedup_key: str) -> bool:
        """True if a change of this alert was set aside."""
        return dedup_key in self._aside

    def settled(self, partition: object, offset: int) -> int | None:
        """The offset up to which the sink has taken the records of a partition, which were sent up to `offset`; None if
        what was open before all records was not taken."""
        places = [change.place for waiting in self._aside.values() for change in waiting.changes]
        if None in places:
            return None
        return min([offset, *(place[1] for place in places if place is not None and place[0] == partition)])

    def forget(self) -> None:
        """Forget what was set aside: its records will be read again."""
        self._aside.clear()

    async def _try(self, change: Change) -> Problem | None:
        event = change.event
        problem = await self._sink.send(self._sink.body(event, utc_now()), idempotency_key(event))
        if problem is not None:
            LOG.warning(
                "the sink does not take an alert, retrying",
                sink=self._sink.name,
                reason=problem.reason,
                event_id=idempotency_key(event),
            )
        return problem


async def pause(stopping: asyncio.Event, failures: int) -> None:
    """Wait before the next try after so many failures, or until `stopping` is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_seconds_after(failures)):
            await stopping.wait()


def idempotency_key(alert: Alert) -> str:
    """Key of one change of an alert: its repetitions have the same one."""
    change = "raised" if isinstance(alert, AlertRaised) else "resolved"
    since = alert.raised_at.isoformat() if alert.raised_at else ""
    return f"{alert.dedup_key}/{change}/{alert.revision}/{since}"


def _seconds_after(failures: int) -> float:
    return RETRY_SECONDS[min(failures, len(RETRY_SECONDS)) - 1]


def _due_at(failures: int) -> float:
    return monotonic_seconds() + _seconds_after(failures)
