"""Tables of a screen of any width. Pure: no terminal.

Nothing wraps, and no number and no id is cut: on a narrow screen the least important columns are left out first, then
titles, gaps and reasons get shorter. Bars of one table have one scale, 0 to 100 %. Every colour stands beside a word or
a sign of the same meaning.
"""

import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from slipway_client.view.moments import UNIT_SECONDS
from slipway_common.base.sanitize import printable

BAR_LEAST: Final = 6
BAR_MOST: Final = 24
REASON_LEAST: Final = 18
CLAUSE_MOST: Final = 40  # of the first clause of a reason, which is shown whole
REASON_MOST: Final = 72
SCALE: Final = "0-100%"
EXTRA: Final = 10  # columns for wide screens
KEPT: Final = 3  # columns up to this `drop` are kept until reasons have been shortened
EIGHTHS: Final = " ▏▎▍▌▋▊▉█"

STATES: Final = {  # sign and style
    "healthy": ("●", "green"),
    "enforce": ("●", "green"),
    "free": ("●", "green"),
    "tripped": ("✗", "bold red"),
    "frozen": ("✗", "bold red"),
    "stopped": ("■", "bold red"),
    "degraded": ("◐", "yellow"),
    "probing": ("◐", "yellow"),
    "paused": ("‖", "yellow"),
    "draining": ("▽", "yellow"),
    "fallback": ("◇", "cyan"),
    "queueing": ("▲", "yellow"),
    "full": ("▲", "cyan"),
    "observe": ("○", "cyan"),
    "canary": ("◑", "cyan"),
    "archived": ("-", "dim"),
}
NONE: Final = "-"


class Cell(NamedTuple):
    """A value as its column draws it."""

    value: Any
    style: str = ""


class Column(NamedTuple):
    """One column of a table. The one with the highest `drop` is left out first; 0 never. Those of EXTRA and more are
    left out before titles get shorter, those above KEPT before a reason does.

    `draw(value, width)` fits a value into a width between `least` and what it wants; without `least` the column is as
    wide as its widest value. A column that `grows` takes only what is left over, up to `most`; any other gets what it
    wants first.
    """

    title: str
    cells: Sequence[Cell]
    short: str = ""
    right: bool = False
    drop: int = 0
    least: int = 0
    most: int = 0
    grows: bool = False
    draw: Callable[[Any, int], str] = lambda value, width: shortened(str(value), width)

    def titled(self, brief_titles: bool) -> str:
        return self.short if brief_titles and self.short else self.title

    def wants(self, brief_titles: bool) -> int:
        """The width at which nothing in it is shortened."""
        widest = self.most if self.draw is bar else max((cell_len(str(cell.value)) for cell in self.cells), default=0)
        return max(min(widest, self.most or widest), cell_len(self.titled(brief_titles)))


def shortened(text: str, width: int) -> str:
    """The beginning of a text, up to a whole word, with a mark for the rest; no number loses digits."""
    if cell_len(text) <= width:
        return text
    if width < 2:
        return "…"[:width]
    start = set_cell_size(text, width - 1)
    word_ends = text[len(start) : len(start) + 1] == " "
    if not word_ends and (space := start.rfind(" ")) > len(start) // 2:
        start = start[:space]
    elif not word_ends:
        start = start.rstrip("0123456789.,")
    return start.rstrip() + "…"


def shortened_reason(text: str, width: int) -> str:
    """The first clauses of a reason, with a mark for the rest."""
    if cell_len(text) <= width:
        return text
    clauses = text.split("; ")
    for number in range(len(clauses) - 1, 0, -1):
        start = "; ".join(clauses[:number])
        if cell_len(start) < width:
            return f"{start}…"
    return shortened(text, width)


def bar(fraction: float, width: int) -> str:
    """A bar in eighths of cells; anything above zero is visible."""
    eighths = round(max(0.0, min(1.0, fraction)) * width * 8)
    eighths = max(eighths, 1 if fraction > 0 else 0)
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")


def span(seconds: float | None) -> str:
    """A duration in at most six columns, to its two largest units."""
    if seconds is None:
        return NONE
    total = round(max(0.0, seconds))
    for (name, unit), (smaller_name, smaller) in pairwise(UNIT_SECONDS.items()):
        if total >= unit:
            return f"{total // unit:.0f}{name}{total % unit // smaller:02.0f}{smaller_name}"
    return f"{total}s"


def count(number: int | None) -> str:
    """A count in at most five columns, up to a trillion."""
    if number is None:
        return NONE
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= 100_000 and number >= size:
            return f"{number / size:.3g}{unit}" if number < 1000 * size else f"{number // size}{unit}"
    return str(number)


