"""Builds a Dockerfile without a container engine: COPY copies files, RUN runs commands, each stage in an empty folder.

Only the instructions that the project uses are known; any other is an error instead of being ignored. Differences from
an engine:
- The folder is not a root file system. Absolute paths of the image are below it, so RUN lines must not name any; they
  write to `$PREFIX`, a build argument, which is set to the same path below that folder.
- Base images provide this machine's programs. `python` is an interpreter of this machine that every user may run, of
  any version; wheels for the version of the base are checked separately.
- The image of uv provides the uv of the development environment.
- RUN inherits this machine's environment, which configures the package index and uv's cache.
"""

import hashlib
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

KNOWN: Final = {"FROM", "ARG", "ENV", "WORKDIR", "RUN", "USER", "CMD", "LABEL", "EXPOSE", "STOPSIGNAL"}
FLAGS: Final = {
    "COPY": {"from", "chown"},
    "HEALTHCHECK": {"interval", "timeout", "start-period", "start-interval", "retries"},
}
AT_RUN_TIME: Final = {"RUN", "CMD", "HEALTHCHECK"}  # these read variables from their environment
PREFIX: Final = "/opt/slipway"
CONTAINER_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UV: Final = Path(sys.executable).with_name("uv")
HOST_ONLY: Final = ("SLIPWAY_", "PYTHON", "VIRTUAL_ENV", "UV_LINK_MODE", "UV_COMPILE_BYTECODE", "MAKE", "KAFKA")


class BuildFailed(Exception):
    """A Dockerfile is not supported, or one of its lines failed; the message has the line."""


class Instruction(msgspec.Struct, frozen=True):
    """One instruction. `text` is substituted except in RUN, CMD and HEALTHCHECK; RUN gets `variables`."""

    line: int
    keyword: str
    flags: dict[str, str]
    text: str
    variables: dict[str, str]


class Stage(msgspec.Struct, frozen=True):
    """One build stage. `base` is the name of an image or of an earlier stage, `environment` that of its end."""

    name: str
    base: str
    instructions: list[Instruction]
    environment: dict[str, str]

    def last(self, keyword: str) -> str:
        """Text of the last instruction with this keyword; empty if there is none."""
        return next((one.text for one in reversed(self.instructions) if one.keyword == keyword), "")


def parse(text: str, arguments: Mapping[str, str], path: str) -> list[Stage]:
    """Parse a Dockerfile for build arguments and the PATH of the base images; raises BuildFailed."""
    stages: list[Stage] = []
    shared: dict[str, str] = {}  # arguments before the first stage
    known = shared
    for line, keyword, flags, rest in _lines(text):
        environment = stages[-1].environment if stages else {}
        scope = shared if keyword == "FROM" else known | environment
        try:
            written = rest if keyword in AT_RUN_TIME else string.Template(rest).substitute(scope)
        except (KeyError, ValueError) as error:
            raise BuildFailed(f"line {line}: {error} is not known in {rest}") from None
        if keyword == "FROM":
            base, _, name = written.partition(" AS ")
            stages.append(Stage(name or str(len(stages)), base, [], {"PATH": path}))
            known = {}
        elif keyword == "ARG":
            name, _, default = written.partition("=")
            known[name] = arguments.get(name, default)
        elif not stages:
            raise BuildFailed(f"line {line}: {keyword} before FROM")
        else:
            if keyword == "ENV":
                environment |= dict(word.split("=", 1) for word in shlex.split(written))
            stages[-1].instructions.append(Instruction(line, keyword, flags, written, scope))
    return stages


def _lines(text: str) -> Iterator[tuple[int, str, dict[str, str], str]]:
    """Instructions with their first line: keyword, flags and the rest, continued lines joined."""
    pending, begin = "", 0
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("#"):
            continue
        begin = begin or number
        pending += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        keyword, _, rest = pending.partition(" ")
        flags: dict[str, str] = {}
        while rest.startswith("--"):
            flag, _, rest = rest.partition(" ")
            name, _, flags[name] = flag[2:].partition("=")
        if keyword not in KNOWN | set(FLAGS) or set(flags) - FLAGS.get(keyword, set()):
            raise BuildFailed(f"line {begin}: {' '.join([keyword, *flags])} is not known")
        yield begin, keyword, flags, rest.strip()
        pending, begin = "", 0


def ignored(path: str, rules: str) -> bool:
    """True if .dockerignore excludes a file of the context: the last matching rule decides."""
    verdict = False
    for rule in (line.strip() for line in rules.splitlines()):
        body = re.escape(rule.removeprefix("!")).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
        if not rule.startswith("#") and re.fullmatch(f"{body}(?:/.*)?", path):
            verdict = not rule.startswith("!")
    return verdict


class Image(msgspec.Struct, frozen=True):
    """Result of a build: a tree, and how to start it."""

    root: Path
    environment: dict[str, str]
    uid: int
    gid: int

    def find(self, program: str) -> Path:
        """Path of a program on the image's PATH; raises BuildFailed if there is none."""
        if found := shutil.which(program, path=self.environment["PATH"]):
            return Path(found)
        raise BuildFailed(f"{program} is not on the image's PATH")


