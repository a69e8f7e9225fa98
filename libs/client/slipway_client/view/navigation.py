"""Navigation of the screen: the place that is shown, its selected row, the filter, the pause. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

STEPS: Final = {"up": -1, "down": 1, "pageup": -10, "pagedown": 10}
BACK: Final = frozenset({"escape", "left", "backspace"})
FILTER_CHARACTERS_MAX: Final = 60


class Place(msgspec.Struct, frozen=True):
    """A screen: the overview, the open alerts, the keys, or one pool, config, worker, lease-pool, lease or alert."""

    kind: str
    id: str = ""


OVERVIEW: Final = Place("overview")
ALERTS: Final = Place("alerts")
HELP: Final = Place("help")
OPENED_BY: Final = {"a": ALERTS, "?": HELP}


class Frame(msgspec.Struct, frozen=True):
    """A place with its selected row and the number of lines that are scrolled away."""

    place: Place
    selected: Place | None = None
    scroll: int = 0


class Navigation(msgspec.Struct, frozen=True):
    """All that keys have changed: places from the overview to the one that is shown; `typing` the filter."""

    frames: tuple[Frame, ...] = (Frame(OVERVIEW),)
    filter: str = ""
    typing: bool = False
    paused: bool = False

    @property
    def place(self) -> Place:
        return self.frames[-1].place

    @property
    def selected(self) -> Place | None:
        return self.frames[-1].selected


START: Final = Navigation()


def pressed(nav: Navigation, key: str, rows: Sequence[Place], scroll_max: int = 0) -> Navigation:
    """Navigation after a key: a character, or the name of a special key. `rows` are those that can be selected, in
    order; a place without any scrolls, by at most `scroll_max` lines. Enter opens the first one if none is selected."""
    if nav.typing:
        return _typed(nav, key)
    if key in STEPS or key in ("home", "end"):
        return _moved(nav, key, rows, scroll_max)
    if key in ("enter", "right"):
        chosen = nav.selected or next(iter(rows), None)
        return _opened(nav, chosen) if chosen in rows else nav
    if key in BACK:
        return replace(nav, frames=nav.frames[:-1]) if len(nav.frames) > 1 else replace(nav, filter="")
    if key == "/":
        return replace(nav, typing=True)
    if key == "p":
        return replace(nav, paused=not nav.paused)
    return _opened(nav, OPENED_BY.get(key))


def matches(text: str, wanted: str) -> bool:
    """True if a row with this text passes the filter."""
    return wanted.casefold() in text.casefold()


def _typed(nav: Navigation, key: str) -> Navigation:
    if key == "enter":
        return replace(nav, typing=False)
    if key == "escape":
        return replace(nav, typing=False, filter="")
    if key == "backspace":
        return replace(nav, filter=nav.filter[:-1])
    if len(key) == 1 and len(nav.filter) < FILTER_CHARACTERS_MAX:
        return replace(nav, filter=nav.filter + key)
    return nav


def _moved(nav: Navigation, key: str, rows: Sequence[Place], scroll_max: int) -> Navigation:
    frame = nav.frames[-1]
    if not rows:
        steps = {"home": -scroll_max, "end": scroll_max} | STEPS
        scroll = max(0, min(scroll_max, frame.scroll + steps[key]))
        return _in_frame(nav, replace(frame, scroll=scroll))
    if frame.selected not in rows:
        chosen = rows[-1] if key == "end" else rows[0]
    elif key == "up" and frame.selected == rows[0]:
        return _in_frame(nav, replace(frame, selected=None))  # what stands above the first row is shown again
    else:
        steps = {"home": -len(rows), "end": len(rows)} | STEPS
        at = rows.index(frame.selected) + steps[key]
        chosen = rows[max(0, min(len(rows) - 1, at))]
    return _in_frame(nav, replace(frame, selected=chosen))


def _in_frame(nav: Navigation, frame: Frame) -> Navigation:
    return replace(nav, frames=(*nav.frames[:-1], frame))


def _opened(nav: Navigation, place: Place | None) -> Navigation:
    """A place on top of the others; one that is open already ends those that were opened from it."""
    if place is None or place == nav.place:
        return nav
    before = [frame.place for frame in nav.frames]
    frames = nav.frames[: before.index(place)] if place in before else nav.frames
    return replace(nav, frames=(*frames, Frame(place)))
