"""Database migrations: one Alembic history, one schema and one role per service, with plain SQL.

Code of release N runs on schemas N and N+1, so readiness requires a minimum revision, never the head.
"""

import asyncio
import sys
from importlib import resources
from importlib.util import find_spec
from typing import Any

import asyncpg
from alembic import command, context
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, pool, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from slipway_common.base.settings import EnvironmentSettings, from_environment
from slipway_common.database.postgres import role_of, schema_of

# Tables of every service: audit, alerts, outbox and sequence numbers, consumer positions, dead letters.
MESSAGING = """
CREATE FUNCTION slipway_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

-- Identity of the running server and of this copy of the database in it: another one after a restart, a failover or a
-- restore.
CREATE FUNCTION slipway_server() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws('/', extract(epoch FROM pg_postmaster_start_time()), d.oid, to_regclass('incarnation')::oid)
    FROM pg_database d WHERE d.datname = current_database()
$$;
-- Changes that people and pipelines made. `origin` is the address of the request; empty: the service itself.
CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT slipway_clock(), by text NOT NULL, origin text NOT NULL, action text NOT NULL,
    reason text NOT NULL, kind text NOT NULL, subject_id text NOT NULL, result text NOT NULL,
    before jsonb, after jsonb
);
CREATE INDEX audit_subject ON audit (subject_id, id DESC);
-- One open row per deduplication key, and those that were closed. `body` is the newest event; `deleted`: its key has
-- left the topic.
CREATE TABLE alert (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    dedup_key text NOT NULL, kind text NOT NULL, subject_kind text NOT NULL, subject_id text NOT NULL,
    severity text NOT NULL, body text NOT NULL, raised_at timestamptz NOT NULL DEFAULT slipway_clock(),
    revision integer NOT NULL DEFAULT 1, published_at timestamptz NOT NULL DEFAULT slipway_clock(),
    closed_at timestamptz, resolution text NOT NULL DEFAULT '', deleted boolean NOT NULL DEFAULT false,
    silenced_until timestamptz, silenced_by text NOT NULL DEFAULT '', silence_reason text NOT NULL DEFAULT ''
);
CREATE INDEX alert_key ON alert (dedup_key, id);
CREATE UNIQUE INDEX alert_open ON alert (dedup_key) WHERE closed_at IS NULL;
CREATE INDEX alert_closed ON alert (closed_at) WHERE closed_at IS NOT NULL;
-- One row. `server` is the one on which the relay has compared the rows with the log. `former` are earlier ids, and
-- revisions of subjects are above `revision_base`. `requested`: why a person wants a new incarnation.
CREATE TABLE incarnation (
    id text NOT NULL, drawn_at timestamptz NOT NULL DEFAULT slipway_clock(), reason text NOT NULL DEFAULT '',
    former text[] NOT NULL DEFAULT '{}', revision_base bigint NOT NULL DEFAULT 0, requested text,
    server text NOT NULL DEFAULT ''
);
INSERT INTO incarnation (id, server) VALUES (replace(gen_random_uuid()::text, '-', ''), slipway_server());

-- `deleted`: the newest event of the subject is a tombstone.
CREATE TABLE outbox_subject (
    topic text NOT NULL, subject text NOT NULL, revision bigint NOT NULL, deleted boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT slipway_clock(), touched_at timestamptz NOT NULL DEFAULT slipway_clock(),
    PRIMARY KEY (topic, subject)
);
CREATE INDEX outbox_subject_created ON outbox_subject (created_at);
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id uuid NOT NULL, topic text NOT NULL, type text NOT NULL, subject text NOT NULL, key text,
    revision bigint NOT NULL, value bytea, at timestamptz NOT NULL, traceparent text NOT NULL,
    headers jsonb,
    partition integer, sequence_number bigint, previous_sequence_number bigint
);
CREATE INDEX outbox_unnumbered ON outbox (id) WHERE sequence_number IS NULL;
CREATE INDEX outbox_numbered ON outbox (topic, partition, sequence_number) WHERE sequence_number IS NOT NULL;
CREATE TABLE relay_position (
    topic text NOT NULL, partition integer NOT NULL, sequence_number bigint NOT NULL,
    PRIMARY KEY (topic, partition)
);

CREATE TABLE consumed (
    topic text NOT NULL, partition integer NOT NULL, epoch bigint NOT NULL, next_offset bigint NOT NULL,
    cluster_id text NOT NULL,
    PRIMARY KEY (topic, partition)
);
CREATE TABLE seen_sequence (
    topic text NOT NULL, partition integer NOT NULL, source text NOT NULL, sequence_number bigint NOT NULL,
    PRIMARY KEY (topic, partition, source)
);
CREATE TABLE seen_event (
    topic text NOT NULL, source text NOT NULL, event_id text NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT slipway_clock(),
    PRIMARY KEY (topic, source, event_id)
);
CREATE INDEX seen_event_at ON seen_event (seen_at);
CREATE TABLE gap (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text NOT NULL, partition integer NOT NULL, kind text NOT NULL, detail text NOT NULL,
    at timestamptz NOT NULL DEFAULT slipway_clock()
);
CREATE TABLE dead_letter (
    topic text NOT NULL, partition integer NOT NULL, "offset" bigint NOT NULL,
    subject text NOT NULL, state text NOT NULL CHECK (state IN ('dead', 'parked')), reason text NOT NULL,
    key bytea, value bytea, headers jsonb NOT NULL, record_at timestamptz NOT NULL,
    at timestamptz NOT NULL DEFAULT slipway_clock(), undecoded boolean NOT NULL DEFAULT false,
    PRIMARY KEY (topic, partition, "offset")
);
CREATE INDEX dead_letter_subject ON dead_letter (topic, subject);
CREATE INDEX dead_letter_at ON dead_letter (at);
"""

