"""Drivers, jobs and modules for tests of Terraform runs, with the provider `ledger`."""

import asyncio
import contextlib
import copy
import os
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from slipway_local.terraform.ledger import SOURCE, VERSION, Ledger, write_mirror
from slipway_terraform.domain.policy import Policy
from slipway_terraform.domain.port import ProviderScheduler
from slipway_terraform.domain.specs import Mode, ProviderSpec
from slipway_terraform.plugins.runner import PluginRunner
from slipway_terraform.runs.driver import Driver, DriverSettings, Job
from slipway_terraform.runs.modules import module_digest
from slipway_terraform.scheduler.noop import NoOpScheduler
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.folders import temporary_folder
from tests.support.terraform import installed

MACHINE: Final = """
terraform {
  required_providers {
    ledger = { source = "registry.terraform.io/slipway/ledger" }
  }
}
variable "name" { type = string }
resource "ledger_machine" "one" {
  name = var.name
  tags = { worker = var.name }
}
output "id" { value = ledger_machine.one.id }
output "region" { value = ledger_machine.one.region }
"""
SECRET: Final = "hunter2-of-the-ledger"


class Place:
    """A folder with a ledger, a mirror with its provider, and modules."""

    def __init__(self, folder: Path) -> None:
        installed()
        self.folder = folder
        self.ledger = Ledger(folder / "ledger")
        self.mirror = folder / "mirror"
        self.plugin, self.digest = write_mirror(self.mirror)

    def with_plugin(self, digest: str) -> "Place":
        """The same place, after its plugin was replaced by one with this digest."""
        changed = copy.copy(self)
        changed.digest = digest
        return changed

    def module(self, text: str = MACHINE, name: str = "machine", **files: str) -> Path:
        """Folder of a module with this main.tf, and other files by name, of which dots are written as _."""
        folder = self.folder / "modules" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "main.tf").write_text(text)
        for file, content in files.items():
            (folder / file.replace("_", ".")).write_text(content)
        return folder

    def spec(self, region: str = "east", **configuration: Any) -> ProviderSpec:
        given = {"folder": str(self.ledger.folder), "region": region, "secret": SECRET, **configuration}
        return ProviderSpec(
            source=SOURCE,
            version=VERSION,
            binary=str(self.plugin),
            digest=self.digest,
            arguments=("--dev",),
            mode=Mode.DEBUG,
            configuration=given,
        )

    def job(self, module: Path | None = None, *, region: str = "east", **fields: Any) -> Job:
        module = module or self.module()
        variables: Mapping[str, Any] = fields.pop("variables", {"name": "w-1"})
        providers = fields.pop("providers", (self.spec(region),))
        return Job(
            module=module, module_digest=module_digest(module), variables=variables, providers=providers, **fields
        )

    def settings(self, **fields: Any) -> DriverSettings:
        given = {"tool": installed().terraform, "folder": self.folder / "runs", "mirror": self.mirror, **fields}
        return DriverSettings(**given)

    def secrets_on_disk(self) -> list[Path]:
        """Files below the folder of runs that contain the secret."""
        return [path for path in (self.folder / "runs").rglob("*") if path.is_file() and SECRET in _text(path)]


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


@contextlib.contextmanager
def new_place() -> Iterator[Place]:
    """A place in a folder whose path is short enough for sockets."""
    with temporary_folder("tf-") as folder:
        yield Place(folder)
        shutil.rmtree(folder / "mirror", ignore_errors=True)


@contextlib.asynccontextmanager
async def driver(place: Place, scheduler: ProviderScheduler | None = None, **settings: Any) -> AsyncIterator[Driver]:
    async with Driver(place.settings(**settings), scheduler or NoOpScheduler()) as opened:
        yield opened


@contextlib.asynccontextmanager
async def schedulers(
    folder: Path, kind: type[SharedScheduler] = SharedScheduler, start_seconds: float = 60.0, **policy: Any
) -> AsyncIterator[SharedScheduler]:
    """A scheduler with a runner of its own, whose sockets are in `folder`."""
    runner = PluginRunner(folder, start_seconds=start_seconds)
    scheduler = kind(runner, Policy(**policy))
    try:
        yield scheduler
    finally:
        await scheduler.aclose(0.0)
        await runner.aclose()


def soon(seconds: float = 60.0) -> float:
    return asyncio.get_running_loop().time() + seconds


def descendants() -> list[psutil.Process]:
    """Processes of this one, at any depth, zombies too."""
    return psutil.Process(os.getpid()).children(recursive=True)
