"""Longest lock that the prune loop holds, as other sessions see it while it deletes a million rows.

One session locks the lease pool again and again; others lock one of the rows that the loop deletes next or is
deleting. The server measures their waits. Left out is the time in which the loop's session or the waiting one was ready
to run but had no CPU (`/proc/PID/schedstat` of Linux), since on a busy machine that is not the loop's. A wait begins up
to 5 ms after its lock, and of the loop's time without a CPU up to a time slice too much is left out.
"""

import asyncio
import time
from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec

from slipway_common.database import migrate, postgres
from slipway_common.database.postgres import Database
from slipway_common.database.retention import CHUNK_ROWS, PruneLoop
from slipway_common.messaging.retention import RETENTION as MESSAGING
from slipway_lease_broker.settings import Settings
from slipway_lease_broker.store.retention import RETENTION
from slipway_local.servers.postgres import EmbeddedPostgres

ROWS: Final = 1_000_000
COMMITS: Final = 50
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
# Any of the oldest that are visible: most of them are the next chunk, or being deleted.
LOCK_ROW: Final = f"""
SELECT FROM {{table}} WHERE ctid = (
    SELECT ctid FROM {{table}} ORDER BY {{order}} LIMIT 1 OFFSET floor(random() * {CHUNK_ROWS})) FOR UPDATE"""
ORDERS: Final = {"leases": "ended_at", "requests": "last_requested_at", "history": "id"}
# Milliseconds for which a session was ready to run but waited for a CPU, since it began. Only a superuser reads files.
WAITED_FOR_CPU: Final = """
SET ROLE NONE;
CREATE FUNCTION waited_for_cpu(pid int) RETURNS float8 LANGUAGE sql VOLATILE SECURITY DEFINER AS $$
    SELECT coalesce(split_part(pg_read_file('/proc/' || pid || '/schedstat', true), ' ', 2)::float8 / 1e6, 0) $$"""
# Takes a lock again and again until everything is pruned, and measures its waits.
PRUNED: Final = "CREATE TABLE pruned (at timestamptz)"
WATCH: Final = """
CREATE PROCEDURE watch(lock text, pruner int, INOUT tries int, INOUT total_ms float8[], INOUT cpu_ms float8[])
LANGUAGE plpgsql AS $$
DECLARE
    is_free bool;
    cpu float8;
    began timestamptz;
BEGIN
    WHILE NOT EXISTS (SELECT FROM pruned) LOOP
        tries := tries + 1;
        BEGIN
            EXECUTE lock || ' NOWAIT';
            is_free := true;
        EXCEPTION WHEN lock_not_available THEN
            is_free := false;
        END;
        IF NOT is_free THEN
            cpu := waited_for_cpu(pruner) + waited_for_cpu(pg_backend_pid());
            began := clock_timestamp();
            EXECUTE lock;
            total_ms := total_ms || (extract(epoch FROM clock_timestamp() - began) * 1000)::float8;
            cpu_ms := cpu_ms || (waited_for_cpu(pruner) + waited_for_cpu(pg_backend_pid()) - cpu);
        END IF;
        COMMIT;
        PERFORM pg_sleep(0.005);
    END LOOP;
END $$"""
CALL: Final = "CALL watch($1, $2, 0, '{}', '{}')"


class Wait(msgspec.Struct, frozen=True):
    """One wait for a lock, with its part in which a session waited for a CPU."""

    total_ms: float
    cpu_ms: float

    @property
    def held_ms(self) -> float:
        return max(0.0, self.total_ms - self.cpu_ms)


class Watched(msgspec.Struct, frozen=True):
    """Number of times that something was locked, and the waits where it was not free."""

    tries: int
    waits: Sequence[Wait]

    def __add__(self, other: "Watched") -> "Watched":
        return Watched(self.tries + other.tries, [*self.waits, *other.waits])


