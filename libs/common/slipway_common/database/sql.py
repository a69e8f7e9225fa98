"""SQLAlchemy Core statements as text for asyncpg, compiled at import: a wrong column name fails at import, and a call
has no overhead.

Long statements stay SQL text; `names` and `arrays` take their columns from the tables.

A statement that takes at most n rows says `= ANY (ARRAY(SELECT … LIMIT n FOR UPDATE SKIP LOCKED))`. PostgreSQL may
execute a subquery of IN once for each row, and each time LIMIT takes rows that are not locked yet: all would be taken.
"""

import contextlib
import functools
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BindParameter,
    Column,
    ColumnElement,
    FromClause,
    TextClause,
    any_,
    bindparam,
    func,
    or_,
    text,
    tuple_,
)
from sqlalchemy.dialects.postgresql import asyncpg
from sqlalchemy.sql.elements import CompilerElement

from slipway_common.database.postgres import Connection


class Compiler(asyncpg.PGCompiler_asyncpg):
    """Writes constants into the text: a generic plan can use a partial index only if it sees the constants of its
    condition."""

    def visit_bindparam(self, bindparam: BindParameter[Any], *arguments: Any, **options: Any) -> Any:
        options["literal_binds"] = options.get("literal_binds", False) or not bindparam.required
        return super().visit_bindparam(bindparam, *arguments, **options)  # type: ignore[no-untyped-call]


class Dialect(asyncpg.dialect):
    statement_compiler = Compiler


COPIED_MIN: Final = 16  # rows
PARAMETER: Final = re.compile(r"\$(\d+)")
DIALECT: Final = Dialect()  # type: ignore[no-untyped-call]


class Statement:
    """One compiled statement: `text` with $1…$n, and the names of its bind parameters in that order."""

    def __init__(self, clause: CompilerElement) -> None:
        compiled: Any = clause.compile(dialect=DIALECT)
        self.text: str = compiled.string
        self.names: tuple[str, ...] = tuple(compiled.positiontup or ())
        self._expected = frozenset(self.names)

    def arguments(self, **values: Any) -> list[Any]:
        """Values in the order of `text`. Raises TypeError for a missing or unknown name."""
        if values.keys() != self._expected:
            raise TypeError(f"expected values for {', '.join(self.names)}; got {', '.join(values)}")
        return [values[name] for name in self.names]

    def rows(self, rows: Sequence[Any], **values: Any) -> list[Any]:
        """Values in the order of `text`, with an array per column of `rows` for the names that `given` bound."""
        return self.arguments(**columns(rows, [name for name in self.names if name not in values]), **values)


def columns(rows: Sequence[Any], names: Iterable[str]) -> dict[str, list[Any]]:
    """The attributes of `rows` by name, an array each."""
    return {name: [getattr(row, name) for row in rows] for name in names}


class Append:
    """Appends rows to the table of some columns, in order, from their attributes of the same names.

    COPY takes two thirds of the time of an INSERT of an array per column, since the driver examines each element of an
    array, and the server reads the arrays side by side. For a few rows that is less than its second round trip."""

    def __init__(self, fields: Sequence[Column[Any]]) -> None:
        """At least two columns."""
        self._table: str = fields[0].table.name
        self._names = [field.name for field in fields]
        taken = names(fields)
        self._insert = f"""
INSERT INTO {self._table} ({taken})
SELECT {taken} FROM unnest({arrays(fields)}) WITH ORDINALITY AS r ({taken}, row_place) ORDER BY row_place"""

    async def __call__(self, tx: Connection, rows: Sequence[Any]) -> None:
        if len(rows) >= COPIED_MIN:
            records = map(attrgetter(*self._names), rows)
            await tx.copy_records_to_table(self._table, records=records, columns=self._names)
        elif rows:
            await tx.execute(self._insert, *columns(rows, self._names).values())


