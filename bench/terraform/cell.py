"""One cell of `make bench-terraform`, as a process of its own: applies of so many tasks at a time under a scheduler.

`python -m bench.terraform.cell`, with a Cell as JSON on standard input; prints `started` before the first apply, and
Applied as JSON at the end. All processes that it starts are counted: those that their parents leave behind become its
children.
"""

import asyncio
import contextlib
import ctypes
import os
import resource
import sys
import time
from pathlib import Path
from typing import Final

import msgspec
import psutil

from bench.terraform import cloud
from slipway_local.terraform.packages import MIRROR, TERRAFORM
from slipway_terraform.domain.policy import Policy
from slipway_terraform.domain.port import ProviderScheduler
from slipway_terraform.domain.results import Command, Run
from slipway_terraform.plugins.runner import PluginRunner
from slipway_terraform.runs.driver import Driver, DriverSettings
from slipway_terraform.scheduler.noop import NoOpScheduler
from slipway_terraform.scheduler.shared import SharedScheduler, WorkspaceScheduler

MODES: Final = ("noop", "noop-no-tls", "workspace", "shared")
STARTED: Final = "started"
RUN_SECONDS: Final = 600.0
PR_SET_CHILD_SUBREAPER: Final = 36  # prctl(2)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell. `folder` is new, `port` that of moto; workspaces take the regions in turns."""

    mode: str
    applies: int
    concurrency: int
    folder: str
    port: int
    regions: tuple[str, ...]

    def region(self, number: int) -> str:
        return self.regions[number % len(self.regions)]

    def name(self, number: int) -> str:
        return cloud.name_of(self.region(number), number)


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome: seconds of each apply from request to result, and failures. CPU time is that of all processes that were
    started, plugins and CLIs, and our own, of scheduler and driver."""

    seconds: list[float]
    failures: list[str]
    wall_seconds: float
    started_cpu_seconds: float
    own_cpu_seconds: float
    left: int
    """Processes that still exist at the end."""


async def play(cell: Cell) -> Applied:
    settings = DriverSettings(
        tool=TERRAFORM.path,
        folder=Path(cell.folder, "runs"),
        mirror=MIRROR,
        max_runs=cell.concurrency,
        environment={"TF_DISABLE_PLUGIN_TLS": "1"} if cell.mode == "noop-no-tls" else {},
    )
    module = cloud.write_module(Path(cell.folder, "module"))
    numbers = iter(range(cell.applies))
    runs: list[Run] = []

    async def run(command: Command, number: int) -> Run:
        job = cloud.job(module, cell.port, cell.region(number), cell.name(number))
        deadline = asyncio.get_running_loop().time() + RUN_SECONDS
        return await driver.run(command, cell.name(number), job, state=None, deadline=deadline)

    async def work() -> None:
        for number in numbers:
            runs.append(await run(Command.APPLY, number))

    async with Driver(settings, scheduler_for(cell.mode)) as driver:
        await run(Command.PLAN, 0)  # what is installed once is no part of an apply
        await driver.scheduler.aclose(0)
        driver.scheduler = scheduler_for(cell.mode)
        reap()
        began, started, own = time.monotonic(), cpu_seconds(resource.RUSAGE_CHILDREN), cpu_seconds(resource.RUSAGE_SELF)
        print(STARTED, flush=True)
        await asyncio.gather(*(work() for _ in range(cell.concurrency)))
        wall_seconds = time.monotonic() - began
        await driver.scheduler.aclose(0)
    reap()
    return Applied(
        seconds=[each.seconds for each in runs],
        failures=[each.failure.message for each in runs if each.failure is not None],
        wall_seconds=wall_seconds,
        started_cpu_seconds=cpu_seconds(resource.RUSAGE_CHILDREN) - started,
        own_cpu_seconds=cpu_seconds(resource.RUSAGE_SELF) - own,
        left=len(psutil.Process().children(recursive=True)),
    )


def reap() -> None:
    """Wait for processes that their parents left behind, so that their CPU time counts."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def cpu_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def scheduler_for(mode: str) -> ProviderScheduler:
    if mode.startswith("noop"):
        return NoOpScheduler()
    return (SharedScheduler if mode == "shared" else WorkspaceScheduler)(PluginRunner(), Policy())


if __name__ == "__main__":
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    print(msgspec.json.encode(asyncio.run(play(msgspec.json.decode(sys.stdin.buffer.read(), type=Cell)))).decode())
