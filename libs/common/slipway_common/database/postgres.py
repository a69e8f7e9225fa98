"""PostgreSQL connections: a URL, a role and a schema per service, and session timeouts.

The timeouts release the locks of a stopped process. Contains no SQL of any service.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg
import msgspec

from slipway_common.base.errors import Transient
from slipway_common.base.settings import current_value
from slipway_common.database import outage

Database: TypeAlias = Any  # asyncpg.Pool; named so because a pool is a worker pool or a lease pool here
Connection: TypeAlias = Any  # asyncpg.Connection, or its proxy from a connection pool

CONNECTIONS: Final = 8
PEOPLE_CONNECTIONS: Final = 4
REPORTS_CONNECTIONS: Final = 4
"""Most connections of a process: for loops and consumers, for requests of people, for reports of workers and holders of
leases. Its relay, its leader and the lease-broker's notifications have one more each."""

# A process stopped inside a transaction (SIGSTOP, a failing host) keeps its row locks until the server ends the
# session. 5 s is far above any transaction (p99 < 50 ms) and far below a lease's TTL.
SESSION_TIMEOUTS: Final = {
    "idle_in_transaction_session_timeout": "5s",
    "statement_timeout": "10s",
    "lock_timeout": "5s",
}
# The driver reads the definition of an array type from the server at its first use in a session. Read them all when the
# session begins, since the first use is in the middle of a transaction, which holds its locks for that much longer.
ARRAYS: Final = "SELECT $1::boolean[], $2::integer[], $3::bigint[], $4::float8[], $5::bytea[], $6::uuid[], $7::jsonb[]"
# Type of JSON → bytes before its text in the binary format: jsonb begins with its version.
JSON_HEADS: Final = {"json": b"", "jsonb": b"\x01"}
INFRASTRUCTURE: Final = (
    OSError,
    TimeoutError,
    asyncio.CancelledError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    Transient,
)
# SQLSTATE classes of data exceptions and integrity constraint violations, and the SQLSTATE of an exceeded limit, such
# as that of an index row by a long text.
DATA_ERRORS: Final = ("22", "23", "54000")


def schema_of(service: str) -> str:
    """Schema of a service: its name with underscores."""
    return service.replace("-", "_")


def role_of(service: str) -> str:
    """Role that owns the schema of a service; in production it is also the user of the service's URL."""
    return f"slipway_{schema_of(service)}"


def user_of(url: str) -> str:
    """User that a URL names; empty if it names none."""
    where = urlsplit(url)
    return unquote(where.username or parse_qs(where.query).get("user", [""])[0])


def is_infrastructure(error: BaseException) -> bool:
    """True if a retry may succeed: any error except data errors and programming errors."""
    if isinstance(error, asyncpg.PostgresError):
        return not (error.sqlstate or "").startswith(DATA_ERRORS)
    if isinstance(error, ValueError):  # the driver's DataError: a value that no column can store
        return False
    return isinstance(error, INFRASTRUCTURE)


async def _prepare(connection: Connection) -> None:
    for name, head in JSON_HEADS.items():
        await connection.set_type_codec(
            name,
            schema="pg_catalog",
            encoder=lambda value, head=head: head + msgspec.json.encode(value),
            decoder=lambda content, head=head: msgspec.json.decode(content[len(head) :]),
            format="binary",  # as COPY needs it
        )
    await connection.prepare(ARRAYS)


async def _nothing(_: Connection) -> None:
    """Skip the reset on release: sessions keep no settings of their own, and RESET ALL costs a round trip."""


def session_settings(url: str, service: str) -> dict[str, str]:
    """Server settings of a service's sessions. A user that is not the role of the service itself, such as the one user
    of a demo, takes that role."""
    own = user_of(url) == role_of(service)
    return {
        **({} if own else {"role": role_of(service)}),
        "search_path": schema_of(service),
        "application_name": f"slipway-{service}",
        "timezone": "UTC",
        "jit": "off",  # statements take milliseconds; the driver would switch it off and on around ARRAYS
        **SESSION_TIMEOUTS,
    }


async def connect(
    url: str,
    service: str,
    *,
    size: int = CONNECTIONS,
    opened_at_once: int = 1,
    command_timeout_seconds: float = 15.0,
    settings: Mapping[str, str] | None = None,
) -> Database:
    """Open a connection pool with the service's role and schema; `settings` are server settings. All connections but
    `opened_at_once` are opened when they are needed.

    Raises OSError or asyncpg.PostgresError if the database is unavailable or not migrated.
    """
    return await asyncpg.create_pool(
        url,
        min_size=opened_at_once,
        max_size=size,
        connect=_opened,
        init=_prepare,
        reset=_nothing,
        command_timeout=command_timeout_seconds,
        server_settings=session_settings(url, service) | dict(settings or {}),
    )


async def _opened(url: str, **options: Any) -> Connection:
    """Open a connection. A password that was replaced in the file of the URL since the start is used at once."""
    return await outage.opened(current_value("database_url", url), **options)


async def session(url: str, service: str, **settings: str) -> Connection:
    """Open a dedicated connection, for a lock bound to its session."""
    connection = await _opened(url, command_timeout=15.0, server_settings=session_settings(url, service) | settings)
    await _prepare(connection)
    return connection


async def schema_revision(database: Database) -> str | None:
    """Schema revision of the connected service; None if it was never migrated."""
    with contextlib.suppress(asyncpg.UndefinedTableError):
        revision: str | None = await database.fetchval("SELECT version_num FROM alembic_version")
        return revision
    return None
