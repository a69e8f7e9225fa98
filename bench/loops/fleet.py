"""A fleet of a given size in a database of its own, filled by SQL.

One pool is declared, and its rows are copied: pools of `PER_POOL` workers, each with a launch config in three zones,
over accounts of `PER_ACCOUNT` workers. Nothing is due: half of the workers have a task, of 50 one boots and one stops
in its grace period; every pool has tasks that wait for a moment, and as many workers have ended as live.
"""

from typing import Any, Final

import asyncpg
import msgspec
from sqlalchemy import Table

from slipway_common.database import migrate, postgres
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.store import declarations, tables, usage
from tests.support.provisioner import PASSED, SERVICE, Provisioner, declared

PER_POOL: Final = 50
PER_ACCOUNT: Final = 1_000
PER_IMAGE: Final = 40
"""Pools that share an image."""
ZONES: Final = ("a", "b", "c")
LONG: Final = 1e6
"""Intervals of what falls due only if the benchmark makes it due, in seconds."""
SETTINGS: Final[dict[str, Any]] = {
    "reap_seconds": LONG,
    "sweep_seconds": LONG,
    "account_check_seconds": LONG,
    "resend_seconds": LONG,
    "boot_timeout_seconds": 3600,
    "give_up_idle_seconds": 3600,
    "unresponsive_timeout_seconds": 3600,
    "stop_grace_seconds": 3600,
    "broker_unavailable_mode": "safe",
}
# The test's clock stands still; here it is the server's.
CLOCK: Final = """
CREATE OR REPLACE FUNCTION slipway_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()'"""
# Changes of the copy number n of a declared row.
ACCOUNTS: Final = "jsonb_build_object('id', 'account-' || n, 'checked_at', slipway_clock())"
POOLS: Final = "jsonb_build_object('id', 'pool-' || n, 'swept_at', slipway_clock())"
NAMES: Final = """jsonb_build_object('name', 'pool-' || n || '/' || t.name, 'pool_id', 'pool-' || n,
    'current_id', 'pool-' || n || '/' || t.current_id)"""
CONFIGS: Final = f"""jsonb_build_object('id', 'pool-' || n || '/' || t.id, 'name', 'pool-' || n || '/' || t.name,
    'pool_id', 'pool-' || n, 'account_id', 'account-' || n / {PER_ACCOUNT // PER_POOL},
    'image_revision', 'linux-' || n / {PER_IMAGE}, 'image', 'linux-' || n / {PER_IMAGE},
    'proven_at', slipway_clock())"""
WEIGHTS: Final = """
INSERT INTO weight (launch_config_id, revision, record, received_at)
SELECT c.id, 1, g.record, slipway_clock() - interval '1 min' FROM launch_config c
CROSS JOIN (SELECT record FROM weight LIMIT 1) AS g ON CONFLICT DO NOTHING"""
DEMAND: Final = f"""
INSERT INTO demand (pool_id, source, pending, claimed, observed_at, valid_for_seconds, pending_since, claimed_seen_at)
SELECT id, 'queue', 5, {PER_POOL // 2}, slipway_clock(), {LONG}, slipway_clock(), slipway_clock() FROM worker_pool"""
DECISIONS: Final = """
INSERT INTO decision (id, pool_id, at, last_at, launched, reason, details)
SELECT gen_random_uuid(), id, slipway_clock() - k * interval '1 min', slipway_clock() - k * interval '1 min', 0,
    'enough', '{"wanted": 50, "needed": 0}'
FROM worker_pool CROSS JOIN generate_series(1, 10) AS k"""
BALANCES: Final = "INSERT INTO pool_balance (pool_id) SELECT id FROM worker_pool"
# Batches of ten workers.
BATCHES: Final = f"""
INSERT INTO launch_batch (id, launch_config_id, pool_id, account_id, lease_id, token, body, units, state, call_deadline,
    known_at, charged)
SELECT gen_random_uuid(), c.id, c.pool_id, c.account_id, '', c.pool_id || '/' || k, '{{}}', 10, 'known',
    slipway_clock() - interval '1 hour', slipway_clock() - interval '1 hour', 10
FROM worker_pool p CROSS JOIN generate_series(0, {PER_POOL // 10 - 1}) AS k
JOIN launch_config c ON c.pool_id = p.id AND c.zone = (ARRAY['a', 'b', 'c'])[1 + k % 3]"""
WORKERS: Final = """
INSERT INTO worker (id, pool_id, launch_config_id, account_id, image_revision, state, decision_id, batch_id,
    instance_id, requested_at, launched_at, registered_at, first_claimed_at, idle_since, last_seen_at, stopping_at,
    ended_at, traceparent, image_key, quota_key, capacity_key, subnet_key, awaits_claim)
SELECT gen_random_uuid(), b.pool_id, b.launch_config_id, b.account_id, c.image_revision, s.state, b.id, b.id,
    'i-' || b.token || '/' || k || '/' || s.state, slipway_clock(), slipway_clock(),
    CASE WHEN s.state <> 'starting' THEN slipway_clock() END, CASE WHEN s.state <> 'starting' THEN slipway_clock() END,
    CASE WHEN s.state = 'running' AND k % 2 = 0 THEN slipway_clock() END, slipway_clock(),
    CASE WHEN s.state IN ('stopping', 'stopped') THEN slipway_clock() END,
    CASE WHEN s.state = 'stopped' THEN slipway_clock() END, '',
    c.image_key, c.quota_key, c.capacity_key, c.subnet_key, c.claim_evidence <> 'none'
FROM launch_batch b JOIN launch_config c ON c.id = b.launch_config_id CROSS JOIN generate_series(0, 9) AS k
CROSS JOIN LATERAL (VALUES ('stopped'), (CASE WHEN b.token LIKE '%/4' AND k = 8 THEN 'starting'
    WHEN b.token LIKE '%/4' AND k = 9 THEN 'stopping' ELSE 'running' END)) AS s (state)"""