class Builder:
    """Builds the Dockerfiles of a context. Results of RUN lines are kept in `folder`, since images share the first."""

    def __init__(self, context: Path, folder: Path) -> None:
        self.context = context
        self.rules = (context / ".dockerignore").read_text()
        self.base, self.layers = folder / "base", folder / "layers"
        self.base.mkdir(parents=True)
        for name in ("python", "python3"):
            (self.base / name).symlink_to(interpreter())

    def build(self, dockerfile: str, arguments: Mapping[str, str], place: Path) -> Image:
        """Build in `place`, a new folder. Raises BuildFailed."""
        own = os.pathsep.join(f"{place}{folder}" for folder in CONTAINER_PATH.split(":"))
        given = {**arguments, "PREFIX": f"{place}{PREFIX}"}
        stages = parse((self.context / dockerfile).read_text(), given, f"{own}:{self.base}:{CONTAINER_PATH}")
        done: dict[str, Path] = {}
        for stage in stages:
            place.mkdir()
            place.chmod(0o755)
            try:
                self._execute(stage, place, done)
            except BuildFailed as error:
                raise BuildFailed(f"{dockerfile}: {error}") from error
            if stage is not stages[-1]:
                done[stage.name] = place.rename(place.with_name(f"{place.name}.{stage.name}"))
        for folder in done.values():
            shutil.rmtree(folder)
        uid, gid = (int(part) for part in (stages[-1].last("USER") or "0:0").split(":"))
        return Image(place, stages[-1].environment, uid, gid)

    def _execute(self, stage: Stage, place: Path, done: Mapping[str, Path]) -> None:
        if "/uv:" in stage.base:
            shutil.copy2(UV, place / "uv")
        digest = hashlib.sha256(stage.base.encode())
        work = place
        for one in stage.instructions:
            text = one.text.replace(str(place), "")
            # Everything that the result of a RUN line depends on, for any place.
            digest.update(f"{one.keyword} {one.flags} {text} {one.variables}\n".replace(str(place), "").encode())
            if one.keyword == "WORKDIR":
                work = _below(place, text)
                work.mkdir(parents=True, exist_ok=True)
            elif one.keyword == "COPY":
                *sources, target = text.split()
                into = _below(place, target) if target.startswith("/") else work / target
                for source in sources:
                    if "from" in one.flags:
                        self._copy_tree(one, done, source, into)
                    else:
                        digest.update(self._copy_context(one, source, into).encode())
            elif one.keyword == "RUN" and not self._restore(layer := self.layers / digest.hexdigest(), place):
                self._run(one, work)
                link_tree(place, layer)

    def _restore(self, layer: Path, place: Path) -> bool:
        """Take over the tree of a RUN line with the same inputs, hard-linked: installed files do not change."""
        if layer.is_dir():
            shutil.rmtree(place)
            link_tree(layer, place)
        return layer.is_dir()

    def _run(self, one: Instruction, work: Path) -> None:
        host = {name: value for name, value in os.environ.items() if not name.startswith(HOST_ONLY)}
        environment, silent = host | one.variables, subprocess.DEVNULL
        command = ["/bin/sh", "-c", one.text]
        ended = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, stdin=silent)
        if ended.returncode != 0:
            raise BuildFailed(f"line {one.line}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}")

    def _copy_context(self, one: Instruction, source: str, into: Path) -> str:
        """Copy the files below `source` that .dockerignore does not exclude; returns a hash of them."""
        top = self.context / source
        paths = [top] if top.is_file() else sorted(path for path in top.rglob("*") if path.is_file())
        seen = [path for path in paths if not ignored(str(path.relative_to(self.context)), self.rules)]
        if not seen:
            raise BuildFailed(f"line {one.line}: {source} is not in the build context, or .dockerignore excludes it")
        digest = hashlib.sha256()
        for path in seen:
            file = into / path.relative_to(top)
            if path == top and into.is_dir():
                file = into / path.name
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, file)
            digest.update(str(path).encode() + path.read_bytes())
        return digest.hexdigest()

    def _copy_tree(self, one: Instruction, done: Mapping[str, Path], source: str, into: Path) -> None:
        """Copy from an earlier stage. Files whose owner changes are copied, because links share the owner."""
        if (origin := done.get(one.flags["from"])) is None:
            raise BuildFailed(f"line {one.line}: no stage {one.flags['from']}")
        found, owner = _below(origin, source), one.flags.get("chown")
        into.parent.mkdir(parents=True, exist_ok=True)
        if found.is_file():
            shutil.copy2(found, into)
        else:
            link_tree(found, into, shutil.copy2 if owner else os.link)
        if owner and os.geteuid() == 0:
            uid, gid = (int(part) for part in owner.split(":"))
            for path in (into, *into.rglob("*")):
                os.chown(path, uid, gid, follow_symlinks=False)


def link_tree(source: Path, target: Path, copy: Callable[..., object] = os.link) -> None:
    shutil.copytree(source, target, symlinks=True, copy_function=copy, dirs_exist_ok=True)


def _below(place: Path, path: str) -> Path:
    return place / path.lstrip("/")


def interpreter() -> Path:
    """A Python of this machine, 3.11 or later, that all users can run; otherwise the current one."""
    recent = "import sys, venv; sys.exit(sys.version_info < (3, 11))"
    own = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    for path in (own, *(Path(folder, "python3") for folder in CONTAINER_PATH.split(":"))):
        open_to_all = path.exists() and all(p.stat().st_mode & 0o005 == 0o005 for p in path.resolve().parents)
        if open_to_all and subprocess.run([path, "-I", "-c", recent], capture_output=True, check=False).returncode == 0:
            return path
    return own