class Locks(msgspec.Struct, frozen=True, kw_only=True):
    """Waits of other sessions for the lease pool and for rows, while `rows` were deleted in `seconds`. `commit_ms` is
    the median of an fsynced commit of one row in the same run."""

    rows: int
    seconds: float
    pool: Watched
    row: Watched
    commit_ms: float

    @property
    def longest_ms(self) -> float:
        return max((wait.held_ms for wait in (*self.pool.waits, *self.row.waits)), default=0.0)

    def lines(self) -> list[str]:
        """The figures."""
        waits = self.row.waits or [Wait(0.0, 0.0)]
        typical = median(wait.held_ms for wait in waits)
        slowest = max(waits, key=lambda wait: wait.total_ms)
        return [
            f"pruned {self.rows:,} rows in {self.seconds:g} s; a commit of one row, with fsync, takes "
            f"{self.commit_ms:.2f} ms",
            f"locked beside it: the lease pool {self.pool.tries:,} times, {len(self.pool.waits):,} of them waited; "
            f"rows {self.row.tries:,} times, {len(self.row.waits):,} of them waited",
            f"longest lock {self.longest_ms:.1f} ms, median {typical:.1f} ms, without waiting for a CPU; the longest "
            f"wait with it {slowest.total_ms:.1f} ms, of which {slowest.cpu_ms:.1f} ms for a CPU",
        ]


async def create(server: EmbeddedPostgres) -> str:
    """URL of a new database with the schema of a lease-broker."""
    url = await server.create_database("growth")
    await migrate.upgrade(url, "lease-broker")
    return url


async def fill(url: str) -> None:
    """Write a million rows to prune."""
    db = await postgres.session(url, "lease-broker", synchronous_commit="off", statement_timeout="0")
    try:
        await db.execute(LEASE_POOL, POOL)
        for statement, share in SHARES:
            await db.execute(statement, POOL, round(ROWS * share), timeout=600)
        await db.execute("ANALYZE leases, requests, history")
        await db.execute(PRUNED)
        await db.execute(WATCH)
        await db.execute(WAITED_FOR_CPU)
        await db.execute("CHECKPOINT", timeout=600)  # what it writes to disk is not the prune loop's
    finally:
        await db.close()


async def measure(url: str) -> Locks:
    """Prune a filled database beside sessions that lock the pool and the rows."""
    database = await postgres.connect(url, "lease-broker", size=1, settings={"synchronous_commit": "on"})
    try:
        commit_ms = await _commit_ms(database)
        pruner = await database.fetchval("SELECT pg_backend_pid()")
        loop = PruneLoop((*MESSAGING, *RETENTION), Settings(database_url="", kafka=""))
        locks = (LOCK_POOL, *(LOCK_ROW.format(table=table, order=order) for table, order in ORDERS.items()))
        watching = [asyncio.create_task(_watch(url, lock, pruner)) for lock in locks]
        began = time.monotonic()
        await _prune(loop, database)
        seconds = time.monotonic() - began
        await database.execute("INSERT INTO pruned VALUES (now())")
        pool, *rows = await asyncio.gather(*watching)
        await _prune(loop, database)  # what was locked in the last moment
        left = await database.fetchval(LEFT)
        return Locks(
            rows=ROWS - left,
            seconds=round(seconds, 1),
            pool=pool,
            row=sum(rows, Watched(0, [])),
            commit_ms=commit_ms,
        )
    finally:
        database.terminate()


async def _prune(loop: PruneLoop, database: Database) -> None:
    loop.begin_round()
    while await loop.step(database):
        pass


async def _watch(url: str, lock: str, pruner: int) -> Watched:
    db = await postgres.session(url, "lease-broker", synchronous_commit="off", statement_timeout="0")
    try:
        tries, *waits = await db.fetchrow(CALL, lock, pruner, timeout=3600)
        return Watched(tries, [Wait(*both) for both in zip(*waits, strict=True)])
    finally:
        await db.close()


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