CLAIMS: Final = """
INSERT INTO claim (worker_id, source, task_id, claimed_at, pool_id, reported_at, started_at)
SELECT id, 'queue', id::text, '', pool_id, slipway_clock(), slipway_clock() FROM worker
WHERE state = 'running' AND idle_since IS NULL"""
# One lease a batch has ended, one a booting worker is live.
LEASES: Final = f"""
INSERT INTO lease (id, request_id, lease_pool_id, launch_config_id, fencing_token, units, state, expires_at, hold_until,
    ttl_seconds, traceparent, granted_units, renewed_at)
SELECT id::text, id::text, 'sim-a', launch_config_id, 1, 0, 'ended', slipway_clock(), slipway_clock(), {LONG}, '', 10,
    slipway_clock() FROM launch_batch
UNION ALL SELECT id::text, id::text, 'sim-a', launch_config_id, 1, 1, 'confirmed',
    slipway_clock() + interval '1 day', slipway_clock() + interval '1 day', {LONG}, '', 1, slipway_clock()
FROM worker WHERE state = 'starting'"""
QUIET: Final = (
    "UPDATE account SET reaped_at = slipway_clock(), passed_at = slipway_clock(), check_began_at = slipway_clock()",
    PASSED,
    "DELETE FROM outbox",
    "DELETE FROM dirty_pool",
)
DECLARED: Final = {
    "launch_config_outcomes": "launch_config_id IN (SELECT id FROM launch_config WHERE pool_id = 'linux')",
    "launch_config": "pool_id = 'linux'",
    "launch_config_name": "pool_id = 'linux'",
    "pool_revision": "pool_id = 'linux'",
    "worker_pool": "id = 'linux'",
    "account": "id = 'sim-a'",
}


class Size(msgspec.Struct, frozen=True):
    """Size of a fleet."""

    workers: int

    @property
    def pools(self) -> int:
        return max(1, self.workers // PER_POOL)

    @property
    def accounts(self) -> int:
        return -(-self.workers // PER_ACCOUNT)


async def fill(server: EmbeddedPostgres, size: Size) -> Provisioner:
    """A provisioner with a fleet of this size."""
    name = f"fleet_{size.workers}"
    url = await server.create_database(name)
    await migrate.upgrade(url, SERVICE)
    patient = {"statement_timeout": "300s"}
    database = await postgres.connect(url, SERVICE, size=4, settings=patient, command_timeout_seconds=300)
    await database.execute(CLOCK)
    provisioner = Provisioner(database, **SETTINGS)
    await provisioner.declare(declared(*ZONES))
    await provisioner.trust()
    async with database.acquire() as db:
        for table, changes, number in (
            (tables.account, ACCOUNTS, size.accounts),
            (tables.worker_pool, POOLS, size.pools),
            (tables.launch_config_name, NAMES, size.pools),
            (tables.launch_config, CONFIGS, size.pools),
        ):
            await _copy(db, table, changes, number)
        rows = await db.fetch("SELECT id FROM launch_config WHERE pool_id <> 'linux'")
        config_ids = [row["id"] for row in rows]
        await declarations.add_shares(db, config_ids)
        await usage.add_outcomes(db, config_ids)
        for table_name, of_declared in DECLARED.items():
            await db.execute(f"DELETE FROM {table_name} WHERE {of_declared}")
        for statement in (WEIGHTS, DEMAND, DECISIONS, BALANCES, BATCHES, WORKERS, CLAIMS, LEASES, *QUIET):
            await db.execute(statement)
    owner = await asyncpg.connect(server.url(name))
    try:
        await owner.execute("VACUUM ANALYZE")
    finally:
        await owner.close()
    return provisioner


async def _copy(db: Any, table: Table, changes: str, number: int) -> None:
    """Insert numbered copies of the rows of a table, with these changes."""
    columns = [column.name for column in table.columns if column.computed is None]
    await db.execute(
        f"INSERT INTO {table.name} ({', '.join(columns)}) SELECT {', '.join(f'c.{name}' for name in columns)} "
        f"FROM {table.name} t CROSS JOIN generate_series(0, $1::int - 1) AS n "
        f"CROSS JOIN LATERAL jsonb_populate_record(t, {changes}) AS c",
        number,
    )
