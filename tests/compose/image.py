"""Builds a Dockerfile without a container engine: COPY copies files, RUN runs commands, each stage in an empty folder.

Differences from an engine:
- The folder is not a root file system. Absolute paths of the image are below it, so RUN lines must not name any; they
  write to `$PREFIX`, a build argument, which is set to the same path below that folder.
- Base images provide this machine's programs. `python` is an interpreter of this machine that every user may run, of
  any version; wheels for the version of the base are checked separately.
- The image of uv provides the uv of the development environment, if it has the named version.
- RUN inherits this machine's environment, which configures the package index and uv's cache.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tests.compose.dockerfile import BadDockerfile, Dockerfile, Instruction, Stage, ignored, substitute

CONTAINER_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UV: Final = Path(sys.executable).with_name("uv")
HOST_ONLY: Final = ("SLIPWAY_", "PYTHON", "VIRTUAL_ENV", "UV_LINK_MODE", "UV_COMPILE_BYTECODE", "MAKE", "KAFKA")


class BuildFailed(Exception):
    """A line of a Dockerfile failed; the message has the file, the line and the output."""


class Image(msgspec.Struct, frozen=True):
    """Result of a build: a tree, and how to start it."""

    root: Path
    environment: dict[str, str]
    uid: int
    gid: int
    working_dir: str

    def unfit(self) -> list[str]:
        """Files that must not be in the image, and modules without bytecode."""
        tools = [path.name for path in self.root.glob("opt/*/bin/*") if path.name in ("uv", "uvx", "pip")]
        ours = [path for top in self.root.glob("opt/*/lib/*/site-packages/slipway_*") for path in top.rglob("*.py")]
        slow = [path.name for path in ours if not any(path.parent.glob(f"__pycache__/{path.stem}.*.pyc"))]
        return [f"{name} is shipped" for name in tools] + [f"{name} is not compiled" for name in slow]

    def find(self, program: str) -> Path:
        """Path of a program on the image's PATH; raises BuildFailed if there is none."""
        for folder in self.environment["PATH"].split(os.pathsep):
            if os.access(path := Path(folder, program), os.X_OK):
                return path
        raise BuildFailed(f"{program} is not on the image's PATH")


def base_folder(folder: Path) -> Path:
    """Create a folder with `python` and `python3`, as in the base image; all images of a run share it."""
    folder.mkdir()
    for name in ("python", "python3"):
        (folder / name).symlink_to(interpreter())
    return folder


def interpreter() -> Path:
    """A Python of this machine, 3.11 or later, that all users can run; otherwise the current one."""
    recent = "import sys, venv; sys.exit(sys.version_info < (3, 11))"
    own = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    for path in (own, *(Path(folder, "python3") for folder in CONTAINER_PATH.split(":"))):
        open_to_all = path.exists() and all(p.stat().st_mode & 0o005 == 0o005 for p in path.resolve().parents)
        if open_to_all and subprocess.run([path, "-I", "-c", recent], capture_output=True, check=False).returncode == 0:
            return path
    return own


def host_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(HOST_ONLY)}


