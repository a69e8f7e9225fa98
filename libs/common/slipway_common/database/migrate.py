"""Database migrations: one Alembic history, one schema and one role per service, with plain SQL.

Code of release N runs on schemas N and N+1, so readiness requires a minimum revision, never the head.
"""

import asyncio
import sys
from functools import partial
from importlib import resources
from importlib.util import find_spec
from typing import Annotated, Any

import asyncpg
from alembic import command, context
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, pool, text
from sqlalchemy.ext.asyncio import create_async_engine

from slipway_common.base.settings import EnvironmentSettings, Secret, from_environment, has_password
from slipway_common.database.postgres import role_of, schema_of


def execute(op: Any, sql: str) -> None:
    """Run a script of several statements inside a migration, unprepared: the driver prepares only single ones."""
    op.get_bind().connection.dbapi_connection.run_async(lambda connection: connection.execute(sql))


def script_location(service: str) -> str:
    return str(resources.files(f"slipway_{schema_of(service)}") / "migrations")


def _config(service: str) -> Config:
    config = Config()
    config.set_main_option("script_location", script_location(service).replace("%", "%%"))
    return config


def head(service: str) -> str:
    """Newest revision shipped with this code."""
    revision = ScriptDirectory.from_config(_config(service)).get_current_head()
    assert revision is not None, f"{service} has no migrations"
    return revision


LOCK_SERVER = "SELECT pg_advisory_xact_lock(7301)"
LOCK_SCHEMA = "SELECT pg_advisory_xact_lock(hashtext(current_schema()))"
# An administrator has made role and schema already (infra/postgres/roles.sh): then the role itself migrates its schema.
PREPARED = """
SELECT EXISTS (
    SELECT FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner
    WHERE r.rolname = $1 AND n.nspname = $2 AND pg_has_role(r.oid, 'MEMBER'))"""
PREPARE = """
DO $$ BEGIN CREATE ROLE {role} NOLOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
DO $$ BEGIN EXECUTE format('GRANT {role} TO %I', current_user);
EXCEPTION WHEN OTHERS THEN IF SQLERRM NOT LIKE '%concurrently%' THEN RAISE; END IF; END $$;
CREATE SCHEMA IF NOT EXISTS {schema} AUTHORIZATION {role};
"""


async def upgrade(url: str, service: str) -> None:
    """Create the role and schema of a service if absent and migrate its tables to the head, as that role. Idempotent.

    Raises asyncpg.PostgresError if one is absent and the URL's user may not create it.
    """
    connection = await asyncpg.connect(url)
    try:
        # Two services of a database may be migrated concurrently; roles are global to the server.
        async with connection.transaction():
            await connection.execute(LOCK_SERVER)
            if not await connection.fetchval(PREPARED, role_of(service), schema_of(service)):
                await connection.execute(PREPARE.format(role=role_of(service), schema=schema_of(service)))
    finally:
        await connection.close()
    await _run(url, service)


async def _run(url: str, service: str) -> None:
    # The driver reads the URL itself: SQLAlchemy would not know its parameters of TLS.
    connect = partial(asyncpg.connect, url)
    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=pool.NullPool)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_upgrade, service)
    finally:
        await engine.dispose()


def _upgrade(connection: Connection, service: str) -> None:
    connection.execute(text(f"SET LOCAL ROLE {role_of(service)}"))
    connection.execute(text(f"SET LOCAL search_path TO {schema_of(service)}"))
    connection.execute(text(LOCK_SCHEMA))
    config = _config(service)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def run_environment() -> None:
    """Run the migrations; the whole content of every service's env.py."""
    connection = context.config.attributes["connection"]
    context.configure(connection=connection, target_metadata=None, transaction_per_migration=False)
    with context.begin_transaction():
        context.run_migrations()


class MigrationSettings(EnvironmentSettings):
    """Settings of migrations. The user is the role of the service, or on the first run one that may create it."""

    database_url: Annotated[str, Secret(has_password)]


def main() -> None:
    """`python -m slipway_common.database.migrate SERVICE…`: migrate the database at SLIPWAY_DATABASE_URL and exit."""
    services = sys.argv[1:]
    absent = [service for service in services if find_spec(f"slipway_{schema_of(service)}") is None]
    if not services or absent:
        wrong = f"not installed here: {', '.join(absent)}" if absent else "no service given"
        sys.exit(f"{wrong}; for example: python -m slipway_common.database.migrate provisioner lease-broker")
    url = from_environment(MigrationSettings).database_url
    for service in services:
        try:
            asyncio.run(upgrade(url, service))
        except (OSError, asyncpg.PostgresError) as error:
            sys.exit(f"{service}: cannot use the database at SLIPWAY_DATABASE_URL: {error}")
        print(f"{service}: at revision {head(service)}", flush=True)  # noqa: T201 # this is a command


if __name__ == "__main__":
    main()
