"""Copies of the rows of one day, with times shifted and keys made unique: months of a deployment in seconds.

Generic over the tables of `pg_class`. Keys are made unique where the day's work has written something new: in UUIDs, in
digests of revisions, in names that contain MARK, and in numbers within unique keys. A row whose key stays the same is
one that each day updates, and is not copied.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from slipway_common.database.postgres import Connection, schema_of
from tests.simulation.databases import SERVICES

MARK: Final = "daily"
"""Part of every name that the work of each day makes anew."""
DAY_SECONDS: Final = 86_400.0
TEXTS: Final = {"text", "uuid", "jsonb", "text[]"}
COLUMNS: Final = """
SELECT c.relname AS table_name, a.attname AS name, format_type(a.atttypid, NULL) AS type,
    a.attidentity <> '' OR a.attgenerated <> '' AS is_drawn,
    EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND a.attnum = ANY(i.indkey)) AS in_key,
    EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND a.attnum = ANY(i.indkey)) AS is_unique
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind IN ('r', 'p') AND c.relnamespace = $1::regnamespace ORDER BY c.relname, a.attnum"""
# What differs is replaced once, so that each copy replaces only that: by KKKK what each copy has for itself, in UUIDs
# and in ids of instances, "i-" and a number; by DDDD what the copies of a day share, in names that contain MARK
# and in revisions of launch configs, which are a name, "@" and a digest. Revisions from before the day stay.
SHORTEN: Final = f"""
regexp_replace(regexp_replace(regexp_replace(
    replace({{column}}::text, '{MARK}', 'DDDD'), '-7[0-9a-f]{{{{3}}}}-', '-KKKK-', 'g'),
    '\\mi-([0-9]{{{{6}}}})', 'i-KKKK\\1', 'g'), '@(?!{{known}})[0-9a-f]{{{{4}}}}', '@DDDD', 'g')"""
KNOWN: Final = "SELECT string_agg(left(split_part(id, '@', 2), 4), '|') FROM day.provisioner_launch_config_before"
NUMBERS: Final = 10**9
"""Distance between the numbers of two copies within a unique key."""


class Column(msgspec.Struct, frozen=True):
    name: str
    type: str
    is_drawn: bool
    in_key: bool
    is_unique: bool


class Table(msgspec.Struct, frozen=True):
    """A table of a service, named with its schema."""

    schema: str
    name: str
    columns: Sequence[Column]

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def key(self) -> str:
        return ", ".join(f'"{column.name}"' for column in self.columns if column.in_key)

    @property
    def before(self) -> str:
        return f"day.{self.schema}_{self.name}_before"

    @property
    def written(self) -> str:
        return f"day.{self.schema}_{self.name}"


async def tables_of(db: Connection) -> list[Table]:
    """All tables of the services that have a primary key. The others have one row."""
    found: list[Table] = []
    for schema in map(schema_of, SERVICES):
        by_table: dict[str, list[Column]] = {}
        for row in await db.fetch(COLUMNS, schema):
            values = dict(row)
            by_table.setdefault(values.pop("table_name"), []).append(Column(**values))
        found += [Table(schema, name, columns) for name, columns in by_table.items()]
    return [table for table in found if table.key]


async def count_rows(db: Connection, names: Iterable[str]) -> dict[str, int]:
    """Rows by table."""
    return {name: await db.fetchval(f"SELECT count(*) FROM {name}") for name in names}


async def begin_day(db: Connection, tables: Iterable[Table]) -> None:
    """Remember the rows that exist before the day's work."""
    await db.execute("CREATE SCHEMA day")
    for table in tables:
        await db.execute(f"CREATE UNLOGGED TABLE {table.before} AS SELECT {table.key} FROM {table.full_name}")


async def analyze(db: Connection, tables: Iterable[Table]) -> None:
    """Count the rows of tables again, for the planner."""
    await db.execute(f"ANALYZE {', '.join(table.full_name for table in tables)}", timeout=3600)


async def end_day(db: Connection, tables: Iterable[Table]) -> dict[str, int]:
    """Take what the day's work has left; returns the number of rows by table, without empty ones."""
    taken: dict[str, int] = {}
    known = await db.fetchval(KNOWN)
    for table in tables:
        columns = ", ".join(f'{_shortened(column, known)} AS "{column.name}"' for column in _copied(table))
        done = await db.execute(
            f"CREATE UNLOGGED TABLE {table.written} AS SELECT {columns} FROM {table.full_name} "
            f"WHERE ({table.key}) NOT IN (SELECT {table.key} FROM {table.before})"
        )
        if rows := int(done.split()[-1]):
            taken[table.full_name] = rows
    return taken


async def copy_days(db: Connection, tables: Iterable[Table], first: int, last: int, *, per_day: int) -> int:
    """Insert the copies `first` to `last` of the day's rows, `per_day` of which are one day; returns their number."""
    inserted = 0
    for table in tables:
        columns = list(_copied(table))
        names = ", ".join(f'"{column.name}"' for column in columns)
        values = ", ".join(_again(column, DAY_SECONDS / per_day) for column in columns)
        done = await db.execute(
            f"INSERT INTO {table.full_name} ({names}) SELECT {values} FROM {table.written}, "
            "(SELECT k, lpad(to_hex(k), 4, '0') AS kkkk, lpad(to_hex((k - 1) / $3::int), 4, '0') AS dddd "
            "FROM generate_series($1::int, $2::int) AS k) AS copies "
            "ORDER BY k ON CONFLICT DO NOTHING",
            first,
            last,
            per_day,
            timeout=3600,
        )
        inserted += int(done.split()[-1])
    return inserted


def _copied(table: Table) -> Iterable[Column]:
    return (column for column in table.columns if not column.is_drawn)


def _shortened(column: Column, known: str) -> str:
    name = f'"{column.name}"'
    return SHORTEN.format(column=name, known=known) if column.type in TEXTS else name


def _again(column: Column, seconds: float) -> str:
    name = f'"{column.name}"'
    if column.type in TEXTS:
        return f"replace(replace({name}, 'KKKK', kkkk), 'DDDD', dddd)::{column.type}"
    if column.type == "timestamp with time zone":
        return f"{name} + k * make_interval(secs => {seconds})"
    if column.type == "date":
        return f"({name} + k * make_interval(secs => {seconds}))::date"
    return f"{name} + k::bigint * {NUMBERS}" if column.type == "bigint" and column.is_unique else name


async def session(db: Any) -> None:
    """Prepare a superuser's session for copying: rows are inserted in any order of tables, without waiting for disk."""
    await db.execute("SET session_replication_role = replica; SET synchronous_commit = off; SET jit = off")
