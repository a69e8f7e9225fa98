"""`make readme`: run every fenced command of the README and the guides, as a reader would, and report failures.

Each document runs from top to bottom in its own copy of the tree and in one shell's state (variables, folder); the
first runs before the others, which run concurrently. `sh` blocks are run command by command, `console` blocks by their
lines after `$ `, `python` blocks as programs. Blocks in a language of READ are not run; any other language is an error.
A comment `<!-- expect: exit 3 -->` or `<!-- expect: TEXT -->` before a block gives the exit code of its last command,
or text that it prints.

`make demo` and `make demo DURATION=0` run in the background from the start, one demo for all documents that start it or
source its addresses, at low speed, until Ctrl-C at the end. Other slow commands are shortened by the arguments in HEAVY
and run one at a time. ONLY=queues.md runs the documents whose paths have that text.
"""

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from slipway_common.base.clock import monotonic_seconds
from slipway_local.servers.child import Child
from slipway_local.servers.supervisor import Supervisor
from slipway_local.servers.supervisor import run as run_supervised
from tests.support.folders import disk_folder

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = ("README.md", "docs/guides/*.md")
READ: Final = frozenset({"", "text", "yaml", "json", "toml"})
RUN: Final = frozenset({"sh", "console", "python"})
# The first pattern that matches a command gives its arguments.
HEAVY: Final[tuple[tuple[re.Pattern[str], dict[str, str]], ...]] = (
    (re.compile(r"\bmake\b.*\bdemo\b"), {"DURATION": "5s"}),
    (re.compile(r"\bmake\b.*\btest\b"), {"LAYERS": "unit", "PYTEST_ADDOPTS": "-k test_lifecycle"}),
    (re.compile(r"\bmake\b.*\bmutants\b"), {"ONLY": "tables"}),
    (re.compile(r"\bmake\b.*\be2e\b"), {"CHANGES": "20", "POOLS": "2"}),
    (re.compile(r"\bmake\b.*\b(check|generated)\b|\bpytest\b|\btests\.mutants\b"), {}),
)
DEMO: Final = "make demo DURATION=0"
DEFAULT_DEMO: Final = "make demo"
# The demo runs until all commands have run, at a speed that leaves both cores free for them.
BACKGROUND_ARGUMENTS: Final = {"DURATION": "0", "SPEED": "2"}
BACKGROUND: Final = re.compile(r"\bmake\b.*\bdemo\b.*\bDURATION=0\b")
ITSELF: Final = re.compile(r"\bmake\b.*\breadme\b")
COMMAND_SECONDS: Final = 300.0  # time limit of a command; generous for a busy machine
STOP_SECONDS: Final = 60.0
TAIL_LINES: Final = 15
LINE_CHARACTERS: Final = 300
ENVIRONMENT: Final = Path(".slipway/env")
APPLIED: Final = Path(".slipway/slipway.yaml")
INTERRUPTED: Final = (130, -signal.SIGINT)

# Runs a command in the state of the previous one. Every variable is exported, so that it is kept.
IN_STATE: Final = """
. "$1" && set -a && . "$2"
code=$?
{ export -p; printf 'cd %q\\n' "$PWD"; } > "$1"
exit $code"""

FENCE: Final = re.compile(r"^\s*(```+)\s*(\S*)\s*$")
EXPECT: Final = re.compile(r"^\s*<!-- expect: (.+?) -->\s*$")


class Block(msgspec.Struct, frozen=True):
    """A fenced block. `expected` has the texts of the comments right before it."""

    line: int
    language: str
    text: str
    expected: tuple[str, ...] = ()


class Command(msgspec.Struct, frozen=True):
    """One command of a document; only the last one of a block has `expected`."""

    line: int
    language: str
    text: str
    expected: tuple[str, ...] = ()

    @property
    def background(self) -> bool:
        return self.language != "python" and bool(self.text == DEFAULT_DEMO or BACKGROUND.search(self.text))

    @property
    def shorter(self) -> dict[str, str] | None:
        """Arguments that shorten the command; None if it is fast."""
        if self.language == "python":
            return None
        if self.background:
            return BACKGROUND_ARGUMENTS
        return next((env for pattern, env in HEAVY if pattern.search(self.text)), None)

    @property
    def demo(self) -> str:
        """The background demo that it starts or whose addresses it sources; empty for none."""
        if self.text == DEFAULT_DEMO or (not self.background and str(ENVIRONMENT) in self.text):
            return DEMO
        return self.text if self.background else ""


