"""A snapshot as a screen of exactly the size that there is. Pure: no terminal, no clock.

Nothing wraps and no number is cut: when the screen is narrow, columns that say least are left out first, then titles,
gaps and names get shorter; when it is low, lists are cut with what is in trouble first, and say how much was left
out. Every colour stands beside a word or a sign that says the same.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.text import Text

from slipway_client.foreign import printable
from slipway_client.snapshot import Brake, Config, LeasePool, Line, Pool, Service, Snapshot, shares

WIDTH_MIN: Final = 48
HEIGHT_MIN: Final = 13
SPACIOUS: Final = 32  # from this height on, empty lines part the sections
BAR_LEAST: Final = 6
BAR_MOST: Final = 24
NAME_LEAST: Final = 12
EXTRA: Final = 10  # columns for those who have the room
EIGHTHS: Final = " ▏▎▍▌▋▊▉█"

STATES: Final = {  # sign and style
    "open": ("●", "green"),
    "enforce": ("●", "green"),
    "free": ("●", "green"),
    "closed": ("✗", "bold red"),
    "frozen": ("✗", "bold red"),
    "probing": ("◐", "yellow"),
    "paused": ("‖", "yellow"),
    "draining": ("▽", "yellow"),
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
    """One of a table's columns. The ones with the highest `drop` are left out first; 0 never. Those of EXTRA and more
    are left out before anything gets shorter.

    `draw(value, width)` fits a value into a width between `least` and what it wants; without `least` the column is as
    wide as its widest value. A name gets what it wants first and gives it up last; what `grows` takes only what is left
    over, up to `most`.
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

    def titled(self, brief: bool) -> str:
        return self.short if brief and self.short else self.title

    def wants(self, brief: bool) -> int:
        """The width in which nothing of it is shortened."""
        widest = self.most if self.draw is bar else max((cell_len(str(cell.value)) for cell in self.cells), default=0)
        return max(min(widest, self.most or widest), cell_len(self.titled(brief)))


Row = TypeVar("Row", Pool, Config, LeasePool)


def render(snapshot: Snapshot, width: int, height: int) -> Group:
    """At most `height` lines of at most `width` columns."""
    return Group(*lines(snapshot, width, height))