# Table of a service with a leader: the current leader and when it was last seen (NULL: it released the row).
LEADER = """
CREATE TABLE leader (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL DEFAULT 0, instance text NOT NULL DEFAULT '',
    since timestamptz, seen_at timestamptz,
    at double precision NOT NULL DEFAULT 0,     -- of the newest turn, seconds since the Unix epoch
    seq bigint NOT NULL DEFAULT 0               -- of the newest turn that changed the state
) WITH (fillfactor = 50);
INSERT INTO leader DEFAULT VALUES;
"""


def execute(op: Any, sql: str) -> None:
    """Run a script of several statements inside a migration, unprepared: the driver prepares only single ones."""
    op.get_bind().connection.dbapi_connection.run_async(lambda connection: connection.execute(sql))


def messaging(op: Any) -> None:
    """Create the messaging tables; the first line of every service's first migration."""
    execute(op, MESSAGING)


def _sqlalchemy_url(url: str) -> str:
    """The same URL with SQLAlchemy's driver name for asyncpg."""
    return make_url(url).set(drivername="postgresql+asyncpg").render_as_string(hide_password=False)


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
PREPARE = """
DO $$ BEGIN CREATE ROLE {role} NOLOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
DO $$ BEGIN EXECUTE format('GRANT {role} TO %I', current_user);
EXCEPTION WHEN OTHERS THEN IF SQLERRM NOT LIKE '%concurrently%' THEN RAISE; END IF; END $$;
CREATE SCHEMA IF NOT EXISTS {schema} AUTHORIZATION {role};
"""


async def upgrade(url: str, service: str) -> None:
    """Create the role and schema of a service if absent and migrate its tables to the head. Idempotent.

    Raises asyncpg.PostgresError if a role is absent and the URL's user may not create it.
    """
    connection = await asyncpg.connect(url)
    try:
        # Two services of a database may be migrated concurrently; roles are global to the server.
        async with connection.transaction():
            await connection.execute(LOCK_SERVER)
            await connection.execute(PREPARE.format(role=role_of(service), schema=schema_of(service)))
    finally:
        await connection.close()
    await _run(url, service)


async def _run(url: str, service: str) -> None:
    engine = create_async_engine(_sqlalchemy_url(url), poolclass=pool.NullPool)
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
    """Settings of migrations. The user must own the database, or be a superuser on the first run."""

    database_url: str


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
