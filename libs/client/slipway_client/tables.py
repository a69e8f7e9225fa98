"""Answers on the terminal: tables for people, JSON for programs. Decides nothing but how it looks."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from slipway_client import moments
from slipway_client.foreign import printable

if TYPE_CHECKING:
    from rich.table import Table  # imported by what draws a table: JSON and sentences need no such thing

# Wide enough that no cell is ever folded when a program reads the table line by line.
PIPE_COLUMNS: Final = 10_000
# Columns that may take several lines where the terminal is narrow; every other cell is a word.
SENTENCES: Final = frozenset({"reason", "why", "because", "detail", "lost", "instance", "account"})

TIMES: Final = ("_at", "_since", "_until", "_deadline")  # how names of times end

Row = Mapping[str, Any]
Field = str | tuple[str, Callable[[Row], Any]]
"""A column: the name of a row's field, or a heading and what to show under it."""


class Output(StrEnum):
    TABLE, JSON = "table", "json"


def show(rows: Sequence[Row], fields: Sequence[Field], output: Output, *, nothing: str) -> None:
    """All of `rows` as JSON, or their `fields` as a table; the sentence `nothing` when there are none."""
    if output is Output.JSON:
        as_json(rows)
    elif not rows:
        print(nothing)
    else:
        from rich.console import Console

        terminal = sys.stdout.isatty()
        console = Console(width=None if terminal else PIPE_COLUMNS, highlight=False, markup=False, emoji=False)
        with console.capture() as drawn:
            console.print(_table(rows, fields))
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in drawn.get().split("\n")[:-1]))


def as_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def pairs(values: Row, now: datetime) -> None:
    """One thing: a name and a value a line, times in the reader's zone."""
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        is_time = f"_{name}".endswith(TIMES) and isinstance(value, str)
        shown = moments.clock(moments.at(value), now) if is_time else _text(value)
        print(printable(f"{name.replace('_', ' '):<{width}}  {shown or '-'}"))


def short(id_: str) -> str:
    """An id on a terminal: its last 8 digits, which commands take for the whole. Programs get the whole."""
    return id_[-8:] if sys.stdout.isatty() else id_


def _table(rows: Sequence[Row], fields: Sequence[Field]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    columns: list[list[Any]] = []
    for field in fields:
        heading, value_of = (field, _getter(field)) if isinstance(field, str) else field
        columns.append([value_of(row) for row in rows])
        numbers = all(_is_number(value) for value in columns[-1] if value is not None)
        heading = heading.replace("_", " ")
        table.add_column(
            heading, justify="right" if numbers else "left", overflow="fold", no_wrap=heading not in SENTENCES
        )
    for cells in zip(*columns, strict=True):
        table.add_row(*map(_text, cells))
    return table


def _getter(field: str) -> Callable[[Row], Any]:
    return lambda row: row.get(field)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
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
