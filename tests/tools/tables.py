"""`make tables`: each service's schema as its migrations make it, compared with the one that its tables make.

Prints every difference with its object, and exits with 1 if there is any. Both schemas are dumped by `pg_dump
--schema-only`, so that functions, triggers, defaults and constraints count.
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

from slipway_common.database import migrate, postgres
from slipway_common.database.tables import script
from slipway_local.servers.postgres import EmbeddedPostgres, binaries_for

SERVICES: Final = ("weight-calculator",)
# Alembic's own table belongs to the migrations alone.
IGNORED: Final = "alembic_version"
HEADER: Final = re.compile(r"^-- Name: (?P<name>.+); Type: (?P<type>[A-Z ]+); Schema: .*$", re.MULTILINE)


def dump(server: EmbeddedPostgres, database: str, schema: str) -> str:
    """Schema of a database as text. Raises subprocess.CalledProcessError."""
    url = urlsplit(server.url())
    host = url.hostname or parse_qs(url.query)["host"][0]
    command = [
        str(binaries_for(None) / "pg_dump"),
        "--schema-only",
        "--no-owner",
        "--no-privileges",
        f"--schema={schema}",
    ]
    connection = [f"--host={host}", f"--username={url.username or 'postgres'}", f"--dbname={database}"]
    return subprocess.run([*command, *connection], check=True, capture_output=True, text=True).stdout


def objects(dumped: str) -> dict[str, list[str]]:
    """Lines of each object of a dump, by "TYPE name"."""
    headers = list(HEADER.finditer(dumped))
    ends = [header.start() for header in headers[1:]] + [len(dumped)]
    found = {}
    for header, end in zip(headers, ends, strict=True):
        if IGNORED not in header["name"]:
            lines = dumped[header.end() : end].splitlines()
            wanted = [line.rstrip(",") for line in lines if line.strip() not in ("", "--")]
            found[f"{header['type']} {header['name']}"] = [line for line in wanted if not line.startswith("\\")]
    return found


def differences(migrated: Mapping[str, list[str]], made: Mapping[str, list[str]]) -> list[str]:
    """A line per difference, with its object."""
    found = []
    for name in sorted({*migrated, *made}):
        if name not in made:
            found.append(f"{name}: only in the migrations")
        elif name not in migrated:
            found.append(f"{name}: only in the tables")
        else:
            for line in ndiff(migrated[name], made[name]):
                if line[0] in "-+":
                    found.append(
                        f"{name}: only in the {'migrations' if line[0] == '-' else 'tables'}: {line[2:].strip()}"
                    )
    return found


async def compared(server: EmbeddedPostgres, service: str) -> list[str]:
    """Differences of one service."""
    schema = postgres.schema_of(service)
    migrated, made = f"{schema}_migrated", f"{schema}_made"
    await migrate.upgrade(await server.create_database(migrated), service)
    url = await server.create_database(made)
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(migrate.PREPARE.format(role=postgres.role_of(service), schema=schema))
        await connection.execute(f"SET ROLE {postgres.role_of(service)}; SET search_path TO {schema}")
        await connection.execute(script(import_module(f"slipway_{schema}.store.tables").metadata))
    finally:
        await connection.close()
    return differences(*(objects(dump(server, database, schema)) for database in (migrated, made)))


async def run() -> int:
    with tempfile.TemporaryDirectory(prefix="slipway-tables-", ignore_cleanup_errors=True) as folder:
        server = EmbeddedPostgres(Path(folder) / "postgres", {"fsync": "off"})
        await server.start()
        try:
            found = {service: await compared(server, service) for service in SERVICES}
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
