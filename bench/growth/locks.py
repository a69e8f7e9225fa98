"""Longest wait for a lock that the prune loop holds, as other sessions see it while it deletes a million rows.

One session locks the lease pool again and again; another one locks rows that the loop is about to delete, among them
those that it is deleting.
"""

import asyncio
import time
from statistics import median
from typing import Any, Final

import asyncpg
import msgspec

from slipway_common.database import migrate, postgres
from slipway_common.database.postgres import Connection, Database
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
LEFT: Final = "SELECT (SELECT count(*) FROM leases) + (SELECT count(*) FROM requests) + (SELECT count(*) FROM history)"
LOCK_POOL: Final = "SELECT FROM lease_pools WHERE id = $1 FOR UPDATE"
# Among the oldest that are visible: some of them are being deleted.
LOCK_ROW: Final = "SELECT FROM {table} WHERE ctid = (SELECT ctid FROM {table} ORDER BY {order} LIMIT 1) FOR UPDATE"
ORDERS: Final = {"leases": "ended_at", "requests": "last_requested_at", "history": "id"}


class Locks(msgspec.Struct, frozen=True, kw_only=True):
    """Longest waits in milliseconds for locks that others held, while `rows` were deleted in `seconds`: `waited` of
    `tries` locks were held. `commit` is the median of an fsynced commit of one row in the same run."""

    rows: int
    seconds: float
    tries: int
    waited: int
    pool: float
    row: float
    commit: float

    @property
    def longest(self) -> float:
        return max(self.pool, self.row)


async def empty_broker(server: EmbeddedPostgres) -> str:
    """URL of a database with the schema of a lease-broker."""
    url = await server.create_database("growth")
    await migrate.upgrade(url, "lease-broker")
    return url


async def measure(url: str) -> Locks:
    """Fill the tables of a lease-broker, then prune them beside sessions that lock the pool and the rows."""
    database = await postgres.connect(url, "lease-broker", settings={"synchronous_commit": "on"})
    try:
        async with database.acquire() as db:
            commit = await _commit_ms(db)
            await _fill(db)
        loop = PruneLoop((*MESSAGING, *RETENTION), Settings(database_url="", kafka=""))
        done = asyncio.Event()
        began = time.monotonic()
        waits = [
            asyncio.create_task(_waits_ms(url, done, statement, *arguments))
            for statement, *arguments in (
                (LOCK_POOL, POOL),
                *((LOCK_ROW.format(table=table, order=order),) for table, order in ORDERS.items()),
            )
        ]
        while await loop.step(database):
            pass
        seconds = time.monotonic() - began
        done.set()
        pool, *rows = await asyncio.gather(*waits)
        left = await database.fetchval(LEFT)
        return Locks(
            rows=ROWS - left,
            seconds=round(seconds, 1),
            tries=sum(map(len, (pool, *rows))),
            waited=sum(wait > 0 for found in (pool, *rows) for wait in found),
            pool=max(pool),
            row=max(map(max, rows)),
            commit=commit,
        )
    finally:
        database.terminate()


async def _fill(db: Connection) -> None:
    await db.execute("SET synchronous_commit = off")
    await db.execute(LEASE_POOL, POOL)
    for statement, share in ((LEASES, 0.2), (REQUESTS, 0.2), (HISTORY, 0.6)):
        await db.execute(statement, POOL, round(ROWS * share), timeout=600)
    await db.execute("SET synchronous_commit = on")
    await db.execute("ANALYZE leases, requests, history")


async def _commit_ms(db: Connection) -> float:
    """Median of a commit of one row, which waits for the disk."""
    await db.execute("CREATE TABLE yardstick (n int)")
    samples = [await _timed_ms(db, "INSERT INTO yardstick VALUES (1)") for _ in range(COMMITS)]
    await db.execute("DROP TABLE yardstick")
    return median(samples)


async def _waits_ms(url: str, done: asyncio.Event, statement: str, *arguments: Any) -> list[float]:
    """Waits for a lock that another session holds, until `done`, one a try; 0 if it is free."""
    db = await postgres.session(url, "lease-broker")
    waits = []
    try:
        while not done.is_set():
            try:
                await db.execute(f"{statement} NOWAIT", *arguments)
            except asyncpg.LockNotAvailableError:
                waits.append(await _timed_ms(db, statement, *arguments))
            else:
                waits.append(0.0)
            await asyncio.sleep(TRY_SECONDS)
    finally:
        await db.close()
    return waits


async def _timed_ms(db: Connection | Database, statement: str, *arguments: Any) -> float:
    began = time.monotonic()
    await db.execute(statement, *arguments)
    return (time.monotonic() - began) * 1000
