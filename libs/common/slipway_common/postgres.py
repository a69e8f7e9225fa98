"""Connections only: one URL for all services, a role and a schema per service, time-outs that free a stopped
process's locks. No SQL of any service stands here."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import asyncpg
import msgspec

from slipway_common.errors import Transient

Pool: TypeAlias = Any  # asyncpg.Pool
Connection: TypeAlias = Any  # asyncpg.Connection, or the proxy that a pool hands out

# A process that was stopped (SIGSTOP, a dying host) inside a transaction keeps its row locks until the server ends
# the session. 5 s is far above any transaction of ours (p99 < 50 ms) and far below a lease's ttl.
SESSION_TIMEOUTS: Final = {
    "idle_in_transaction_session_timeout": "5s",
    "statement_timeout": "10s",
    "lock_timeout": "5s",
}
INFRASTRUCTURE: Final = (
    OSError,
    TimeoutError,
    asyncio.CancelledError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    Transient,
)
DATA_ERRORS: Final = ("22", "23")  # SQLSTATE classes: data exception, integrity constraint violation


def schema_of(service: str) -> str:
    """The schema of a service: its name with underscores."""
    return service.replace("-", "_")


def role_of(service: str) -> str:
    return f"slipway_{schema_of(service)}"


def is_infrastructure(error: BaseException) -> bool:
    """Whether trying again may help: everything but data errors and our own mistakes in Python."""
    if isinstance(error, asyncpg.PostgresError):
        return not (error.sqlstate or "").startswith(DATA_ERRORS)
    if isinstance(error, ValueError):  # the driver's own DataError: a value that no column could hold
        return False
    return isinstance(error, INFRASTRUCTURE)


async def _prepare(connection: Connection) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(
            name,
            schema="pg_catalog",
            encoder=lambda value: msgspec.json.encode(value).decode(),
            decoder=msgspec.json.decode,
        )


async def _nothing(_: Connection) -> None:
    """No reset on release: we set nothing per session after connect, and RESET ALL costs a round trip."""


def session_settings(service: str) -> dict[str, str]:
    return {
        "role": role_of(service),
        "search_path": schema_of(service),
        "application_name": f"slipway-{service}",
        "timezone": "UTC",
        **SESSION_TIMEOUTS,
    }


async def connect(
    url: str,
    service: str,
    *,
    size: int = 8,
    command_timeout_seconds: float = 15.0,
    settings: Mapping[str, str] | None = None,
) -> Pool:
    """A pool whose every connection acts as the service's role in the service's schema; `settings` are the server's.

    Raises OSError or asyncpg.PostgresError when the database cannot be reached or was not migrated.
    """
    return await asyncpg.create_pool(
        url,
        min_size=1,
        max_size=size,
        init=_prepare,
        reset=_nothing,
        command_timeout=command_timeout_seconds,
        server_settings=session_settings(service) | dict(settings or {}),
    )


async def session(url: str, service: str, **settings: str) -> Connection:
    """One connection of its own, for a lock that must live and die with its session."""
    connection = await asyncpg.connect(url, command_timeout=15.0, server_settings=session_settings(service) | settings)
    await _prepare(connection)
    return connection


async def schema_revision(db: Pool) -> str | None:
    """The revision of the connected service's schema; None when it was never migrated."""
    with contextlib.suppress(asyncpg.UndefinedTableError):
        revision: str | None = await db.fetchval("SELECT version_num FROM alembic_version")
        return revision
    return None
