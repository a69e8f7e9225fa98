"""`make soak-terraform`: workspaces that are applied, refreshed and destroyed in turns, for long, on shared plugins.

7 regions of moto, 30 workspaces each, one plugin per region under the default policy, so that plugins are replaced by
their invocations and their age meanwhile. A run begins every 3 s, at most 2 at a time. Sampled: memory of this process
and of its plugins, processes, open files. At the end moto has exactly the groups of the workspaces that exist, and
after the scheduler has closed no process, no socket and no file is left. Memory is the median of the last tenth over
that of the second tenth (the first one starts all plugins); less than 10 minutes show nothing about it.

SECONDS=40 is the short form's length, in which runs begin without a pause; FULL=1 takes an hour, KEEP=1 writes
bench/results/terraform-soak.json. Prints a line per minute, then the claims; exits with 1 if one is false.
"""

import asyncio
import contextlib
import os
import sys
from collections import Counter
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

import msgspec
import psutil

from bench import committed
from bench.claims import report
from bench.events import surroundings
from bench.terraform import cloud
from slipway_common.base.clock import monotonic_seconds
from slipway_local.servers.supervisor import run
from slipway_local.terraform import packages
from slipway_terraform.domain.policy import Policy
from slipway_terraform.domain.results import Command
from slipway_terraform.plugins.control import keep_open
from slipway_terraform.plugins.runner import PluginRunner
from slipway_terraform.runs.driver import Driver, DriverSettings
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.folders import temporary_folder
from tests.support.terraform_aws import AwsCloud

WORKSPACES: Final = 30
AT_ONCE: Final = 2
FULL_SECONDS: Final = 3600.0
SHORT_SECONDS: Final = 40.0
PAUSE_SECONDS: Final = 3.0
SAMPLE_SECONDS: Final = 1.0
LINE_SECONDS: Final = 60.0
RUN_SECONDS: Final = 600.0
MEMORY_FROM_SECONDS: Final = 600.0
GROWTH_MAX: Final = 0.05
MEBIBYTE: Final = 1 << 20
NEXT: Final = {Command.DESTROY: Command.APPLY, Command.APPLY: Command.REFRESH, Command.REFRESH: Command.DESTROY}


class Workspace(msgspec.Struct):
    """One security group, with the state of its last run."""

    region: str
    name: str
    last: Command = Command.DESTROY
    state: bytes | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Use of resources at one time. Memory is resident: ours, and that of all plugins that run."""

    seconds: float
    own_mib: float
    plugins_mib: float
    plugins: int
    processes: int
    open_files: int


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """Processes, sockets and files after the scheduler and the driver have closed."""

    processes: int
    sockets: int
    files: list[str]
    open_files: int
    """Open files of this process, beyond those at the beginning."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one run."""

    command: str
    on: dict[str, Any]
    seconds: float
    runs: dict[str, int]
    failures: list[str]
    replacements: int
    wrong_region: int
    missing: int
    memory_begin_mib: float
    memory_end_mib: float
    samples: list[Sample]
    """One of each minute."""
    left: Left


class Soak:
    """The runs, one after another in a random order of workspaces."""

    def __init__(self, folder: Path, port: int, rng: Random) -> None:
        self._folder, self._port, self._rng = folder, port, rng
        self._plugins = folder / "plugins"
        self._plugins.mkdir()
        self._module = cloud.write_module(folder / "module")
        self.scheduler = SharedScheduler(PluginRunner(self._plugins), Policy())
        self.driver = Driver(
            DriverSettings(tool=packages.TERRAFORM.path, folder=folder / "runs", max_runs=AT_ONCE), self.scheduler
        )
        self.workspaces = [
            Workspace(region, cloud.name_of(region, number)) for region in cloud.REGIONS for number in range(WORKSPACES)
        ]
        self.runs: Counter[str] = Counter()
        self.failures: list[str] = []
        self.pids: set[int] = set()

    async def prepare(self) -> set[str]:
        """Run what the driver prepares once; returns the files of that."""
        first = self.workspaces[0]
        job = cloud.job(self._module, self._port, first.region, first.name)
        deadline = asyncio.get_running_loop().time() + RUN_SECONDS
        await self.driver.run(Command.PLAN, first.name, job, state=None, deadline=deadline)
        self.driver.forget(first.name)
        return self.files()

    async def run(self, seconds: float, pause_seconds: float) -> None:
        """Runs for so long; each workspace has its turn in every round."""
        end, slots = monotonic_seconds() + seconds, asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            while True:
                for workspace in self._rng.sample(self.workspaces, len(self.workspaces)):
                    await slots.acquire()
                    if monotonic_seconds() >= end:
                        return
                    group.create_task(self._run(workspace, slots))
                    await asyncio.sleep(pause_seconds)

    async def _run(self, workspace: Workspace, slots: asyncio.Semaphore) -> None:
        try:
            command = NEXT[workspace.last]
            job = cloud.job(self._module, self._port, workspace.region, workspace.name)
            deadline = asyncio.get_running_loop().time() + RUN_SECONDS
            run = await self.driver.run(command, workspace.name, job, state=workspace.state, deadline=deadline)
            self.driver.forget(workspace.name)
            self.runs[command] += 1
            workspace.last, workspace.state = command, run.newest_state
            if run.failure is not None:
                self.failures.append(f"{command} of {workspace.name}: {run.failure.message}")
        finally:
            slots.release()

    def sample(self, began: float) -> Sample:
        """Measure now."""
        me = psutil.Process()
        plugins = [status.pid for status in self.scheduler.processes() if status.pid]
        memory_bytes = 0
        for pid in plugins:
            with contextlib.suppress(psutil.NoSuchProcess):
                memory_bytes += psutil.Process(pid).memory_info().rss
        self.pids.update(plugins)
        return Sample(
            seconds=round(monotonic_seconds() - began, 1),
            own_mib=round(me.memory_info().rss / MEBIBYTE, 1),
            plugins_mib=round(memory_bytes / MEBIBYTE, 1),
            plugins=len(plugins),
            processes=len(me.children(recursive=True)),
            open_files=me.num_fds(),
        )

    def files(self) -> set[str]:
        """Files and sockets of scheduler and driver."""
        found = (*self._plugins.rglob("*"), *(self._folder / "runs").rglob("*"))
        return {str(path.relative_to(self._folder)) for path in found if not path.is_dir()}

    def left(self, files: set[str], open_files: int) -> Left:
        """Processes, sockets and files that exist now, but for `files` that were there before the first run."""
        me = psutil.Process()
        return Left(
            processes=len(me.children(recursive=True)),
            sockets=Path("/proc/net/unix").read_text().count(str(self._folder)),
            files=sorted(self.files() - files),
            open_files=me.num_fds() - open_files,
        )


