"""`make screen-shot`: `slipway top` in tmux at 80×24, 120×40 and 200×50, captured, its keys tried. Exits with 1 if a
check fails, with 2 when there is no tmux. KEEP=1 writes the captures to docs/screens, and the README's picture.

A simulated deployment has three pools: one with a zone that is out, one at its maximum, and one with a bad image. Each
cause has to be visible at 80×24, in the row of its pool and on its page.
"""

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.cells import cell_len

from slipway_client.view.screen import MOODS
from slipway_client.view.table import EIGHTHS, STATES
from slipway_common.base.process.guard import guard
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.child import until
from slipway_local.servers.supervisor import Supervisor
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, add_tasks
from tests.support.folders import disk_folder
from tests.tools.picture import svg

ROOT: Final = Path(__file__).parents[2]
SCREENS: Final = ROOT / "docs" / "screens"
PICTURE: Final = ROOT / "docs/top.svg"  # in the README
SEEN_SECONDS: Final = 60.0  # until every cause is on every screen; some 15 s where nothing else runs
KEY_SECONDS: Final = 20.0  # until a key has its effect: a page asks for a dozen lists
POLL_SECONDS: Final = 0.1
SPEED: Final = 40.0
SIZES: Final = {"narrow": (80, 24), "middle": (120, 40), "wide": (200, 50)}
SMALLER: Final = (100, 30)
# In product seconds. A bad image is known by boots that time out.
SECONDS: Final = {"boot_timeout_seconds": 240.0}
TASK_SECONDS: Final = 20_000.0  # longer than this runs
FULL: Final = 4
POOLS: Final = {
    "linux": Pool(accounts=["a", "b"]),
    "mac": Pool(accounts=["a"], max_capacity=FULL),
    "windows": Pool(accounts=["a"], image="bad", max_capacity=3),
}
TASKS: Final = {"linux": 20, "mac": 10, "windows": 3}
FAULTS: Final = [{"name": "zone", "arg": "zone-b"}, {"name": "bad-image", "arg": "bad"}]
# Cause of each pool: in its own row, and in the first sentences of its page.
CAUSES: Final = {
    "linux": (r"^linux +◐ degraded +1 of 2 configs tripped", r"1 of 2 active launch configs tripped: linux-b"),
    "mac": (rf"^mac +● enforce +at max capacity {FULL}\b.* {FULL}/{FULL} ", rf"max_capacity {FULL} is reached"),
    "windows": (r"^windows +✗ tripped +\d+ image errors", r"\d+ image errors"),
}
OPTIONS: Final = """
set -g status off
set -g default-terminal tmux-256color
"""
WIDE: Final = 160  # columns from which on every column of SECTIONS is shown
# Headings of the sections, in order, and their numbers, aligned right under their titles; some have a short one.
SECTIONS: Final[Mapping[str, Sequence[tuple[str, ...]]]] = {
    "POOL": [
        ("PENDING", "PEND"),
        ("CLAIMED", "CLAIM"),
        ("SERVING/MAX", "SERV/MAX"),
        ("BACKLOG FOR", "BACKLOG"),
        ("NEEDED", "NEED"),
    ],
    "CONFIG": [
        ("NEXT PROBE", "PROBE"),
        ("WEIGHT",),
        ("SHARE",),
        ("IN FLIGHT", "FLIGHT"),
        ("BOOTED",),
        ("FAILED", "FAIL"),
    ],
    "LEASE POOL": [("HELD",), ("WAITING",), ("STARTS/MIN", "/MIN"), ("ETA",)],
    "EVENTS": [],
}
NARROW: Final = {"CONFIG": 1}  # of a narrow screen: the first so many columns of the section
STATE: Final = re.compile("|".join(f"{re.escape(sign)} {word}\\b" for word, (sign, _) in STATES.items()))
WINDOW: Final = re.compile(r" \d+/\d+ (launch|boot|claim)\b")
TRIPPED_POOL: Final = re.compile(r" \d+ of \d+ configs? tripped")
CONTINUED: Final = re.compile(r"  +\S")  # a reason below its row, or the rest of an event
BAR: Final = re.compile(f"[{EIGHTHS.strip()}]")
EVENT: Final = re.compile(rf"\d\d:\d\d:\d\d [{''.join(sign for sign, _ in MOODS.values())}] \S")
KEYS: Final = re.compile(r"\? keys  q quit$")
COLOUR: Final = re.compile(r"\x1b\[[\d;]*\b(3[0-7]|38|9[0-7])[\d;]*m")


