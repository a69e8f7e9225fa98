"""What loops read as a fleet grows: what is due, and nothing else. And what their benchmark counts."""

from typing import Any, Final

import msgspec
import pytest

from bench.loops.cost import cpu_seconds
from slipway_common.database.tables import PLANS_KEPT
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.apply import launches
from slipway_provisioner.domain.unresponsiveness import TIMEOUT_PART
from slipway_provisioner.store import account_checks, deadlines, leases, pools, spending, starts, usage
from slipway_provisioner.store.retention import DELETE_SHARES
from tests.support.cloud import START
from tests.support.plans import rows_read
from tests.support.provisioner import PASSED, Provisioner, provisioner_on, revision_id

BUSY = "SELECT sum(n) FROM generate_series(1, 3_000_000) AS n"
BUSY_SECONDS = 0.05  # a fifth of what it takes, and fifty times what the process takes to ask for it

# What the session has read, also in functions.
READ: Final = """
SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int FROM pg_stat_xact_user_tables
WHERE schemaname = current_schema() AND relname IN ('lease', 'worker', 'launch_config', 'launch_batch')"""
WAITING: Final = 1_800
WAIT: Final = f"""
WITH leases AS (
    INSERT INTO lease (id, request_id, lease_pool_id, launch_config_id, fencing_token, units, state, expires_at,
        hold_until, traceparent)
    SELECT 'waits-' || n, 'waits', lease_pool_id, launch_config_id, 1000 + n, 1, 'confirmed', expires_at, hold_until, ''
    FROM (SELECT * FROM lease LIMIT 1) AS l, generate_series(1, {WAITING}) AS n RETURNING id)
INSERT INTO worker (id, pool_id, launch_config_id, account_id, image_revision, state, decision_id, requested_at,
    traceparent, lease_id)
SELECT gen_random_uuid(), w.pool_id, w.launch_config_id, w.account_id, w.image_revision, w.state, w.decision_id,
    w.requested_at, '', l.id FROM worker w CROSS JOIN leases l"""
WAIT_AGAIN: Final = "UPDATE worker SET state = 'requested' WHERE batch_id IS NULL"
LIVE: Final = 2_000
# Workers of the account of the declared launch config, busy and in contact; launch configs, and batches of other pools.
FLEET: Final = (
    f"""
INSERT INTO worker (id, pool_id, launch_config_id, account_id, image_revision, state, decision_id, requested_at,
    registered_at, first_claimed_at, last_seen_at, traceparent)
SELECT gen_random_uuid(), 'linux', '{revision_id()}', 'sim-a', 'linux-1', 'running', gen_random_uuid(), slipway_clock(),
    slipway_clock(), slipway_clock(), slipway_clock(), '' FROM generate_series(1, {LIVE})""",
    f"""
INSERT INTO launch_batch (id, launch_config_id, pool_id, account_id, lease_id, token, body, units, state, call_deadline)
SELECT gen_random_uuid(), 'c', 'other', 'a', '', n, '{{}}', 1, 'known', slipway_clock()
FROM generate_series(1, {LIVE}) AS n""",
    f"""
INSERT INTO launch_config (id, name, digest, pool_id, account_id, region, zone, instance_type, image_revision, settings,
    profile, boot_evidence, claim_evidence, on_bad_image, freeze_after, state, declared_at)
SELECT name || '@' || n, name, n, pool_id, account_id, region, zone, instance_type, image_revision, settings, profile,
    boot_evidence, claim_evidence, on_bad_image, freeze_after, 'active', declared_at - interval '1 min'
FROM launch_config, generate_series(1, {LIVE}) AS n""",
    "INSERT INTO launch_config_outcomes SELECT id, 'launch' FROM launch_config ON CONFLICT DO NOTHING",
    f"""
INSERT INTO lease (id, request_id, lease_pool_id, launch_config_id, fencing_token, units, state, expires_at, hold_until,
    ttl_seconds, traceparent, renewed_at)
SELECT 'held-' || n, '', 'sim-a', '{revision_id()}', n, 1, 'confirmed', slipway_clock(), slipway_clock(), 300, '',
    slipway_clock() - CASE WHEN n = 1 THEN 101 ELSE 99 END * interval '1 s' FROM generate_series(1, {LIVE}) AS n""",
    "UPDATE account SET check_began_at = slipway_clock()",
    "UPDATE worker SET last_seen_at = slipway_clock() - interval '1 day' WHERE state = 'running' AND id = ("
    "SELECT id FROM worker WHERE state = 'running' LIMIT 1)",
    PASSED,
)
OTHERS: Final = 500
# Workers of another pool, of which half wait for leases and half drain.
OTHER_POOL: Final = f"""
WITH other AS (
    INSERT INTO worker_pool SELECT (p).* FROM (
        SELECT jsonb_populate_record(p, '{{"id": "other"}}') AS p FROM worker_pool p) AS p)
INSERT INTO worker (id, pool_id, launch_config_id, account_id, image_revision, state, decision_id, requested_at,
    drain_until, traceparent)
SELECT gen_random_uuid(), 'other', c.id, 'sim-a', 'linux-1', s.state, gen_random_uuid(), slipway_clock(), s.until, ''
FROM launch_config c, generate_series(1, {OTHERS}),
    (VALUES ('requested', null::timestamptz), ('running', slipway_clock())) AS s (state, until)"""
DEFAULTS: Final = {"on-demand": {"unresponsive_seconds": 900.0}}
OF_ACCOUNT: Final = (DEFAULTS, ["sim-a"])


