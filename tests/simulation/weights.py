"""`make simulate ONLY=weights`: a weight-calculator that is killed before and after its commits, seed by seed.

Each seed gives a log, some crashes, and random turns in between. SEEDS is the number of seeds, FULL=1 means 1,000;
SEED=n runs one seed and prints how its processes ended. Exits with 1 and prints the first difference if the rows differ
from a replay of the journal; also if none of many seeds crashed in one of the places, or if one of the counts is 0.
"""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import structlog

from slipway_common.database import migrate, postgres
from slipway_common.database.postgres import Connection
from slipway_local.servers.child import Child
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor, run
from tests.simulation.seeds import InvalidArgument, seeds_of
from tests.simulation.weights_images import RECORDING
from tests.simulation.weights_judge import judge
from tests.simulation.weights_life import BEFORE, SERVICE, SET_CLOCK, START, WHERE, Crash, Exit, run_process
from tests.simulation.weights_log import History
from tests.support.databases import SETTABLE_CLOCK
from tests.support.folders import temporary_folder

SEEDS: Final = 100
SEEDS_SUFFICIENT: Final = 25  # with this many seeds, every kind of crash and every count must occur
PROCESSES: Final = min(os.cpu_count() or 2, 8)
TEMPLATE: Final = "weights_template"
CRASHES: Final = (2, 6)
COMMITS: Final = (1, 1, 2, 3, 5, 8, 13, 21, 34)  # of a process, until it is killed
LEADER_STALE: Final = "UPDATE test_clock SET at = at + interval '11 seconds'"  # then the former leader counts as gone
TABLES: Final = """
SELECT string_agg(quote_ident(tablename), ', ') FROM pg_tables
WHERE schemaname = current_schema() AND tablename NOT IN ('alembic_version', 'incarnation', 'test_clock')"""
EMPTY: Final = "TRUNCATE {} RESTART IDENTITY; INSERT INTO leader DEFAULT VALUES"
ENDED: Final = "SELECT pg_xact_status($1::text::xid8)"


class Report(msgspec.Struct, frozen=True):
    """Result of one seed. `crashes` counts the crashes by place."""

    seed: int
    crashes: dict[str, int]
    counts: dict[str, int]
    differences: list[str]


def play(runner: "asyncio.Runner", db: Connection, url: str, seed: int, *, aloud: bool = False) -> Report:
    """Run processes on a seed's log, one after the other, until one ends by itself; then check the rows."""
    history, chance = History(seed), Random(seed)
    tables = runner.run(db.fetchval(TABLES))
    runner.run(db.execute(EMPTY.format(tables)))
    runner.run(db.execute(SET_CLOCK, START))
    crashes, found, name = Counter[str](), list[str](), "0"
    planned = [Crash(chance.choice(WHERE), chance.choice(COMMITS)) for _ in range(chance.randint(*CRASHES))]
    for number, crash in enumerate([*planned, None]):
        if number and chance.random() < 0.5:
            name = f"{number}"
            runner.run(db.execute(LEADER_STALE))
        ended = run_process(url, history, name, Random(f"{seed}, life {number}"), crash)
        if aloud:
            print(f"instance {name}, to crash {crash}: {ended}", flush=True)
        if crash is None or ended.code != -signal.SIGKILL:
            break
        crashes[crash.where] += 1
        found += runner.run(_ended(db, ended, crash))
    if ended.code:
        return Report(seed, crashes, {}, [f"a process hung or failed: it ended with {ended.code}"])
    counts, differences = runner.run(judge(db, history))
    return Report(seed, crashes, counts, found + differences)


async def _ended(db: Connection, ended: Exit, crash: Crash) -> list[str]:
    """Differences between the intended and the actual place of a crash, by the state of the transaction."""
    wanted = "aborted" if crash.where == BEFORE else "committed"
    while (status := await db.fetchval(ENDED, ended.transaction)) == "in progress":
        await asyncio.sleep(0.001)
    return [] if status == wanted else [f"{crash} of transaction {ended.transaction}, which is {status}"]


