"""Log of the daemon: a line of JSON per event, on standard output."""

import logging
import sys
import traceback
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

import structlog


def configure() -> None:
    """Write the events of this package, and warnings of libraries."""
    before: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=WRITTEN))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("slipway_terraform").setLevel(logging.INFO)


def _without_texts(_: object, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Replace an exception by its class and its frames: its text may quote a configuration."""
    error = event.pop("exc_info", None)
    if isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        frames = traceback.extract_tb(error.__traceback__)
        event["error"] = type(error).__name__
        event["frames"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return event


WRITTEN: Final[list[Any]] = [
    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
    _without_texts,
    structlog.processors.JSONRenderer(),
]
