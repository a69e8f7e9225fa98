"""`make growth`: what grows, and what pruning makes others wait for.

The handlers and loops of three services write one day at a hundredth of its volume; its rows are copied with shifted
times, to 2 and to 12 months, while the services' prune loops, relays and other loops run. Then a million rows are
pruned beside sessions that lock the same rows. Prints the rows of each table in month 2 and 12, the longest lock, then
the claims; exits with 1 if one is false. SEED=1 chooses the day, FULL=1 takes the full volume, KEEP=1 writes
bench/results/growth.txt.
"""

import asyncio
import contextlib
import io
import logging
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest
import structlog
import uvloop

from bench import committed
from bench.claims import report
from bench.events import surroundings
from bench.growth import copies, day, locks
from bench.growth.locks import Locks
from slipway_common.database.retention import PruneLoop, Retention
from slipway_common.messaging.retention import RETENTION as MESSAGING
from slipway_lease_broker.settings import Settings as BrokerSettings
from slipway_lease_broker.store.retention import RETENTION as LEASE_BROKER
from slipway_local.servers.guard import guard
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor
from slipway_provisioner.loops import expire, plan, roll_out
from slipway_provisioner.store.retention import RETENTION as PROVISIONER
from slipway_weight_calculator.store.retention import RETENTION as WEIGHT_CALCULATOR
from tests.simulation.deployment import SERVICES, Deployment, deployment_on
from tests.simulation.history import scenario
from tests.simulation.invariants import LIMIT, MAX_CAPACITY

FILE: Final = "growth.txt"
MONTHS: Final = {2: 60, 12: 360}
CHUNK_DAYS: Final = 15
FULL_PER_DAY: Final = 100
RATIO_MAX: Final = 1.05
ROWS_MAX: Final = 50
LOCK_MS_MAX: Final = 100.0
DAY_SECONDS: Final = 86_400.0
RETENTION: Final[Mapping[str, Retention]] = {
    "provisioner": PROVISIONER,
    "weight-calculator": WEIGHT_CALCULATOR,
    "lease-broker": LEASE_BROKER,
}
ROUNDS_MAX: Final = 1_000
SERVER: Final = {"autovacuum_naptime": "5s", "max_wal_size": "4GB", "shared_buffers": "256MB"}


class Growth:
    """A deployment, one day of which is copied again and again. `per_day` copies are one day."""

    def __init__(self, deployment: Deployment, db: Any, *, per_day: int) -> None:
        self.deployment = deployment
        self.db = db
        self.per_day = per_day
        settings = {"provisioner": deployment.settings, "lease-broker": BrokerSettings(database_url="", kafka="")}
        self.loops = {
            name: PruneLoop((*MESSAGING, *retention), settings.get(name)) for name, retention in RETENTION.items()
        }
        self.copied = 0

    async def write_day(self) -> dict[str, int]:
        """Write the day and take its rows; returns their number by table."""
        await self.deployment.declare(LIMIT)
        await day.quiet(self.deployment)
        self.tables = await copies.tables_of(self.db)
        await copies.begin_day(self.db, self.tables)
        await day.write(self.deployment)
        return await copies.end_day(self.db, self.tables)

    async def until_day(self, last: int, first: int) -> None:
        """Copy days, and let the loops run after each chunk of days."""
        for begin in range(first, last, CHUNK_DAYS):
            end = min(begin + CHUNK_DAYS, last)
            numbers = begin * self.per_day + 1, end * self.per_day
            self.copied += await copies.copy_days(self.db, self.tables, *numbers, per_day=self.per_day)
            await self.db.execute("ANALYZE", timeout=3600)
            await self._pass_to(end)
            await self._run_loops()

    async def _pass_to(self, days: int) -> None:
        await self.deployment.pass_time(max(0.0, (days + 1) * DAY_SECONDS - self.deployment.elapsed))
        self.deployment.boot("weight-calculator")  # it reads the copies like all rows, when it takes over
        day.refused_signal(self.deployment)
        await self.deployment.round()

    async def _run_loops(self) -> None:
        """Run the prune loops, and what ends other rows: roll-outs, relays and, by tombstones, the calculator."""
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
            waiting = [await deployment.databases[name].fetchval("SELECT count(*) FROM outbox") for name in SERVICES]
            if not (more or any(waiting) or deployment.unread()):
                return
        raise AssertionError(f"the loops find no end: more {more}, outboxes {waiting}, unread {deployment.unread()}")

    async def _prune(self, name: str) -> None:
        loop = self.loops[name]
        loop.begin_round()
        while await loop.step(self.deployment.databases[name]):
            pass


