"""The screen fits the terminal, cuts no number and no id, and repeats in words what it shows in colours."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from slipway_api.http.provisioner.launch_configs import StageLevel
from slipway_client.view import screen, table
from slipway_client.view.navigation import START
from slipway_client.view.snapshot import Config, Demo, EventLine, Service, Snapshot
from tests.support import screens
from tests.tools.screen_shot import problems

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
STAGES = {
    "launch": StageLevel(in_flight=3, unfolded=0, window=64),
    "boot": StageLevel(in_flight=9, unfolded=2, window=32),
}
LINUX = screens.pool(
    id="linux", mode="enforce", pending=112, claimed=84, serving=96, max_capacity=100, needed=4, backlog_seconds=75
)
SIZES = [(80, 24), (200, 50)]


def config(name: str, **fields: Any) -> Config:
    usual: dict[str, Any] = {
        "pool_id": "linux",
        "weight": 0.9,
        "stages": STAGES,
        "launched": 350,
        "booted": 341,
        "failed": 2,
    }
    return screens.config(id=name, **usual | fields)


def tripped(name: str, **fields: Any) -> Config:
    at = NOW + timedelta(seconds=12)
    reason = f"{name} tripped: 2 capacity errors (InsufficientCapacity); 3 failed probes"
    return config(name, health_state="tripped", weight=0.02, next_probe_at=at, reason=reason, **fields)


def snapshot(**fields: Any) -> Snapshot:
    lines = [EventLine(NOW, "linux-zone-b tripped: 2 capacity errors; next probe in 12 s", "bad")]
    lease_pools = [screens.lease_pool(id="sim-a", limit=45, held=45, waiting=12, granted_per_minute=26, eta_seconds=40)]
    configs = [config("linux-zone-a"), tripped("linux-zone-b")]
    usual: dict[str, Any] = {"pools": [LINUX], "configs": configs, "lease_pools": lease_pools, "lines": lines}
    return Snapshot(now=NOW, title="top", **usual | fields)


def drawn(shown: Snapshot, width: int, height: int) -> list[str]:
    """Lines as a console prints them, without trailing spaces."""
    console = Console(width=width, height=height, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(screen.render(shown, width, height), end="")
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_every_section_is_shown(width: int, height: int) -> None:
    """The same checks as of captured screens: sections, alignment, words, bars."""
    assert problems(drawn(snapshot(), width, height), width, height) == []


@pytest.mark.parametrize(
    ("width", "old", "new", "problem"),
    [
        (80, "LEASE POOL", "LEASES", "sections that are missing or there twice: LEASE POOL"),
        (200, "    112  ", "   112   ", "POOL: not aligned under PENDING"),
        (80, "✗ tripped", "✗        ", "no state in words"),
        (80, "14/32 boot", "14/32 b   ", "no window"),
        (200, "█", " ", "no bar of shares"),
        (80, "  12s", "    1\n2s", "CONFIG: not aligned under NEXT PROBE"),
        (80, "12:00:00 ! linux", "linux", "no event"),
        (80, "linux-zone-b tripped: ", "linux-zone-b ", "no config says that it is tripped"),
        (80, "1 of 2 configs tripped", "nothing to be seen    ", "no pool says that a config is tripped"),
        (80, " 12:00:00\n", "  12:00:00\n", "wider than 80"),
    ],
)
def test_a_wrong_screen_is_detected(width: int, old: str, new: str, problem: str) -> None:
    text = "\n".join(drawn(snapshot(), width, 24))
    assert old in text
    found = problems(text.replace(old, new).splitlines(), width, 24)
    assert [line for line in found if line.startswith(problem)], found


def test_80_columns() -> None:
    assert drawn(snapshot(services=[Service(name="provisioner")]), 80, 24) == [
        "slipway  top                                                            12:00:00",
        "✓ provisioner",
        "POOL   STATE       REASON                   PEND  CLAIM  SERV/MAX  BACKLOG  NEED",
        "linux  ◐ degraded  1 of 2 configs tripped…   112     84    96/100    1m15s     4",
        "  1 of 2 configs tripped; 2 capacity errors",
        "CONFIG        STATE      REASON                              PROBE        WINDOW",
        "linux-zone-a  ● healthy                                          -  14/32 boot",
        "linux-zone-b  ✗ tripped  2 capacity errors; 3 failed probes    12s  14/32 boot",
        "LEASE POOL  STATE        HELD  0-100%      WAITING  STARTS/MIN  ETA  OLDEST WAIT",
        "sim-a       ▲ queueing  45/45  ██████████       12          26  40s            -",
        "EVENTS",
        "12:00:00 ! linux-zone-b tripped: 2 capacity errors; next probe in 12 s",
    ]


def test_200_columns() -> None:
    """The reason stands before the bar, and all bars of a table have one scale."""
    shown = snapshot(configs=[config("zone-a", weight=0.75), config("zone-b", weight=0.25), tripped("zone-c")])
    heading, *rows = drawn(shown, 200, 24)[4:8]
    assert heading.split()[:8] == ["CONFIG", "STATE", "REASON", "NEXT", "PROBE", "WEIGHT", "SHARE", "0-100%"]
    assert [row.count("█") for row in rows] == [18, 6, 0]
    assert "tripped  2 capacity errors; 3 failed probes" in rows[2]


def test_a_pool_shows_the_trouble_of_its_configs() -> None:
    def row(**fields: Any) -> str:
        return next(line for line in drawn(snapshot(**fields), 80, 24) if line.startswith("linux "))

    assert row().startswith("linux  ◐ degraded  1 of 2 configs tripped")
    assert row(configs=[tripped("a")]).startswith("linux  ✗ tripped  2 capacity errors…")
    assert row(configs=[config("a")]).startswith("linux  ● enforce")
    stop = screens.launch_stop(scope="account", scope_id="sim-a", reason="bill")
    configs = [config("a", account_id="sim-a")]
    assert row(configs=configs, launch_stops=[stop]).startswith("linux ■ stopped launch stop in account sim-a: bill")
    assert row(configs=[*configs, config("b", account_id="sim-b")], launch_stops=[stop]).startswith("linux  ● enforce")
    full = screens.pool(id="linux", mode="enforce", pending=9, serving=60, max_capacity=60)
    assert row(pools=[full], configs=configs).startswith("linux  ● enforce  at max capacity 60")
    assert row(pools=[full]).startswith("linux  ◐ degraded  at max capacity 60…")
    leaving = screens.pool(id="linux", mode="enforce", pending=9, serving=50, leaving=10, max_capacity=60)
    assert row(pools=[leaving], configs=configs).startswith("linux  ● enforce  at max capacity 60…")
    throttled = screens.pool(id="linux", mode="enforce", pending=9, throttled=["sim-a"])
    assert row(pools=[throttled], configs=configs).startswith("linux  ● enforce  sim-a throttles calls")
    unsure = screens.pool(id="linux", mode="enforce", pending=9, stale_sources=1)
    assert row(pools=[unsure], configs=configs).startswith("linux  ● enforce  1 stale source of demand")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_nothing_declared_yet(width: int, height: int) -> None:
    lines = drawn(snapshot(pools=[], configs=[], lease_pools=[], lines=[]), width, height)
    assert [line for line in lines if line.startswith("no ")] == [
        "no worker pools: `slipway apply FILE` declares them",
        "no launch configs",
        "no lease pools",
    ]


@pytest.mark.parametrize(("height", "left"), [(24, 51), (50, 36)])
def test_a_list_is_cut_with_trouble_first(height: int, left: int) -> None:
    """Of 60 configs the tripped one is the 58th: it is shown first, and the others are counted."""
    configs = [config(f"c-{n:02d}") for n in range(60)]
    configs[57] = tripped("c-57")
    lines = drawn(snapshot(configs=configs), 80, height)
    (heading,) = [n for n, line in enumerate(lines) if line.startswith("CONFIG")]
    assert [line.split()[0] for line in lines[heading + 1 : heading + 4]] == ["c-57", "c-00", "c-01"]
    assert f"… {left} more" in lines
    assert sum(line.startswith("c-") for line in lines) == 60 - left
    assert len(lines) <= height


def test_trouble_that_is_cut_is_counted() -> None:
    lines = drawn(snapshot(configs=[tripped(f"c-{n}") for n in range(40)]), 80, 24)
    (more,) = [line for line in lines if line.startswith("…")]
    assert re.fullmatch(r"… (\d+) more, \1 of them in trouble", more)


def test_data_of_an_unavailable_service_are_marked_old() -> None:
    missing = Service(name="lease-broker", unavailable_seconds=75, problem="no answer within 5 s")
    lines = drawn(snapshot(services=[Service(name="provisioner"), missing]), 80, 24)
    assert lines[1] == "✗ lease-broker unavailable 1m15s  ✓ provisioner"
    assert [line.split("  ")[0] for line in lines if "LEASE POOL" in line] == ["LEASE POOL 1m15s old"]


def test_unavailable_services_are_named_first() -> None:
    """Three outages fit into 80 columns, and no number is cut."""
    names = ("provisioner", "weight-calculator", "lease-broker", "kafka")

    def second_line(missing: int, seconds: float) -> str:
        services = [
            Service(name=name, unavailable_seconds=seconds if n < missing else None, problem="no answer")
            for n, name in enumerate(names)
        ]
        return drawn(snapshot(services=services), 80, 24)[1]

    assert second_line(0, 0) == "✓ provisioner  ✓ weight-calculator  ✓ lease-broker  ✓ kafka"
    assert second_line(2, 7) == "✗ provisioner unavailable 7s  ✗ weight-calculator unavailable 7s  ✓ 2 others up"
    assert second_line(3, 75).endswith("✗ lease-broker 1m15s  ✓ 1 other…")
    assert second_line(4, 75) == "✗ provisioner 1m15s  ✗ weight-calculator 1m15s  ✗ lease-broker 1m15s  ✗ kafka…"


def test_launch_stops_are_shown_above_their_effects() -> None:
    launch_stops = [
        screens.launch_stop(scope="account", scope_id="sim-a", reason="bill"),
        screens.launch_stop(scope="all", reason="drill"),
    ]
    third = str(
        screen.overview(Snapshot(now=NOW, title="top", pools=[LINUX], launch_stops=launch_stops), START, 80, 24).lines[
            2
        ]
    )
    assert third == "■ launching is stopped in account sim-a: bill; everywhere: drill"


def test_a_demo_has_one_clock() -> None:
    """All times of a demo are in real time, like those of `slipway top` and of alerts."""
    demo = Demo(started_at=NOW - timedelta(seconds=30), speed=20, seed=7, seconds=180)
    lines, plain = drawn(snapshot(demo=demo), 80, 24), drawn(snapshot(), 80, 24)
    assert lines[0].startswith("slipway  top  30s of 3m00s  SEED=7 SPEED=20")
    assert lines[1:] == plain[1:]


def test_a_reason_that_has_no_room_in_its_row_stands_below() -> None:
    """Of long names the reason, with its numbers, is whole at 80 columns, while the events keep three lines."""
    name = "gecko-t-linux-kvm-2204-wayland"
    full = screens.pool(id=name, mode="enforce", pending=9, serving=1200, max_capacity=1200)
    lines = drawn(snapshot(pools=[full], configs=[tripped(f"{name}-eu-central-1a", pool_id=name)]), 80, 24)
    assert lines[3].split() == f"{name} ✗ tripped at max capacity 1200… 9 1200/1200".split()
    assert lines[4] == "  at max capacity 1200; 2 capacity errors; 1 of 1 config tripped"
    assert lines[7] == "  2 capacity errors; 3 failed probes"
    low = drawn(snapshot(pools=[full] * 3, lines=[EventLine(NOW, "happened")] * 9), 80, 16)
    assert [line for line in low if line.startswith("  ")] == []
    assert sum("happened" in line for line in low) >= 3


@pytest.mark.parametrize("width", [80, 100, 200])
def test_ids_are_never_cut(width: int) -> None:
    """Columns go first. Wide characters keep their columns."""
    names = ["windows-server-2022-datacenter-large-eu-central-1a", "日本語のランナー設定その一"]
    lines = drawn(snapshot(configs=[tripped(name) for name in names]), width, 24)
    rows = [line for line in lines if line.startswith(tuple(names))]
    assert [row.partition("✗")[0].strip() for row in rows] == names
    assert len({cell_len(row.partition("✗")[0]) for row in rows}) == 1
    assert all(cell_len(row) <= width for row in rows)


def test_foreign_names_are_printable() -> None:
    """Escapes, line ends and marks of direction of others never reach the terminal."""
    lines = drawn(snapshot(configs=[config("a\x1b[31mb\n\u202ec")], lines=[EventLine(NOW, "x\ry\x9bz")]), 80, 24)
    assert [line for line in lines if not line.isprintable()] == []
    assert lines[5].startswith("a�[31mb��c ● healthy")
    assert lines[-1] == "12:00:00 · x�y�z"


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [
        ("next probe 120 s", 16, "next probe 120 s"),
        ("next probe 120 s", 14, "next probe…"),
        ("limit 45 → 1234", 14, "limit 45 →…"),
        ("1234567", 5, "…"),
        ("", 0, ""),
        ("日本語", 4, "日…"),
    ],
)
def test_no_number_loses_digits(text: str, width: int, short: str) -> None:
    assert table.shortened(text, width) == short


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "-"), (0, "0"), (99_999, "99999"), (123_456, "123k"), (1_234_567, "1.23M"), (5 * 10**11, "500G")],
)
def test_counts_keep_to_five_columns(number: int | None, text: str) -> None:
    assert table.count(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (-3, "0s"), (59.4, "59s"), (59.6, "1m00s"), (3599, "59m59s"), (7265, "2h01m"), (10**6, "11d13h")],
)
def test_durations_keep_to_six_columns(seconds: float | None, text: str) -> None:
    assert table.span(seconds) == text


def test_shares_above_zero_are_visible() -> None:
    assert table.bar(1e-9, 6) == "▏"
    assert (table.bar(0, 6), table.bar(1, 6), table.bar(7, 6)) == ("", "██████", "██████")


@pytest.mark.parametrize("width", range(48, 230, 7))
def test_a_value_is_whole_or_not_there(width: int) -> None:
    """The values of a row on a narrow screen are some of those on a wide one, letter by letter."""
    shown = snapshot(configs=[config(f"c-{n}", booted=10**n, failed=7**n) for n in range(6)])
    wide, narrow = (
        {line.split()[0]: [part for part in line.split() if not set(part) & set(table.EIGHTHS)] for line in lines}
        for lines in (drawn(shown, 230, 40)[3:15], drawn(shown, width, 40)[3:15])
        for lines in [[line for line in lines if line and not line.startswith(("POOL", "CONFIG", "LEASE"))]]
    )
    assert wide.keys() == narrow.keys()
    for name, values in narrow.items():
        rest = iter(wide[name])
        assert all(value in rest for value in values), values


NAMES = st.text(max_size=40)
SERVICES = st.sampled_from(["provisioner", "weight-calculator", "lease-broker", "kafka"])
COUNTS = st.integers(0, 10**12)
SECONDS = st.none() | st.floats(0, 10**9)
POOLS = st.builds(
    screens.pool,
    id=NAMES,
    mode=st.sampled_from(["enforce", "observe", "canary", "new"]),
    paused=st.booleans(),
    pending=COUNTS,
    claimed=COUNTS,
    serving=COUNTS,
    needed=st.none() | COUNTS,
    backlog_seconds=SECONDS,
)
CONFIGS = st.builds(
    screens.config,
    id=NAMES,
    pool_id=st.sampled_from(["linux", "win"]),
    zone=NAMES,
    health_state=st.sampled_from(["healthy", "tripped", "probing"]),
    weight=st.none() | st.floats(0, 1e12),
    state=st.sampled_from(["active", "paused", "draining", "archived"]),
    stages=st.dictionaries(
        st.sampled_from(["launch", "boot", "claim"]),
        st.builds(StageLevel, in_flight=COUNTS, unfolded=COUNTS, window=COUNTS),
    ),
    booted=COUNTS,
    failed=COUNTS,
    reason=st.none() | NAMES,
    next_probe_at=st.none() | st.just(NOW + timedelta(days=400)),
)
LEASE_POOLS = st.builds(
    screens.lease_pool,
    id=NAMES,
    limit=COUNTS,
    held=COUNTS,
    waiting=COUNTS,
    granted_per_minute=COUNTS,
    eta_seconds=SECONDS,
)
SNAPSHOTS = st.builds(
    Snapshot,
    now=st.just(NOW),
    title=NAMES,
    pools=st.lists(POOLS, max_size=9),
    configs=st.lists(CONFIGS, max_size=9),
    lease_pools=st.lists(LEASE_POOLS, max_size=9),
    services=st.lists(
        st.builds(Service, name=SERVICES, unavailable_seconds=SECONDS, answered=st.booleans()), max_size=6
    ),
    launch_stops=st.lists(
        st.builds(screens.launch_stop, scope=st.sampled_from(["all", "pool"]), scope_id=NAMES, reason=NAMES), max_size=3
    ),
    lines=st.lists(st.builds(EventLine, st.just(NOW), NAMES, st.sampled_from(["good", "bad", ""])), max_size=20),
    demo=st.none()
    | st.builds(
        Demo,
        started_at=st.just(NOW - timedelta(hours=3)),
        speed=st.floats(0.1, 1000),
        seed=COUNTS,
        seconds=st.none() | st.floats(1, 1e6),
    ),
)


@settings(deadline=None, max_examples=60)
@given(SNAPSHOTS, st.integers(1, 230), st.integers(1, 70))
@example(snapshot(configs=[tripped(f"c-{n}") for n in range(60)]), 80, 24)
@example(snapshot(), 48, 12)
@example(snapshot(), 3, 1)
def test_never_wider_nor_higher_than_the_terminal(shown: Snapshot, width: int, height: int) -> None:
    """For any contents."""
    lines = screen.overview(shown, START, width, height).lines
    assert len(lines) <= height
    assert [line.plain for line in lines if line.cell_len > width or "\n" in line.plain] == []
    assert len(drawn(shown, width, height)) <= height


@given(st.text("a 漢\u0301", max_size=60), st.integers(6, 40))
@example("漢漢漢漢" + "\u0301" * 4, 6)
def test_a_sentence_is_never_wider_than_its_lines(text: str, width: int) -> None:
    """Also where characters of no width stand for those of two."""
    assert [line for line in table.wrapped(text, width) if cell_len(line) > width] == []


@given(st.lists(st.integers(1, 80), min_size=1, max_size=4), st.integers(0, 60))
def test_rows_are_allotted_without_waste(wanted: list[int], space: int) -> None:
    """All rows are used or none is wanted; a list that is cut gets at most one row less than any other."""
    given_ = screen.allotted(wanted, space)
    assert sum(given_) == min(space, sum(wanted))
    assert all(0 <= got <= want for got, want in zip(given_, wanted, strict=True))
    assert all(got >= max(given_) - 1 for got, want in zip(given_, wanted, strict=True) if got < want)
