"""Source `sql`: queries of a PostgreSQL. A query gives one number, or with `pools` rows of a label and a number."""

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import asyncpg

from slipway_common.base.redaction import redacted
from slipway_monitor.domain.counts import Counts, Unreadable, labelled
from slipway_monitor.sources.port import QuerySettings, secret

ROWS_MAX: Final = 10_000


class SqlSettings(QuerySettings):
    """Settings of queries. They run in read-only transactions, for at most `timeout_seconds`."""

    url: str
    """postgresql://user@host/database"""
    password_file: Path | None = None


class SqlSource:
    """A queue in a PostgreSQL, over one connection, which is opened again after a failure."""

    Settings = SqlSettings

    def __init__(self, settings: SqlSettings) -> None:
        self._settings = settings
        self._connection: Any = None

    async def read(self) -> Sequence[Counts]:
        settings = self._settings
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._connect()
            # One snapshot, so that a task that begins in between is in one of the two.
            async with self._connection.transaction(isolation="repeatable_read", readonly=True):
                tasks = await self._query(settings.tasks)
                running = await self._query(settings.running) if settings.running else None
        except ValueError as error:  # which may quote the password
            self._drop()
            raise Unreadable(f"{type(error).__name__} in its url") from None
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            self._drop()
            reason = getattr(error, "sqlstate", None) or redacted(str(error))
            raise Unreadable(f"{type(error).__name__}: {reason}") from None
        except asyncio.CancelledError:
            self._drop()
            raise
        return labelled(tasks, running, labels=settings.pools, is_both=settings.is_both)

    async def _connect(self) -> Any:
        settings = self._settings
        return await asyncpg.connect(
            settings.url,
            password=secret(settings.password_file) or None,
            timeout=settings.timeout_seconds,
            command_timeout=settings.timeout_seconds,
            server_settings={
                "application_name": "slipway-monitor",
                "statement_timeout": str(int(settings.timeout_seconds * 1000)),
            },
        )

    async def _query(self, query: str) -> Any:
        cursor = await self._connection.cursor(query)
        rows = await cursor.fetch(ROWS_MAX + 1)
        if len(rows) > ROWS_MAX:
            raise Unreadable(f"the query gives more than {ROWS_MAX:,} rows; count them in it")
        if self._settings.pools is None:
            if len(rows) != 1 or len(rows[0]) != 1:
                raise Unreadable(f"the query gives {len(rows)} rows; it must give one row of one number")
            return _number(rows[0][0])
        if any(len(row) != 2 for row in rows):
            raise Unreadable("the query must give rows of a label and a number")
        counts = {str(label): _number(value) for label, value in rows}
        if len(counts) < len(rows):
            raise Unreadable("the query gives a label twice; group by it")
        # A table has no rows of a label without tasks.
        return dict.fromkeys(self._settings.pools, 0) | counts

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        self._drop()


def _number(value: Any) -> Any:
    """Numbers of PostgreSQL's type numeric, as of sum(), as plain ones."""
    return float(value) if isinstance(value, Decimal) else value