class Outcome(msgspec.Struct, frozen=True):
    """One line of the report. `problem` is empty on success."""

    where: str
    what: str
    seconds: float = 0.0
    problem: str = ""

    def line(self) -> str:
        verdict = "FAILED" if self.problem else "ok"
        tail = "".join(f"\n      {line}" for line in self.problem.splitlines())
        return f"{verdict:<6} {self.seconds:5.1f} s  {self.where:<28} {self.what}{tail}"


class Wrong(Exception):
    """A document that cannot be run: the line, and the reason."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def blocks(text: str) -> Iterator[Block]:
    """Fenced blocks of a document. Raises Wrong for an expectation without a block and for an unclosed fence."""
    expected: list[str] = []
    fence = language = ""
    body: list[str] = []
    begin = 0
    for number, line in enumerate(text.splitlines(), 1):
        match = FENCE.match(line)
        if fence:
            if match and match[1] == fence and not match[2]:
                yield Block(begin, language, "\n".join(body), tuple(expected))
                fence, body, expected = "", [], []
            else:
                body.append(line)
        elif match:
            fence, language, begin = match[1], match[2], number
            if expected and language not in RUN:
                raise Wrong(number, "an expectation is before a block that is not run")
        elif expects := EXPECT.match(line):
            expected.append(expects[1])
        elif line.strip() and expected:
            raise Wrong(number, "an expectation is before text; it belongs right before its block")
    if fence:
        raise Wrong(begin, "the fence is never closed")
    if expected:
        raise Wrong(begin, "an expectation is at the end, before no block")


def complete(text: str) -> bool:
    """True if a shell would run this now rather than wait for another line."""
    checked = subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False)
    return checked.returncode == 0 and not checked.stderr and not text.rstrip("\n").endswith("\\")


def commands(block: Block) -> list[Command]:
    """Commands of a block, in order. Raises Wrong for an unknown language and for a block that cannot be run."""
    if block.language in READ:
        return []
    if block.language not in RUN:
        known = ", ".join(sorted(RUN | READ - {""}))
        raise Wrong(block.line, f"unknown language {block.language!r}; expected one of {known}, or none")
    if block.language == "python":
        return [Command(block.line, "python", block.text, block.expected)]
    lines = block.text.splitlines()
    if block.language == "console":
        lines = [line[2:] if line.startswith("$ ") else "" for line in lines]
    found: list[Command] = []
    begun: list[str] = []
    for number, line in enumerate(lines, block.line + 1):
        if not begun and (not line.strip() or line.lstrip().startswith("#")):
            continue
        begun.append(line)
        if complete("\n".join(begun)):
            found.append(Command(number - len(begun) + 1, "sh", "\n".join(begun)))
            begun = []
    if begun:
        raise Wrong(block.line, f"the shell would wait for more after: {begun[-1]}")
    if found and block.expected:
        found[-1] = msgspec.structs.replace(found[-1], expected=block.expected)
    elif not found:
        raise Wrong(block.line, "the block has no command")
    for command in found:
        if ITSELF.search(command.text):
            raise Wrong(command.line, "`make readme` would run itself forever; mention it in the text instead")
    return found


def problem(code: int | None, output: str, expected: Sequence[str]) -> str:
    """Problem with the end of a command; empty if there is none. `code` None means that it took too long."""
    exits = [int(match[1]) for words in expected if (match := re.fullmatch(r"exit (\d+)", words))]
    texts = [words for words in expected if not re.fullmatch(r"exit \d+", words)]
    wanted = exits[-1] if exits else 0
    if code is None:
        return f"took more than {COMMAND_SECONDS:g} s\n{tail(output)}"
    if code != wanted:
        return f"exit {code}" + (f", {wanted} was expected" if exits else "") + f"\n{tail(output)}"
    if missing := [words for words in texts if words not in output]:
        return f"its output has no {' and no '.join(map(repr, missing))}\n{tail(output)}"
    return ""


def tail(output: str) -> str:
    return "\n".join(line[:LINE_CHARACTERS] for line in output.splitlines()[-TAIL_LINES:])


class Background:
    """A demo that runs beside the documents that use it, in its own copy of the tree."""

    def __init__(self, text: str, folder: Path) -> None:
        self.text = text
        self.folder = folder
        argv = ["bash", "-c", f"exec {text}"]
        self.child = Child(
            "demo", argv, log=folder.with_suffix(".log"), env=environment(folder) | BACKGROUND_ARGUMENTS, cwd=folder
        )

    @property
    def addresses(self) -> Path:
        return self.folder / ENVIRONMENT

    async def ready(self) -> str:
        """Wait until it has written its addresses; returns the problem if it does not."""
        begin = monotonic_seconds()
        while not self.addresses.exists():
            if not self.child.alive:
                return f"the demo exited with code {self.child.exit_code}{self.child.log_tail()}"
            if monotonic_seconds() - begin > COMMAND_SECONDS:
                return f"no {ENVIRONMENT} after {COMMAND_SECONDS:g} s{self.child.log_tail()}"
            await asyncio.sleep(0.05)
        return ""

    def lend(self, folder: Path) -> None:
        """Copy its addresses to another copy of the tree. A demo that a document runs there replaces only this copy."""
        for name in (ENVIRONMENT, APPLIED):
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy2(self.folder / name, folder / name)

    async def interrupt(self) -> str:
        """Send Ctrl-C; returns the problem with its end, if any."""
        if not self.child.alive:
            return f"it exited by itself with code {self.child.exit_code}{self.child.log_tail()}"
        self.child.signal(signal.SIGINT)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                code = await self.child.wait()
        except TimeoutError:
            return f"it was still running {STOP_SECONDS:g} s after Ctrl-C{self.child.log_tail()}"
        return "" if code in INTERRUPTED else f"it exited with code {code} after Ctrl-C{self.child.log_tail()}"


class Reader:
    """Runs one document in its copy of the tree."""

    def __init__(self, name: str, folder: Path, demos: Mapping[str, Background], alone: asyncio.Lock) -> None:
        self.name = name
        self.alone = alone
        self.folder = folder
        self.env = environment(folder)
        self.demos = demos
        self.state = folder.with_suffix(".state")
        self.state.write_text(f"cd {shlex.quote(str(folder))}\n")

    async def run(self, found: Sequence[Command]) -> list[Outcome]:
        outcomes = []
        lost = ""
        for command in found:
            failed = "not run: its demo is not there" if lost else ""
            if command.demo and not lost:
                failed = lost = await self.demos[command.demo].ready()
                if not lost:
                    self.demos[command.demo].lend(self.folder)
            heavy = command.shorter is not None and not command.background
            async with self.alone if heavy else contextlib.nullcontext():
                begin = monotonic_seconds()
                if not failed and not command.background:
                    failed = await self._run(command)
            what = command.text.splitlines()[0] + (" …" if "\n" in command.text else "")
            if command.shorter:
                what += f"   ({' '.join(f'{name}={shlex.quote(value)}' for name, value in command.shorter.items())})"
            where = f"{self.name}:{command.line}"
            outcomes.append(Outcome(where, what, monotonic_seconds() - begin, failed))
            print(outcomes[-1].line(), flush=True)
        return outcomes

    async def _run(self, command: Command) -> str:
        script = self.folder.with_suffix(".command")
        script.write_text(command.text + "\n")
        if command.language == "python":
            program = self.folder.with_suffix(".program.py")
            program.write_text(command.text + "\n")
            script.write_text(f".venv/bin/python {shlex.quote(str(program))}\n")
        log = self.folder.with_suffix(".log")
        log.unlink(missing_ok=True)
        argv: list[str | Path] = ["bash", "-c", IN_STATE, "bash", self.state, script]
        child = Child(command.text, argv, log=log, env={**self.env, **(command.shorter or {})})
        child.start()
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                code = await child.wait()
        except TimeoutError:
            code = None
        finally:
            await child.kill()
        return problem(code, log.read_text(errors="replace"), command.expected)


def copy_tree(root: Path, folder: Path) -> Path:
    """A clone with uncommitted changes and the same virtual environment. Commands write there and not to the user's
    tree, and `git status` shows what they write."""
    # A neighbour may be writing bytecode: CPython renames x.pyc.NUMBER to x.pyc.
    left_out = shutil.ignore_patterns(".git", ".venv", ".slipway", ".*_cache", ".hypothesis", "*.egg-info", "*.pyc.*")
    shutil.copytree(root, folder, ignore=left_out, symlinks=True)
    if (root / ".venv").exists():
        (folder / ".venv").symlink_to(root / ".venv")
        # `make` in the copy must not install packages: the virtual environment is complete, and others use it too.
        for path in (
            *folder.glob("requirements*.lock"),
            *folder.glob("pyproject.toml"),
            *folder.glob("*/*/pyproject.toml"),
        ):
            os.utime(path, (0, 0))
    who = ["-c", "user.name=reader", "-c", "user.email=reader@localhost"]
    for arguments in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "--allow-empty", "-m", "as it is"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Environment of a reader's shell, without the variables that choose servers, demos and arguments of make. The
    copy's packages come before the installed ones, which are those of the user's tree."""
    packages = [*sorted(folder.glob("libs/*")), *sorted(folder.glob("services/*"))]
    kept = {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "TERM", "SLIPWAY_CACHE", "SLIPWAY_JAVA", "JAVA_HOME"}
    inherited = {name: value for name, value in os.environ.items() if name in kept}
    return inherited | {"PYTHONPATH": os.pathsep.join(map(str, packages))}


