"""JSON logs, metrics common to all services, and trace propagation between events (W3C traceparent)."""

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import Any, Final

import structlog

from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.ids import random_bytes
from slipway_common.base.redaction import redacted, redacted_traceback
from slipway_common.observability import metrics

TRACEPARENT: Final = re.compile(
    "(?!ff)[0-9a-f]{2}-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-(?P<flags>[0-9a-f]{2})"
)
_traceparent: ContextVar[str] = ContextVar("traceparent", default="")

CONSUMED: Final = metrics.counter("slipway_consumed_total")
PUBLISHED: Final = metrics.counter("slipway_published_total")
UNOWNED: Final = metrics.gauge("slipway_unowned_partitions")
TOKENS_REFUSED: Final = metrics.gauge("slipway_tokens_refused")
UNSENDABLE: Final = metrics.gauge("slipway_unsendable_partitions")
LOOP_SECONDS: Final = metrics.histogram("slipway_loop_seconds")
EXTERNAL: Final = ("error", "reason")
"""Values of log lines that quote text from outside."""
OWN: Final = "slipway_"
"""Beginning of the names of Slipway's own loggers, whose messages are constants."""
LOGGED_CHARACTERS_MAX: Final = 2_000
LOOP_FAILURES: Final = metrics.counter("slipway_loop_failures_total")


class OncePerMinute(logging.Filter):
    """Passes a line of the Kafka client once a minute: in an outage it logs each attempt to connect, ten a second. What
    an outage means is logged by ourselves."""

    def __init__(self, clock: Callable[[], float] = monotonic_seconds) -> None:
        super().__init__()
        self._clock = clock
        self._passed: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] != "aiokafka":
            return True
        place, now = (record.pathname, record.lineno), self._clock()
        if now < self._passed.get(place, -inf) + 60.0:
            return False
        self._passed[place] = now
        return True


def logger(name: str) -> structlog.stdlib.BoundLogger:
    bound: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return bound


def configure_logs(service: str, level: int = logging.INFO) -> None:
    """Configure JSON lines on stdout for Slipway's own loggers and those of libraries."""
    shared = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_trace,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],  # type: ignore[list-item]
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,  # type: ignore[arg-type]
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *WRITTEN,
            ],
        )
    )
    handler.addFilter(OncePerMinute())
    logging.basicConfig(handlers=[handler], level=level, force=True)
    # At INFO they log every request, fetch and heartbeat.
    for noisy in ("aiokafka", "uvicorn.access", "httpx2", "httpcore2", "faststream", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # It logs each attempt to connect in an outage with a traceback, which `database/outage.py` logs in two lines.
    logging.getLogger("asyncpg.pool").setLevel(logging.ERROR)
    structlog.contextvars.bind_contextvars(service=service)


def _redact(_: object, __: str, event: dict[str, object]) -> dict[str, object]:
    """Redact what errors say. Ids and names are values of their own."""
    for name in EXTERNAL:
        if isinstance(text := event.get(name), str):
            event[name] = redacted(text, LOGGED_CHARACTERS_MAX)
    if isinstance(traceback := event.get("exception"), str):
        event["exception"] = redacted_traceback(traceback)
    if not str(event.get("logger", "")).startswith(OWN):
        event["event"] = redacted(str(event.get("event", "")), LOGGED_CHARACTERS_MAX)
    return event


WRITTEN: Final[Sequence[Any]] = (structlog.processors.format_exc_info, _redact, structlog.processors.JSONRenderer())
"""Processors that make a line of an event."""


def written(event: Mapping[str, object]) -> str:
    """Line of a log event."""
    line: Any = dict(event)
    for processor in WRITTEN:
        line = processor(None, "", line)
    return str(line)


def _add_trace(_: object, __: str, event: dict[str, object]) -> dict[str, object]:
    if trace := _traceparent.get():
        event["trace_id"] = trace[3:35]
    return event


def child_of(traceparent: str) -> str:
    """Traceparent of a new span in the same trace, with its flags; of a new trace, without a flag, if `traceparent` is
    absent or malformed: nobody has asked to record it. https://www.w3.org/TR/trace-context/#traceparent-header"""
    found = TRACEPARENT.fullmatch(traceparent)
    trace_id, flags = found.group("trace", "flags") if found else (random_bytes(16).hex(), "00")
    return f"00-{trace_id}-{random_bytes(8).hex()}-{flags}"


def current_trace() -> str:
    """Current traceparent, continued by events enqueued now; empty outside a trace."""
    return _traceparent.get()


@contextmanager
def trace(traceparent: str) -> Iterator[None]:
    """Set the traceparent that events enqueued in the block continue."""
    token = _traceparent.set(traceparent)
    try:
        yield
    finally:
        _traceparent.reset(token)
