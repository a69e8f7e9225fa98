"""Longest lock that the prune loop holds, as other sessions see it while it deletes a million rows.

One session locks the lease pool again and again; others lock rows that the loop is about to delete, among them those
that it is deleting. The server measures each wait, and leaves out the time in which the loop's session or the waiting
one was ready to run but had no CPU (`/proc/PID/schedstat` of Linux): on a busy machine that is not the loop's.
"""

import asyncio
import time
from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec

from slipway_common.database import migrate, postgres
from slipway_common.database.postgres import Database
from slipway_common.database.retention import PruneLoop
from slipway_common.messaging.retention import RETENTION as MESSAGING
from slipway_lease_broker.settings import Settings
from slipway_lease_broker.store.retention import RETENTION
from slipway_local.servers.postgres import EmbeddedPostgres

ROWS: Final = 1_000_000
COMMITS: Final = 50
TRY_SECONDS: Final = 0.005
POOL: Final = "growth"
ENDED: Final = "slipway_clock() - interval '9 days' + n * interval '10 ms'"
LEASE_POOL: Final = """
INSERT INTO lease_pools (id, limit_units, hold_seconds, ttl_seconds, reserve_seconds) VALUES ($1, 1, 60, 60, 60)"""
LEASES: Final = f"""
INSERT INTO leases (id, lease_pool_id, request_id, fencing_token, granted_units, units, state, granted_at, expires_at,
    hold_until, ended_at, owner, extended_at)
SELECT 'l' || n, $1, 'r' || n, n, 1, 0, 'released', at, at, at, at, 'o', at
FROM (SELECT n, {ENDED} AS at FROM generate_series(1, $2::int) AS n) AS given"""
REQUESTS: Final = f"""
INSERT INTO requests (lease_pool_id, id, tenant, operation, requested_units, waiting_units, requested_at,
    last_requested_at, owner, since)
SELECT $1, 'r' || n, 't', 'launch', 1, 0, at, at, 'o', at
FROM (SELECT n, {ENDED} AS at FROM generate_series(1, $2::int) AS n) AS given"""
HISTORY: Final = f"""
INSERT INTO history (lease_pool_id, at, kind, lease_id, reason)
SELECT $1, {ENDED}, 'released', 'l' || (n / 3), '' FROM generate_series(1, $2::int) AS n"""
SHARES: Final = ((LEASES, 0.2), (REQUESTS, 0.2), (HISTORY, 0.6))
LEFT: Final = "SELECT (SELECT count(*) FROM leases) + (SELECT count(*) FROM requests) + (SELECT count(*) FROM history)"
LOCK_POOL: Final = f"SELECT FROM lease_pools WHERE id = '{POOL}' FOR UPDATE"
# Among the oldest that are visible: some of them are being deleted.
LOCK_ROW: Final = "SELECT FROM {table} WHERE ctid = (SELECT ctid FROM {table} ORDER BY {order} LIMIT 1) FOR UPDATE"
ORDERS: Final = {"leases": "ended_at", "requests": "last_requested_at", "history": "id"}
# Milliseconds for which a session was ready to run but waited for a CPU, since it began.
WAITED_FOR_CPU: Final = """
CREATE FUNCTION waited_for_cpu(pid int) RETURNS float8 LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(split_part(pg_read_file('/proc/' || pid || '/schedstat', true), ' ', 2)::float8 / 1e6, 0) $$"""
# No row if the lock was free.
WAIT: Final = """
CREATE FUNCTION wait(lock text, pruner int) RETURNS TABLE (total_ms float8, cpu_ms float8) LANGUAGE plpgsql AS $$
DECLARE
    cpu float8;
    began timestamptz;
BEGIN
    BEGIN
        EXECUTE lock || ' NOWAIT';
        RETURN;
    EXCEPTION WHEN lock_not_available THEN
    END;
    cpu := waited_for_cpu(pruner) + waited_for_cpu(pg_backend_pid());
    began := clock_timestamp();
    EXECUTE lock;
    total_ms := extract(epoch FROM clock_timestamp() - began) * 1000;
    cpu_ms := waited_for_cpu(pruner) + waited_for_cpu(pg_backend_pid()) - cpu;
    RETURN NEXT;
END $$"""
TRY: Final = "SELECT total_ms, cpu_ms FROM wait($1, $2)"


class Wait(msgspec.Struct, frozen=True):
    """One wait for a lock, with its part in which a session waited for a CPU."""

    total_ms: float
    cpu_ms: float

    @property
    def held_ms(self) -> float:
        return max(0.0, self.total_ms - self.cpu_ms)