def play_in_process(url: str, reports: Path, seeds: Sequence[int], *, aloud: bool) -> int:
    """Run seeds on a database, one report per line; returns 1 at the first difference."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(0 if aloud else 50))
    with asyncio.Runner() as runner, reports.open("wb") as file:
        db = runner.run(postgres.session(url, SERVICE))
        for seed in seeds:
            report = play(runner, db, url, seed, aloud=aloud)
            file.write(msgspec.json.encode(report) + b"\n")
            if report.differences:
                return 1
    return 0


async def play_all(server: EmbeddedPostgres, seeds: Sequence[int], *, aloud: bool = False) -> list[Report]:
    """Run seeds in several processes; a difference ends them all."""
    template = await server.create_database(TEMPLATE)
    await migrate.upgrade(template, SERVICE)
    pool = await postgres.connect(template, SERVICE, size=1)
    await pool.execute(SETTABLE_CLOCK)
    await pool.execute(RECORDING)
    await pool.close()
    children, files = [], []
    with temporary_folder() as folder:
        for number in range(min(PROCESSES, len(seeds))):
            url = await server.create_database(f"weights_{number}", template=TEMPLATE)
            file = folder / f"{number}.jsonl"
            played = [url, file, "aloud" if aloud else "quiet", *map(str, seeds[number::PROCESSES])]
            argv = [sys.executable, "-m", "tests.simulation.weights", *played]
            children.append(Child(f"weights-{number}", argv))
            files.append(file)
        try:
            for child in children:
                child.start()
            codes = await asyncio.gather(*(_until_red(child, children) for child in children))
        finally:
            for child in children:
                await child.kill()
        reports = [msgspec.json.decode(line, type=Report) for f in files for line in f.read_bytes().splitlines()]
    assert any(codes) == any(report.differences for report in reports), f"processes ended with {codes}"
    return sorted(reports, key=lambda report: report.seed)


async def _until_red(child: Child, others: Sequence[Child]) -> int | None:
    if code := await child.wait():
        for other in others:
            await other.kill()
    return code


def print_summary(reports: Sequence[Report]) -> int:
    """Print the totals, the differences and the verdict; returns the exit code."""
    crashes, counts = Counter[str](), Counter[str]()
    for report in reports:
        crashes.update(report.crashes)
        counts.update(report.counts)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    print("crashed " + ", ".join(f"{count} {where}" for where, count in crashes.items()))
    red = [report for report in reports if report.differences]
    for report in red:
        print(f"seed {report.seed}: {report.differences[0]}")
    absent = missing(crashes, counts) if len(reports) >= SEEDS_SUFFICIENT and not red else []
    for what in absent:
        print(f"PROBLEM {what}: insufficient evidence for so many seeds")
    print(f"{len(reports)} seeds, {crashes.total()} crashes, {sum(len(r.differences) for r in red)} differences")
    return 1 if red or absent else 0


def missing(crashes: Mapping[str, int], counts: Mapping[str, int]) -> list[str]:
    """Places of crashes and counts that never occurred."""
    nowhere = [f"nothing crashed {where}" for where in WHERE if not crashes.get(where)]
    return nowhere + [f"no {name}" for name, count in counts.items() if not count]


async def run_seeds(supervisor: Supervisor, seeds: Sequence[int], *, aloud: bool) -> int:
    with temporary_folder() as folder:
        # Only processes are killed, never the machine, so written data survives without fsync.
        server = EmbeddedPostgres(folder, {"fsync": "off"})
        await supervisor.start(server)
        reports = await play_all(server, seeds, aloud=aloud)
        await supervisor.stop()
    return print_summary(reports)


def main() -> int:
    try:
        seeds = seeds_of(os.environ, default=SEEDS)
    except InvalidArgument as error:
        print(error, file=sys.stderr)
        return 2
    return run(lambda supervisor: run_seeds(supervisor, seeds, aloud=bool(os.environ.get("SEED"))))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        url, reports, how, *given = sys.argv[1:]
        sys.exit(play_in_process(url, Path(reports), [int(seed) for seed in given], aloud=how == "aloud"))
    sys.exit(main())
