"""`make simulate ONLY=weights`: a weight-calculator that is killed at the boundaries of its commits, seed by seed.

Each seed is a log, some deaths, and what chance wants in between. SEEDS is how many seeds, FULL=1 means 1,000; SEED=n
plays one and says how its processes ended. Ends with 1 and the first difference if anything is not as the journal says,
and with 1 too if of many seeds none died in one of the places, or one of the counts is 0.
"""

import asyncio
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import structlog

from slipway_common import migrate, postgres
from slipway_common.postgres import Connection
from slipway_local.child import Child
from slipway_local.guard import guard
from slipway_local.postgres import EmbeddedPostgres
from slipway_local.supervisor import Supervisor, run
from tests.simulation.weights_judge import judge
from tests.simulation.weights_life import BEFORE, SERVICE, SET_CLOCK, START, WHERE, Death, Life, live
from tests.simulation.weights_log import History
from tests.weight_calculator import SETTABLE_CLOCK

SEEDS: Final = 100
SEEDS_FULL: Final = 1000
SEEDS_TELLING: Final = 25  # of so many, each kind of death and of what is counted has some
PROCESSES: Final = 2
TEMPLATE: Final = "weights_template"
CRASHES: Final = (2, 6)
COMMITS: Final = (1, 1, 2, 3, 5, 8, 13, 21, 34)  # of a process, until it dies
GROWN_STALE: Final = "UPDATE test_clock SET at = at + interval '11 seconds'"  # then a former owner is taken for dead
TABLES: Final = """
SELECT string_agg(quote_ident(tablename), ', ') FROM pg_tables
WHERE schemaname = current_schema() AND tablename NOT IN ('alembic_version', 'incarnation', 'test_clock')"""
EMPTY: Final = "TRUNCATE {} RESTART IDENTITY; INSERT INTO owner DEFAULT VALUES"
ENDED: Final = "SELECT pg_xact_status($1::text::xid8)"


class Report(msgspec.Struct, frozen=True):
    """One seed. `crashes` count where processes died."""

    seed: int
    crashes: dict[str, int]
    counts: dict[str, int]
    differences: list[str]


def play(runner: "asyncio.Runner", db: Connection, url: str, seed: int, *, aloud: bool = False) -> Report:
    """One life after the other on a seed's log, until one ends by itself; then the rows are judged."""
    history, chance = History(seed), Random(seed)
    tables = runner.run(db.fetchval(TABLES))
    runner.run(db.execute(EMPTY.format(tables)))
    runner.run(db.execute(SET_CLOCK, START))
    crashes, found, name = Counter[str](), list[str](), "0"
    deaths = [Death(chance.choice(WHERE), chance.choice(COMMITS)) for _ in range(chance.randint(*CRASHES))]
    for number, death in enumerate([*deaths, None]):
        if number and chance.random() < 0.5:
            name = f"{number}"
            runner.run(db.execute(GROWN_STALE))
        life = live(url, history, name, Random(f"{seed}, life {number}"), death)
        if aloud:
            print(f"instance {name}, to die {death}: {life}", flush=True)
        if death is None or life.code != -signal.SIGKILL:
            break
        crashes[death.where] += 1
        found += runner.run(_ended(db, life, death))
    if life.code:
        return Report(seed, crashes, {}, [f"a process hung or failed: it ended with {life.code}"])
    counts, differences = runner.run(judge(db, history))
    return Report(seed, crashes, counts, found + differences)


async def _ended(db: Connection, life: Life, death: Death) -> list[str]:
    """Whether it died where it was meant to: else this would prove less than it says."""
    wanted = "aborted" if death.where == BEFORE else "committed"
    while (status := await db.fetchval(ENDED, life.transaction)) == "in progress":
        await asyncio.sleep(0.001)
    return [] if status == wanted else [f"{death} of transaction {life.transaction}, which is {status}"]


def play_here(url: str, reports: Path, seeds: Sequence[int], *, aloud: bool) -> int:
    """These seeds on a database of our own, one report a line; 1 at the first one that differs."""
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
    """Some in each process; a difference ends them all."""
    template = await server.create_database(TEMPLATE)
    await migrate.upgrade(template, SERVICE)
    pool = await postgres.connect(template, SERVICE, size=1)
    await pool.execute(SETTABLE_CLOCK)
    await pool.close()
    children, files = [], []
    with tempfile.TemporaryDirectory(prefix="slipway-weights-", ignore_cleanup_errors=True) as folder:
        guard().remove(Path(folder))
        for number in range(min(PROCESSES, len(seeds))):
            url = await server.create_database(f"weights_{number}", template=TEMPLATE)
            file = Path(folder, f"{number}.jsonl")
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


def tell(reports: Sequence[Report]) -> int:
    """Totals, the first difference, and the verdict."""
    crashes, counts = Counter[str](), Counter[str]()
    for report in reports:
        crashes.update(report.crashes)
        counts.update(report.counts)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    print("died " + ", ".join(f"{count} {where}" for where, count in crashes.items()))
    red = [report for report in reports if report.differences]
    for report in red:
        print(f"seed {report.seed}: {report.differences[0]}")
    absent = missing(crashes, counts) if len(reports) >= SEEDS_TELLING and not red else []
    for what in absent:
        print(f"PROBLEM {what}: over so many seeds that shows nothing")
    print(f"{len(reports)} seeds, {crashes.total()} crashes, {sum(len(r.differences) for r in red)} differences")
    return 1 if red or absent else 0


def missing(crashes: Mapping[str, int], counts: Mapping[str, int]) -> list[str]:
    """What never happened, of the places of death and of all that is counted."""
    nowhere = [f"nothing died {where}" for where in WHERE if not crashes.get(where)]
    return nowhere + [f"no {name}" for name, count in counts.items() if not count]


class Unusable(ValueError):
    """An argument of the command; the text says which, and what it has to be."""


def asked(environment: Mapping[str, str]) -> list[int]:
    """The seeds to play. Raises Unusable."""

    def number(name: str, default: int, least: int) -> int:
        text = environment.get(name) or str(default)
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise Unusable(f"{name}={text}: a whole number, {least} or more")
        return int(text)

    if environment.get("SEED"):
        return [number("SEED", 0, 0)]
    if (full := environment.get("FULL") or "0") not in ("0", "1"):
        raise Unusable(f"FULL={full}: 1, or nothing")
    return list(range(1, (SEEDS_FULL if full == "1" else number("SEEDS", SEEDS, 1)) + 1))


async def play_asked(supervisor: Supervisor, seeds: Sequence[int], *, aloud: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="slipway-weights-", ignore_cleanup_errors=True) as folder:
        guard().remove(Path(folder))
        # A process is killed, never the machine: nothing is lost that was written and not synced.
        server = EmbeddedPostgres(Path(folder), {"fsync": "off"})
        await supervisor.start(server)
        reports = await play_all(server, seeds, aloud=aloud)
        await supervisor.stop()
    return tell(reports)


def main() -> int:
    try:
        seeds = asked(os.environ)
    except Unusable as error:
        print(error, file=sys.stderr)
        return 2
    return run(lambda supervisor: play_asked(supervisor, seeds, aloud=bool(os.environ.get("SEED"))))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        url, reports, how, *given = sys.argv[1:]
        sys.exit(play_here(url, Path(reports), [int(seed) for seed in given], aloud=how == "aloud"))
    sys.exit(main())