def lines(snapshot: Snapshot, width: int, height: int) -> list[Text]:
    if width < WIDTH_MIN or height < HEIGHT_MIN:
        small = f"{width}×{height} is too small: {WIDTH_MIN}×{HEIGHT_MIN} shows something"
        return [_line(small[: max(0, width)])][: max(0, height)]
    top = [_title(snapshot, width), _services(snapshot.services, width), *_brakes(snapshot.brakes, width)]
    gap = [Text("")] if height >= SPACIOUS else []
    space = height - len(top) - 4 * (1 + len(gap))  # four sections, each with its heading
    tables = [_pools, _configs, _lease_pools]
    counts = [len(snapshot.pools), len(snapshot.configs), len(snapshot.lease_pools)]
    told = max(3, space // 3)
    heights = allotted([max(1, count) for count in counts], space - told)
    shown = list(top)
    for table, rows in zip(tables, heights, strict=True):
        shown += [*gap, *table(snapshot, width, rows)]
    shown += [*gap, _heading("EVENTS", width)]
    room = height - len(shown)
    return shown + [_event(snapshot, line, width) for line in snapshot.lines[-room:]]


def allotted(wanted: Sequence[int], space: int) -> list[int]:
    """Rows for each of several lists: all that it wants where they fit, else each as many as any other that is cut."""
    given = [0] * len(wanted)
    for _ in range(min(space, sum(wanted))):
        hungry = min((n for n in range(len(wanted)) if given[n] < wanted[n]), key=lambda n: given[n])
        given[hungry] += 1
    return given


def shortened(text: str, width: int) -> str:
    """The beginning of a text, up to a whole word, with a mark that there is more; no number loses digits."""
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


def shortened_name(name: str, width: int) -> str:
    """Both ends of a name: names mostly differ at their ends."""
    if cell_len(name) <= width:
        return name
    if width < 4:
        return "…"[:width]
    tail = (width - 1) * 2 // 3
    start = set_cell_size(name, width - 1 - tail).rstrip()
    end = name[-tail:]
    while cell_len(end) > tail:
        end = end[1:]
    return f"{start}…{end}"


def bar(fraction: float, width: int) -> str:
    """Eighths of cells; something is visible of whatever is above zero."""
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
        of = "" if demo.minutes is None else f" of {demo.minutes:.0f}"
        left += f"  minute {snapshot.minute(snapshot.now):.1f}{of}  SEED={demo.seed} SPEED={demo.speed:g}"
    right = f"{snapshot.now:%H:%M:%S}  q ends"
    left = shortened(printable(left), width - len(right) - 2)
    return _line(left + " " * (width - cell_len(left) - len(right)) + right, "bold")


def _services(services: Sequence[Service], width: int) -> Text:
    """Who does not answer comes first; those that do are only counted where there is no room for their names."""
    silent = [s for s in services if s.silent_seconds is not None]
    answering = [(f"✓ {s.name}", "green") for s in services if s.silent_seconds is None]
    counted = [(f"✓ {len(answering)} {'others' if silent else 'services'} answer", "green")] if answering else []
    at_length = [(f"✗ {s.name} {_silence(s)}", "bold red") for s in silent]
    in_short = [(f"✗ {s.name} {span(s.silent_seconds)}", "bold red") for s in silent]
    parts = next(
        (parts for parts in (at_length + answering, at_length + counted) if _width(parts) <= width), in_short + counted
    )
    text, left = _line(""), width
    for words, style in parts:
        words = shortened(words, left)
        text.append(words, style).append("  ")
        left = max(0, left - cell_len(words) - 2)
    text.truncate(width)
    return text


def _brakes(brakes: Sequence[Brake], width: int) -> list[Text]:
    """What holds launches back belongs above everything that it explains."""
    if not brakes:
        return []
    told = "; ".join(f"{brake.where}: {brake.reason}" for brake in brakes)
    return [_line(shortened(printable(f"■ launching is stopped {told}"), width), "bold red")]


def _width(parts: Sequence[tuple[str, str]]) -> int:
    return sum(cell_len(words) + 2 for words, _ in parts) - 2


def _silence(service: Service) -> str:
    if service.answered:
        return f"silent {span(service.silent_seconds)}"
    return "does not answer" if service.problem else "not seen yet"


# The sections


def _pools(snapshot: Snapshot, width: int, rows: int) -> list[Text]:
    stale = snapshot.silent("provisioner")
    if not snapshot.pools:
        none = "no worker pools: `slipway apply FILE` declares them"
        return [_heading("POOL", width), _empty(none, stale, width)][: 1 + rows]
    shown, cut = _cut(snapshot.pools, rows)
    columns = [
        _names("POOL", stale, [(pool.id, pool.trouble) for pool in shown]),
        Column("STATE", [_state(pool.state) for pool in shown], drop=6),
        _numbers("PENDING", [pool.pending for pool in shown], short="PEND", drop=1),
        _numbers("CLAIMED", [pool.claimed for pool in shown], short="CLAIM", drop=5),
        _numbers("LIVE", [pool.serving for pool in shown], drop=3),
        _numbers("NEEDED", [pool.needed for pool in shown], short="NEED", drop=2, warn=True),
        Column(
            "OLDEST WAIT",
            [Cell(span(_scaled(pool.oldest_wait_seconds, snapshot))) for pool in shown],
            short="WAIT",
            right=True,
            drop=4,
        ),
        _numbers("RUNNING", [pool.running for pool in shown], drop=10),
        _numbers("LEAVING", [pool.leaving for pool in shown], drop=11),
        _numbers("WANTED", [pool.wanted for pool in shown], drop=13),
        _numbers("MAX", [pool.max_capacity for pool in shown], drop=12),
        _numbers("MIN", [pool.min_capacity for pool in shown], drop=14),
    ]
    return _table(columns, width, cut, stale)


def _configs(snapshot: Snapshot, width: int, rows: int) -> list[Text]:
    stale = snapshot.silent("provisioner")
    if not snapshot.configs:
        return [_heading("CONFIG", width), _empty("no launch configs", stale, width)][: 1 + rows]
    shown, cut = _cut(snapshot.configs, rows)
    share, relative = shares(snapshot.configs), _relative(snapshot.configs)
    columns = [
        _names("CONFIG", stale, [(config.id, config.trouble) for config in shown]),
        Column("STATE", [_state(config.words) for config in shown]),
        Column("WEIGHT", [Cell(_weight(config.weight)) for config in shown], right=True, drop=1),
        Column(
            "",
            [Cell(relative[config.id], "green" if config.launches else "red") for config in shown],
            least=BAR_LEAST,
            most=BAR_MOST,
            grows=True,
            draw=bar,
            drop=5,
        ),
        Column("SHARE", [Cell(f"{share[config.id]:.0%}") for config in shown], right=True, drop=10),
        Column("WINDOW", [_window(config) for config in shown], right=True, drop=3),
        _numbers("IN FLIGHT", [config.in_flight for config in shown], short="FLIGHT", drop=7),
        _numbers("OK", [config.ok for config in shown], drop=6),
        _numbers("FAILED", [config.failed for config in shown], short="FAIL", drop=2),
        Column("NEXT PROBE", [_probe(config, snapshot) for config in shown], short="PROBE", right=True, drop=4),
        _numbers("RUNNING", [config.running for config in shown], drop=11),
        Column(
            "POOL",
            [Cell(printable(config.pool_id)) for config in shown],
            drop=14,
            least=8,
            grows=True,
            most=24,
            draw=shortened_name,
        ),
        Column("ZONE", [Cell(printable(config.zone)) for config in shown], drop=13),
        Column("ACCOUNT", [Cell(printable(config.account_id)) for config in shown], drop=15),
        Column(
            "REASON",
            [Cell(printable(_reason(config)), "dim") for config in shown],
            drop=12,
            least=20,
            most=100,
            grows=True,
        ),
    ]
    return _table(columns, width, cut, stale)


def _lease_pools(snapshot: Snapshot, width: int, rows: int) -> list[Text]:
    stale = snapshot.silent("lease-broker")
    if not snapshot.lease_pools:
        return [_heading("LEASE POOL", width), _empty("no lease pools", stale, width)][: 1 + rows]
    shown, cut = _cut(snapshot.lease_pools, rows)
    columns = [
        _names("LEASE POOL", stale, [(pool.id, pool.trouble) for pool in shown]),
        Column("STATE", [_state(pool.state) for pool in shown], drop=5),
        Column("HELD", [Cell(f"{count(pool.held)}/{count(pool.limit)}") for pool in shown], right=True, drop=1),
        Column(
            "",
            [Cell(pool.held / pool.limit if pool.limit else 0.0, STATES[pool.state][1]) for pool in shown],
            least=BAR_LEAST,
            most=BAR_MOST,
            grows=True,
            draw=bar,
            drop=6,
        ),
        _numbers("WAITING", [pool.waiting for pool in shown], drop=2, warn=True),
        Column(
            "STARTS/MIN",
            [Cell(f"{snapshot.starts_per_minute(pool):.1f}") for pool in shown],
            short="/MIN",
            right=True,
            drop=4,
        ),
        Column("ETA", [Cell(_eta(pool, snapshot)) for pool in shown], right=True, drop=3),
        Column(
            "OLDEST WAIT",
            [Cell(span(_scaled(pool.oldest_wait_seconds, snapshot))) for pool in shown],
            right=True,
            drop=10,
        ),
        _numbers("REQUESTS", [pool.requests for pool in shown], drop=11),
    ]
    return _table(columns, width, cut, stale)


def _event(snapshot: Snapshot, line: Line, width: int) -> Text:
    sign, style = MOODS[line.mood]
    stamp = snapshot.stamp(line.at)
    text = _line(f"{stamp} ", "dim").append(f"{sign} ", style)
    return text.append(shortened(printable(line.text), width - len(stamp) - 3), style if line.mood else "")


# Cells


def _names(title: str, stale: Service | None, names: Sequence[tuple[str, int]]) -> Column:
    """The first column. Its title says how old its section is, when nobody confirms it."""
    if stale:
        title = f"{title} {span(stale.silent_seconds)} old"
    cells = [Cell(printable(name), "bold" if trouble else "") for name, trouble in names]
    return Column(title, cells, least=max(NAME_LEAST, cell_len(title)), draw=shortened_name)


def _numbers(
    title: str, numbers: Sequence[int | None], *, short: str = "", drop: int = 0, warn: bool = False
) -> Column:
    """Counts; with `warn` those above zero stand out."""
    cells = [Cell(count(number), "bold yellow" if warn and number else "") for number in numbers]
    return Column(title, cells, short=short, right=True, drop=drop)


def _state(words: str) -> Cell:
    sign, style = STATES.get(words, ("?", "yellow"))
    return Cell(f"{sign} {printable(words)}", style)


def _relative(configs: Sequence[Config]) -> dict[str, float]:
    """Each weight as a part of the largest in its pool: of 60 configs the shares would all look empty."""
    largest: dict[str, float] = {}
    for config in configs:
        largest[config.pool_id] = max(largest.get(config.pool_id, 0.0), config.weight or 0.0)
    return {config.id: (config.weight or 0.0) / (largest[config.pool_id] or 1.0) for config in configs}


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
    seconds = snapshot.next_probe_seconds(config)
    if config.circuit == "open" or config.state != "active":
        return Cell(NONE)
    if config.probe_ready:
        return Cell("now", "yellow")
    return Cell(span(seconds), "yellow")


def _reason(config: Config) -> str:
    """Why it is as it is; its name is in the row already."""
    if config.state != "active":
        return config.state_reason or ""
    name, colon, why = (config.reason or "").partition(": ")
    return why if colon else name


def _eta(pool: LeasePool, snapshot: Snapshot) -> str:
    return "now" if pool.eta_seconds == 0 else span(_scaled(pool.eta_seconds, snapshot))


def _scaled(seconds: float | None, snapshot: Snapshot) -> float | None:
    return None if seconds is None else seconds * snapshot.speed


# Tables


def _cut(listed: Sequence[Row], rows: int) -> tuple[list[Row], str]:
    """All of them in their order; or the first of those in trouble, then of the others, and how many are left out."""
    if len(listed) <= rows:
        return list(listed), ""
    urgent = sorted(listed, key=lambda row: -row.trouble)
    shown, rest = urgent[: max(0, rows - 1)], urgent[max(0, rows - 1) :]
    troubled = sum(row.trouble > 0 for row in rest)
    return shown, f"… {len(rest)} more" + (f", {troubled} of them in trouble" if troubled else "")


def _table(columns: Sequence[Column], width: int, cut: str, stale: Service | None) -> list[Text]:
    """Heading, rows, and what was cut."""
    columns, widths, gap, brief = fitted(columns, width)
    heading = (" " * gap).join(_aligned(c.titled(brief), w, c.right) for c, w in zip(columns, widths, strict=True))
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

    Tried in this order: without the extras, short titles, a narrow gap, short names; then one column less, and again.
    """
    kept = list(columns)
    while True:
        droppable = max(kept, key=lambda column: column.drop)
        tries = [(2, False, False)]
        if droppable.drop < EXTRA:
            tries += [(2, True, False), (1, True, False), (1, True, True)]
        for gap, brief, names_short in tries:
            widths = [_least(column, brief, names_short) for column in kept]
            spare = width - sum(widths) - gap * (len(kept) - 1)
            if spare >= 0:
                return kept, _grown(kept, widths, spare, brief), gap, brief
        if not droppable.drop:
            return kept, widths, gap, brief
        kept.remove(droppable)


def _least(column: Column, brief: bool, names_short: bool) -> int:
    wants = column.wants(brief)
    return min(wants, column.least) if column.least and (column.grows or names_short) else wants


def _grown(columns: Sequence[Column], widths: Sequence[int], spare: int, brief: bool) -> list[int]:
    """What is left over goes to the columns that can use it, in their order."""
    grown = []
    for column, width in zip(columns, widths, strict=True):
        more = min(spare, column.wants(brief) - width) if column.least else 0
        grown.append(width + more)
        spare -= more
    return grown


def _aligned(text: str, width: int, right: bool) -> str:
    padding = " " * max(0, width - cell_len(text))
    return padding + text if right else text + padding


def _heading(text: str, width: int) -> Text:
    return _line(set_cell_size(text, width), "bold reverse")


def _empty(words: str, stale: Service | None, width: int) -> Text:
    return _line(shortened("not seen yet" if stale else words, width), "dim")


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="crop", end="\n")