async def test_time_in_the_database_is_counted(postgres: EmbeddedPostgres) -> None:
    """Of a service's sessions, which have its role."""
    async with provisioner_on(postgres) as provisioner:
        assert await cpu_seconds(provisioner.database, lambda: provisioner.database.fetchval(BUSY)) > BUSY_SECONDS


async def test_a_start_reads_no_others_that_wait(provisioner: Provisioner) -> None:
    """By a plan that was kept since few waited."""
    (grant,) = await provisioner.admitted()
    async with provisioner.database.acquire() as db:
        await db.execute("ANALYZE lease, worker")
        for lease_ids in ([grant.lease_id], [grant.lease_id, "none"]):
            async with db.transaction():
                assert len(await starts.lock(db, lease_ids)) == 1
        await db.execute(WAIT)
        for lease_ids in ([grant.lease_id], [grant.lease_id, "none"]):
            async with db.transaction():
                before = await db.fetchval(READ)
                assert len(await starts.lock(db, lease_ids)) == 1
                assert await db.fetchval(READ) - before <= 4


async def test_starts_replies_and_renewals_read_no_others(provisioner: Provisioner) -> None:
    """By plans that were kept since there were few leases, workers and launch configs."""
    few = [grant.lease_id for grant in await provisioner.admitted(2, "zone-a", "zone-b")]
    many = ["waits-1", "waits-2"]
    read = []
    async with provisioner.database.acquire() as db:
        await db.execute("ANALYZE")
        for lease_ids, grown in ((few[:2], ()), (many, (WAIT, WAIT_AGAIN, FLEET[1], FLEET[2]))):
            for statement in grown:
                await db.execute(statement)
            workers = [row["id"] for row in await db.fetch("SELECT id FROM worker ORDER BY id LIMIT 2")]
            async with db.transaction():
                before = await db.fetchval(READ)
                await starts.lock(db, lease_ids)
                locked = await db.fetchval(READ)
                calls = await launches.start(db, lease_ids, provisioner.launcher.terms, provisioner.providers)
                assert len(calls) == 2
                read.append(await db.fetchval(READ) - locked - (locked - before))  # beside those that it locks
            replies = [(batch, [f"of-{batch.id}"] if n else []) for n, (batch, _) in enumerate(calls)]
            async with db.transaction():
                before = await db.fetchval(READ)
                await launches.record_instances(db, replies, providers=provisioner.providers)
                read.append(await db.fetchval(READ) - before)
            async with db.transaction():
                await db.execute(f"SELECT {PLANS_KEPT}")
                before = await db.fetchval(READ)
                await db.execute(leases.CONFIRM, lease_ids, [8, 9], [START, START])
                confirmed = await db.fetchval(READ)
                await db.execute(leases.BIND, workers, lease_ids, [], [])
                read += [confirmed - before, await db.fetchval(READ) - confirmed]
    assert max(read) < WAITING / 10, read


async def test_a_decision_reads_no_workers_of_other_pools(provisioner: Provisioner) -> None:
    """By a plan that was kept since none of them waited or drained."""
    await provisioner.requested()
    deadlines_ = msgspec.json.encode(provisioner.settings.deadlines()).decode()
    decide = f"EXECUTE decide (ARRAY['linux'], '{deadlines_}', 1, 86400, ARRAY[now()])"
    async with provisioner.database.acquire() as db:
        await db.execute(FLEET[0])
        await db.execute("ANALYZE")
        await db.execute(f"PREPARE decide (text[], jsonb, float8, float8, timestamptz[]) AS {pools.OBSERVE}")
        async with db.transaction():
            await db.execute(f"SELECT {PLANS_KEPT}")
            assert len(await db.fetch(decide)) == 1
            await db.execute(OTHER_POOL)
            read = await rows_read(db, decide)
    assert read["worker"] <= 2, read


async def test_candidates_for_a_start_are_read_once(provisioner: Provisioner) -> None:
    """Each of those that wait, whatever the server knows of their number."""
    await provisioner.admitted()
    async with provisioner.database.acquire() as db:
        await db.execute("ANALYZE lease, worker")
        await db.execute(WAIT)
        read = await rows_read(db, leases.CANDIDATES.replace("$1", "60").replace("$2", "5"))
    assert max(read["lease"], read["worker"]) <= WAITING + 1, read


@pytest.mark.parametrize(
    ("statement", "given", "table", "most"),
    [
        (account_checks.DUE, (3600.0,), "launch_config", 0),
        (deadlines.WITHOUT_CONTACT, (*OF_ACCOUNT, TIMEOUT_PART), "worker", 1),
        (deadlines.UNRESPONSIVE, OF_ACCOUNT, "worker", 1),
        (usage.SHARED_DRIFT, (None,), "worker", 1),
        (usage.SHARED_DRIFT, (None,), "launch_config_outcomes", 0),
        (spending.REPAIR_POOL, ("linux",), "launch_batch", 1),
        (DELETE_SHARES.text, (), "launch_config", 60),
        (leases.RENEWABLE, (), "lease", 5),
    ],
)
async def test_what_is_due_is_read(
    provisioner: Provisioner, statement: str, given: tuple[Any, ...], table: str, most: int
) -> None:
    """One worker boots, one is without contact, and one lease is to be renewed."""
    await provisioner.starting()
    async with provisioner.database.acquire() as db:
        for part in FLEET:
            await db.execute(part)
        await db.execute("ANALYZE")
        read = await rows_read(db, statement, *given)
    assert read[table] <= most, read