class Tmux:
    """A tmux server of its own, which ends with this process."""

    def __init__(self, folder: Path) -> None:
        self._name = f"slipway-{os.getpid()}"
        tag = f"SCREEN_SHOT={self._name}"
        guard().tagged(tag)
        (folder / "tmux.conf").write_text(OPTIONS)
        self._argv = ["tmux", "-u", "-L", self._name, "-f", str(folder / "tmux.conf")]
        inherited = {name: value for name, value in os.environ.items() if name not in {"TMUX", "NO_COLOR", "PLAIN"}}
        self._environment = inherited | dict([tag.split("=")]) | {"LC_ALL": "C.UTF-8", "TMUX_TMPDIR": str(folder)}

    def run(self, *arguments: str) -> str:
        """Run a tmux command and return its output. Raises CalledProcessError."""
        done = subprocess.run(
            [*self._argv, *arguments], env=self._environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    def start(self, session: str, size: tuple[int, int], command: str, folder: Path, **env: str) -> None:
        """Run a shell command and keep its terminal open afterwards."""
        given = [f"-e{name}={value}" for name, value in env.items()]
        columns, lines = map(str, size)
        script = f"trap : INT; {command}; echo ended with $?; stty -a; exec cat"
        self.run("new-session", "-d", "-s", session, "-x", columns, "-y", lines, "-c", str(folder), *given, script)

    def lines(self, session: str) -> list[str]:
        return self.run("capture-pane", "-p", "-t", session).splitlines()

    def colours(self, session: str) -> int:
        return len(COLOUR.findall(self.run("capture-pane", "-p", "-e", "-t", session)))

    def format(self, session: str, what: str) -> str:
        return self.run("display-message", "-p", "-t", session, f"#{{{what}}}").strip()

    def ended(self, session: str) -> int | None:
        """The exit code of its command."""
        code = re.search(r"^ended with (\d+)$", "\n".join(self.lines(session)), re.MULTILINE)
        return int(code[1]) if code else None

    def sessions(self) -> list[str]:
        """Empty when the server is gone."""
        try:
            return self.run("list-sessions", "-F", "#S").split()
        except subprocess.CalledProcessError:
            return []


def problems(lines: Sequence[str], width: int, height: int) -> list[str]:
    """Faults of a captured screen on which a config should be tripped."""
    found = [f"{len(lines)} lines, {height} allowed"] if len(lines) > height else []
    found += [f"wider than {width}: {line!r}" for line in lines if cell_len(line) > width]
    begins = {name: [n for n, line in enumerate(lines) if _heads(line, name)] for name in SECTIONS}
    if wrong := [name for name, at in begins.items() if len(at) != 1]:
        return [*found, f"sections that are missing or there twice: {', '.join(wrong)}"]
    starts = [at[0] for at in begins.values()]
    if starts != sorted(starts):
        found.append("sections are out of order")
    rows = {
        name: [line for line in lines[start + 1 : end] if line.strip() and not CONTINUED.match(line)]
        for name, start, end in zip(SECTIONS, starts, [*starts[1:], len(lines)], strict=True)
    }
    for (name, titles), start in zip(SECTIONS.items(), starts, strict=True):
        found += [f"{name}: no rows"] if not rows[name] else []
        shown = titles if width >= WIDE else titles[: NARROW.get(name, len(titles))]
        for title in shown:
            found += [f"{name}: {what}" for what in _misaligned(lines[start], rows[name], title)]
    found += [f"no state in words: {row!r}" for row in rows["POOL"] + rows["CONFIG"] if not STATE.search(row)]
    found += [f"no window: {row!r}" for row in rows["CONFIG"] if not WINDOW.search(row)]
    found += ["no bar of shares"] if width >= WIDE and not any(BAR.search(row) for row in rows["CONFIG"]) else []
    events = [row for row in rows["EVENTS"] if not KEYS.search(row)]
    found += [f"no event: {row!r}" for row in events if not EVENT.match(row)]
    found += [] if any(TRIPPED_POOL.search(row) for row in rows["POOL"]) else ["no pool says that a config is tripped"]
    return found + ([] if _shows_trip(lines) else ["no config says that it is tripped"])


def _heads(line: str, name: str) -> bool:
    return re.match(rf"{name}( \w+ old)?(  |$)", line) is not None


def _misaligned(heading: str, rows: Sequence[str], titles: Sequence[str]) -> list[str]:
    """Every row ends a value where the title ends."""
    ends = [match.end() for title in titles if (match := re.search(rf"(?<= ){re.escape(title)}(?= |$)", heading))]
    if not ends:
        return [f"no {titles[0]}"]
    return [
        f"not aligned under {titles[0]}: {row!r}"
        for row in rows
        if not re.fullmatch(r"[\w.%/-]", row[ends[0] - 1 : ends[0]]) or row[ends[0] : ends[0] + 1].strip()
    ]


def _shows_trip(lines: Sequence[str]) -> bool:
    """True if the table and the events show a tripped config."""
    text = "\n".join(lines)
    return bool(re.search(r"^\S+ +(✗ tripped|◐ probing)", text, re.MULTILINE)) and "tripped: " in text


async def shoot(tmux: Tmux, folder: Path) -> list[str]:
    """Print the screens; return their faults, and those of keys and of how they end."""
    async with Supervisor() as supervisor, Harness(supervisor, seed=1, speed=SPEED, log=print) as harness:
        deployment = harness.new_deployment(seconds=SECONDS)
        await deployment.start()
        account = Account(ttl_seconds=TASK_SECONDS, hold_seconds=TASK_SECONDS)
        declared = declaration(SPEED, dict.fromkeys("ab", account), POOLS)
        await harness.play(deployment, declared, faults=FAULTS, boot_seconds_median=40)
        for pool_id, number in TASKS.items():
            await add_tasks(deployment, pool_id, number, TASK_SECONDS)
        slipway = shlex.quote(str(Path(sys.executable).with_name("slipway")))
        for name, size in SIZES.items():
            colours = {"NO_COLOR": "1"} if name == "narrow" else {}
            tmux.start(name, size, f"{slipway} top", folder, **environment(deployment), **colours)
        acquire = await asyncio.create_subprocess_shell(
            f"{slipway} lease acquire --pool b", env=os.environ | environment(deployment)
        )
        await acquire.wait()
        await _within(SEEN_SECONDS, lambda: all(not causes_missing(tmux.lines(name)) for name in SIZES))
        found = []
        for name, (width, height) in SIZES.items():
            lines = tmux.lines(name)
            _show(f"{width}x{height}", lines)
            found += [f"{width}×{height}: {problem}" for problem in problems(lines, width, height)]
            found += [f"{width}×{height}: the cause of {pool} is not in its row" for pool in causes_missing(lines)]
        found += ["200×50: no colours"] if not tmux.colours("wide") else []
        found += ["80×24: colours in spite of NO_COLOR"] if tmux.colours("narrow") else []
        found += [problem async for problem in _keys(tmux)]
        tmux.run("resize-window", "-t", "wide", "-x", str(SMALLER[0]), "-y", str(SMALLER[1]))
        await _within(KEY_SECONDS, lambda: not problems(tmux.lines("wide"), *SMALLER))
        found += [f"made smaller: {problem}" for problem in problems(tmux.lines("wide"), *SMALLER)]
        if os.environ.get("KEEP"):
            PICTURE.write_text(
                svg(tmux.run("capture-pane", "-p", "-e", "-t", "wide"), SMALLER[0], "slipway top") + "\n"
            )
        return found + await _end(tmux)


def environment(deployment: Deployment) -> dict[str, str]:
    """Variables by which commands reach a deployment."""
    urls = {
        f"SLIPWAY_{name.upper().replace('-', '_')}_URL": deployment.url(name)
        for name in ("provisioner", "weight-calculator", "lease-broker")
    }
    return urls | {"SLIPWAY_TOKEN": deployment.token, "KAFKA": deployment.kafka, "TOPIC_PREFIX": deployment.prefix}


def causes_missing(lines: Sequence[str]) -> list[str]:
    """Pools without their cause in their own rows."""
    text = "\n".join(lines)
    return [pool for pool, (row, _) in CAUSES.items() if not re.search(row, text, re.MULTILINE)]


async def _keys(tmux: Tmux) -> AsyncIterator[str]:
    """Press each key at 80×24; yield those without their effect."""

    async def press(what: str, *keys: str, shows: str) -> str:
        tmux.run("send-keys", "-t", "narrow", *keys)
        await _within(KEY_SECONDS, lambda: re.search(shows, _flat(tmux)) is not None)
        return "" if re.search(shows, _flat(tmux)) else f"{what}: {shows!r} is not shown"

    steps = []
    for number, (pool, (_, page)) in enumerate(CAUSES.items(), 1):
        steps += [(f"select {pool}", ["Home", *["Down"] * (number - 1)], f"Enter opens pool {pool} ")]
        steps += [(f"open {pool}", ["Enter"], rf"Pool {pool}: .*{page}")]
        steps += [(f"leave {pool}", ["Escape"], "EVENTS")]
    steps += [
        ("open a pool", ["Home", "Enter"], "Pool linux:"),
        ("select a launch config", ["Down"], "Enter opens launch config linux-a@"),
        ("open it", ["Enter"], "Launch config linux-a"),
        ("back", ["Escape"], "Pool linux:"),
        ("select a worker", ["End"], "Enter opens worker "),
        ("open it", ["Enter"], "Worker [0-9a-f-]+: "),
        ("back to the overview", ["Escape", "Escape"], "EVENTS"),
        ("select a lease pool", ["End"], "Enter opens lease pool b "),
        ("open it", ["Enter"], "Lease pool b: "),
        ("select a lease", ["End"], "Enter opens lease "),
        ("open it", ["Enter"], "Lease [0-9a-f-]+: "),
        ("alerts", ["a"], r"SEVERITY .*SUMMARY .*(page|notice) "),
        ("open an alert", ["Down", "Enter"], r"Remedy: "),
        ("keys", ["?"], "Page Up, Page Down"),
        ("back to the overview", ["Escape", "Escape", "Escape", "Escape", "Escape"], "EVENTS"),
        ("type a filter", ["/", "m", "a", "c"], "filter: mac_"),
        ("keep it", ["Enter"], r"POOL (?!.*\blinux-a ).*\bmac ● enforce .*filter mac, Esc ends it"),
        ("end it", ["Escape"], r"linux-a ●"),
        ("pause", ["p"], "PAUSED at "),
    ]
    for what, keys, shows in steps:
        if problem := await press(what, *keys, shows=shows):
            yield f"key {problem}"
        if what.startswith("open ") and keys == ["Enter"] and "Pool" in shows:
            _show(f"{what.partition(' ')[2]}-80x24", tmux.lines("narrow"))
        if what == "alerts":
            _show("alerts-80x24", tmux.lines("narrow"))
    paused = tmux.lines("narrow")
    clock = tmux.lines("wide")[0][-8:]
    await _within(KEY_SECONDS, lambda: tmux.lines("wide")[0][-8:] > clock)
    if tmux.lines("narrow") != paused:
        yield "key pause: the screen goes on"
    if problem := await press("resume", "p", shows=r"\d\d:\d\d:\d\d .*↑↓ select|Enter opens"):
        yield problem


def _flat(tmux: Tmux) -> str:
    """The screen as one line, with single spaces."""
    return " ".join(" ".join(tmux.lines("narrow")).split())


def _show(name: str, lines: Sequence[str]) -> None:
    print(f"── {name} ──", *lines, sep="\n")
    if os.environ.get("KEEP"):
        SCREENS.mkdir(exist_ok=True)
        (SCREENS / f"{name}.txt").write_text("\n".join(line.rstrip() for line in lines).rstrip() + "\n")


async def _end(tmux: Tmux) -> list[str]:
    """End them with q and Ctrl-C; return what they left behind."""
    for name, key in (("narrow", "q"), ("middle", "C-c"), ("wide", "q")):
        tmux.run("send-keys", "-t", name, key)
    await _within(KEY_SECONDS, lambda: all(tmux.ended(name) is not None for name in SIZES))
    found = []
    for name in SIZES:
        if tmux.ended(name) != 0:
            found.append(f"{name} ends with {tmux.ended(name)}, not 0")
        if tmux.format(name, "alternate_on") != "0" or tmux.format(name, "cursor_flag") != "1":
            found.append(f"{name} keeps the alternate screen, or the cursor")
        if re.search(r"-(icanon|echo)\b", "\n".join(tmux.lines(name))):
            found.append(f"{name} keeps the keyboard")
    return found


async def _within(seconds: float, condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, or the time is up: the caller checks the screen anyway."""
    try:
        async with asyncio.timeout(seconds):
            await until(condition, POLL_SECONDS)
    except TimeoutError:
        print(f"(waited {seconds:g} s)", file=sys.stderr)


def main() -> int:
    if shutil.which("tmux") is None:
        print("screen-shot needs tmux: apt-get install tmux, or brew install tmux", file=sys.stderr)
        return 2
    with disk_folder("slipway-") as folder:
        tmux = Tmux(folder)
        try:
            found = asyncio.run(shoot(tmux, folder))
        finally:
            if tmux.sessions():
                tmux.run("kill-server")
        found += [f"tmux session {session} is left" for session in tmux.sessions()]
    for problem in found:
        print(f"PROBLEM {problem}")
    if not found:
        print(
            "screens ok: 80×24, 120×40 and 200×50 within their sizes, the causes of 3 pools in their rows and on their "
            "pages, every key tried, resized, ended by q and Ctrl-C, nothing left"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