def numbers(title: str, counts: Sequence[int | None], *, short: str = "", drop: int = 0, warn: bool = False) -> Column:
    """Counts; with `warn` those above zero are highlighted."""
    cells = [Cell(count(number), "bold yellow" if warn and number else "") for number in counts]
    return Column(title, cells, short=short, right=True, drop=drop)


def bars(fractions: Sequence[Cell], *, drop: int) -> Column:
    """Bars of one scale, which take the width that nothing else needs."""
    return Column(SCALE, fractions, drop=drop, least=BAR_LEAST, most=BAR_MOST, grows=True, draw=bar)


def state(name: str) -> Cell:
    """A state with its sign."""
    sign, style = STATES.get(name, ("?", "yellow"))
    return Cell(f"{sign} {printable(name)}", style)


def reasons(texts: Sequence[str], title: str = "REASON", *, drop: int = 3, most: int = REASON_MOST) -> Column:
    """Sentences, of which the last clauses are left out where there is no room."""
    cells = [Cell(printable(text), "yellow") for text in texts]
    clause = max((cell_len(cell.value.partition("; ")[0]) + 1 for cell in cells), default=0)
    least = max(REASON_LEAST, min(CLAUSE_MOST, clause))
    return Column(title, cells, drop=drop, least=least, most=most, draw=shortened_reason)


def table(columns: Sequence[Column], width: int, *, dim: bool = False, selected: int | None = None) -> list[Text]:
    """Heading and rows. A `dim` one is of a service that does not answer; the selected row is in reverse video."""
    columns, widths, gap, brief_titles = fitted(columns, width)
    titles = (aligned(c.titled(brief_titles), w, c.right) for c, w in zip(columns, widths, strict=True))
    shown = [heading((" " * gap).join(titles), width)]
    for row in range(len(columns[0].cells)):
        text = line("", "dim" if dim else "")
        for number, (column, size) in enumerate(zip(columns, widths, strict=True)):
            value, style = column.cells[row]
            text.append(" " * gap if number else "")
            text.append(aligned(column.draw(value, size), size, column.right), "" if dim else style)
        text.truncate(width, pad=row == selected)
        if row == selected:
            text.stylize("reverse")
        shown.append(text)
    return shown


def fitted(columns: Sequence[Column], width: int) -> tuple[list[Column], list[int], int, bool]:
    """The columns that fit, their widths, the gap between them, and whether their titles are the short ones.

    Tried in this order: without the extras, short titles, a narrow gap; then one column less, and again; with few
    columns left, also with short reasons.
    """
    kept = list(columns)
    while True:
        droppable = max(kept, key=lambda column: column.drop)
        tries = [(2, False, False)]
        if droppable.drop < EXTRA:
            tries += [(2, True, False), (1, True, False)]
        if droppable.drop <= KEPT:
            tries += [(2, True, True), (1, True, True)]
        for gap, brief_titles, squeezed in tries:
            widths = [_least(column, brief_titles, squeezed) for column in kept]
            spare = width - sum(widths) - gap * (len(kept) - 1)
            if spare >= 0:
                return kept, _grown(kept, widths, spare, brief_titles), gap, brief_titles
        if not droppable.drop:
            return kept, widths, gap, brief_titles
        kept.remove(droppable)


def _least(column: Column, brief_titles: bool, squeezed: bool) -> int:
    wants = column.wants(brief_titles)
    return min(wants, column.least) if column.least and (column.grows or squeezed) else wants


def _grown(columns: Sequence[Column], widths: Sequence[int], spare: int, brief_titles: bool) -> list[int]:
    """The widths after the spare columns were given to those that can use them, in their order."""
    grown = []
    for column, width in zip(columns, widths, strict=True):
        more = min(spare, column.wants(brief_titles) - width) if column.least else 0
        grown.append(width + more)
        spare -= more
    return grown


def aligned(text: str, width: int, right: bool) -> str:
    """A text with the spaces that fill its width."""
    padding = " " * max(0, width - cell_len(text))
    return padding + text if right else text + padding


def wrapped(text: str, width: int, *, indent: str = "  ") -> list[str]:
    """A sentence in lines of at most `width` columns, the later ones indented."""
    columns = width // 2 if any(cell_len(character) > 1 for character in text) else width
    return textwrap.wrap(text, columns, subsequent_indent=indent, break_on_hyphens=False) or [""]


def heading(text: str, width: int) -> Text:
    """A heading over the whole width."""
    return line(set_cell_size(text, width), "bold reverse")


def line(text: str, style: str = "") -> Text:
    """A line that never wraps."""
    return Text(text, style=style, no_wrap=True, overflow="crop", end="\n")