async def grow(server: EmbeddedPostgres, seed: int, *, per_day: int) -> dict[int, dict[str, int]]:
    """Rows by table after each number of months."""
    found: dict[int, dict[str, int]] = {}
    pool: dict[str, Any] = {"max_capacity": MAX_CAPACITY, "honours_tokens": True}
    with pytest.MonkeyPatch.context() as patch:
        async with deployment_on(server, patch, seed, scenario(seed, ""), **pool) as deployment:
            deployment.is_calm = True
            db = await asyncpg.connect(server.url(deployment.name))
            try:
                await copies.session(db)
                growth = Growth(deployment, db, per_day=per_day)
                written = await growth.write_day()
                print(
                    f"a day of {day.WORKERS} workers, 1/100 of the full volume, leaves {sum(written.values()):,} rows "
                    f"in {len(written)} tables; {per_day} {'copies make' if per_day > 1 else 'copy makes'} a day",
                    flush=True,
                )
                before = 0
                for months, days in MONTHS.items():
                    await growth.until_day(days, before)
                    found[months] = await copies.count_rows(db, growth.tables)
                    before = days
                print(f"{growth.copied:,} rows copied over {before} days", flush=True)
            finally:
                await db.close()
    return found


def grows(early: int, late: int) -> bool:
    """True if a table has grown from the second month to the twelfth."""
    return late > RATIO_MAX * early and late - early > ROWS_MAX


def lines(found: Mapping[int, Mapping[str, int]], measured: Locks) -> list[str]:
    """The figures, a line per table that ever had more than a few rows."""
    early, late = found.values()
    shown = [f"{'table':<38}{'month 2':>12}{'month 12':>12}{'ratio':>8}"]
    for name in sorted(early, key=lambda name: (-max(early[name], late[name]), name)):
        ratio = f"{late[name] / early[name]:.2f}" if early[name] else "-"
        shown.append(f"{name:<38}{early[name]:>12,}{late[name]:>12,}{ratio:>8}")
    return [
        *shown,
        f"pruned {measured.rows:,} rows in {measured.seconds:g} s; of {measured.tries:,} locks taken beside it on the "
        f"lease pool and on rows being pruned, {measured.waited:,} waited",
        f"longest lock: of the lease pool {measured.pool:.1f} ms, of a row {measured.row:.1f} ms; "
        f"{measured.longest / measured.commit:.0f} times an fsynced commit of {measured.commit:.2f} ms",
    ]


def claims(found: Mapping[int, Mapping[str, int]], measured: Locks) -> dict[str, bool]:
    early, late = found.values()
    growing = [name for name in early if grows(early[name], late[name])]
    return {
        f"rows in month 12 ≤ {RATIO_MAX:g} × month 2, or {ROWS_MAX} more"
        + (f" (not {', '.join(growing)})" if growing else ""): not growing,
        f"{locks.ROWS:,} rows pruned": measured.rows == locks.ROWS,
        f"longest lock {measured.longest:.1f} ms ≤ {LOCK_MS_MAX:g} ms": measured.longest <= LOCK_MS_MAX,
    }


async def run(seed: int, *, full: bool) -> tuple[dict[int, dict[str, int]], Locks]:
    with tempfile.TemporaryDirectory(prefix="slipway-growth-", ignore_cleanup_errors=True) as folder:
        guard().remove(Path(folder))
        async with Supervisor() as supervisor:
            server = EmbeddedPostgres(Path(folder), SERVER)
            await supervisor.start(server)
            found = await grow(server, seed, per_day=FULL_PER_DAY if full else 1)
            return found, await locks.measure(await locks.empty_broker(server))


def main(environment: Mapping[str, str]) -> int:
    full, seed = environment.get("FULL") == "1", int(environment.get("SEED") or 1)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    began = time.monotonic()
    found, measured = uvloop.run(run(seed, full=full))
    shown = lines(found, measured)
    print(*shown, sep="\n")
    print(f"{time.monotonic() - began:.0f} s")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = report(claims(found, measured))
    command = f"make growth SEED={seed}" + (" FULL=1" if full else "")
    if (folder := committed.folder_to_write(environment, FILE)) is not None:
        (folder / FILE).write_text("\n".join([f"$ {command}", f"on {surroundings()}", *shown, said.getvalue()]))
    print(said.getvalue(), end="")
    return code


if __name__ == "__main__":
    sys.exit(main(os.environ))
