"""A screen fits the terminal that there is, loses no digit, and says in words what it shows in colours."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from slipway_client import screen
from slipway_client.snapshot import Brake, Config, Demo, LeasePool, Line, Pool, Service, Snapshot, Stage
from tests.screen_shot import problems

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
STAGES = {"launch": Stage(in_flight=3, window=64), "boot": Stage(in_flight=9, unfolded=2, window=32)}
LINUX = Pool(id="linux", mode="enforce", pending=112, claimed=84, serving=96, needed=4, oldest_wait_seconds=75)
SIZES = [(80, 24), (200, 50)]


def config(name: str, **fields: Any) -> Config:
    usual: dict[str, Any] = {"pool_id": "linux", "weight": 0.9, "stages": STAGES, "ok": 341, "failed": 2}
    return Config(id=name, **usual | fields)


def closed(name: str, **fields: Any) -> Config:
    at = NOW + timedelta(seconds=12)
    return config(name, circuit="closed", weight=0.02, next_probe_at=at, reason=f"{name}: closed", **fields)


def snapshot(**fields: Any) -> Snapshot:
    lines = [Line(NOW, "linux-zone-b closed: 2 capacity errors, next probe 12 s", "bad")]
    lease_pools = [LeasePool(id="sim-a", limit=45, held=45, waiting=12, granted_per_minute=26, eta_seconds=40)]
    configs = [config("linux-zone-a"), closed("linux-zone-b")]
    usual: dict[str, Any] = {"pools": [LINUX], "configs": configs, "lease_pools": lease_pools, "lines": lines}
    return Snapshot(now=NOW, title="top", **usual | fields)


def drawn(shown: Snapshot, width: int, height: int) -> list[str]:
    """As a console puts it out, without the spaces at the ends of lines."""
    console = Console(width=width, height=height, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(screen.render(shown, width, height), end="")
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_all_that_is_asked_is_there(width: int, height: int) -> None:
    """The same judgement as over captured screens: sections, alignment, words, bars."""
    assert problems(drawn(snapshot(), width, height), width, height) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("LEASE POOL", "LEASES", "sections that are missing or there twice: LEASE POOL"),
        ("    112 ", "   112  ", "POOL: not aligned under PENDING"),
        ("✗ closed", "✗       ", "no state in words"),
        ("14/32 boot ", "14/32 b    ", "no window"),
        ("█", " ", "no weight bar"),
        ("  12s", "    1\n2s", "CONFIG: not aligned under NEXT PROBE"),
        ("12:00:00 ! linux", "linux", "no event"),
        ("linux-zone-b closed: ", "linux-zone-b ", "no config says that it is closed"),
        (" q ends", "  q ends", "wider than 80"),
    ],
)
def test_a_screen_that_is_wrong_is_found_out(old: str, new: str, problem: str) -> None:
    text = "\n".join(drawn(snapshot(), 80, 24))
    assert old in text
    found = problems(text.replace(old, new).splitlines(), 80, 24)
    assert [told for told in found if told.startswith(problem)], found


def test_80_columns() -> None:
    assert drawn(snapshot(services=[Service(name="provisioner")]), 80, 24) == [
        "slipway  top                                                    12:00:00  q ends",
        "✓ provisioner",
        "POOL   STATE      PENDING  CLAIMED  LIVE  NEEDED  OLDEST WAIT  RUNNING  LEAVING",
        "linux  ● enforce      112       84    96       4        1m15s        0        0",
        "CONFIG        STATE     WEIGHT                  WINDOW  FLIGHT   OK  FAIL  PROBE",
        "linux-zone-a  ● open     0.900  ████████  14/32 boot        12  341     2      -",
        "linux-zone-b  ✗ closed   0.020  ▏         14/32 boot        12  341     2    12s",
        "LEASE POOL  STATE        HELD              WAITING  STARTS/MIN  ETA  OLDEST WAIT",
        "sim-a       ▲ queueing  45/45  ██████████       12        26.0  40s            -",
        "EVENTS",
        "12:00:00 ! linux-zone-b closed: 2 capacity errors, next probe 12 s",
    ]


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
    """Of 60 configs the closed one is the 58th: it is shown first, and the rest is counted."""
    configs = [config(f"c-{n:02d}") for n in range(60)]
    configs[57] = closed("c-57")
    lines = drawn(snapshot(configs=configs), 80, height)
    (heading,) = [n for n, line in enumerate(lines) if line.startswith("CONFIG")]
    assert [line.split()[0] for line in lines[heading + 1 : heading + 4]] == ["c-57", "c-00", "c-01"]
    assert f"… {left} more" in lines
    assert sum(line.startswith("c-") for line in lines) == 60 - left
    assert len(lines) <= height


def test_trouble_that_is_cut_is_counted() -> None:
    lines = drawn(snapshot(configs=[closed(f"c-{n}") for n in range(40)]), 80, 24)
    (more,) = [line for line in lines if line.startswith("…")]
    assert re.fullmatch(r"… (\d+) more, \1 of them in trouble", more)


def test_what_a_silent_service_said_last_is_marked_old() -> None:
    silent = Service(name="lease-broker", silent_seconds=75, problem="nothing in 5 s")
    lines = drawn(snapshot(services=[Service(name="provisioner"), silent]), 80, 24)
    assert lines[1] == "✗ lease-broker silent 1m15s  ✓ provisioner"
    assert [line.split("  ")[0] for line in lines if "LEASE POOL" in line] == ["LEASE POOL 1m15s old"]


def test_who_is_silent_is_named_before_who_is_not() -> None:
    """Three outages fit into 80 columns, and no number is cut."""
    names = ("provisioner", "weight-calculator", "lease-broker", "kafka")

    def second_line(silent: int, seconds: float) -> str:
        services = [
            Service(name=name, silent_seconds=seconds if n < silent else None, problem="" if n else "nothing in 5 s")
            for n, name in enumerate(names)
        ]
        return drawn(snapshot(services=services), 80, 24)[1]

    assert second_line(0, 0) == "✓ provisioner  ✓ weight-calculator  ✓ lease-broker  ✓ kafka"
    assert second_line(2, 75) == "✗ provisioner silent 1m15s  ✗ weight-calculator silent 1m15s  ✓ 2 others answer"
    assert second_line(4, 75) == "✗ provisioner 1m15s  ✗ weight-calculator 1m15s  ✗ lease-broker 1m15s  ✗ kafka…"


def test_brakes_stand_above_what_they_explain() -> None:
    brakes = [Brake(scope="account", scope_id="sim-a", reason="bill"), Brake(scope="all", reason="drill")]
    third = str(screen.lines(Snapshot(now=NOW, title="top", pools=[LINUX], brakes=brakes), 80, 24)[2])
    assert third == "■ launching is stopped in account sim-a: bill; everywhere: drill"


def test_demo_tells_product_time() -> None:
    demo = Demo(started_at=NOW - timedelta(seconds=30), speed=20, seed=7, minutes=60)
    lines = drawn(snapshot(demo=demo), 80, 24)
    assert "minute 10.0 of 60  SEED=7 SPEED=20" in lines[0]
    assert " 25m00s" in lines[3]  # 75 s of waiting
    assert lines[6].endswith(" 4m00s")  # the probe in 12 s
    assert lines[8].split()[-3:-1] == ["2.6", "13m20s"]  # 26 grants in half a minute
    assert lines[10].startswith("  10.0m ! ")


def test_long_names_keep_both_ends_and_wide_ones_their_columns() -> None:
    names = ["windows-server-2022-datacenter-large-eu-central-1a", "日本語のランナー設定その一"]
    rows = drawn(snapshot(configs=[config(name) for name in names]), 80, 24)[5:7]
    assert re.match(r"window\w*-?…\S*central-1a +● open ", rows[0])
    assert len({cell_len(row.partition("●")[0]) for row in rows}) == 1
    assert all(cell_len(row) <= 80 for row in rows)


def test_foreign_names_are_printable() -> None:
    """Escapes, line ends and marks of direction of others never reach the terminal."""
    lines = drawn(snapshot(configs=[config("a\x1b[31mb\n\u202ec")], lines=[Line(NOW, "x\ry\x9bz")]), 80, 24)
    assert [line for line in lines if not line.isprintable()] == []
    assert lines[5].startswith("a�[31mb��c  ● open")
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
    assert screen.shortened(text, width) == short


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "-"), (0, "0"), (99_999, "99999"), (123_456, "123k"), (1_234_567, "1.23M"), (5 * 10**11, "500G")],
)
def test_counts_keep_to_five_columns(number: int | None, text: str) -> None:
    assert screen.count(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (-3, "0s"), (59.4, "59s"), (59.6, "1m00s"), (3599, "59m59s"), (7265, "2h01m"), (10**6, "11d13h")],
)
def test_durations_keep_to_six_columns(seconds: float | None, text: str) -> None:
    assert screen.span(seconds) == text


def test_weights_above_zero_are_never_invisible() -> None:
    assert screen.bar(1e-9, 6) == "▏"
    assert (screen.bar(0, 6), screen.bar(1, 6), screen.bar(7, 6)) == ("", "██████", "██████")


@pytest.mark.parametrize("width", range(48, 230, 7))
def test_a_value_is_whole_or_not_there(width: int) -> None:
    """What a narrow screen shows of a row is some of what a wide one shows, letter by letter."""
    shown = snapshot(configs=[config(f"c-{n}", ok=10**n, failed=7**n) for n in range(6)])
    wide, narrow = (
        {line.split()[0]: [part for part in line.split() if not set(part) & set(screen.EIGHTHS)] for line in lines}
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
    Pool,
    id=NAMES,
    mode=st.sampled_from(["enforce", "observe", "canary", "new"]),
    paused=st.booleans(),
    pending=COUNTS,
    claimed=COUNTS,
    serving=COUNTS,
    needed=st.none() | COUNTS,
    oldest_wait_seconds=SECONDS,
)
CONFIGS = st.builds(
    Config,
    id=NAMES,
    pool_id=st.sampled_from(["linux", "win"]),
    zone=NAMES,
    circuit=st.sampled_from(["open", "closed"]),
    weight=st.none() | st.floats(0, 1e12),
    state=st.sampled_from(["active", "paused", "draining", "archived"]),
    stages=st.dictionaries(
        st.sampled_from(["launch", "boot", "claim"]), st.builds(Stage, in_flight=COUNTS, unfolded=COUNTS, window=COUNTS)
    ),
    ok=st.none() | COUNTS,
    failed=st.none() | COUNTS,
    probe_ready=st.booleans(),
    reason=st.none() | NAMES,
    next_probe_at=st.none() | st.just(NOW + timedelta(days=400)),
)
LEASE_POOLS = st.builds(
    LeasePool,
    id=NAMES,
    limit=COUNTS,
    held=COUNTS,
    waiting=COUNTS,
    granted_per_minute=st.floats(0, 1e9),
    eta_seconds=SECONDS,
)
SNAPSHOTS = st.builds(
    Snapshot,
    now=st.just(NOW),
    title=NAMES,
    pools=st.lists(POOLS, max_size=9),
    configs=st.lists(CONFIGS, max_size=9),
    lease_pools=st.lists(LEASE_POOLS, max_size=9),
    services=st.lists(st.builds(Service, name=SERVICES, silent_seconds=SECONDS, answered=st.booleans()), max_size=6),
    brakes=st.lists(st.builds(Brake, scope=st.sampled_from(["all", "pool"]), scope_id=NAMES, reason=NAMES), max_size=3),
    lines=st.lists(st.builds(Line, st.just(NOW), NAMES, st.sampled_from(["good", "bad", ""])), max_size=20),
    demo=st.none()
    | st.builds(
        Demo,
        started_at=st.just(NOW - timedelta(hours=3)),
        speed=st.floats(0.1, 1000),
        seed=COUNTS,
        minutes=st.none() | st.floats(1, 1e6),
    ),
)


@settings(deadline=None, max_examples=60)
@given(SNAPSHOTS, st.integers(1, 230), st.integers(1, 70))
@example(snapshot(configs=[closed(f"c-{n}") for n in range(60)]), 80, 24)
@example(snapshot(), 48, 12)
@example(snapshot(), 3, 1)
def test_never_wider_nor_higher_than_the_terminal(shown: Snapshot, width: int, height: int) -> None:
    """Whatever there is to show."""
    lines = screen.lines(shown, width, height)
    assert len(lines) <= height
    assert [line.plain for line in lines if line.cell_len > width or "\n" in line.plain] == []
    assert len(drawn(shown, width, height)) <= height


@given(st.lists(st.integers(1, 80), min_size=1, max_size=4), st.integers(0, 60))
def test_rows_are_allotted_without_waste(wanted: list[int], space: int) -> None:
    """All rows are given away or nobody wants more; who gets less than it wants gets no less than others, but one."""
    given_ = screen.allotted(wanted, space)
    assert sum(given_) == min(space, sum(wanted))
    assert all(0 <= got <= want for got, want in zip(given_, wanted, strict=True))
    assert all(got >= max(given_) - 1 for got, want in zip(given_, wanted, strict=True) if got < want)
