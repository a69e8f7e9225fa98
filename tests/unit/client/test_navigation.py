"""Keys of the screen: what they select, open, filter and pause; and what the screen then shows."""

from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_client.cli.terminal import keys
from slipway_client.view import pages, screen
from slipway_client.view.navigation import ALERTS, HELP, OVERVIEW, START, Navigation, Place, pressed
from slipway_client.view.pages import Item, Listing, Page
from slipway_client.view.snapshot import EventLine, Snapshot, pages_first
from tests.support import screens

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
LINUX, WIN = Place("pool", "linux"), Place("pool", "win")
ROWS = [LINUX, WIN, Place("config", "linux-a"), Place("lease-pool", "sim-a")]
FIRE = screens.alert(
    dedup_key="provisioner/pool-starved/linux",
    kind="pool-starved",
    subject_id="linux",
    severity="page",
    summary="linux needs 9 workers and gets none",
    command="slipway why linux",
    since=NOW - timedelta(minutes=3),
)
SLOW = screens.alert(
    dedup_key="provisioner/account-throttled/sim-a",
    kind="account-throttled",
    subject_id="sim-a",
    severity="notice",
    summary="sim-a throttles calls",
    since=NOW,
)
WORKERS = [Place("worker", f"w-{n:02d}") for n in range(40)]
PAGE = Page(
    ["Pool linux: max_capacity 60 is reached.", "Remedy: raise it."],
    [
        Listing(
            ("WORKER", "STATE", "REASON"), [Item(place, (place.id, "running", "")) for place in WORKERS], "no workers"
        )
    ],
)


def after(*pressed_keys: str, rows: list[Place] = ROWS, nav: Navigation = START, scroll_max: int = 9) -> Navigation:
    return reduce(lambda now, key: pressed(now, key, rows, scroll_max), pressed_keys, nav)


def snapshot(**fields: Any) -> Snapshot:
    pools = [screens.pool(id=name, mode="enforce") for name in ("linux", "win")]
    usual: dict[str, Any] = {"pools": pools, "configs": [screens.config(id="linux-a", pool_id="linux")]}
    return Snapshot(now=NOW, title="top", lease_pools=[screens.lease_pool(id="sim-a", limit=4)], **usual | fields)


def lines(nav: Navigation, *, page: Page | None = None, width: int = 80, height: int = 24, **fields: Any) -> list[str]:
    return [line.plain.rstrip() for line in pages.draw(snapshot(**fields), nav, page, width, height).lines]


def test_rows_of_all_sections_are_selected_in_order() -> None:
    drawn = pages.draw(snapshot(), START, None, 80, 24)
    assert list(drawn.rows) == ROWS
    assert [after(*["down"] * number).selected for number in (1, 2, 3, 9)] == [ROWS[0], ROWS[1], ROWS[2], ROWS[3]]
    assert after("down", "down", "up").selected == LINUX
    assert after("down", "up").selected is None
    assert (after("end").selected, after("end", "home").selected) == (ROWS[-1], LINUX)


def test_a_row_that_is_gone_is_not_opened() -> None:
    nav = after("down", "down")
    assert pressed(nav, "enter", [LINUX]).place == OVERVIEW
    assert pressed(nav, "down", [LINUX]).selected == LINUX


def test_enter_opens_and_escape_returns_to_the_same_row() -> None:
    opened = after("down", "down", "enter")
    assert (opened.place, opened.selected) == (WIN, None)
    deeper = after("down", "enter", rows=WORKERS, nav=opened)
    assert deeper.place == WORKERS[0]
    assert after("escape", nav=deeper).selected == WORKERS[0]
    assert after("escape", "left", "escape", nav=deeper).frames[-1].selected == WIN


def test_a_place_is_open_once() -> None:
    """From an alert to a pool and back to the alerts, the way does not grow."""
    assert [frame.place for frame in after("a", "?", "a", "?", "?").frames] == [OVERVIEW, ALERTS, HELP]


def test_letters_are_text_while_a_filter_is_typed() -> None:
    nav = after("/", "q", "a", "p", "backspace")
    assert (nav.filter, nav.typing, nav.paused, nav.place) == ("qa", True, False, OVERVIEW)
    assert after("enter", nav=nav).filter == "qa"
    assert after("enter", "escape", nav=nav).filter == ""
    assert after("escape", nav=nav) == START


def test_a_filter_selects_rows_of_every_section() -> None:
    shown = pages.draw(snapshot(), after("/", "L", "I", "N", "enter"), None, 80, 24)
    assert list(shown.rows) == [LINUX, Place("config", "linux-a")]
    text = [line.plain.rstrip() for line in shown.lines]
    assert "no lease pool matches" in text
    assert text[-1].startswith("filter LIN, Esc ends it")


def test_enter_opens_the_first_row_if_none_is_selected() -> None:
    assert after("a", "enter", rows=[Place("alert", FIRE.dedup_key)]).place == Place("alert", FIRE.dedup_key)
    assert after("enter", rows=[]) == START


def test_the_footer_names_no_selected_row_that_the_filter_hides() -> None:
    nav = after("down", "/", "w", "i", "n", "enter")
    assert nav.selected == LINUX
    assert lines(nav)[-1].startswith("filter win, Esc ends it  ↑↓ select")
    assert after("enter", rows=[Place("pool", "win")], nav=nav) == nav


