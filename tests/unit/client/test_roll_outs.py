"""Roll-outs and drains in views: what launches, what is narrated, and what a screen shows of it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_client.view import narration, screen
from slipway_client.view.navigation import START
from slipway_client.view.phrases import drain, is_overdue, progress
from slipway_client.view.snapshot import Config, EventLine, Snapshot, label, labels, shares
from slipway_common.base.revisions import hash_of, name_of
from tests.support import recorded, screens
from tests.support.pool_events import rolled_back

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)
OLD = screens.config(id="a@3f2c9a", pool_id="linux", weight=0.9)
NEW = screens.config(id="a@8b1d00", pool_id="linux", weight=0.9, proven=False, succeeded_starts=2, needed_starts=5)
FALLBACK = msgspec.structs.replace(OLD, current=False, replaced_by="natural")
DRAINING = msgspec.structs.replace(
    OLD,
    current=False,
    state="draining",
    state_reason="replaced by a@8b1d00",
    live=3,
    drain_until=NOW + timedelta(hours=1),
)

PROVEN = msgspec.structs.replace(NEW, proven=True, succeeded_starts=5)
TRIPPED = msgspec.structs.replace(NEW, health_state="tripped", reason="a@8b1d00 tripped: 3 boot errors")


def seen(*configs: Config, at: datetime = NOW) -> Snapshot:
    pool = screens.pool(id="linux", mode="enforce", pending=3)
    return Snapshot(now=at, title="", pools=[pool], configs=configs)


def narrated(before: list[Config], after: list[Config], at: datetime = LATER) -> list[tuple[str, str]]:
    return [(line.text, line.mood) for line in narration.differences(seen(*before), seen(*after, at=at))]


STEPS: list[tuple[str, list[Config], list[Config], list[tuple[str, str]]]] = [
    (
        "begins",
        [OLD],
        [NEW, FALLBACK],
        [("a@8b1d00 rolls out; 3f2c9a is its fallback until 5 starts of it succeeded", "")],
    ),
    (
        "now",
        [OLD],
        [NEW, DRAINING],
        [
            ("a@8b1d00 replaces 3f2c9a", ""),
            ("a@3f2c9a drains: replaced by a@8b1d00 (3 workers left, until 13:00:00)", ""),
        ],
    ),
    (
        "proven",
        [NEW, FALLBACK],
        [PROVEN, DRAINING],
        [
            ("a@8b1d00 is proven", "good"),
            ("a@3f2c9a drains: replaced by a@8b1d00 (3 workers left, until 13:00:00)", ""),
        ],
    ),
    (
        "gone bad",
        [PROVEN, DRAINING],
        [NEW, FALLBACK],
        [("a@3f2c9a is the fallback again: 8b1d00 has gone bad", "bad")],
    ),
    ("drained", [PROVEN, DRAINING], [PROVEN], [("a@3f2c9a drained and archived", "good")]),
    (
        "rolled back",
        [NEW, FALLBACK],
        [
            OLD,
            msgspec.structs.replace(NEW, current=False, state="draining", state_reason="rolled back"),
        ],
        [("a@3f2c9a is current again", ""), ("a@8b1d00 drains: rolled back (no workers left)", "")],
    ),
    ("first revision of a name is proven", [NEW], [PROVEN], []),
    ("nothing new", [NEW, FALLBACK], [NEW, FALLBACK], []),
    ("first answer", [], [NEW, FALLBACK, msgspec.structs.replace(DRAINING, id="a@000000")], []),
    ("a new name", [OLD], [OLD, msgspec.structs.replace(NEW, id="b@111111", name="b", revision="111111")], []),
]


@pytest.mark.parametrize(("before", "after", "lines"), [step[1:] for step in STEPS], ids=[step[0] for step in STEPS])
def test_steps_are_narrated_once(before: list[Config], after: list[Config], lines: list[tuple[str, str]]) -> None:
    assert narrated(before, after) == lines
    assert narrated(after, after) == []


@pytest.mark.parametrize(("terminate", "end"), [(True, "they are terminated"), (False, "they may finish their tasks")])
def test_a_deadline_that_passes_is_narrated(terminate: bool, end: str) -> None:
    over = msgspec.structs.replace(DRAINING, drain_until=LATER, drain_terminate=terminate)
    before, after = [PROVEN, over], [PROVEN, over]
    text = f"a@3f2c9a: drain deadline passed with 3 workers left; {end}"
    assert narrated(before, after, at=LATER) == [(text, "bad")]
    without = msgspec.structs.replace(over, live=0)
    assert narrated([PROVEN, without], [PROVEN, without], at=LATER) == []


def test_many_revisions_of_a_pool_share_a_line() -> None:
    """A new image of 60 launch configs is one line on the screen, not 60."""
    olds = [screens.config(id=f"c-{n:02d}@1", pool_id="linux") for n in range(60)]
    news = [screens.config(id=f"c-{n:02d}@2", pool_id="linux", proven=False, needed_starts=5) for n in range(60)]
    after = [*news, *(msgspec.structs.replace(old, current=False) for old in olds)]
    assert narrated(olds, after) == [
        (
            "pool linux: 60 new revisions roll out, the old ones are their fallbacks "
            "(c-00@2, c-01@2, c-02@2 and 57 more)",
            "",
        )
    ]


def test_a_rollback_is_narrated_from_its_event() -> None:
    assert narration.rolled_back(rolled_back(), NOW) == EventLine(
        NOW, "pool linux rolled back by me to entry 7 of its history: it does not boot"
    )


def test_the_pause_of_a_name_is_one_line() -> None:
    both = [msgspec.structs.replace(row, state="paused", state_reason="rack") for row in (NEW, FALLBACK)]
    assert narrated([NEW, FALLBACK], both) == [("a paused: rack", "")]
    assert narrated(both, [NEW, FALLBACK]) == [("a active again", "good")]


def test_a_config_is_called_by_its_revision_where_there_are_several() -> None:
    b = screens.config(id="b@3f2c9a", pool_id="linux")
    assert labels([NEW, FALLBACK, b]) == {NEW.id: NEW.id, FALLBACK.id: FALLBACK.id, b.id: "b"}
    assert (label("a@0", [NEW, b]), label("b@3f2c9a", [NEW, b]), label("c@1", [])) == ("a@0", "b", "c")


# Shares


def test_a_fallback_gets_what_the_new_revisions_leave_over() -> None:
    """Nothing while any of them launches, everything while none does."""
    other = screens.config(id="b@1", pool_id="linux", weight=0.9)
    assert shares([NEW, FALLBACK, other]) == {NEW.id: 0.5, FALLBACK.id: 0.0, other.id: 0.5}
    assert shares([TRIPPED, FALLBACK]) == {TRIPPED.id: 0.0, FALLBACK.id: 1.0}


def test_a_rolling_roll_out_shares_the_launches_of_its_name() -> None:
    new = msgspec.structs.replace(NEW, share=0.25)
    old = msgspec.structs.replace(FALLBACK, replaced_by="rolling", share=0.75)
    assert shares([new, old]) == {new.id: 0.25, old.id: 0.75}


CONFIGS = st.builds(
    screens.config,
    id=st.sampled_from(["a@1", "a@2", "b@1", "b@2"]),
    pool_id=st.just("linux"),
    state=st.sampled_from(["active", "paused", "draining", "archived"]),
    health_state=st.sampled_from(["healthy", "tripped", "probing"]),
    current=st.booleans(),
    replaced_by=st.sampled_from(["", "natural", "rolling", "now"]),
    proven=st.booleans(),
    weight=st.floats(0, 1),
    share=st.floats(0, 1),
    live=st.integers(0, 9),
    drain_until=st.none() | st.just(NOW),
)


@given(st.lists(CONFIGS, max_size=4, unique_by=lambda config: config.id))
def test_only_active_healthy_revisions_are_shown_as_launching(configs: list[Config]) -> None:
    """A draining or archived one never has a share, and is never called healthy."""
    share = shares(configs)
    for config in configs:
        if config.state != "active" or config.health_state != "healthy":
            assert share[config.id] == 0
            assert config.shown_state not in ("healthy", "fallback")
    assert sum(share.values()) == pytest.approx(1.0) or sum(share.values()) == 0


# Screen


def rows(*configs: Config) -> dict[str, str]:
    lines = [line.plain.rstrip() for line in screen.overview(seen(*configs), START, 180, 24).lines]
    return {line.split()[0]: line for line in lines if line}


def test_both_revisions_are_on_the_screen() -> None:
    shown = rows(NEW, FALLBACK)
    assert "● healthy" in shown["a@8b1d00"]
    assert "2 of 5 starts succeeded" in shown["a@8b1d00"]
    assert "◇ fallback  launches what the new revision does not" in shown["a@3f2c9a"]


def test_a_drain_is_on_the_screen() -> None:
    shown = rows(PROVEN, DRAINING)
    assert "▽ draining  3 workers left, until 13:00:00; replaced by a@8b1d00" in shown["a@3f2c9a"]
    over = msgspec.structs.replace(DRAINING, drain_until=NOW)
    assert "▽ draining  3 workers left, 0 s over the deadline" in rows(PROVEN, over)["a@3f2c9a"]


def test_a_revision_that_is_alone_has_no_hash_on_the_screen() -> None:
    shown = rows(NEW)
    assert "a" in shown
    assert "starts succeeded" not in shown["a"]


def test_a_tripped_new_revision_degrades_its_pool() -> None:
    """The launch config itself still launches, from its fallback."""
    assert "◐ degraded" in rows(TRIPPED, FALLBACK)["linux"]
    assert "1 new revision tripped" in rows(TRIPPED, FALLBACK)["linux"]
    assert "1 of 1 config tripped" in rows(TRIPPED)["linux"]
    bad = msgspec.structs.replace(FALLBACK, health_state="tripped")
    assert "✗ tripped" in rows(TRIPPED, bad)["linux"]


def test_a_pool_in_a_line_names_its_revisions() -> None:
    pool = screens.pool(id="linux")
    assert narration.status(pool, [NEW, FALLBACK], None).endswith(" a@8b1d00 100% a@3f2c9a fallback")
    assert narration.status(pool, [PROVEN, DRAINING], None).endswith(" a@8b1d00 100% a@3f2c9a draining")


# Phrases


def row(**fields: Any) -> LaunchConfig:
    usual = {"id": "a@3f2c9a", "state": "active", "current": True, "proven": True, "live": 0}
    return recorded.row(LaunchConfig, usual, **fields)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (row(), ""),
        (row(proven=False, succeeded_starts=2, needed_starts=5), "2 of 5 starts succeeded"),
        (row(proven=False, succeeded_starts=0, needed_starts=1), "0 of 1 start succeeded"),
        (row(current=False, replaced_by="natural"), "fallback: launches what the new revision does not"),
        (row(current=False, replaced_by="rolling"), "fallback: shares the launches of the new revision"),
        (row(state="draining", current=False, live=1), "1 worker left"),
        (row(state="paused", proven=False), ""),
        (row(state="archived", current=False), ""),
    ],
)
def test_progress(config: LaunchConfig, text: str) -> None:
    assert progress(config, NOW) == text


@pytest.mark.parametrize(
    ("seconds", "live", "terminate", "text", "overdue"),
    [
        (3600, 3, False, "3 workers left, until 13:00:00", False),
        (3600, 3, True, "3 workers left, until 13:00:00, then terminated", False),
        (0, 3, False, "3 workers left, 0 s over the deadline", True),
        (-90, 1, False, "1 worker left, 1 min 30 s over the deadline", True),
        (-90, 1, True, "1 worker left, 1 min 30 s over the deadline, being terminated", True),
        (-90, 0, False, "no workers left", False),
    ],
)
def test_drain(seconds: float, live: int, terminate: bool, text: str, overdue: bool) -> None:
    until = (NOW + timedelta(seconds=seconds)).isoformat()
    config = row(state="draining", live=live, drain_until=until, drain_terminate=terminate)
    assert (drain(config, NOW), is_overdue(config, NOW)) == (text, overdue)


def test_a_name_may_contain_slashes() -> None:
    assert (name_of("gecko-t/t-linux-large@3f2c9a"), hash_of("gecko-t/t-linux-large@3f2c9a")) == (
        "gecko-t/t-linux-large",
        "3f2c9a",
    )
    assert (name_of("a"), hash_of("a")) == ("a", "")
