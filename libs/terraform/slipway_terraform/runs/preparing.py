"""Installation of modules and providers, once for all workspaces that need the same ones."""

import asyncio
import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from slipway_terraform.domain.diagnostics import is_disk_full
from slipway_terraform.domain.errors import DigestMismatch, DiskFull, InitFailed, ModuleInvalid
from slipway_terraform.domain.module import Needs, needs
from slipway_terraform.domain.output import Output, text_error
from slipway_terraform.domain.root import FILE, FOLDER, MODULE
from slipway_terraform.domain.sources import local_name, qualified
from slipway_terraform.domain.specs import ProviderSpec
from slipway_terraform.domain.tools import Tool
from slipway_terraform.runs.files import DATA, RunFolder, disk_full, remove
from slipway_terraform.runs.modules import configuration, copy_module
from slipway_terraform.runs.process import Ended

KEPT_MAX: Final = 50
"""Number of unused folders that are kept for later runs, the latest ones."""
GET: Final = ("get", "-no-color")
INIT: Final = ("init", "-backend=false", "-input=false", "-no-color")
REMEDIES: Final = {
    "get": "correct the module, and put the modules that it calls where it names them",
    "init": "correct the module, or add the provider to the mirror",
}
RunTool = Callable[[Sequence[str], Path, Output], Awaitable[Ended]]
"""Runs the CLI with arguments in a folder, as one of the bounded number of processes."""


class Prepared(msgspec.Struct, frozen=True):
    """A folder with the module and what was installed for it, and the providers that all its modules need."""

    folder: Path
    needs: Needs


class Preparing:
    """Prepared folders by what they contain. Callers that need the same one share its installation."""

    def __init__(self, folder: RunFolder, tool: Tool, run: RunTool) -> None:
        self._folder, self._give = folder.prepared, folder.give
        self._tool, self._run = tool, run
        self._tasks: dict[str, asyncio.Task[Prepared]] = {}  # the latest last
        self._users: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def use(self, module: Path, digest: str, specs: Sequence[ProviderSpec] = ()) -> AsyncIterator[Prepared]:
        """Folder for this module, with the providers of `specs`, which the CLI starts itself. It stays while in use.

        Raises ModuleMissing, ModuleInvalid, DigestMismatch, InitFailed, DiskFull.
        """
        providers = sorted((spec.source, spec.version, spec.digest) for spec in specs)
        key = hashlib.sha256(json.dumps([digest, providers]).encode()).hexdigest()[:20]
        task = self._tasks.pop(key, None)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.ensure_future(self._prepare(key, module, digest, specs))
        self._tasks[key] = task
        self._users[key] += 1
        try:
            yield await asyncio.shield(task)
        finally:
            self._users[key] -= 1
            self._prune()

    def _prune(self) -> None:
        unused = [key for key, task in self._tasks.items() if not self._users[key] and task.done()]
        for key in unused[:-KEPT_MAX]:
            del self._tasks[key], self._users[key]
            remove(self._folder / key)

    async def _prepare(self, key: str, module: Path, digest: str, specs: Sequence[ProviderSpec]) -> Prepared:
        folder = self._folder / key
        try:
            with disk_full(f"the module {module}"):
                (folder / FOLDER).mkdir(parents=True, mode=0o700)
                await asyncio.to_thread(copy_module, module, digest, folder / FOLDER)
                (folder / FILE).write_bytes(_root(specs))
                self._give(folder)
            await self._install(module, folder, INIT if specs else GET)
            await asyncio.to_thread(_check_digests, folder / DATA / "providers", specs)
            return Prepared(folder, needs(configuration(_folders(folder))))
        except BaseException:
            remove(folder)
            raise

    async def _install(self, module: Path, folder: Path, command: Sequence[str]) -> None:
        output = Output()
        ended = await self._run(command, folder, output)
        if ended.exit_code != 0:
            reason = ended.interrupted or text_error(output.text)
            reason = reason or f"{command[0]} printed nothing and ended with {ended.exit_code}"
            if is_disk_full(reason):
                raise DiskFull(f"no space on the disk to install what {module} needs: {reason}; free some")
            raise InitFailed(
                f"{command[0]} of {module} failed: {reason.rstrip('.')}; {REMEDIES[command[0]]}",
                output="\n".join(output.text),
            )

    async def aclose(self) -> None:
        """Cancel what is being prepared."""
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def undeclared(found: Needs, specs: Sequence[ProviderSpec], tool: Tool) -> None:
    """Raise ModuleInvalid if the modules need a provider that the job does not provide."""
    known = {spec.source for spec in specs}
    for name, source in found.sources.items():
        if (address := qualified(source, tool.kind)) not in known and not address.startswith("terraform.io/builtin/"):
            raise ModuleInvalid(
                f"the module needs provider {name} ({address}), and the job has {', '.join(sorted(known)) or 'none'}; "
                "add it to the job, or write the same source in both"
            )


def _check_digests(folder: Path, specs: Sequence[ProviderSpec]) -> None:
    """Raise DigestMismatch unless each provider that was installed in `folder` is the one that was asked for."""
    for spec in specs:
        found = {}
        for file in (folder / spec.source / spec.version).glob("*/*"):  # PLATFORM/FILE
            if file.is_file():
                with file.open("rb") as opened:
                    found[file.name] = hashlib.file_digest(opened, "sha256").hexdigest()
        if spec.digest not in found.values():
            there = ", ".join(f"{name} {digest}" for name, digest in sorted(found.items())) or "nothing"
            raise DigestMismatch(
                f"{spec.source} {spec.version}: the mirror has {there}, expected SHA-256 {spec.digest}; "
                "put that release into the mirror, or approve this one"
            )


def _root(specs: Sequence[ProviderSpec]) -> bytes:
    """Root module for an installation: no configuration, since that holds secrets."""
    required = {local_name(spec.source): {"source": spec.source, "version": f"= {spec.version}"} for spec in specs}
    document = {"terraform": [{"required_providers": [required]}], "module": {MODULE: [{"source": f"./{FOLDER}"}]}}
    return json.dumps(document).encode()


def _folders(folder: Path) -> dict[str, Path]:
    """Folders of the user's module and the modules that it calls, by name."""
    listed = json.loads((folder / DATA / "modules" / "modules.json").read_bytes())["Modules"]
    return {each["Key"]: folder / each["Dir"] for each in listed if each["Key"]}