def test_the_footer_of_a_paused_screen_offers_to_resume_it_alone() -> None:
    footer = lines(after("p"))[-1]
    assert "p resumes" in footer
    assert "p pause" not in footer


def test_a_selected_row_is_shown_in_a_list_that_is_cut() -> None:
    configs = [screens.config(id=f"c-{n:02d}", pool_id="linux") for n in range(60)]
    nav = after("end", rows=[Place("config", config.id) for config in configs])
    drawn = pages.draw(snapshot(configs=configs), nav, None, 80, 24)
    shown = [line for line in drawn.lines if line.plain.startswith("c-")]
    assert shown[-1].plain.startswith("c-59")
    assert [line for line in shown if any(span.style == "reverse" for span in line.spans)] == [shown[-1]]
    assert any(line.plain.startswith("… ") for line in drawn.lines)
    assert drawn.lines[-1].plain.startswith("Enter opens launch config c-59")


def test_open_alerts_stand_above_the_sections_and_have_a_page() -> None:
    alerts = pages_first([SLOW, FIRE])
    assert lines(START, alerts=alerts)[2] == "! 2 open alerts, 1 to act on: linux needs 9 workers and gets none"
    listed = lines(after("a"), alerts=alerts)
    assert [line.split()[0] for line in listed[1:5]] == ["alerts", "SEVERITY", "page", "notice"]
    assert listed[3].endswith("linux needs 9 workers and gets none")
    about = lines(after("a", "down", "enter", rows=[Place("alert", FIRE.dedup_key)]), alerts=alerts)
    assert about[2:5] == [
        "page: linux needs 9 workers and gets none.",
        "Since 11:57:00, 3m00s ago.",
        "Remedy: slipway why linux",
    ]
    assert "The alert is resolved." in lines(after("a", "down", "enter", rows=[Place("alert", "other")]), alerts=alerts)


def test_a_page_shows_the_cause_and_scrolls_to_the_selected_row() -> None:
    opened = after("down", "enter")
    assert lines(opened, page=PAGE)[:3] == [
        "slipway  top › linux                                                    12:00:00",
        "pool linux",
        "Pool linux: max_capacity 60 is reached.",
    ]
    last = lines(after("end", rows=WORKERS, nav=opened), page=PAGE)
    assert last[-2].startswith("w-39")
    assert last[-1].startswith("Enter opens worker w-39  Esc back")
    assert lines(opened)[2] == "Reading …"


def test_a_page_without_rows_scrolls_no_further_than_its_end() -> None:
    long = Page([f"sentence {n}" for n in range(60)])
    opened = after("down", "enter")
    drawn = pages.draw(snapshot(), opened, long, 80, 24)
    assert drawn.scroll_max == 60 - 21
    end = after("pagedown", "pagedown", "end", "down", rows=[], nav=opened, scroll_max=drawn.scroll_max)
    assert lines(end, page=long)[-2] == "sentence 59"


def test_the_keys_are_on_a_page() -> None:
    text = "\n".join(lines(after("?")))
    assert all(key in text for key in ("Enter, →", "/: filter", "a: open alerts", "p: pause", "q, Ctrl-C: quit"))


def test_a_pause_is_visible() -> None:
    assert lines(after("p"))[-1].startswith("PAUSED at 12:00:00, p resumes")
    assert "PAUSED" not in lines(after("p", "p"))[-1]


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        (b"\x1b[A\x1bOB\x1b[6~", ["up", "down", "pagedown"]),
        (b"\x1b", ["escape"]),
        (b"a/\r\x7f", ["a", "/", "enter", "backspace"]),
        (b"\x1b[200~\x1b[1;5C\x00", []),
        ("é".encode(), ["é"]),
        (b"\xff", []),
    ],
)
def test_keys_of_a_terminal(sent: bytes, named: list[str]) -> None:
    assert list(keys(sent)) == named


KEYS = st.sampled_from(
    ["up", "down", "pageup", "pagedown", "home", "end", "enter", "right", "left", "escape", "backspace", *"/?apxq"]
)
PLACES = st.sampled_from([OVERVIEW, ALERTS, HELP, *ROWS, Place("alert", FIRE.dedup_key), *WORKERS[:3]])


@given(st.lists(KEYS, max_size=30), st.integers(1, 120), st.integers(1, 60))
def test_any_keys_leave_a_screen_of_the_right_size(typed: list[str], width: int, height: int) -> None:
    """A selected row is one of those that can be selected, or gone; the screen never grows."""
    nav = START
    shown = snapshot(alerts=[FIRE, SLOW], lines=[EventLine(NOW, "something happened")] * 9)
    for key in typed:
        drawn = pages.draw(shown, nav, PAGE, width, height)
        nav = pressed(nav, key, drawn.rows, drawn.scroll_max)
        assert nav.frames[0].place == OVERVIEW
        assert len({frame.place for frame in nav.frames}) == len(nav.frames)
        assert 0 <= nav.frames[-1].scroll <= drawn.scroll_max
    drawn = pages.draw(shown, nav, PAGE, width, height)
    assert len(drawn.lines) <= height
    assert [line.plain for line in drawn.lines if line.cell_len > width] == []


def test_the_footer_keeps_the_selection_on_a_narrow_screen() -> None:
    nav = after("down")
    assert lines(nav, width=screen.WIDTH_MIN)[-1] == "Enter opens pool linux  p pause  ? keys  q quit"
