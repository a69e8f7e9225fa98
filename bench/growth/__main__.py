"""`make growth`: what grows, and what pruning makes others wait for.

The handlers, loops and routes of three services write one day at a hundredth of its volume; its rows are copied with
shifted times, to 4 and to 12 months, while the services' prune loops, relays and other loops run. Then a million rows
are pruned beside sessions that lock the same rows. Prints the rows of each table in month 4 and 12, the tables that are
empty and why, the longest lock, then the claims; exits with 1 if one is false. SEED=1 chooses the day, FULL=1 takes the
full volume, KEEP=1 writes bench/results/growth.txt.
"""

import asyncio
import contextlib
import io
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import asyncpg
import msgspec
import pytest
import structlog
import uvloop

from bench import committed
from bench.claims import report
from bench.events import surroundings
from bench.growth import copies, coverage, day, locks
from bench.growth.day import Day
from bench.growth.locks import Locks
from slipway_api.events import topics
from slipway_common.database.retention import PruneLoop
from slipway_common.service import Service, ServiceSettings
from slipway_lease_broker.settings import Settings as BrokerSettings
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor
from slipway_provisioner.loops import expire, plan, roll_out
from slipway_weight_calculator.settings import Settings as CalculatorSettings
from tests.simulation.databases import SERVICES
from tests.simulation.deployment import Deployment, deployment_on
from tests.simulation.invariants import LIMIT, MAX_CAPACITY
from tests.support.folders import disk_folder

FILE: Final = "growth.txt"
EARLY, LATE = 4, 12
MONTHS: Final = {EARLY: 120, LATE: 360}
"""Days until each month's end. By the first one rows have stopped growing that are kept for 90 days after their end."""
# Days that are copied before the loops run. In the last days of a month these are few, since what is left depends on
# them.
LONG_CHUNK_DAYS: Final = 60
CHUNK_DAYS: Final = 15
LAST_DAYS: Final = 60
FULL_PER_DAY: Final = 100
RATIO_MAX: Final = 1.05
ROWS_MAX: Final = 50
LOCK_MS_MAX: Final = 100.0
DAY_SECONDS: Final = 86_400.0
ROUNDS_MAX: Final = 1_000
CONSUMED: Final = {topic.name for topic, _ in topics.CONSUMED}
SERVER: Final = {"autovacuum_naptime": "5s", "max_wal_size": "4GB", "shared_buffers": "256MB"}


class Growth:
    """A deployment, one day of which is copied again and again. `per_day` copies are one day."""

    def __init__(self, deployment: Deployment, db: Any, *, per_day: int) -> None:
        self.deployment = deployment
        self.db = db
        self.per_day = per_day
        settings = {
            "provisioner": deployment.settings,
            "weight-calculator": CalculatorSettings(database_url="", kafka="", speed=1.0),
            "lease-broker": BrokerSettings(database_url="", kafka=""),
        }
        self.loops = {name: PruneLoop(rules, settings[name]) for name, rules in coverage.RETENTION.items()}
        self.copied = 0
        self.day = Day(deployment)

    async def write_day(self) -> dict[str, int]:
        """Write the day and take its rows; returns their number by table."""
        await self.deployment.declare(LIMIT)
        await self.day.begin()
        self.tables = await copies.tables_of(self.db)
        await copies.begin_day(self.db, self.tables)
        await self.day.write()
        self.written = await coverage.inserted(self.db, self.deployment.databases.values())
        return await copies.end_day(self.db, self.tables)

    async def until_day(self, last: int, first: int) -> None:
        """Copy days, and let the loops run after each chunk of days."""
        for begin, end in chunks(first, last):
            began = time.monotonic()
            numbers = begin * self.per_day + 1, end * self.per_day
            self.copied += await copies.copy_days(self.db, self.tables, *numbers, per_day=self.per_day)
            await copies.analyze(self.db, self.tables)
            copied = time.monotonic()
            await self._pass_to(end)
            await self._run_loops()
            print(
                f"day {end}: {self.copied:,} rows copied; this chunk took {copied - began:.0f} s to copy and "
                f"{time.monotonic() - copied:.0f} s to prune",
                file=sys.stderr,
                flush=True,
            )

    async def _pass_to(self, days: int) -> None:
        await self.deployment.pass_time(max(0.0, (days + 1) * DAY_SECONDS - self.deployment.elapsed))
        self.deployment.boot("weight-calculator")  # it reads the copies like all rows, when it takes over
        self.day.outsiders.refused_signal()
        await self.deployment.round()

    async def _run_loops(self) -> None:
        """Run the prune loops, and what ends other rows: roll-outs, alerts, relays and consumers, which get
        tombstones."""
        await asyncio.gather(*(self._end_alerts(name) for name in SERVICES))
        await asyncio.gather(*(self._prune(name) for name in SERVICES))
        deployment = self.deployment
        provisioner = deployment.databases["provisioner"]
        settings, providers = deployment.settings, {"simulated": deployment.cloud}
        while await expire.expire_next(provisioner, settings=settings, providers=providers):
            pass
        while await plan.plan_next(provisioner, settings=settings, calculator_unavailable_seconds=lambda: 0.0):
            pass
        for _ in range(ROUNDS_MAX):
            more = await roll_out.roll_out_next(provisioner)
            for name in SERVICES:
                await deployment.relay(name)
            await deployment.calculate()
            await deployment.view()
            for _, name, consume in deployment.steps():
                if name in CONSUMED:
                    await consume()
            waiting = [await deployment.databases[name].fetchval("SELECT count(*) FROM outbox") for name in SERVICES]
            if not (more or any(waiting) or deployment.unread()):
                return
        raise AssertionError(f"the loops find no end: more {more}, outboxes {waiting}, unread {deployment.unread()}")

    async def _end_alerts(self, name: str) -> None:
        service = Service(name, ServiceSettings(database_url="", kafka=""))
        while await service._republish_alerts(self.deployment.databases[name]):
            pass

    async def _prune(self, name: str) -> None:
        loop = self.loops[name]
        loop.begin_round()
        while await loop.step(self.deployment.databases[name]):
            pass


