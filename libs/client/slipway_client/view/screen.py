"""Rendering of a snapshot as a screen of exactly the size that there is. Pure: no terminal, no clock.

On a low screen lists are cut with the rows in trouble first, and the number of the others is shown; a selected row is
always shown. `table` says what happens on a narrow one.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from slipway_api.http.provisioner.pools import LaunchStop
from slipway_api.http.service import ListedAlert
from slipway_client.view import navigation
from slipway_client.view.navigation import START, Navigation, Place
from slipway_client.view.phrases import PROBING, brief, is_tripped, where
from slipway_client.view.snapshot import Config, EventLine, LeasePool, Pool, Service, Snapshot, labels, shares
from slipway_client.view.table import (
    NONE,
    STATES,
    Cell,
    Column,
    bars,
    count,
    heading,
    line,
    numbers,
    reasons,
    shortened,
    span,
    state,
    table,
    wrapped,
)
from slipway_common.base.sanitize import printable

WIDTH_MIN: Final = 48
HEIGHT_MIN: Final = 13
EVENTS_LEAST: Final = 3
ALERT_LINES: Final = 2
SPACIOUS: Final = 32  # from this height on, empty lines separate the sections
MOODS: Final = {"bad": ("!", "bold red"), "good": ("+", "green"), "": ("·", "dim")}

Row = TypeVar("Row", bound=Pool | Config | LeasePool)


class Drawn(NamedTuple):
    """Lines of a screen or a section, the rows that can be selected in their order, and how many lines can be scrolled
    away. `reasons` are those of the lines after the heading."""

    lines: list[Text]
    rows: Sequence[Place] = ()
    scroll_max: int = 0
    reasons: Sequence[str] = ()


def render(snapshot: Snapshot, width: int, height: int) -> Group:
    """At most `height` lines of at most `width` columns."""
    return Group(*overview(snapshot, START, width, height).lines)


def overview(snapshot: Snapshot, nav: Navigation, width: int, height: int) -> Drawn:
    """Services, open alerts, launch stops, and sections of pools, launch configs, lease pools and events."""
    if width < WIDTH_MIN or height < HEIGHT_MIN:
        small = f"{width}×{height} is too small: at least {WIDTH_MIN}×{HEIGHT_MIN} is needed"
        return Drawn([line(small[: max(0, width)])][: max(0, height)])
    top = [
        title(snapshot, width),
        _services(snapshot.services, width),
        *_alerts(snapshot.alerts, width),
        *_launch_stops(snapshot.launch_stops, width),
    ]
    gap = [Text("")] if height >= SPACIOUS else []
    space = height - len(top) - 4 * (1 + len(gap))  # four sections, each with its heading
    pools, configs = _listed(snapshot.pools, nav.filter), _listed(snapshot.configs, nav.filter)
    lease_pools = _listed(snapshot.lease_pools, nav.filter)
    least = max(EVENTS_LEAST, space // 3)  # lines of events
    counts = [max(1, len(rows)) for rows in (pools, configs, lease_pools)]
    heights = allotted(counts, space - least)
    shown, places = list(top), list[Place]()
    sections = (
        _pools(snapshot, pools, nav.selected, width, heights[0]),
        _configs(snapshot, configs, nav.selected, width, heights[1]),
        _lease_pools(snapshot, lease_pools, nav.selected, width, heights[2]),
    )
    room = space - EVENTS_LEAST - sum(len(section.lines) - 1 for section in sections)
    for section in sections:
        lines = _with_reasons(section, width, room)
        room -= len(lines) - len(section.lines)
        shown += [*gap, *lines]
        places += section.rows
    shown += [*gap, heading("EVENTS", width)]
    return Drawn(shown + _events(snapshot, width, height - len(shown)), places)


def allotted(wanted: Sequence[int], space: int) -> list[int]:
    """Rows for each of several lists: all of them where they fit; otherwise lists that are cut get equally many."""
    given = [0] * len(wanted)
    for _ in range(min(space, sum(wanted))):
        hungry = min((n for n in range(len(wanted)) if given[n] < wanted[n]), key=lambda n: given[n])
        given[hungry] += 1
    return given


def _with_reasons(section: Drawn, width: int, room: int) -> list[Text]:
    """Lines of a section, with reasons that are not whole in their rows below these, in at most `room` more lines."""
    shown: list[Text] = section.lines[:1]
    for number, row in enumerate(section.lines[1:]):
        shown.append(row)
        reason = section.reasons[number] if number < len(section.reasons) else ""
        parts = [] if reason in row.plain else wrapped(f"  {reason}", width)
        if len(parts) <= room:
            shown += [line(part, "yellow") for part in parts]
            room -= len(parts)
    return shown


# The lines above the sections


def title(snapshot: Snapshot, width: int, *places: str) -> Text:
    """The deployment and the time, and the names of `places` on the way to a page."""
    demo = snapshot.demo
    left = " › ".join([f"slipway  {snapshot.title}", *places])
    if demo and not places:
        of = "" if demo.seconds is None else f" of {span(demo.seconds)}"
        elapsed = (snapshot.now - demo.started_at).total_seconds()
        left += f"  {span(elapsed)}{of}  SEED={demo.seed} SPEED={demo.speed:g}"
    right = f"{snapshot.now:%H:%M:%S}"
    left = shortened(printable(left), width - len(right) - 2)
    return line(left + " " * (width - cell_len(left) - len(right)) + right, "bold")


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
    text, left = line(""), width
    for words, style in parts:
        words = shortened(words, left)
        text.append(words, style).append("  ")
        left = max(0, left - cell_len(words) - 2)
    text.truncate(width)
    return text


def _alerts(alerts: Sequence[ListedAlert], width: int) -> list[Text]:
    """The number of open alerts, and the first of them."""
    if not alerts:
        return []
    first, pages = alerts[0], sum(alert.severity == "page" for alert in alerts)
    number = f"{count(len(alerts))} open alert{'' if len(alerts) == 1 else 's'}"
    number += f", {count(pages)} to act on" if pages else ""
    words = wrapped(printable(f"! {number}: {brief(first.summary or first.kind)}"), width)
    return [line(part, "bold red" if pages else "yellow") for part in words[:ALERT_LINES]]


def _launch_stops(launch_stops: Sequence[LaunchStop], width: int) -> list[Text]:
    """Launch stops stand above everything that they explain."""
    if not launch_stops:
        return []
    stops = "; ".join(f"{where(stop.scope, stop.scope_id)}: {stop.reason}" for stop in launch_stops)
    return [line(shortened(printable(f"■ launching is stopped {stops}"), width), "bold red")]


def _width(parts: Sequence[tuple[str, str]]) -> int:
    return sum(cell_len(words) + 2 for words, _ in parts) - 2


def _absence(service: Service) -> str:
    if service.answered:
        return f"unavailable {span(service.unavailable_seconds)}"
    return "unavailable" if service.problem else "connecting"


# The sections


def _pools(snapshot: Snapshot, listed: Sequence[Pool], selected: Place | None, width: int, rows: int) -> Drawn:
    stale = snapshot.unavailable("provisioner")
    if not listed:
        none = "no pool matches" if snapshot.pools else "no worker pools: `slipway apply FILE` declares them"
        return _none("POOL", none, stale, width, rows)
    part = _cut(listed, rows, snapshot.pool_trouble, selected, "pool")
    shown, why = part.shown, [snapshot.pool_reason(pool) for pool in part.shown]
    columns = [
        _names("POOL", stale, [(pool.id, snapshot.pool_trouble(pool)) for pool in shown]),
        Column("STATE", [state(snapshot.pool_state(pool)) for pool in shown], drop=1),
        reasons(why, drop=2),
        numbers("PENDING", [pool.pending for pool in shown], short="PEND", drop=1),
        numbers("CLAIMED", [pool.claimed for pool in shown], short="CLAIM", drop=3),
        Column("SERVING/MAX", [_serving(pool) for pool in shown], short="SERV/MAX", right=True, drop=1),
        Column(
            "BACKLOG FOR",
            [Cell(span(pool.backlog_seconds)) for pool in shown],
            short="BACKLOG",
            right=True,
            drop=3,
        ),
        numbers("NEEDED", [pool.needed for pool in shown], short="NEED", drop=3, warn=True),
        numbers("RUNNING", [pool.running for pool in shown], drop=10),
        numbers("LEAVING", [pool.leaving for pool in shown], drop=11),
        numbers("WANTED", [pool.wanted for pool in shown], drop=13),
        numbers("MIN", [pool.min_capacity for pool in shown], drop=14),
    ]
    return part.drawn(columns, stale, width, why)


def _configs(snapshot: Snapshot, listed: Sequence[Config], selected: Place | None, width: int, rows: int) -> Drawn:
    stale = snapshot.unavailable("provisioner")
    if not listed:
        none = "no launch config matches" if snapshot.configs else "no launch configs"
        return _none("CONFIG", none, stale, width, rows)
    part = _cut(listed, rows, lambda config: config.trouble, selected, "config")
    shown, why = part.shown, [snapshot.config_reason(config) for config in part.shown]
    share, called = shares(snapshot.configs), labels(snapshot.configs)
    columns = [
        _names("CONFIG", stale, [(called[config.id], config.trouble) for config in shown]),
        Column("STATE", [state(config.shown_state) for config in shown]),
        reasons(why),
        Column("NEXT PROBE", [_probe(config, snapshot) for config in shown], short="PROBE", right=True, drop=2),
        Column("WEIGHT", [Cell(_weight(config.weight)) for config in shown], right=True, drop=5),
        Column("SHARE", [Cell(f"{share[config.id]:.0%}") for config in shown], right=True, drop=4),
        bars([Cell(share[config.id], "green") for config in shown], drop=9),
        Column("WINDOW", [_window(config) for config in shown], right=True, drop=1),
        numbers("IN FLIGHT", [config.in_flight for config in shown], short="FLIGHT", drop=8),
        numbers("BOOTED", [config.booted for config in shown], drop=7),
        numbers("FAILED", [config.failed for config in shown], short="FAIL", drop=6),
        numbers("RUNNING", [config.running for config in shown], drop=11),
        _names("POOL", None, [(config.pool_id, 0) for config in shown], drop=14),
        _names("ZONE", None, [(config.zone, 0) for config in shown], drop=13),
        _names("ACCOUNT", None, [(config.account_id, 0) for config in shown], drop=15),
    ]
    return part.drawn(columns, stale, width, why)


def _lease_pools(
    snapshot: Snapshot, listed: Sequence[LeasePool], selected: Place | None, width: int, rows: int
) -> Drawn:
    stale = snapshot.unavailable("lease-broker")
    if not listed:
        none = "no lease pool matches" if snapshot.lease_pools else "no lease pools"
        return _none("LEASE POOL", none, stale, width, rows)
    part = _cut(listed, rows, lambda pool: pool.trouble, selected, "lease-pool")
    shown = part.shown
    held = [pool.held / pool.units if pool.units else 0.0 for pool in shown]
    columns = [
        _names("LEASE POOL", stale, [(pool.id, pool.trouble) for pool in shown]),
        Column("STATE", [state(pool.state) for pool in shown], drop=5),
        Column("HELD", [Cell(f"{count(pool.held)}/{count(pool.units)}") for pool in shown], right=True, drop=1),
        bars([Cell(part, STATES[pool.state][1]) for pool, part in zip(shown, held, strict=True)], drop=6),
        numbers("WAITING", [pool.waiting for pool in shown], drop=2, warn=True),
        numbers("STARTS/MIN", [pool.granted_per_minute for pool in shown], short="/MIN", drop=4),
        Column("ETA", [Cell(_eta(pool)) for pool in shown], right=True, drop=3),
        Column(
            "OLDEST WAIT",
            [Cell(span(pool.oldest_wait_seconds)) for pool in shown],
            right=True,
            drop=10,
        ),
        numbers("REQUESTS", [pool.requests for pool in shown], drop=11),
    ]
    return part.drawn(columns, stale, width)


def _events(snapshot: Snapshot, width: int, room: int) -> list[Text]:
    """The newest events that fit, each in as many lines as it needs."""
    shown: list[Text] = []
    for event in reversed(snapshot.lines[-room:] if room > 0 else ()):
        parts = _event(snapshot, event, width)
        if len(parts) + len(shown) > room:
            break
        shown[:0] = parts
    return shown


def _event(snapshot: Snapshot, event: EventLine, width: int) -> list[Text]:
    sign, style = MOODS[event.mood]
    stamp = snapshot.stamp(event.at)
    words, room = printable(event.text), width - len(stamp) - 3
    words = words if cell_len(words) <= room else brief(words)
    first, *more = wrapped(words, room)
    shown = [line(f"{stamp} ", "dim").append(f"{sign} ", style).append(first, style if event.mood else "")]
    return shown + [line(" " * (width - room) + part, style if event.mood else "") for part in more]


# Cells


def _names(title: str, stale: Service | None, names: Sequence[tuple[str, int]], *, drop: int = 0) -> Column:
    """Names, which are never cut. The title of the first column has the age of its section, if it is stale."""
    if stale:
        title = f"{title} {span(stale.unavailable_seconds)} old"
    return Column(title, [Cell(printable(name), "bold" if trouble else "") for name, trouble in names], drop=drop)


def _serving(pool: Pool) -> Cell:
    """Serving workers and the maximum, highlighted where no other worker may start."""
    most = count(pool.max_capacity) if pool.max_capacity else NONE
    full = pool.pending and pool.serving >= pool.max_capacity > 0
    return Cell(f"{count(pool.serving)}/{most}", "bold yellow" if full else "")


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
    if not is_tripped(config):
        return Cell(NONE)
    if config.health_state == PROBING:
        return Cell("now", "yellow")
    return Cell(span(snapshot.next_probe_seconds(config)), "yellow")


def _eta(pool: LeasePool) -> str:
    return "now" if pool.eta_seconds == 0 else span(pool.eta_seconds)


# Tables


class _Part(NamedTuple, Generic[Row]):
    """The rows of a list that are shown, the place of each row of all, and a line about those that are left out."""

    shown: Sequence[Row]
    places: Sequence[Place]
    selected: int | None
    rest: str

    def drawn(self, columns: Sequence[Column], stale: Service | None, width: int, reasons: Sequence[str] = ()) -> Drawn:
        lines = table(columns, width, dim=stale is not None, selected=self.selected)
        rest = [line(self.rest, "dim")] if self.rest else []
        return Drawn(lines + rest, self.places, reasons=list(map(printable, reasons)))


def _listed(rows: Sequence[Row], wanted: str) -> list[Row]:
    """The rows that pass the filter."""
    return [row for row in rows if navigation.matches(row.id, wanted)]


def _cut(
    listed: Sequence[Row], rows: int, trouble: Callable[[Row], int], selected: Place | None, kind: str
) -> _Part[Row]:
    """All rows in their order; or, of those in trouble and then the others, the first up to the selected one."""
    urgent = list(listed) if len(listed) <= rows else sorted(listed, key=lambda row: -trouble(row))
    places = [Place(kind, row.id) for row in urgent]
    at = places.index(selected) if selected in places else None
    if len(listed) <= rows:
        return _Part(urgent, places, at, "")
    room = max(0, rows - 1)
    begin = 0 if at is None else max(0, at - room + 1)
    rest = [*urgent[:begin], *urgent[begin + room :]]
    troubled = sum(trouble(row) > 0 for row in rest)
    text = f"… {len(rest)} more" + (f", {troubled} of them in trouble" if troubled else "")
    return _Part(urgent[begin : begin + room], places, None if at is None else at - begin, text)


def _none(name: str, words: str, stale: Service | None, width: int, rows: int) -> Drawn:
    text = shortened("no answer yet" if stale else words, width)
    return Drawn([heading(name, width), line(text, "dim")][: 1 + rows])
