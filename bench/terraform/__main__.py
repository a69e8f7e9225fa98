"""`make bench-terraform`: cost of an apply by scheduler, on Terraform, its AWS provider and moto.

Each cell is a process of its own (`bench/terraform/cell.py`): a driver that creates one security group per workspace,
in two regions, so many at a time. Modes: `noop` (the CLI starts its plugins), `noop-no-tls` (the same without TLS
between CLI and plugin), `workspace` (a process per workspace), `shared` (one per region). CPU time is that of all
processes that a cell has started and of scheduler and driver, without the installation of the plugins and without moto.
moto shows what exists in which region.

Prints a line per cell, then the claims; exits with 1 if one is false. Without arguments only the modes of the claim are
run. FULL=1 takes all modes with 20 and 100 applies, 1, 2 and 4 at once, N=20 or N=100 one of these; KEEP=1 writes
bench/results/terraform.json, or terraform-20.json with N=20. CELL=shared/20/4 runs one cell (mode, applies, at once).
"""

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from bench import committed
from bench.claims import report
from bench.events import surroundings
from bench.terraform import cloud, figures
from bench.terraform.cell import MODES, STARTED, Applied, Cell
from bench.terraform.figures import Figures, Results, percentile
from bench.terraform.watching import Peaks, watch
from slipway_local.servers.supervisor import run
from slipway_local.terraform import packages
from slipway_terraform.domain.policy import Policy
from tests.support.folders import temporary_folder
from tests.support.terraform_aws import AwsCloud

FULL_SIZES: Final = tuple((applies, at_once) for applies in (20, 100) for at_once in (1, 2, 4))
# The plugins of shared start once: with few applies their starts would count for too much.
SHORT: Final = (("noop", 8, 1), ("shared", 8, 1), ("noop", 20, 4), ("shared", 20, 4))
REGIONS: Final = cloud.REGIONS[:2]
MEBIBYTE: Final = 1 << 20
Size = tuple[str, int, int]


async def measure(wanted: Sequence[Size], command: str, file: str) -> int:
    """Run the cells, one after another, on one server."""
    before = os.getloadavg()[0]
    cells = []
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(temporary_folder("slipway-bench-"))
        aws = AwsCloud(folder)
        print("starting moto …", flush=True)
        await aws.server.start()
        stack.push_async_callback(aws.server.stop)
        for number, (mode, applies, at_once) in enumerate(wanted):
            cell = Cell(
                mode=mode,
                applies=applies,
                concurrency=at_once,
                folder=str(folder / str(number)),
                port=aws.port,
                regions=REGIONS,
            )
            await aws.server.reset()
            cells.append(await played(cell, aws))
            print(figures.line(cells[-1]), flush=True)
    versions = {"terraform": packages.TERRAFORM.version, "provider": f"{packages.AWS.source} {packages.AWS.version}"}
    results = Results(command=command, on=surroundings(before) | versions, cells=cells)
    committed.write_json(os.environ, file, results)
    print("", *figures.lines(results), sep="\n")
    return report(figures.claims(results, Policy().max_processes))


async def played(cell: Cell, aws: AwsCloud) -> Figures:
    """Run a cell in its process. Raises RuntimeError if it fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.terraform.cell",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(cell))
        process.stdin.close()
        first = await process.stdout.readline()
        if first.decode().strip() != STARTED:
            raise RuntimeError(f"the process of {cell.mode} has ended, for the reason above")
        peaks = Peaks()
        watching = asyncio.create_task(watch(process.pid, packages.AWS.path, peaks))
        last = await process.stdout.readline()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if not last:
        raise RuntimeError(f"the process of {cell.mode} has ended, for the reason above")
    applied = msgspec.json.decode(last, type=Applied)
    actual = await aws.groups(cloud.REGIONS)
    expected = Counter((cell.region(number), cell.region(number)) for number in range(cell.applies))
    return Figures(
        mode=cell.mode,
        applies=cell.applies,
        concurrency=cell.concurrency,
        cpu_seconds=round((applied.started_cpu_seconds + applied.own_cpu_seconds) / cell.applies, 3),
        own_cpu_seconds=round(applied.own_cpu_seconds / cell.applies, 3),
        p50_seconds=round(percentile(applied.seconds, 0.5), 2),
        p95_seconds=round(percentile(applied.seconds, 0.95), 2),
        wall_seconds=round(applied.wall_seconds, 1),
        memory_mib=peaks.memory_bytes // MEBIBYTE,
        processes=peaks.processes,
        plugins=peaks.plugins,
        failures=applied.failures,
        wrong_region=(actual - expected).total(),
        missing=(expected - actual).total(),
        left=applied.left,
    )


def sizes(environment: dict[str, str]) -> list[Size]:
    """Cells of FULL=, N= and CELL=. Raises ValueError."""
    if cell := environment.get("CELL"):
        mode, _, numbers = cell.partition("/")
        applies, _, at_once = numbers.partition("/")
        if mode not in MODES or not (applies.isdecimal() and at_once.isdecimal() and int(applies) and int(at_once)):
            raise ValueError(f"CELL={cell}: expected MODE/APPLIES/AT_ONCE with one of {', '.join(MODES)}")
        return [(mode, int(applies), int(at_once))]
    if environment.get("FULL") != "1":
        return list(SHORT)
    applies = environment.get("N") or ""
    found = [size for size in FULL_SIZES if applies in ("", str(size[0]))]
    if not found:
        raise ValueError(f"N={applies}: expected 20 or 100, with FULL=1")
    return [(mode, *size) for size in found for mode in MODES]


def main() -> int:
    if reason := packages.missing():
        print(f"SKIPPED: {reason}")
        return 0
    try:
        wanted = sizes(dict(os.environ))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    given = {name: os.environ[name] for name in ("FULL", "N", "CELL") if os.environ.get(name)}
    command = " ".join(["make bench-terraform", *(f"{name}={value}" for name, value in given.items())])
    file = f"terraform-{given['N']}.json" if "N" in given else "terraform.json"
    return run(lambda _: measure(wanted, command, file))


if __name__ == "__main__":
    sys.exit(main())
