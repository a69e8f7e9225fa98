"""Answers on the terminal: tables for people, JSON for programs. Decides nothing but how it looks."""

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

# Wide enough that no cell is ever folded when a program reads the table line by line.
PIPE_COLUMNS: Final = 10_000


class Output(StrEnum):
    TABLE, JSON = "table", "json"


def show(rows: Sequence[Mapping[str, Any]], fields: Sequence[str], output: Output, *, nothing: str) -> None:
    """All of `rows` as JSON, or their `fields` as a table; the sentence `nothing` when there are none."""
    if output is Output.JSON:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif not rows:
        print(nothing)
    else:
        terminal = sys.stdout.isatty()
        console = Console(width=None if terminal else PIPE_COLUMNS, highlight=False, markup=False, emoji=False)
        console.print(_table(rows, fields, terminal=terminal))


def _table(rows: Sequence[Mapping[str, Any]], fields: Sequence[str], *, terminal: bool) -> Table:
    table = Table(box=SIMPLE_HEAD if terminal else None, pad_edge=False, header_style="bold")
    for field in fields:
        numbers = all(_is_number(row[field]) for row in rows if row.get(field) is not None)
        table.add_column(field.replace("_", " "), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(row.get(field)) for field in fields))
    return table


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
        case dict() | list():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return str(value)