class Tries(msgspec.Struct, frozen=True):
    """Number of tries of one lock, and those that had to wait."""

    tries: int
    waits: Sequence[Wait]

    def __add__(self, other: "Tries") -> "Tries":
        return Tries(self.tries + other.tries, [*self.waits, *other.waits])

    @property
    def longest_ms(self) -> float:
        return max((wait.held_ms for wait in self.waits), default=0.0)


class Locks(msgspec.Struct, frozen=True, kw_only=True):
    """Waits of other sessions for the lease pool and for rows, while `rows` were deleted in `seconds`. `commit_ms` is
    the median of an fsynced commit of one row in the same run."""

    rows: int
    seconds: float
    pool: Tries
    row: Tries
    commit_ms: float

    @property
    def longest_ms(self) -> float:
        return max(self.pool.longest_ms, self.row.longest_ms)

    def lines(self) -> list[str]:
        """The figures."""
        both = self.pool + self.row
        waits = sorted(wait.held_ms for wait in both.waits)
        slowest = max(both.waits, key=lambda wait: wait.total_ms, default=Wait(0.0, 0.0))
        return [
            f"pruned {self.rows:,} rows in {self.seconds:g} s; of {both.tries:,} locks taken beside it on the lease "
            f"pool and on rows being pruned, {len(waits):,} waited",
            f"longest lock: of the lease pool {self.pool.longest_ms:.1f} ms, of a row {self.row.longest_ms:.1f} ms, "
            f"median {median(waits or [0.0]):.1f} ms; an fsynced commit of one row takes {self.commit_ms:.2f} ms",
            "measured by the server, without waiting for a CPU; the longest wait with it was "
            f"{slowest.total_ms:.1f} ms, {slowest.cpu_ms:.1f} ms of it for a CPU",
        ]


async def create(server: EmbeddedPostgres) -> str:
    """URL of a new database with the schema of a lease-broker."""
    url = await server.create_database("growth")
    await migrate.upgrade(url, "lease-broker")
    return url


async def fill(url: str) -> None:
    """Write a million rows to prune."""
    db = await postgres.session(url, "lease-broker")
    try:
        await db.execute("SET synchronous_commit = off")
        await db.execute(LEASE_POOL, POOL)
        for statement, share in SHARES:
            await db.execute(statement, POOL, round(ROWS * share), timeout=600)
        await db.execute("ANALYZE leases, requests, history")
        await db.execute(WAITED_FOR_CPU)
        await db.execute(WAIT)
    finally:
        await db.close()


async def measure(url: str) -> Locks:
    """Prune a filled database beside sessions that lock the pool and the rows."""
    database = await postgres.connect(url, "lease-broker", size=1, settings={"synchronous_commit": "on"})
    try:
        pruner = await database.fetchval("SELECT pg_backend_pid()")
        commit_ms = await _commit_ms(database)
        loop = PruneLoop((*MESSAGING, *RETENTION), Settings(database_url="", kafka=""))
        done = asyncio.Event()
        began = time.monotonic()
        trying = [
            asyncio.create_task(_try(url, done, lock, pruner))
            for lock in (LOCK_POOL, *(LOCK_ROW.format(table=table, order=order) for table, order in ORDERS.items()))
        ]
        await _prune(loop, database)
        seconds = time.monotonic() - began
        done.set()
        pool, *rows = await asyncio.gather(*trying)
        await _prune(loop, database)  # what was locked in the last moment
        left = await database.fetchval(LEFT)
        row = sum(rows, Tries(0, []))
        return Locks(rows=ROWS - left, seconds=round(seconds, 1), pool=pool, row=row, commit_ms=commit_ms)
    finally:
        database.terminate()


async def _prune(loop: PruneLoop, database: Database) -> None:
    loop.begin_round()
    while await loop.step(database):
        pass


async def _commit_ms(database: Database) -> float:
    """Median of a commit of one row, which waits for the disk."""
    await database.execute("CREATE TABLE yardstick (n int)")
    samples = []
    for _ in range(COMMITS):
        began = time.monotonic()
        await database.execute("INSERT INTO yardstick VALUES (1)")
        samples.append((time.monotonic() - began) * 1000)
    await database.execute("DROP TABLE yardstick")
    return median(samples)


async def _try(url: str, done: asyncio.Event, lock: str, pruner: int) -> Tries:
    """Take a lock again and again, until `done`."""
    db = await postgres.session(url, "lease-broker")
    tries, waits = 0, []
    try:
        while not done.is_set():
            tries += 1
            waits += [Wait(*row) for row in await db.fetch(TRY, lock, pruner)]
            await asyncio.sleep(TRY_SECONDS)
    finally:
        await db.close()
    return Tries(tries, waits)
