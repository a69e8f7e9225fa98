"""`make screen-shot`: the live screen in tmux, captured, printed and checked. Exits with 1 if a check fails, with 2
when there is no tmux.

A demo with a zone out shows its own screen at 200×50; `slipway top` watches the same demo at 80×24, without colours.
"""

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.cells import cell_len

from slipway_client.view.screen import MOODS
from slipway_client.view.table import EIGHTHS, STATES
from slipway_local.servers.child import until
from slipway_local.servers.guard import guard
from tests.tools.picture import svg

ROOT: Final = Path(__file__).parents[2]
PICTURE: Final = ROOT / "docs/top.svg"  # in the README; written by KEEP=1
SEEN_SECONDS: Final = 90.0  # until a config is tripped on both screens; some 15 s where nothing else runs
ENDED_SECONDS: Final = 12.0
POLL_SECONDS: Final = 0.1
DEMO: Final = {"DURATION": "0", "SPEED": "10", "SEED": "4", "FAULTS": "zone-b:30s-"}
OPTIONS: Final = """
set -g status off
set -g default-terminal tmux-256color
"""
WIDE: Final = 120  # columns from which on every column of SECTIONS is shown
# Headings of the sections, in order, and their numbers, aligned right under their titles; some have a short one.
SECTIONS: Final[Mapping[str, Sequence[tuple[str, ...]]]] = {
    "POOL": [
        ("PENDING", "PEND"),
        ("SERVING/MAX", "SERV/MAX"),
        ("NEEDED", "NEED"),
        ("BACKLOG FOR", "BACKLOG"),
        ("CLAIMED", "CLAIM"),
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
BAR: Final = re.compile(f"[{EIGHTHS.strip()}]")
EVENT: Final = re.compile(rf"\d\d:\d\d:\d\d [{''.join(sign for sign, _ in MOODS.values())}] \S")
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
        name: [line for line in lines[start + 1 : end] if line.strip()]
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
    found += [f"no event: {row!r}" for row in rows["EVENTS"] if not EVENT.match(row)]
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
    return bool(re.search(r"^\S+ +(✗ tripped|◐ probing)", text, re.MULTILINE)) and "b tripped: " in text


async def shoot(tmux: Tmux, folder: Path) -> list[str]:
    """Print both screens; return their faults and those of how they end."""
    python = shlex.quote(sys.executable)
    tmux.start("demo", (200, 50), f"{python} -m slipway_local.demo", folder, **DEMO)
    slipway = shlex.quote(str(Path(sys.executable).with_name("slipway")))
    watching = f"until [ -s .slipway/env ]; do sleep 0.2; done; . ./.slipway/env; {slipway} top"
    tmux.start("top", (80, 24), watching, folder, NO_COLOR="1")
    await _within(
        SEEN_SECONDS,
        lambda: tmux.ended("demo") is not None or all(_shows_trip(tmux.lines(name)) for name in ("demo", "top")),
    )
    if (code := tmux.ended("demo")) is not None:
        print(*tmux.lines("demo"), sep="\n")
        return [f"the demo ended with {code} before anything could be seen"]
    shots = {"demo": (tmux.lines("demo"), 200, 50), "slipway top": (tmux.lines("top"), 80, 24)}
    found = []
    for name, (lines, width, height) in shots.items():
        print(f"── {name}, {width}×{height} ──", *lines, sep="\n")
        found += [f"{name}: {problem}" for problem in problems(lines, width, height)]
    found += [] if tmux.colours("demo") else ["demo: no colours"]
    found += ["slipway top: colours in spite of NO_COLOR"] if tmux.colours("top") else []
    tmux.run("resize-window", "-t", "demo", "-x", "100", "-y", "30")
    await _within(ENDED_SECONDS, lambda: not problems(tmux.lines("demo"), 100, 30))
    found += [f"demo made smaller: {problem}" for problem in problems(tmux.lines("demo"), 100, 30)]
    if os.environ.get("KEEP"):
        PICTURE.write_text(svg(tmux.run("capture-pane", "-p", "-e", "-t", "demo"), 100, "slipway top") + "\n")
    return found + await _end(tmux)


async def _end(tmux: Tmux) -> list[str]:
    """End them with q and Ctrl-C; return what they left behind."""
    tmux.run("send-keys", "-t", "top", "q")
    tmux.run("send-keys", "-t", "demo", "C-c")
    await _within(ENDED_SECONDS, lambda: all(tmux.ended(name) is not None for name in ("demo", "top")))
    found = []
    for name, code in (("demo", 130), ("top", 0)):
        if tmux.ended(name) != code:
            found.append(f"{name} ends with {tmux.ended(name)}, not {code}")
        if tmux.format(name, "alternate_on") != "0" or tmux.format(name, "cursor_flag") != "1":
            found.append(f"{name} keeps the alternate screen, or the cursor")
        if re.search(r"-(icanon|echo)\b", "\n".join(tmux.lines(name))):
            found.append(f"{name} keeps the keyboard")
    if "Stopped. Logs and the cloud's ledger are in" not in "\n".join(tmux.lines("demo")):
        found.append("the demo's last line is not on the terminal")
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
    with tempfile.TemporaryDirectory(prefix="slipway-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        guard().remove(folder)
        (folder / "examples").symlink_to(ROOT / "examples")  # the demo gets a .slipway folder of its own
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
            "screens ok: 80×24 and 200×50 within their sizes, all sections, numbers aligned, states in words, resized, "
            "ended by q and Ctrl-C, nothing left"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
