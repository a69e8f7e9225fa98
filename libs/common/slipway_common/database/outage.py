"""Log of an outage of the database: a line when it begins and a line when it ends, instead of one for each failure."""

from typing import Any, Final

import asyncpg

from slipway_common.base.clock import monotonic_seconds
from slipway_common.observability import telemetry

LOG = telemetry.logger(__name__)
# SQLSTATEs of lost connections, of a server that stops or starts, and of one with too many clients.
UNAVAILABLE: Final = ("08", "57P01", "57P02", "57P03", "53300")


class DatabaseUnavailable(OSError):
    """No connection to the database could be opened."""


class Outage:
    """Outage of the database as one process sees it. A failed attempt to connect or a lost connection begins it, the
    next connection ends it."""

    def __init__(self) -> None:
        self._failures = 0
        self._began_at = 0.0

    def count(self, error: BaseException) -> None:
        """Record a failure. The first one of an outage is logged."""
        if not self._failures:
            self._began_at = monotonic_seconds()
            event = "no connection to the database, retrying: requests are answered with 503 until it is back"
            LOG.warning(event, error=repr(error))
        self._failures += 1

    def covers(self, error: BaseException) -> bool:
        """True for an error that begins an outage or belongs to the one that lasts."""
        if isinstance(error, asyncpg.PostgresError):
            return (error.sqlstate or "").startswith(UNAVAILABLE)
        if isinstance(error, asyncpg.InterfaceError):  # of a closed connection, but also of a mistake of the caller
            return self._failures > 0
        return isinstance(error, DatabaseUnavailable)

    def end(self) -> None:
        """Record that a connection was opened."""
        if self._failures:
            seconds = round(monotonic_seconds() - self._began_at, 1)
            LOG.info("connected to the database again", failures=self._failures, seconds=seconds)
        self._failures = 0


OF_THIS_PROCESS: Final = Outage()


def warn(log: Any, event: str, error: BaseException, **fields: Any) -> None:
    """Log an expected error without its traceback; one of an outage of the database is only counted."""
    if OF_THIS_PROCESS.covers(error):
        OF_THIS_PROCESS.count(error)
    else:
        log.warning(event, error=repr(error), **fields)


async def opened(*arguments: Any, **settings: Any) -> Any:
    """Open a connection, with the arguments of the driver. Raises DatabaseUnavailable or asyncpg.PostgresError."""
    try:
        connection = await asyncpg.connect(*arguments, **settings)
    except OSError as error:
        raise DatabaseUnavailable(str(error) or type(error).__name__) from error
    OF_THIS_PROCESS.end()
    return connection