class Writes:
    """Statements that `together` executes as one. Functions that write take it in place of a connection."""

    def __init__(self, tx: Connection) -> None:
        self.texts: list[str] = []
        self.arguments: list[Any] = []
        self._tx = tx

    async def execute(self, text: str, *arguments: Any) -> None:
        self.texts.append(text)
        self.arguments += arguments

    async def copy_records_to_table(self, table: str, **options: Any) -> None:
        """Copy rows at once."""
        await self._tx.copy_records_to_table(table, **options)


@contextlib.asynccontextmanager
async def together(tx: Connection) -> AsyncIterator[Writes]:
    """Execute what is written in the block by one statement, since each would cost a round trip. No part may depend on
    another or write a row that another one writes: all see the database as it was before."""
    writes = Writes(tx)
    yield writes
    if writes.texts:
        await tx.execute(combine(tuple(writes.texts)), *writes.arguments)


@functools.cache
def combine(texts: tuple[str, ...]) -> str:
    """One statement that executes several, with the parameters of all in their order. Only the last may be one that
    writes in a `WITH` of its own."""
    parts, number = [], 0
    for part in texts:
        parts.append(_renumber(part, number))
        number += len(set(PARAMETER.findall(part)))
    *before, last = parts
    if not before:
        return last
    named = ", ".join(f"part_{place} AS ({part})" for place, part in enumerate(before))
    return f"WITH {named}, {last.removeprefix('WITH ')}" if last.startswith("WITH ") else f"WITH {named} {last}"


def _renumber(text: str, more: int) -> str:
    return PARAMETER.sub(lambda match: f"${int(match[1]) + more}", text)


def given(*fields: Column[Any], name: str = "given") -> FromClause:
    """Rows passed as one array per column, each bound under the name of its column."""
    arrays_ = [array(field.name, field) for field in fields]
    return func.unnest(*arrays_).table_valued(*(field.name for field in fields)).render_derived(name=name)


def one_of(rows: FromClause, *keys: Column[Any]) -> list[ColumnElement[bool]]:
    """Conditions that a row is one of the `given` rows, by its keys. By the array of each key as well: a kept plan of
    the join alone could read the whole table."""
    return [*(key == any_(array(key.name, key)) for key in keys), *(key == rows.c[key.name] for key in keys)]


def array(name: str, field: Column[Any]) -> BindParameter[Any]:
    """Bind parameter for an array of a column's values."""
    return bindparam(name, type_=ARRAY(field.type))


def matches(field: Column[Any], name: str) -> ColumnElement[bool]:
    """Condition that the column equals the value bound under `name`, or that this value is NULL."""
    return or_(bindparam(name, type_=field.type).is_(None), field == bindparam(name))


def not_before(field: Column[Any], name: str) -> ColumnElement[bool]:
    """Condition that the column is at or after the time bound under `name`, or that this time is NULL."""
    return or_(bindparam(name, type_=field.type).is_(None), field >= bindparam(name))


def beyond(place: Mapping[str, Column[Any]], *, descending: bool = False) -> ColumnElement[bool]:
    """Condition that a row follows, in the order of these columns, the place whose values are bound under the names."""
    bound = [bindparam(name, type_=field.type) for name, field in place.items()]
    key, given_ = tuple_(*place.values()), tuple_(*bound)
    return key < given_ if descending else key > given_


def seconds(name: str) -> TextClause:
    """Interval of the number of seconds bound under `name`."""
    return text(f"make_interval(secs => :{name})")


def names(fields: Iterable[Column[Any]], prefix: str = "") -> str:
    """Column list of a statement in text; `prefix` is an alias with its dot."""
    return ", ".join(f"{prefix}{field.name}" for field in fields)


def arrays(fields: Iterable[Column[Any]], first: int = 1) -> str:
    """Placeholders of an array per column, $`first` and up, for `unnest` in a statement in text."""
    return ", ".join(f"${place}::{field.type.compile(dialect=DIALECT)}[]" for place, field in enumerate(fields, first))