class Layers:
    """Layer cache for RUN lines that several Dockerfiles share: same instructions and same files give the same tree.

    Trees are hard-linked, because files do not change after they are installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shared: set[str] = set()

    def load(self, key: str, root: Path) -> bool:
        kept = self.folder / key
        if kept.is_dir():
            shutil.rmtree(root)
            link_tree(kept, root)
        return kept.is_dir()

    def save(self, key: str, root: Path) -> None:
        if key in self.shared:
            link_tree(root, self.folder / key)


class Builder:
    """Builds one Dockerfile with its context and its .dockerignore."""

    def __init__(self, path: str, dockerfile: Dockerfile, context: Path, base: Path, layers: Layers) -> None:
        self.path = path
        self.dockerfile = dockerfile
        self.context = context
        self.base = base
        self.layers = layers
        rules = context / ".dockerignore"
        self.rules = rules.read_text() if rules.exists() else ""

    def run_keys(self) -> list[str]:
        """Cache key of each RUN line: a hash of everything that its result depends on."""
        found = []
        for stage in self.dockerfile.stages:
            digest = hashlib.sha256(stage.base.encode())
            for one in stage.instructions:
                digest.update(f"{one.keyword} {sorted(one.flags.items())} {one.text}\n".encode())
                if one.keyword == "COPY" and "from" not in one.flags:
                    for source in one.text.split()[:-1]:
                        for name in self._context_files(source, one):
                            digest.update(name.encode() + hashlib.sha256((self.context / name).read_bytes()).digest())
                if one.keyword == "RUN":
                    found.append(digest.hexdigest()[:16])
        return found

    def build(self, place: Path) -> Image:
        """Build in `place`, a new folder; earlier stages are moved to folders beside it. Raises BuildFailed."""
        keys = iter(self.run_keys())
        done: dict[str, Path] = {}
        for number, stage in enumerate(self.dockerfile.stages):
            place.mkdir()
            place.chmod(0o755)
            try:
                environment, working_dir = self._stage(stage, place, done, keys)
            except BadDockerfile as error:
                raise BuildFailed(f"{self.path}: {error}") from error
            if stage is not self.dockerfile.final:
                done[stage.name] = place.rename(place.with_name(f"{place.name}.stage-{number}"))
        for folder in done.values():
            shutil.rmtree(folder)
        user = self.dockerfile.final.last("USER")
        uid, gid = (int(part) for part in user.text.split(":")) if user else (0, 0)
        return Image(place, environment, uid, gid, working_dir)

    def _stage(
        self, stage: Stage, place: Path, done: Mapping[str, Path], keys: Iterator[str]
    ) -> tuple[dict[str, str], str]:
        base, _, tag = stage.base.rpartition(":")
        if base.endswith("/uv"):
            self._uv(place, tag)
        elif base != "python":
            raise BadDockerfile(f"base {stage.base} is not known here")
        own = os.pathsep.join(f"{place}{folder}" for folder in CONTAINER_PATH.split(":"))
        environment = {"PATH": f"{own}:{self.base}:{CONTAINER_PATH}"}
        arguments: dict[str, str] = {}
        working_dir = "/"
        for one in stage.instructions:
            known = arguments | environment
            if one.keyword == "ARG":
                name, _, default = one.text.partition("=")
                arguments[name] = f"{place}{default}" if name == "PREFIX" else substitute(default, known, one.line)
            elif one.keyword == "ENV":
                environment |= {name: substitute(value, known, one.line) for name, value in one.pairs().items()}
            elif one.keyword == "WORKDIR":
                working_dir = str(Path(working_dir, substitute(one.text, known, one.line)))
                _below(place, working_dir).mkdir(parents=True, exist_ok=True)
            elif one.keyword == "COPY":
                self._copy(one, place, working_dir, done, known)
            elif one.keyword == "RUN":
                key = next(keys)
                if not self.layers.load(key, place):
                    self._run(one, place, working_dir, known)
                    self.layers.save(key, place)
        return environment, working_dir

    def _uv(self, place: Path, tag: str) -> None:
        version = subprocess.run([UV, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
        if version != tag:
            raise BadDockerfile(f"uv {tag} is named, but {version} is installed")
        shutil.copy2(UV, place / "uv")

    def _run(self, one: Instruction, place: Path, working_dir: str, known: Mapping[str, str]) -> None:
        ended = subprocess.run(
            ["/bin/sh", "-c", one.text],
            cwd=_below(place, working_dir),
            env={**host_environment(), **known},
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if ended.returncode != 0:
            raise BuildFailed(f"{self.path}:{one.line}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}")

    def _copy(
        self, one: Instruction, place: Path, working_dir: str, done: Mapping[str, Path], known: Mapping[str, str]
    ) -> None:
        *sources, target = (substitute(word, known, one.line) for word in one.text.split())
        into = _below(place, str(Path(working_dir, target)))
        folder_wanted = target.endswith("/") or len(sources) > 1 or into.is_dir()
        for source in sources:
            if "from" in one.flags:
                origin = done.get(one.flags["from"])
                if origin is None:
                    raise BadDockerfile(f"line {one.line}: no stage {one.flags['from']}")
                self._copy_tree(one, _below(origin, _inside(place, source)), into, folder_wanted)
            else:
                names = self._context_files(source, one)
                for name in names:
                    relative = Path(name).relative_to(source)
                    if relative == Path("."):
                        relative = Path(Path(name).name) if folder_wanted else relative
                    (into / relative).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(self.context / name, into / relative)

    def _copy_tree(self, one: Instruction, source: Path, into: Path, folder_wanted: bool) -> None:
        """Copy from an earlier stage. Files whose owner changes are copied, because links share the owner."""
        if not source.exists():
            raise BadDockerfile(f"line {one.line}: {source.name} is not in that stage")
        into.parent.mkdir(parents=True, exist_ok=True)
        owner = one.flags.get("chown")
        if source.is_dir():
            link_tree(source, into, shutil.copy2 if owner else os.link)
        else:
            shutil.copy2(source, into / source.name if folder_wanted else into)
        if owner and os.geteuid() == 0:
            uid, gid = (int(part) for part in owner.split(":"))
            for path in (into, *into.rglob("*")):
                os.chown(path, uid, gid, follow_symlinks=False)

    def _context_files(self, source: str, one: Instruction) -> list[str]:
        """Files below `source` that .dockerignore does not exclude; raises BuildFailed if there are none."""
        top = self.context / source
        paths = [top] if top.is_file() else sorted(path for path in top.rglob("*") if path.is_file())
        names = [str(path.relative_to(self.context)) for path in paths]
        seen = [name for name in names if not ignored(name, self.rules)]
        if not seen:
            where = f"{self.path}:{one.line}"
            raise BuildFailed(f"{where}: {source} is not in the build context, or .dockerignore excludes it")
        return seen


def link_tree(source: Path, target: Path, copy: Callable[..., object] = os.link) -> None:
    shutil.copytree(source, target, symlinks=True, copy_function=copy, dirs_exist_ok=True)


def _inside(place: Path, path: str) -> str:
    """Path inside the image, without the build folder that PREFIX adds."""
    return "/" + path.removeprefix(str(place)).lstrip("/")


def _below(place: Path, path: str) -> Path:
    """Path on this machine of a path of the image."""
    return place / _inside(place, path).lstrip("/")