async def read(root: Path, documents: Sequence[Path], place: Path) -> list[Outcome]:
    """Run the documents and return their outcomes."""
    outcomes: list[Outcome] = []
    found: dict[Path, list[Command]] = {}
    for path in documents:
        name = str(path.relative_to(root))
        try:
            found[path] = [command for block in blocks(path.read_text()) for command in commands(block)]
        except Wrong as wrong:
            outcomes.append(Outcome(f"{name}:{wrong.line}", "cannot be run", problem=str(wrong)))
            print(outcomes[-1].line(), flush=True)
    texts = dict.fromkeys(command.demo for each in found.values() for command in each if command.demo)
    demos = {text: Background(text, copy_tree(root, place / f"demo-{n}")) for n, text in enumerate(texts)}
    try:
        for demo in demos.values():
            demo.child.start()
        alone = asyncio.Lock()
        readers = [
            Reader(str(path.relative_to(root)), copy_tree(root, place / f"reader-{n}"), demos, alone).run(each)
            for n, (path, each) in enumerate(found.items())
        ]
        # The first document shows an untouched deployment; the guides change what it declares.
        for together in (readers[:1], readers[1:]):
            for each in await asyncio.gather(*together):
                outcomes += each
        for demo in demos.values():
            begin = monotonic_seconds()
            failure = await demo.interrupt()
            outcomes.append(Outcome("Ctrl-C", demo.text, monotonic_seconds() - begin, failure))

            print(outcomes[-1].line(), flush=True)
    finally:
        await asyncio.gather(*(demo.child.stop(STOP_SECONDS) for demo in demos.values()))
    return outcomes


async def main(_: Supervisor) -> int:
    only = os.environ.get("ONLY", "")
    documents = [path for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern)) if only in str(path)]
    with disk_folder("slipway-readme-") as place:
        outcomes = await read(ROOT, documents, place)
    good = sum(not outcome.problem for outcome in outcomes)
    print(f"{good} of {len(outcomes)}")
    return 0 if outcomes and good == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(run_supervised(main))
