"""Rendering of a snapshot as a screen of exactly the size that there is. Pure: no terminal, no clock.

Nothing wraps, and no number and no id is cut: on a narrow screen the least important columns are left out first, then
titles, gaps and reasons get shorter; on a low one, lists are cut with the rows in trouble first, and the number of the
others is shown. Bars of one table have one scale, 0 to 100 %. Every colour stands beside a word or a sign of the same
meaning.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.text import Text

from slipway_client.view.phrases import PROBING, brief
from slipway_client.view.snapshot import (
    Config,
    EventLine,
    LaunchStop,
    LeasePool,
    Pool,
    Service,
    Snapshot,
    labels,
    shares,
)
from slipway_common.base.sanitize import printable

WIDTH_MIN: Final = 48
HEIGHT_MIN: Final = 13
SPACIOUS: Final = 32  # from this height on, empty lines separate the sections
BAR_LEAST: Final = 6
BAR_MOST: Final = 24
REASON_LEAST: Final = 18
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
MOODS: Final = {"bad": ("!", "bold red"), "good": ("+", "green"), "": ("·", "dim")}
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


Row = TypeVar("Row", Pool, Config, LeasePool)


def render(snapshot: Snapshot, width: int, height: int) -> Group:
    """At most `height` lines of at most `width` columns."""
    return Group(*lines(snapshot, width, height))


def lines(snapshot: Snapshot, width: int, height: int) -> list[Text]:
    if width < WIDTH_MIN or height < HEIGHT_MIN:
        small = f"{width}×{height} is too small: at least {WIDTH_MIN}×{HEIGHT_MIN} is needed"
        return [_line(small[: max(0, width)])][: max(0, height)]
    top = [_title(snapshot, width), _services(snapshot.services, width), *_launch_stops(snapshot.launch_stops, width)]
    gap = [Text("")] if height >= SPACIOUS else []
    space = height - len(top) - 4 * (1 + len(gap))  # four sections, each with its heading
    tables = [_pools, _configs, _lease_pools]
    counts = [len(snapshot.pools), len(snapshot.configs), len(snapshot.lease_pools)]
    events = max(3, space // 3)
    heights = allotted([max(1, count) for count in counts], space - events)
    shown = list(top)
    for table, rows in zip(tables, heights, strict=True):
        shown += [*gap, *table(snapshot, width, rows)]
    shown += [*gap, _heading("EVENTS", width)]
    room = height - len(shown)
    return shown + [_event(snapshot, line, width) for line in snapshot.lines[-room:]]


def allotted(wanted: Sequence[int], space: int) -> list[int]:
    """Rows for each of several lists: all of them where they fit; otherwise lists that are cut get equally many."""
    given = [0] * len(wanted)
    for _ in range(min(space, sum(wanted))):
        hungry = min((n for n in range(len(wanted)) if given[n] < wanted[n]), key=lambda n: given[n])
        given[hungry] += 1
    return given


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
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02d}s"
    if total < 86_400:
        return f"{total // 3600}h{total % 3600 // 60:02d}m"
    return f"{total // 86_400}d{total % 86_400 // 3600:02d}h"


def count(number: int | None) -> str:
    """A count in at most five columns, up to a trillion."""
    if number is None:
        return NONE
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= 100_000 and number >= size:
            return f"{number / size:.3g}{unit}" if number < 1000 * size else f"{number // size}{unit}"
    return str(number)


# The lines above the sections


def _title(snapshot: Snapshot, width: int) -> Text:
    demo = snapshot.demo
    left = f"slipway  {snapshot.title}"
    if demo:
        of = "" if demo.seconds is None else f" of {span(demo.seconds)}"
        elapsed = (snapshot.now - demo.started_at).total_seconds()
        left += f"  {span(elapsed)}{of}  SEED={demo.seed} SPEED={demo.speed:g}"
    right = f"{snapshot.now:%H:%M:%S}  q quits"
    left = shortened(printable(left), width - len(right) - 2)
    return _line(left + " " * (width - cell_len(left) - len(right)) + right, "bold")


def _services(services: Sequence[Service], width: int) -> Text:
    """Unavailable services come first; available ones are only counted where there is no room for their names."""
    missing = [s for s in services if s.unavailable_seconds is not None]
    available = [(f"✓ {s.name}", "green") for s in services if s.unavailable_seconds is None]
    number = len(available)
    noun = ("other" if number == 1 else "others") if missing else ("service" if number == 1 else "services")
    counted = [(f"✓ {number} {noun} up", "green")] if available else []
    at_length = [(f"✗ {s.name} {_absence(s)}", "bold red") for s in missing]
    in_short = [(f"✗ {s.name} {span(s.unavailable_seconds)}", "bold red") for s in missing]
    parts = next(
        (parts for parts in (at_length + available, at_length + counted) if _width(parts) <= width), in_short + counted
    )
    text, left = _line(""), width
    for words, style in parts:
        words = shortened(words, left)
        text.append(words, style).append("  ")
        left = max(0, left - cell_len(words) - 2)
    text.truncate(width)
    return text


def _launch_stops(launch_stops: Sequence[LaunchStop], width: int) -> list[Text]:
    """Launch stops stand above everything that they explain."""
    if not launch_stops:
        return []
    stops = "; ".join(f"{stop.where}: {stop.reason}" for stop in launch_stops)
    return [_line(shortened(printable(f"■ launching is stopped {stops}"), width), "bold red")]


def _width(parts: Sequence[tuple[str, str]]) -> int:
    return sum(cell_len(words) + 2 for words, _ in parts) - 2


def _absence(service: Service) -> str:
    if service.answered:
        return f"unavailable {span(service.unavailable_seconds)}"
    return "unavailable" if service.problem else "connecting"


# The sections


def _pools(snapshot: Snapshot, width: int, rows: int) -> list[Text]:
    stale = snapshot.unavailable("provisioner")
    if not snapshot.pools:
        none = "no worker pools: `slipway apply FILE` declares them"
        return [_heading("POOL", width), _empty(none, stale, width)][: 1 + rows]
    shown, cut = _cut(snapshot.pools, rows, snapshot.pool_trouble)
    columns = [
        _names("POOL", stale, [(pool.id, snapshot.pool_trouble(pool)) for pool in shown]),
        Column("STATE", [_state(snapshot.pool_state(pool)) for pool in shown], drop=2),
        _reasons([snapshot.pool_reason(pool) for pool in shown]),
        _numbers("PENDING", [pool.pending for pool in shown], short="PEND", drop=1),
        _numbers("CLAIMED", [pool.claimed for pool in shown], short="CLAIM", drop=7),
        _numbers("SERVING", [pool.serving for pool in shown], short="SERV", drop=5),
        _numbers("NEEDED", [pool.needed for pool in shown], short="NEED", drop=4, warn=True),
        Column(
            "BACKLOG FOR",
            [Cell(span(pool.backlog_seconds)) for pool in shown],
            short="BACKLOG",
            right=True,
            drop=6,
        ),
        _numbers("RUNNING", [pool.running for pool in shown], drop=10),
        _numbers("LEAVING", [pool.leaving for pool in shown], drop=11),
        _numbers("WANTED", [pool.wanted for pool in shown], drop=13),
        _numbers("MAX", [pool.max_capacity for pool in shown], drop=12),
        _numbers("MIN", [pool.min_capacity for pool in shown], drop=14),
    ]
    return _table(columns, width, cut, stale)


def _configs(snapshot: Snapshot, width: int, rows: int) -> list[Text]:
    stale = snapshot.unavailable("provisioner")
    if not snapshot.configs:
        return [_heading("CONFIG", width), _empty("no launch configs", stale, width)][: 1 + rows]
    shown, cut = _cut(snapshot.configs, rows, lambda config: config.trouble)
    share, called = shares(snapshot.configs), labels(snapshot.configs)
    columns = [
        _names("CONFIG", stale, [(called[config.id], config.trouble) for config in shown]),
        Column("STATE", [_state(config.shown_state) for config in shown]),
        _reasons([snapshot.config_reason(config) for config in shown]),
        Column("NEXT PROBE", [_probe(config, snapshot) for config in shown], short="PROBE", right=True, drop=2),
        Column("WEIGHT", [Cell(_weight(config.weight)) for config in shown], right=True, drop=5),
        Column("SHARE", [Cell(f"{share[config.id]:.0%}") for config in shown], right=True, drop=4),
        Column(
            SCALE,
            [Cell(share[config.id], "green") for config in shown],
            least=BAR_LEAST,
            most=BAR_MOST,
            grows=True,
            draw=bar,
            drop=9,
        ),
        Column("WINDOW", [_window(config) for config in shown], right=True, drop=1),
        _numbers("IN FLIGHT", [config.in_flight for config in shown], short="FLIGHT", drop=8),
        _numbers("BOOTED", [config.booted for config in shown], drop=7),
        _numbers("FAILED", [config.failed for config in shown], short="FAIL", drop=6),
        _numbers("RUNNING", [config.running for config in shown], drop=11),
        _names("POOL", None, [(config.pool_id, 0) for config in shown], drop=14),
        _names("ZONE", None, [(config.zone, 0) for config in shown], drop=13),
        _names("ACCOUNT", None, [(config.account_id, 0) for config in shown], drop=15),
    ]
    return _table(columns, width, cut, stale)


def _lease_pools(snapshot: Snapshot, width: int, rows: int) -> list[Text]:
    stale = snapshot.unavailable("lease-broker")
    if not snapshot.lease_pools:
        return [_heading("LEASE POOL", width), _empty("no lease pools", stale, width)][: 1 + rows]
    shown, cut = _cut(snapshot.lease_pools, rows, lambda pool: pool.trouble)
    columns = [
        _names("LEASE POOL", stale, [(pool.id, pool.trouble) for pool in shown]),
        Column("STATE", [_state(pool.state) for pool in shown], drop=5),
        Column("HELD", [Cell(f"{count(pool.held)}/{count(pool.units)}") for pool in shown], right=True, drop=1),
        Column(
            SCALE,
            [Cell(pool.held / pool.units if pool.units else 0.0, STATES[pool.state][1]) for pool in shown],
            least=BAR_LEAST,
            most=BAR_MOST,
            grows=True,
            draw=bar,
            drop=6,
        ),
        _numbers("WAITING", [pool.waiting for pool in shown], drop=2, warn=True),
        Column(
            "STARTS/MIN",
            [Cell(f"{pool.granted_per_minute:.0f}") for pool in shown],
            short="/MIN",
            right=True,
            drop=4,
        ),
        Column("ETA", [Cell(_eta(pool)) for pool in shown], right=True, drop=3),
        Column(
            "OLDEST WAIT",
            [Cell(span(pool.oldest_wait_seconds)) for pool in shown],
            right=True,
            drop=10,
        ),
        _numbers("REQUESTS", [pool.requests for pool in shown], drop=11),
    ]
    return _table(columns, width, cut, stale)


def _event(snapshot: Snapshot, line: EventLine, width: int) -> Text:
    sign, style = MOODS[line.mood]
    stamp = snapshot.stamp(line.at)
    text = _line(f"{stamp} ", "dim").append(f"{sign} ", style)
    words, room = printable(line.text), width - len(stamp) - 3
    words = words if cell_len(words) <= room else brief(words)
    return text.append(shortened_reason(words, room), style if line.mood else "")


# Cells


def _names(title: str, stale: Service | None, names: Sequence[tuple[str, int]], *, drop: int = 0) -> Column:
    """Names, which are never cut. The title of the first column has the age of its section, if it is stale."""
    if stale:
        title = f"{title} {span(stale.unavailable_seconds)} old"
    return Column(title, [Cell(printable(name), "bold" if trouble else "") for name, trouble in names], drop=drop)


def _reasons(reasons: Sequence[str]) -> Column:
    cells = [Cell(printable(reason), "yellow") for reason in reasons]
    return Column("REASON", cells, drop=3, least=REASON_LEAST, most=REASON_MOST, draw=shortened_reason)


def _numbers(
    title: str, numbers: Sequence[int | None], *, short: str = "", drop: int = 0, warn: bool = False
) -> Column:
    """Counts; with `warn` those above zero are highlighted."""
    cells = [Cell(count(number), "bold yellow" if warn and number else "") for number in numbers]
    return Column(title, cells, short=short, right=True, drop=drop)


def _state(state: str) -> Cell:
    sign, style = STATES.get(state, ("?", "yellow"))
    return Cell(f"{sign} {printable(state)}", style)


def _weight(weight: float | None) -> str:
    if weight is None:
        return NONE
    return f"{weight:.3f}" if weight < 1000 else f"{weight:.3g}"


def _window(config: Config) -> Cell:
    binding = config.binding
    if binding is None:
        return Cell(NONE)
    full = "bold yellow" if binding.level >= binding.window else ""
    return Cell(f"{count(binding.level)}/{count(binding.window)} {binding.stage:6}", full)


def _probe(config: Config, snapshot: Snapshot) -> Cell:
    if not config.tripped:
        return Cell(NONE)
    if config.health_state == PROBING:
        return Cell("now", "yellow")
    return Cell(span(snapshot.next_probe_seconds(config)), "yellow")


def _eta(pool: LeasePool) -> str:
    return "now" if pool.eta_seconds == 0 else span(pool.eta_seconds)


# Tables


def _cut(listed: Sequence[Row], rows: int, trouble: Callable[[Row], int]) -> tuple[list[Row], str]:
    """All rows in their order; or the first of those in trouble, then of the others, and the number of the rest."""
    if len(listed) <= rows:
        return list(listed), ""
    urgent = sorted(listed, key=lambda row: -trouble(row))
    shown, rest = urgent[: max(0, rows - 1)], urgent[max(0, rows - 1) :]
    troubled = sum(trouble(row) > 0 for row in rest)
    return shown, f"… {len(rest)} more" + (f", {troubled} of them in trouble" if troubled else "")


def _table(columns: Sequence[Column], width: int, cut: str, stale: Service | None) -> list[Text]:
    """Heading, rows, and the number of rows left out."""
    columns, widths, gap, brief_titles = fitted(columns, width)
    heading = (" " * gap).join(
        _aligned(c.titled(brief_titles), w, c.right) for c, w in zip(columns, widths, strict=True)
    )
    shown = [_heading(heading, width)]
    for row in range(len(columns[0].cells)):
        text = _line("", "dim" if stale else "")
        for number, (column, size) in enumerate(zip(columns, widths, strict=True)):
            value, style = column.cells[row]
            text.append(" " * gap if number else "")
            text.append(_aligned(column.draw(value, size), size, column.right), "" if stale else style)
        text.truncate(width)
        shown.append(text)
    return shown + ([_line(cut, "dim")] if cut else [])


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
            tries += [(1, True, True)]
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


def _aligned(text: str, width: int, right: bool) -> str:
    padding = " " * max(0, width - cell_len(text))
    return padding + text if right else text + padding


def _heading(text: str, width: int) -> Text:
    return _line(set_cell_size(text, width), "bold reverse")


def _empty(words: str, stale: Service | None, width: int) -> Text:
    return _line(shortened("no answer yet" if stale else words, width), "dim")


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="crop", end="\n")
