"""`make tables`: compares the migrated schema of each service with the schema made from its tables.

Prints every difference with its object, and exits with 1 if there is any. Both schemas are dumped by `pg_dump
--schema-only`, so that functions, triggers, defaults, constraints and rights count. The rows that a new schema begins
with are not compared: those of `deployment`, `incarnation` and `leader` are drawn by the migrations.
"""

import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from difflib import ndiff
from importlib import import_module
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import asyncpg

from slipway_common.base.ids import new_id
from slipway_common.database import migrate, postgres
from slipway_common.database.tables import script
from slipway_local.servers.postgres import EmbeddedPostgres, binaries_for

SERVICES: Final = ("lease-broker", "provisioner", "weight-calculator")
# Alembic's own table belongs to the migrations alone.
IGNORED: Final = frozenset({"alembic_version", "alembic_version alembic_version_pkc"})
HEADER: Final = re.compile(r"^-- Name: (?P<name>.+); Type: (?P<type>[A-Z ]+); Schema: .*$", re.MULTILINE)
FOOTER: Final = "-- PostgreSQL database dump complete"


def dump(server: EmbeddedPostgres, database: str, schema: str) -> str:
    """Schema of a database as text. Raises subprocess.CalledProcessError."""
    url = urlsplit(server.url())
    host = url.hostname or parse_qs(url.query)["host"][0]
    command = [str(binaries_for(None) / "pg_dump"), "--schema-only", "--no-owner", f"--schema={schema}"]
    connection = [f"--host={host}", f"--username={url.username or 'postgres'}", f"--dbname={database}"]
    return subprocess.run([*command, *connection], check=True, capture_output=True, text=True).stdout


def objects(dumped: str) -> dict[str, list[str]]:
    """Lines of each object of a dump, by "TYPE name"."""
    dumped = dumped.partition(FOOTER)[0]  # it would count as a line of the last object
    headers = list(HEADER.finditer(dumped))
    ends = [header.start() for header in headers[1:]] + [len(dumped)]
    found = {}
    for header, end in zip(headers, ends, strict=True):
        if header["name"] not in IGNORED:
            lines = dumped[header.end() : end].splitlines()
            wanted = [line.rstrip(",") for line in lines if line.strip() not in ("", "--")]
            found[f"{header['type']} {header['name']}"] = [line for line in wanted if not line.startswith("\\")]
    return found


def differences(migrations: Mapping[str, list[str]], tables: Mapping[str, list[str]]) -> list[str]:
    """A line per difference, with its object."""
    found = []
    for name in sorted({*migrations, *tables}):
        if name not in tables:
            found.append(f"{name}: only in the migrations")
        elif name not in migrations:
            found.append(f"{name}: only in the tables")
        else:
            for line in ndiff(migrations[name], tables[name]):
                if line[0] in "-+":
                    side = "migrations" if line[0] == "-" else "tables"
                    found.append(f"{name}: only in the {side}: {line[2:].strip()}")
    return found


async def migrated(server: EmbeddedPostgres, service: str, more: str = "") -> dict[str, list[str]]:
    """Dump of a migrated schema; `more` is SQL that runs after the migrations."""
    url = await server.create_database(database := new_id())
    await migrate.upgrade(url, service)
    await execute(url, service, more)
    return objects(dump(server, database, postgres.schema_of(service)))


async def made(server: EmbeddedPostgres, service: str, more: str = "") -> dict[str, list[str]]:
    """Dump of a schema made from tables; `more` is SQL that runs afterwards."""
    url = await server.create_database(database := new_id())
    schema = postgres.schema_of(service)
    await execute(url, service, script(import_module(f"slipway_{schema}.store.tables").metadata) + more)
    return objects(dump(server, database, schema))


async def execute(url: str, service: str, statements: str) -> None:
    """Run statements as the service's role in its schema, which is created if absent."""
    role, schema = postgres.role_of(service), postgres.schema_of(service)
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(migrate.PREPARE.format(role=role, schema=schema))
        await connection.execute(f"SET ROLE {role}; SET search_path TO {schema}; {statements}")
    finally:
        await connection.close()


async def run() -> int:
    with tempfile.TemporaryDirectory(prefix="slipway-tables-", ignore_cleanup_errors=True) as folder:
        server = EmbeddedPostgres(Path(folder) / "postgres", {"fsync": "off"})
        await server.start()
        try:
            found = {
                service: differences(await migrated(server, service), await made(server, service))
                for service in SERVICES
            }
        finally:
            await server.stop()
    for service, lines in found.items():
        for line in lines:
            print(f"{service}: {line}")
    number = sum(map(len, found.values()))
    print(f"{len(found)} schemas, {number} difference{'' if number == 1 else 's'}")
    return 1 if number else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run()))
