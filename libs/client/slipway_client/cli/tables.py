"""Output of the commands: tables for people, JSON for programs."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO, TypeVar

import msgspec

from slipway_client.transport.http import Decoded
from slipway_client.view import moments
from slipway_common.base.sanitize import printable

if TYPE_CHECKING:
    from rich.table import Table  # imported where a table is drawn: JSON and sentences do not need it

# Wide enough that no cell is folded when a program reads the table line by line.
PIPE_COLUMNS: Final = 10_000
# Columns of sentences, which wrap at words on a narrow terminal. Cells of other columns are never folded or cut.
SENTENCES: Final = frozenset({"reason", "detail", "change", "summary"})
# A sentence column is dropped rather than wrapped to fewer characters than this.
SENTENCE_COLUMNS_MIN: Final = 20
GAP: Final = 2

TIMES: Final = ("_at", "_since", "_until", "_deadline")  # suffixes of fields that hold times

T = TypeVar("T")
Field = str | tuple[str, Callable[[T], object]]
"""A column: the name of a row's field, or a heading and what to show under it."""


class Output(StrEnum):
    TABLE, JSON = "table", "json"


def show(
    rows: Sequence[Decoded[T]],
    fields: Sequence[Field[T]],
    output: Output,
    *,
    nothing: str,
    drop: Sequence[str] = (),
    limit: int | None = None,
) -> None:
    """Print all of `rows` as JSON as they were sent, or their `fields` as a table; `nothing` if there are no rows. Of
    more than `limit` only that many, and a note on standard error.

    On a terminal that is too narrow, whole columns are left out: those of `drop` first, in its order, then from the
    right, sentences last. The first column always stays.
    """
    if limit is not None and len(rows) > limit:
        rows = rows[:limit]
        print(f"only the first {limit:,} are listed; --limit {10 * limit} lists more", file=sys.stderr)
    if output is Output.JSON:
        as_json([row.sent for row in rows])
    else:
        table(rows, [_of_decoded(field) for field in fields], nothing=nothing, drop=drop)


def _of_decoded(field: Field[T]) -> Field[Decoded[T]]:
    """Column of what a service has sent, as it was sent where only its field is named."""
    if isinstance(field, str):
        return field, lambda row: row.sent.get(field)
    heading, value_of = field
    return heading, lambda row: value_of(row.value)


def table(rows: Sequence[T], fields: Sequence[Field[T]], *, nothing: str, drop: Sequence[str] = ()) -> None:
    """Print the `fields` of rows as a table; `nothing` if there are no rows. On a narrow terminal as `show`."""
    if rows:
        sys.stdout.write("".join(f"{line}\n" for line in drawn(rows, fields, sys.stdout, drop=drop)))
    else:
        print(nothing)


def drawn(
    rows: Sequence[T], fields: Sequence[Field[T]], to: TextIO, *, drop: Sequence[str] = (), styled: bool = True
) -> list[str]:
    """Lines of a table for a terminal or a pipe."""
    from rich.console import Console

    terminal = to.isatty()
    console = Console(
        width=None if terminal else PIPE_COLUMNS,
        file=to,
        color_system="auto" if styled else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as captured:
        columns = _fitting([_column(rows, field) for field in fields], console.width, drop)
        console.width = max(console.width, _width(columns))  # a single ID may be wider than the terminal
        console.print(_table(columns))
    return [line.rstrip() for line in captured.get().split("\n")[:-1]]


def cells(rows: Sequence[T], fields: Sequence[Field[T]]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Headings and texts of a table that is drawn elsewhere."""
    columns = [_column(rows, field) for field in fields]
    return [column.heading for column in columns], list(zip(*(column.cells for column in columns), strict=True))


def as_json(value: object) -> None:
    """Print JSON, also of Structs."""
    print(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))


def pairs(values: Mapping[str, object], now: datetime) -> None:
    """Print one object: a name and a value per line, times in the reader's time zone."""
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        if isinstance(value, str) and f"_{name}".endswith(TIMES):
            value = moments.at(value)
        shown = moments.clock(value, now) if isinstance(value, datetime) else _text(value)
        print(printable(f"{name.replace('_', ' '):<{width}}  {shown or '-'}"))


def short(id_: str) -> str:
    """Short form of a UUID for lines of text on a terminal: its last 8 digits, which commands accept. Programs get all
    of it."""
    return id_[-8:] if sys.stdout.isatty() else id_


class _Column(NamedTuple):
    heading: str
    cells: list[str]
    numbers: bool

    @property
    def width_min(self) -> int:
        """Fewest characters in which no cell is cut and no word of a sentence is folded."""
        from rich.cells import cell_len

        words = [self.heading, *self.cells]
        if self.heading not in SENTENCES:
            return max(map(cell_len, words))
        longest_word = max((cell_len(word) for text in words for word in text.split()), default=0)
        return max(longest_word, min(SENTENCE_COLUMNS_MIN, max(map(cell_len, words))))


def _table(columns: Sequence[_Column]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column.heading,
            justify="right" if column.numbers else "left",
            overflow="fold",
            no_wrap=column.heading not in SENTENCES,
            min_width=column.width_min if column.heading not in SENTENCES else None,
        )
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*cells)
    return table


def _column(rows: Sequence[T], field: Field[T]) -> _Column:
    heading, value_of = (field, _getter(field)) if isinstance(field, str) else field
    values = [value_of(row) for row in rows]
    numbers = all(_is_number(value) for value in values if value is not None)
    return _Column(heading.replace("_", " "), [_text(value) for value in values], numbers)


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width_min + GAP for column in columns) - GAP


def _fitting(columns: list[_Column], width: int, drop: Sequence[str]) -> list[_Column]:
    """Columns that fit into `width` characters, without the least important ones. Raises KeyError if `drop` has an
    unknown heading, on wide terminals too."""
    first, *others = columns
    named = {column.heading: column for column in others}
    rest = sorted(
        (column for column in others if column.heading not in drop),
        key=lambda column: (column.heading in SENTENCES, -others.index(column)),
    )
    by_importance = [*(named[heading] for heading in drop), *rest]
    while others and _width([first, *others]) > width:
        others.remove(by_importance.pop(0))
    return [first, *others]


def _getter(field: str) -> Callable[[object], object]:
    return lambda row: getattr(row, field)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case [str(), *_]:
            return printable(", ".join(map(str, value)))
        case dict() | list():
            return printable(json.dumps(value, ensure_ascii=False))
        case _:
            return printable(str(value))