async def soak(seconds: float, pause_seconds: float, command: str) -> int:
    """Run the workspaces, then close everything and look for what is left."""
    before = os.getloadavg()[0]
    samples: list[Sample] = []
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(temporary_folder("slipway-soak-"))
        aws = AwsCloud(folder)
        print("starting moto …", flush=True)
        await aws.server.start()
        stack.push_async_callback(aws.server.stop)
        soaked = Soak(folder, aws.port, Random(1))
        others = len(psutil.Process().children(recursive=True))
        keep_open()  # the files of gRPC, which stay
        open_files = psutil.Process().num_fds()
        began = monotonic_seconds()
        async with soaked.driver:
            prepared = await soaked.prepare()
            sampling = asyncio.create_task(_sample(soaked, samples, began))
            await soaked.run(seconds, pause_seconds)
            sampling.cancel()
            await soaked.scheduler.aclose(RUN_SECONDS)
        left = soaked.left(prepared, open_files)
        left = msgspec.structs.replace(left, processes=left.processes - others)
        actual = await aws.groups(cloud.REGIONS)
    expected = Counter((each.region, each.region) for each in soaked.workspaces if each.last is not Command.DESTROY)
    begin, end = growth(samples, seconds)
    results = Results(
        command=command,
        on=surroundings(before),
        seconds=seconds,
        runs=dict(soaked.runs),
        failures=soaked.failures,
        replacements=len(soaked.pids) - len(cloud.REGIONS),
        wrong_region=(actual - expected).total(),
        missing=(expected - actual).total(),
        memory_begin_mib=begin,
        memory_end_mib=end,
        samples=samples[:: round(LINE_SECONDS / SAMPLE_SECONDS)],
        left=left,
    )
    committed.write_json(os.environ, "terraform-soak.json", results)
    print(f"{sum(soaked.runs.values())} runs: {dict(soaked.runs)}; {results.replacements} plugins replaced")
    print(f"memory {begin:.0f} → {end:.0f} MiB; left: {left}")
    return report(claims(results, max(each.plugins for each in samples)))


async def _sample(soaked: Soak, samples: list[Sample], began: float) -> None:
    while True:
        samples.append(soaked.sample(began))
        if len(samples) % round(LINE_SECONDS / SAMPLE_SECONDS) == 1:
            print(f"{samples[-1].seconds:7.0f} s  {sum(soaked.runs.values()):5} runs  {samples[-1]}", flush=True)
        await asyncio.sleep(SAMPLE_SECONDS)


def growth(samples: list[Sample], seconds: float) -> tuple[float, float]:
    """Memory of this process and its plugins in MiB, in the second and in the last tenth of the time: medians."""

    def of(tenth: int) -> float:
        part = [each for each in samples if tenth <= each.seconds * 10 / seconds < tenth + 1]
        return round(median(each.own_mib + each.plugins_mib for each in part or samples), 1)

    return of(1), of(9)


def claims(results: Results, plugins: int) -> dict[str, bool]:
    most = Policy().max_processes
    found = {
        f"every run succeeds ({sum(results.runs.values())})": not results.failures and bool(results.runs),
        "0 groups in the wrong region, 0 missing": not (results.wrong_region or results.missing),
        f"at most {most} plugins": plugins <= most,
        "0 processes, sockets and files left": results.left == Left(processes=0, sockets=0, files=[], open_files=0),
    }
    if results.seconds >= MEMORY_FROM_SECONDS:
        grown = results.memory_end_mib / results.memory_begin_mib - 1
        found[f"memory grows by at most {GROWTH_MAX:.0%} (by {grown:.1%})"] = grown <= GROWTH_MAX
    return found


def main() -> int:
    if reason := packages.missing():
        print(f"SKIPPED: {reason}")
        return 0
    full = os.environ.get("FULL") == "1"
    try:
        seconds = float(os.environ.get("SECONDS") or (FULL_SECONDS if full else SHORT_SECONDS))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        print(f"SECONDS={os.environ['SECONDS']}: expected a time in seconds, such as 40", file=sys.stderr)
        return 2
    arguments = [f"{name}={os.environ[name]}" for name in ("FULL", "SECONDS") if os.environ.get(name)]
    return run(lambda _: soak(seconds, PAUSE_SECONDS if full else 0.0, " ".join(["make soak-terraform", *arguments])))


if __name__ == "__main__":
    sys.exit(main())
