"""Pages of the screen besides the overview: one pool, config, worker or lease, the open alerts, and the keys. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from rich.cells import cell_len
from rich.text import Text

from slipway_api.http.service import ListedAlert
from slipway_client.view import moments, screen
from slipway_client.view.navigation import ALERTS, HELP, OVERVIEW, Navigation, Place, matches
from slipway_client.view.screen import Drawn
from slipway_client.view.snapshot import Snapshot
from slipway_client.view.table import Cell, Column, heading, line, reasons, shortened, span, table, wrapped
from slipway_common.base.sanitize import printable

KEYS: Final = {
    "↑ ↓, Page Up, Page Down, Home, End": "select a row, or scroll",
    "Enter, →": "open the selected pool, launch config, lease pool, worker, lease or alert",
    "Esc, ←": "back",
    "/": "filter the rows by a part of their ids; Enter keeps the filter, Esc ends it",
    "a": "open alerts of all services, pages first",
    "p": "pause the screen, to read or copy it; the deployment goes on",
    "?": "this page",
    "q, Ctrl-C": "quit",
}
DROPPED: Final = 9  # `drop` of the column that is left out first
NAMES: Final = {"config": "launch config", "lease-pool": "lease pool"}
LABELS: Final = {  # of the fields of an alert, in their order
    "effect": "Effect",
    "doing": "Slipway",
    "command": "Remedy",
    "cause": "Cause",
}


class Item(msgspec.Struct, frozen=True):
    """A row of a page: what Enter opens, and its cells."""

    place: Place
    cells: Sequence[str]


class Listing(msgspec.Struct, frozen=True):
    """A table of a page, whose last column is a sentence. Columns of `drop` are left out first where it is narrow."""

    titles: Sequence[str]
    items: Sequence[Item]
    nothing: str
    drop: Sequence[str] = ()


class Page(msgspec.Struct, frozen=True):
    """The sentences about one thing, and the tables of what belongs to it."""

    sentences: Sequence[str] = ()
    listings: Sequence[Listing] = ()


def draw(snapshot: Snapshot, nav: Navigation, page: Page | None, width: int, height: int) -> Drawn:
    """The screen of a place, with a line about keys. `page` is that of a place that services explain; None while it is
    read."""
    if width < screen.WIDTH_MIN or height <= screen.HEIGHT_MIN:  # the last line is for keys
        return screen.overview(snapshot, nav, width, height)
    if nav.place == OVERVIEW:
        drawn = screen.overview(snapshot, nav, width, height - 1)
    else:
        drawn = _page(snapshot, nav, _content(snapshot, nav.place, page), width, height - 1)
    blank = [line("")] * (height - 1 - len(drawn.lines))
    opens = nav.selected if nav.selected in drawn.rows else None
    return drawn._replace(lines=[*drawn.lines, *blank, _footer(snapshot, nav, opens, width)])


def name(place: Place) -> str:
    """A place in words."""
    return f"{NAMES.get(place.kind, place.kind)} {place.id}".strip()


def _content(snapshot: Snapshot, place: Place, page: Page | None) -> Page:
    if place == HELP:
        return Page([f"{keys}: {what}." for keys, what in KEYS.items()])
    if place == ALERTS:
        titles = ("SEVERITY", "FOR", "ALERT", "SUBJECT", "SUMMARY")
        rows = [
            Item(
                Place("alert", alert.dedup_key),
                (alert.severity, _age(alert, snapshot), alert.kind, alert.subject_id, alert.summary),
            )
            for alert in snapshot.alerts
        ]
        return Page((), [Listing(titles, rows, "no open alerts", drop=("SUBJECT", "ALERT"))])
    if place.kind == "alert":
        found = next((alert for alert in snapshot.alerts if alert.dedup_key == place.id), None)
        return Page(["The alert is resolved."] if found is None else list(_about(found, snapshot)))
    return page or Page(["Reading …"])


def _about(alert: ListedAlert, snapshot: Snapshot) -> Iterator[str]:
    yield f"{alert.severity}: {alert.summary or alert.kind}."
    yield f"Since {moments.clock(alert.since, snapshot.now)}, {_age(alert, snapshot)} ago."
    for field, label in LABELS.items():
        if text := getattr(alert, field):
            yield f"{label}: {text}"
    if alert.silenced_until and alert.silenced_until > snapshot.now:
        yield f"Silenced until {moments.clock(alert.silenced_until, snapshot.now)}."
    yield from (f"  {text}" for text in alert.evidence)
    yield f"Key: {alert.dedup_key}"


def _age(alert: ListedAlert, snapshot: Snapshot) -> str:
    return span((snapshot.now - alert.since).total_seconds())


def _page(snapshot: Snapshot, nav: Navigation, page: Page, width: int, height: int) -> Drawn:
    """The part of a page that shows the selected row, or what is not scrolled away."""
    way = [frame.place.id or frame.place.kind for frame in nav.frames[1:]]
    top = [screen.title(snapshot, width, *way), heading(printable(name(nav.place)), width)]
    lines = [line(part) for text in page.sentences for part in wrapped(printable(text), width, indent=_indent(text))]
    rows: list[Place] = []
    at = None
    for listing in page.listings:
        items = [item for item in listing.items if matches(" ".join(item.cells), nav.filter)]
        selected = next((n for n, item in enumerate(items) if item.place == nav.selected), None)
        lines += [line("")] if lines else []
        at = at if selected is None else len(lines) + 1 + selected
        rows += [item.place for item in items]
        lines += _listing(listing, items, selected, width)
    room = height - len(top)
    scroll_max = max(0, len(lines) - room)
    begin = min(nav.frames[-1].scroll, scroll_max) if at is None else max(0, at - room + 1)
    return Drawn(top + lines[begin : begin + room], rows, scroll_max)


def _indent(sentence: str) -> str:
    """Indentation of what continues a sentence, deeper below a detail."""
    return "    " if sentence.startswith((" ", "→")) else "  "


def _listing(listing: Listing, items: Sequence[Item], selected: int | None, width: int) -> list[Text]:
    if not items:
        return [line("no row matches" if listing.items else listing.nothing, "dim")]
    *heads, last = listing.titles
    ranks = dict.fromkeys(heads[1:], 1) | {head: DROPPED - n for n, head in enumerate(listing.drop)}
    columns = [
        Column(head, [Cell(printable(item.cells[n])) for item in items], drop=ranks.get(head, 0))
        for n, head in enumerate(heads)
    ]
    sentences = reasons([item.cells[-1] for item in items], last, drop=0, most=width)
    return table([*columns, sentences], width, selected=selected)


def _footer(snapshot: Snapshot, nav: Navigation, opens: Place | None, width: int) -> Text:
    """The keys that matter now, and what they have changed. `opens` is the selected row, if it is shown."""
    if nav.typing:
        return line(printable(f"filter: {nav.filter}_   Enter keeps it, Esc ends it")[:width], "bold")
    parts = [f"PAUSED at {snapshot.now:%H:%M:%S}, p resumes"] if nav.paused else []
    parts += [f"filter {nav.filter}, Esc ends it"] if nav.filter and len(nav.frames) == 1 else []
    parts += [f"Enter opens {name(opens)}"] if opens else ["↑↓ select"]
    parts += ["Esc back"] if len(nav.frames) > 1 else []
    keys = ["/ filter", "a alerts", *([] if nav.paused else ["p pause"]), "? keys", "q quit"]
    text = "  ".join(parts + keys)
    while keys and cell_len(text) > width:
        keys.pop(0)
        text = "  ".join(parts + keys)
    return line(shortened(printable(text), width), "bold" if parts[:-1] else "dim")
