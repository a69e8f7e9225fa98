"""Output of the commands: tables for people, JSON for programs."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import zip_longest
from operator import attrgetter
from typing import Final, NamedTuple, TextIO, TypeVar

import msgspec

from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Decoded
from slipway_client.view import moments
from slipway_common.base.clock import utc_now
from slipway_common.base.sanitize import printable

# Wide enough that no cell is folded when a program reads the table line by line.
PIPE_COLUMNS: Final = 10_000
# Columns of sentences, which wrap at words on a narrow terminal. Cells of other columns are never folded or cut.
SENTENCES: Final = frozenset({"reason", "detail", "change", "summary"})
# A sentence column is dropped rather than wrapped to fewer characters than this.
SENTENCE_COLUMNS_MIN: Final = 20
GAP: Final = "  "
BOLD: Final = "\x1b[1m{}\x1b[0m"

PLAIN_TERMINALS: Final = frozenset({None, "", "dumb", "unknown"})
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
    errors: str = "",
) -> None:
    """Print all of `rows` as JSON as they were sent, or their `fields` as a table; `nothing` if there are no rows. Of
    more than `limit` only that many, and a note on standard error. Raises Failed with the `errors` of services that did
    not answer.

    On a terminal that is too narrow, whole columns are left out: those of `drop` first, in its order, then from the
    right, sentences last. The first column always stays.
    """
    rows = first(rows, limit)
    if output is Output.JSON:
        as_json([row.sent for row in rows])
    else:
        nothing = f"{nothing} in the services that answer" if errors else nothing
        table(rows, [_of_decoded(field) for field in fields], nothing=nothing, drop=drop)
    if errors:
        raise Failed(errors)


def first(rows: Sequence[T], limit: int | None) -> Sequence[T]:
    """The first `limit` rows, or all; a note on standard error if there are more."""
    if limit is None or len(rows) <= limit:
        return rows
    print(f"only the first {limit:,} are listed; --limit {10 * limit} lists more", file=sys.stderr)
    return rows[:limit]


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
    width = _columns(to)
    columns = _fitting([_column(rows, field) for field in fields], width, drop)
    widths = _widths(columns, width)
    heading, *lines = [
        line
        for texts in zip(*((column.heading, *column.cells) for column in columns), strict=True)
        for line in _row(texts, columns, widths)
    ]
    is_bold = styled and to.isatty() and os.environ.get("TERM") not in PLAIN_TERMINALS
    return [BOLD.format(heading) if is_bold else heading, *lines]


def cells(rows: Sequence[T], fields: Sequence[Field[T]]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Headings and texts of a table that is drawn elsewhere."""
    columns = [_column(rows, field) for field in fields]
    return [column.heading for column in columns], list(zip(*(column.cells for column in columns), strict=True))


def result(answer: Decoded[T], text: str, output: Output) -> None:
    """Print a text about an answer, or the answer as JSON as it was sent."""
    if output is Output.JSON:
        as_json(answer.sent)
    else:
        print(text)


def as_json(value: object) -> None:
    """Print JSON, also of Structs."""
    import json

    print(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))


def details(
    read: Decoded[T], output: Output, nested: Sequence[str] = (), hidden: Sequence[object] = (), **more: object
) -> bool:
    """Print one object: all of it as JSON as it was sent; or its fields and `more`, and return True, without the values
    of `hidden` and the fields of `nested`, which the caller shows below."""
    if output is Output.JSON:
        as_json(read.sent)
        return False
    shown = {name: value for name, value in read.sent.items() if name not in nested} | more
    pairs({name: value for name, value in shown.items() if value not in hidden})
    return True


def pairs(values: Mapping[str, object]) -> None:
    """Print one object: a name and a value per line, times in the reader's time zone."""
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        if isinstance(value, str) and f"_{name}".endswith(TIMES):
            value = moments.at(value)
        shown = moments.clock(value, utc_now().astimezone()) if isinstance(value, datetime) else _text(value)
        print(printable(f"{name.replace('_', ' '):<{width}}  {shown or '-'}"))


def filled(text: str, indent: str, *, first: str = "") -> str:
    """A sentence that folds between words on a terminal; its first line begins with `first`, the others with
    `indent`."""
    import textwrap

    return textwrap.fill(
        printable(text),
        _columns(sys.stdout),
        initial_indent=first,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _columns(to: TextIO) -> int:
    return shutil.get_terminal_size().columns if to.isatty() else PIPE_COLUMNS


def short(id_: str) -> str:
    """Short form of a UUID for lines of text on a terminal: its last 8 digits, which commands accept. Programs get all
    of it."""
    return id_[-8:] if sys.stdout.isatty() else id_


class _Column(NamedTuple):
    heading: str
    cells: list[str]
    numbers: bool

    @property
    def width(self) -> int:
        """Columns of the terminal in which it fits as it is."""
        return max(map(_width_of, (self.heading, *self.cells)))

    @property
    def width_min(self) -> int:
        """Fewest columns in which no cell is cut and no word of a sentence is folded."""
        if self.heading not in SENTENCES:
            return self.width
        longest_word = max((_width_of(word) for text in self.cells for word in text.split()), default=0)
        return max(len(self.heading), longest_word, min(SENTENCE_COLUMNS_MIN, self.width))


def _widths(columns: Sequence[_Column], width: int) -> list[int]:
    """Width of each column: sentences share what the others leave, beginning with the shortest."""
    widths = [column.width_min for column in columns]
    sentences = sorted(
        (number for number, column in enumerate(columns) if column.heading in SENTENCES),
        key=lambda number: columns[number].width,
    )
    for left, number in zip(range(len(sentences), 0, -1), sentences, strict=True):
        spare = max(0, width - sum(widths) - len(GAP) * (len(columns) - 1))
        widths[number] = min(columns[number].width, widths[number] + spare // left)
    return widths


def _row(texts: Sequence[str], columns: Sequence[_Column], widths: Sequence[int]) -> list[str]:
    """Lines of one row, of which sentences may need several."""
    folded = [_folded(text, width) for text, width in zip(texts, widths, strict=True)]
    return [
        GAP.join(
            " " * (width - _width_of(part)) + part if column.numbers else part + " " * (width - _width_of(part))
            for part, column, width in zip(parts, columns, widths, strict=True)
        ).rstrip()
        for parts in zip_longest(*folded, fillvalue="")
    ]


def _folded(text: str, width: int) -> list[str]:
    """A text in lines of at most `width` columns, folded between words."""
    if _width_of(text) <= width:
        return [text]
    lines: list[str] = []
    for word in text.split():
        if lines and _width_of(lines[-1]) + 1 + _width_of(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _width_of(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _column(rows: Sequence[T], field: Field[T]) -> _Column:
    heading, value_of = (field, attrgetter(field)) if isinstance(field, str) else field
    values = [value_of(row) for row in rows]
    numbers = all(type(value) in (int, float) for value in values if value is not None)
    return _Column(heading.replace("_", " "), [_text(value) for value in values], numbers)


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width_min + len(GAP) for column in columns) - len(GAP)


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
            import json

            return printable(json.dumps(value, ensure_ascii=False))
        case _:
            return printable(str(value))
