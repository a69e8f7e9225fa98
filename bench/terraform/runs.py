"""`make terraform-runs`: applies under a bound on CLI processes, with the CLI's own plugins and with leased ones.

N applies [500] are shared out over the three modes, most to those that are fast, so that it ends within a minute; each
mode has its time per apply. `FULL=1`: N applies in each mode. Half of the applies are awaited at once, half are started
and awaited later. The number of CLI processes is that of the process table (`processes`), the machines are those in the
folder of the provider.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from bench.claims import report
from slipway_local.terraform import packages
from slipway_terraform.domain.port import ProviderScheduler
from slipway_terraform.domain.results import Command, Run
from slipway_terraform.runs.driver import Driver
from slipway_terraform.scheduler.noop import NoOpScheduler
from slipway_terraform.scheduler.shared import SharedScheduler, WorkspaceScheduler
from tests.support.terraform import installed
from tests.support.terraform_runs import Place, driver, new_place, schedulers, soon

MAX_RUNS: Final = 5
REGIONS: Final = ("east", "west", "north", "south")
SHARES: Final = {"noop": 0.03, "workspace": 0.12, "shared": 0.85}
RATIO_MAX: Final = 1.1


class Row(msgspec.Struct, frozen=True):
    """One mode: applies, failures, machines in the wrong region, wall time, and CLI processes seen at once."""

    mode: str
    applies: int
    failed: int
    machines: int
    misplaced: int
    wall_seconds: float
    most_processes: int
    looks: int

    @property
    def seconds_each(self) -> float:
        return self.wall_seconds / self.applies

    def __str__(self) -> str:
        return (
            f"{self.mode:<11}{self.applies:>8}{self.failed:>8}{self.misplaced:>11}{self.wall_seconds:>9.1f}"
            f"{self.seconds_each * 1000:>13.0f}{self.most_processes:>12}{self.looks:>8}"
        )


@contextlib.asynccontextmanager
async def scheduler(mode: str, place: Place) -> AsyncIterator[ProviderScheduler]:
    if mode == "noop":
        yield NoOpScheduler()
        return
    kind = WorkspaceScheduler if mode == "workspace" else SharedScheduler
    async with schedulers(place.folder, kind) as opened:
        yield opened


async def play(mode: str, applies: int) -> Row:
    """Apply in one mode, in a place of its own."""
    with new_place() as place:
        tool = place.folder / "terraform"  # a name of its own, by which its processes are found
        tool.symlink_to(installed().terraform)
        async with scheduler(mode, place) as given, driver(place, given, max_runs=MAX_RUNS, tool=tool) as runs:
            await one(runs, place, "first", awaited=True)  # installs the module
            watching = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bench.terraform.processes", str(os.getpid()), str(tool)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            begin = time.monotonic()
            done = await asyncio.gather(
                *(one(runs, place, f"w-{number}", awaited=number % 2 == 0) for number in range(applies))
            )
            wall_seconds = time.monotonic() - begin
            printed, _ = await watching.communicate(b"")
        machines = place.ledger.machines()
    most, looks = map(int, printed.split())
    return Row(
        mode=mode,
        applies=applies,
        failed=sum(run.failure is not None for run in done),
        machines=len(machines) - 1,
        misplaced=sum(region_of(machine["name"]) != machine["region"] for machine in machines),
        wall_seconds=wall_seconds,
        most_processes=most,
        looks=looks,
    )


async def one(runs: Driver, place: Place, name: str, *, awaited: bool) -> Run:
    job = place.job(region=region_of(name), variables={"name": name})
    if awaited:
        return await runs.run(Command.APPLY, name, job, state=None, deadline=soon(1800.0))
    operation = runs.start(Command.APPLY, name, job, state=None, deadline=soon(1800.0))
    return await operation.wait()


def region_of(name: str) -> str:
    return REGIONS[int(name.removeprefix("w-")) % len(REGIONS)] if name != "first" else REGIONS[0]


async def main() -> int:
    if reason := packages.missing():
        print(reason, file=sys.stderr)
        return 2
    number, is_full = os.environ.get("N", "500"), os.environ.get("FULL", "0") not in ("", "0")
    if not number.isdecimal() or not int(number):
        print(f"N={number}: expected a number of applies, such as 500", file=sys.stderr)
        return 2
    total = int(number)
    print("mode        applies  failed  misplaced   wall s   ms an apply   processes   looks")
    rows = {}
    for mode, share in SHARES.items():
        rows[mode] = await play(mode, total if is_full else max(1, round(total * share)))
        print(rows[mode], flush=True)
    ratios = {mode: rows[mode].seconds_each / rows["noop"].seconds_each for mode in ("workspace", "shared")}
    for mode, ratio in ratios.items():
        print(f"{mode} takes {ratio:.2f} of the time of noop an apply")
    longest, most = max(ratios.values()), max(row.most_processes for row in rows.values())
    claims = {
        f"never more than {MAX_RUNS} CLI processes (seen: {most})": most <= MAX_RUNS,
        "the bound was reached": most >= MAX_RUNS,
        "every apply made its machine": all((row.failed, row.machines) == (0, row.applies) for row in rows.values()),
        "no machine is in the wrong region": not any(row.misplaced for row in rows.values()),
        f"Workspace and Shared take at most {RATIO_MAX} of the time of NoOp ({longest:.2f})": longest <= RATIO_MAX,
    }
    return report(claims)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