def chunks(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Days from the first to the last, in chunks that are shorter at the end."""
    while first < last:
        before = last - LAST_DAYS - first
        days = min(LONG_CHUNK_DAYS, before) if before > 0 else CHUNK_DAYS
        yield first, first + days
        first += days


class Found(msgspec.Struct, frozen=True):
    """Rows by table after each number of months, and those that the day and what went before it have ever inserted."""

    months: Mapping[int, Mapping[str, int]]
    written: Mapping[str, int]


async def grow(server: EmbeddedPostgres, seed: int, *, per_day: int) -> Found:
    """Write a day and copy it over a year."""
    months: dict[int, dict[str, int]] = {}
    pool: dict[str, Any] = {"max_capacity": MAX_CAPACITY, "honours_tokens": True}
    with pytest.MonkeyPatch.context() as patch:
        async with deployment_on(server, patch, seed, day.scenario(seed), **pool) as deployment:
            deployment.is_calm = True
            db = await asyncpg.connect(server.url(deployment.name))
            try:
                await copies.session(db)
                growth = Growth(deployment, db, per_day=per_day)
                left = await growth.write_day()
                print(
                    f"a day of {day.WORKERS} workers, 1/100 of the full volume, leaves {sum(left.values()):,} rows "
                    f"in {len(left)} tables; {per_day} {'copies make' if per_day > 1 else 'copy makes'} a day",
                    flush=True,
                )
                before = 0
                for number, days in MONTHS.items():
                    await growth.until_day(days, before)
                    months[number] = await copies.count_rows(db, coverage.rules())
                    before = days
                print(f"{growth.copied:,} rows copied over {before} days", flush=True)
            finally:
                await db.close()
    return Found(months, growth.written)


def grows(early: int, late: int) -> bool:
    """True if a table has grown from the fourth month to the twelfth."""
    return late > RATIO_MAX * early and late - early > ROWS_MAX


def lines(found: Found, measured: Locks) -> list[str]:
    """The figures: a line per table, those with rows first."""
    early, late = found.months.values()
    shown = [f"{'table':<38}{f'month {EARLY}':>12}{f'month {LATE}':>12}{'ratio':>8}"]
    for name in sorted(early, key=lambda name: (-max(early[name], late[name]), name)):
        if early[name] or late[name]:
            ratio = f"{late[name] / early[name]:.2f}" if early[name] else "-"
            shown.append(f"{name:<38}{early[name]:>12,}{late[name]:>12,}{ratio:>8}")
    shown.append(f"{f'empty in month {EARLY}':<38}{'written':>12}  reason")
    for name, reason in coverage.empty(found.written, early).items():
        shown.append(f"{name:<38}{found.written.get(name, 0):>12,}  {reason or 'NONE'}")
    return [*shown, *measured.lines()]


def claims(found: Found, measured: Locks) -> dict[str, bool]:
    early, late = found.months.values()
    growing = [name for name in early if grows(early[name], late[name])]
    uncovered = coverage.uncovered(found.written, early)
    return {
        f"rows in month {LATE} ≤ {RATIO_MAX:g} × month {EARLY}, or {ROWS_MAX} more" + _but(growing): not growing,
        "every table with a rule has rows, or a reason" + _but(uncovered): not uncovered,
        f"{locks.ROWS:,} rows pruned": measured.rows == locks.ROWS,
        f"longest lock {measured.longest_ms:.1f} ms ≤ {LOCK_MS_MAX:g} ms": measured.longest_ms <= LOCK_MS_MAX,
        "rows were waited for": bool(measured.row.waits),  # else the longest lock says nothing
        "nobody waited for the lease pool": not measured.pool.waits,
    }


def _but(names: Sequence[str]) -> str:
    return f" (not {', '.join(names)})" if names else ""


async def run(seed: int, *, full: bool) -> tuple[Found, Locks]:
    with disk_folder("slipway-growth-") as folder:
        async with Supervisor() as supervisor:
            server = EmbeddedPostgres(folder, SERVER)
            await supervisor.start(server)
            url = await locks.create(server)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(locks.fill(url))
                growing = tasks.create_task(grow(server, seed, per_day=FULL_PER_DAY if full else 1))
            return growing.result(), await locks.measure(url)


def main(environment: Mapping[str, str]) -> int:
    try:
        full, seed = environment.get("FULL") == "1", int(environment.get("SEED") or 1)
    except ValueError as error:
        print(f"SEED has to be a whole number: {error}", file=sys.stderr)
        return 2
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    began, before = time.monotonic(), os.getloadavg()[0]
    found, measured = uvloop.run(run(seed, full=full))
    shown = lines(found, measured)
    print(*shown, sep="\n")
    print(f"{time.monotonic() - began:.0f} s")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = report(claims(found, measured))
    command = f"make growth SEED={seed}" + (" FULL=1" if full else "")
    if (folder := committed.folder_to_write(environment, FILE)) is not None:
        (folder / FILE).write_text("\n".join([f"$ {command}", f"on {surroundings(before)}", *shown, said.getvalue()]))
    print(said.getvalue(), end="")
    return code


if __name__ == "__main__":
    sys.exit(main(os.environ))
