"""`make simulate`: seeded histories of three services, on all processors: SEEDS=20, SEED=7, both for 20
seeds from 7 on, FULL=1 for 1,000.

Each process has an embedded PostgreSQL of its own. PROCESSES limits their number.
"""

import gc
import logging
import os
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Final

import structlog
import uvloop

from slipway_common.service import GARBAGE_OBJECTS
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor
from tests.simulation.history import ALL_COMMANDS, ALL_FAULTS, Report, play
from tests.simulation.quiet import play_quietly
from tests.simulation.seeds import seeds_of
from tests.support.folders import temporary_folder

SEEDS: Final = 24
# A server that lives for one run. A history has few rows, and each of its statements is executed many times.
FAST: Final = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "128MB",
    "autovacuum": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "track_activities": "off",
    "track_counts": "off",
    "update_process_title": "off",
}
ENOUGH_SEEDS: Final = 24
"""Number of seeds whose histories together have all faults and commands."""


async def play_all(seeds: Sequence[int]) -> list[Report]:
    """Play the histories of some seeds on one server."""
    with temporary_folder() as folder:
        async with Supervisor() as supervisor:
            server = EmbeddedPostgres(folder, FAST)
            await supervisor.start(server)
            reports = []
            for seed in seeds:
                reports.append(await play_both(server, seed))
                if reports[-1].broken:
                    print(reports[-1].broken, file=sys.stderr, flush=True)  # a full run takes long
            return reports


async def play_both(server: EmbeddedPostgres, seed: int) -> Report:
    """Play the history of a seed with all faults, then the one without, in which a task has one machine."""
    report = await play(server, seed)
    if report.broken:
        return report
    quiet = await play_quietly(server, seed)
    digests = f"{report.digest} {quiet.digest}"
    return Report(seed, report.found | quiet.found, quiet.broken, digests, report.drift + quiet.drift)


def play_in_process(seeds: Sequence[int]) -> list[Report]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)
    return uvloop.run(play_all(seeds))


def missing(reports: Sequence[Report]) -> list[str]:
    """Faults and commands that no history has; such a run proves nothing about them."""
    found = frozenset[str]().union(*(report.found for report in reports))
    return sorted((ALL_FAULTS | ALL_COMMANDS) - found) if len(reports) >= ENOUGH_SEEDS else []


def summarise(reports: Sequence[Report]) -> int:
    """Print the results; return 1 if there are problems."""
    counts = Counter(name for report in reports for name in report.found)
    print("seeds with " + ", ".join(f"{name} {counts[name]}" for name in sorted(ALL_FAULTS | ALL_COMMANDS)))
    problems = [report.broken for report in sorted(reports, key=lambda report: report.seed) if report.broken]
    problems += [f"no seed has this: {name}" for name in missing(reports)]
    for problem in problems:
        print(f"PROBLEM {problem}")
    broken = sum(bool(report.broken) for report in reports)
    if len(reports) == 1:
        print(f"digests of seed {reports[0].seed}: {reports[0].digest}")
    drift = sum(report.drift for report in reports)
    print(f"{len(reports)} seeds, {broken} broken, counter drift {drift}")
    return 1 if problems or drift else 0


def main() -> int:
    try:
        seeds = seeds_of(os.environ, default=SEEDS)
        processes = min(len(seeds), int(os.environ.get("PROCESSES") or os.cpu_count() or 1))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    reports: list[Report] = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as executor:
        parts = [executor.submit(play_in_process, seeds[place::processes]) for place in range(processes)]
        for part in as_completed(parts):
            reports += part.result()
    return summarise(reports)


if __name__ == "__main__":
    sys.exit(main())
