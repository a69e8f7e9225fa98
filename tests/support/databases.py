"""Migrated databases of a service for tests, with a clock that tests set.

They are emptied and used again, and so are connections to them. A new database is a copy of hundreds of files, and so
is TRUNCATE of all tables, while DELETE of a few rows takes none. A new session costs the server more than most tests:
it reads the catalogue and plans every statement again.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import count
from typing import Final, NamedTuple

import asyncpg

from slipway_common.database import migrate, postgres
from slipway_common.database.postgres import CONNECTIONS, Connection, Database
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.harness import PATIENT

SETTABLE_CLOCK: Final = """
CREATE TABLE test_clock (at timestamptz NOT NULL);
INSERT INTO test_clock VALUES ('2026-01-01 12:00+00');
CREATE OR REPLACE FUNCTION slipway_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT at FROM test_clock'"""
REUSED: Final = {"application_name": "reused between tests"}
"""Settings of sessions that are used again."""
# Other sessions that a test has left open end, with their locks. Foreign keys are off, so that rows may be deleted
# in any order.
EMPTY: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> '{reused}';
SET session_replication_role = replica;
SET search_path TO {schema};
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = current_schema()
        AND tablename NOT IN ('alembic_version', 'deployment', 'incarnation', 'launch_stop_guard', 'test_clock')
    LOOP EXECUTE format('DELETE FROM %I', name); END LOOP;
    FOR name IN SELECT sequencename FROM pg_sequences WHERE schemaname = current_schema()
    LOOP PERFORM setval(quote_ident(name)::regclass, 1, false); END LOOP;
END $$;
DO $$ BEGIN IF to_regclass('leader') IS NOT NULL THEN INSERT INTO leader DEFAULT VALUES; END IF; END $$;
UPDATE incarnation SET reason = '', former = '{{}}', revision_base = 0, requested = NULL, server = slipway_server();
UPDATE test_clock SET at = '2026-01-01 12:00+00'"""
_numbers = count(1)


class Kept(NamedTuple):
    """A database that was used, with a session of the superuser, whose caches are warm."""

    url: str
    superuser: Connection


_idle: dict[tuple[str, str], list[Kept]] = {}
_connected: dict[str, dict[tuple[asyncio.AbstractEventLoop, int], list[Database]]] = {}


@contextlib.asynccontextmanager
async def empty_database(server: EmbeddedPostgres, service: str) -> AsyncIterator[str]:
    """URL of an empty database for one test; after an error in the block it is not used again."""
    idle = _idle.setdefault((server.url(), service), [])
    kept = await _emptied(idle.pop(), service) if idle else await _new(server, service)
    yield kept.url
    idle.append(kept)


@contextlib.asynccontextmanager
async def connected(url: str, service: str, *, size: int = CONNECTIONS) -> AsyncIterator[Database]:
    """Connection pool with patient sessions, to a database of `empty_database`. After an error in the block, or with a
    connection that is still taken, it is closed instead of being used again."""
    idle = _connected.setdefault(url, {}).setdefault((asyncio.get_running_loop(), size), [])
    database = idle.pop() if idle else await postgres.connect(url, service, size=size, settings=PATIENT | REUSED)
    try:
        yield database
    except BaseException:
        await database.close()
        raise
    if database.is_closing() or database.get_idle_size() < database.get_size():
        await database.close()
    else:
        idle.append(database)


async def _emptied(kept: Kept, service: str) -> Kept:
    """Empty a database just before it is used again: the server may have been restarted since, and would not be the one
    on which it was compared. No session outlives that."""
    if kept.superuser.is_closed():
        for idle in _connected.pop(kept.url, {}).values():
            for database in idle:
                database.terminate()
        kept = Kept(kept.url, await asyncpg.connect(kept.url))
    await kept.superuser.execute(EMPTY.format(schema=postgres.schema_of(service), reused=REUSED["application_name"]))
    return kept


async def _new(server: EmbeddedPostgres, service: str) -> Kept:
    url = await server.create_database(f"{postgres.schema_of(service)}_{next(_numbers)}")
    await migrate.upgrade(url, service)
    session = await postgres.session(url, service)
    try:
        await session.execute(SETTABLE_CLOCK)
    finally:
        await session.close()
    return Kept(url, await asyncpg.connect(url))
