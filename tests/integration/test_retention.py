"""Rules of retention on PostgreSQL: rows stay until their time has passed and not longer, whatever the backlog."""

import re
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any, Final

import asyncpg
import pytest
from sqlalchemy import text

from slipway_common.database import postgres as connections
from slipway_common.database.postgres import Database
from slipway_common.database.retention import (
    CHUNK_ROWS,
    DAY_SECONDS,
    PRUNE_LOOP,
    PRUNED,
    PruneLoop,
    Retention,
    Rule,
)
from slipway_common.database.sql import Statement
from slipway_common.messaging.retention import DELETE_SUBJECTS, RETENTION
from slipway_lease_broker.store.retention import RETENTION as LEASE_BROKER
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.store.retention import RETENTION as PROVISIONER
from slipway_weight_calculator.store.retention import RETENTION as WEIGHT_CALCULATOR
from tests.support import harness
from tests.support.databases import empty_database
from tests.support.retention import prune_all

# A row of each table that ended at $1, with the number $2 in its key.
UUID: Final = "lpad($2::text, 32, '0')::uuid"
EVERY_SERVICE: Final = {
    "alert": """
INSERT INTO alert (dedup_key, kind, subject_kind, subject_id, severity, body, closed_at)
SELECT 'k' || $2, 'k', 'pool', 'p', 'page', '{}', $1""",
    "audit": """
INSERT INTO audit (at, by, origin, action, reason, kind, subject_id, result)
SELECT $1, 'b', '', 'set', '', 'k', 's' || $2, 'updated'""",
    "token_use": "INSERT INTO token_use SELECT 'n' || $2, $1::date, $1",
    "outbox_subject": """
INSERT INTO outbox_subject (topic, subject, revision, created_at, touched_at)
SELECT 'slipway.worker.lifecycle.v1', 's' || $2, 1, $1, $1""",
    "seen_event": "INSERT INTO seen_event SELECT 't', 's', 'e' || $2, $1",
    "gap": "INSERT INTO gap (topic, partition, kind, detail, at) SELECT 't', 0, 'k', 'd' || $2, $1",
    "dead_letter": """
INSERT INTO dead_letter (topic, partition, "offset", subject, state, reason, headers, record_at, at)
SELECT 't', 0, $2::text::bigint, '', 'dead', '', '[]', $1, $1""",
}
ROWS: Final[Mapping[str, tuple[Retention, Mapping[str, str]]]] = {
    "provisioner": (
        PROVISIONER,
        {
            "claim": f"INSERT INTO claim SELECT {UUID}, 's', 't', '', 'p', $1, $1, $1",
            "decision": f"INSERT INTO decision SELECT {UUID}, 'p', $1, $1, 1, 0, '', '{{}}'",
            "worker": f"""
INSERT INTO worker (id, pool_id, launch_config_id, account_id, image_revision, state, decision_id, requested_at,
    ended_at, traceparent)
SELECT {UUID}, 'p', 'c', 'a', 'i', 'stopped', {UUID}, $1, $1, ''""",
            "launch_batch": f"""
INSERT INTO launch_batch (id, launch_config_id, account_id, lease_id, token, body, units, state, call_deadline,
    known_at)
SELECT {UUID}, 'c', 'a', 'l', 't' || $2, '{{}}', 1, 'known', $1, $1""",
            "lease": """
INSERT INTO lease (id, request_id, lease_pool_id, launch_config_id, fencing_token, units, state, expires_at, hold_until,
    renewed_at, traceparent)
SELECT 'l' || $2, 'r', 'p', 'c', 1, 0, 'ended', $1, $1, $1, ''""",
            "unreachable_machine": f"INSERT INTO unreachable_machine SELECT {UUID}, 'a', 'p', 'c', NULL, NULL, $1",
            "launch_stop": "INSERT INTO launch_stop SELECT 'pool', 'p' || $2, 'r', 'b', $1, $1",
            "worker_error": f"""
INSERT INTO worker_error (at, worker_id, pool_id, launch_config_id, image_revision, code)
SELECT $1, {UUID}, 'p', 'c', 'i', 'k'""",
            "spend_usage": "INSERT INTO spend_usage SELECT 'a', 'p' || $2, NULL, $1, 0, 0, 1, 0",
            "worker_error_hour": "INSERT INTO worker_error_hour SELECT 'c' || $2, 'k', $1, 'p', 1",
            "console_output": f"""
INSERT INTO console_output (image_revision, account_id, pool_id, launch_config_id, batch_id, worker_id, instance_id,
    reason, requested_at)
SELECT 'ami-' || $2, 'a', 'p', 'c', {UUID}, {UUID}, 'i', 'r', $1""",
            "workspace": f"""
INSERT INTO workspace (id, deployment, incarnation, account_id, batch_id, ordinal, launch_config_id, phase,
    effects_seconds, ended_at)
SELECT {UUID}, 'd', 'i', 'a', {UUID}, 0, 'c', 'gone', 0, $1""",
        },
    ),
    "weight-calculator": (
        WEIGHT_CALCULATOR,
        {"journal": "INSERT INTO journal SELECT $2::text::bigint, 1, 0, 0, '[]', '[]', '[]', '[]', $1"},
    ),
    "lease-broker": (
        LEASE_BROKER,
        {
            "leases": """
INSERT INTO leases (id, lease_pool_id, request_id, fencing_token, granted_units, units, state, granted_at, expires_at,
    hold_until, ended_at, owner, extended_at)
SELECT 'l' || $2, 'p', 'q' || $2, $2::text::bigint, 1, 0, 'released', $1, $1, $1, $1, 'o', $1""",
            "requests": """
INSERT INTO requests (lease_pool_id, id, tenant, operation, requested_units, waiting_units, requested_at,
    last_requested_at, owner, since)
SELECT 'p', 'r' || $2, 't', 'launch', 1, 0, $1, $1, 'o', $1""",
            "history": """
INSERT INTO history (lease_pool_id, at, kind, reason) SELECT 'p', $1, 'released', 'n' || $2""",
            "gangs": "INSERT INTO gangs SELECT 'g' || $2, 'o', 1, $1, $1",
        },
    ),
}
# Rules without rows here: they have tests of their own, since they depend on other rows.
ELSEWHERE: Final = {
    "account",
    "pool_revision",
    "dirty_pool",
    "shared_window",
    "shared_usage",
    "demand",
    "workspace_document",
    "workspace_listing",
    "tenants",
    "groups",
    "slot_requests",
}
CASES: Final = [
    (service, table)
    for service, (_, rows) in ROWS.items()
    for table in (*rows, *(EVERY_SERVICE if service == "lease-broker" else ()))
]
AT: Final = "(SELECT at - make_interval(secs => {seconds}) FROM test_clock)"


class Service:
    """Database of a service, and its rules."""

    def __init__(self, name: str, database: Database) -> None:
        self.name = name
        self.database = database
        self.retention, rows = ROWS[name]
        self.rows = {**EVERY_SERVICE, **rows}
        self.rules = {row.table: row for row in (*RETENTION, *self.retention) if isinstance(row, Rule)}

    async def insert(self, table: str, number: int, *, seconds: float) -> None:
        """Insert a row that ended so long ago."""
        statement = self.rows[table].replace("$1", AT.format(seconds=seconds)).replace("$2", f"'{number}'")
        await self.database.execute(statement)

    async def count(self, table: str) -> int:
        rows: int = await self.database.fetchval(f"SELECT count(*) FROM {table}")
        return rows


@pytest.fixture
async def service(postgres: EmbeddedPostgres, request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    async with empty_database(postgres, request.param) as url:
        database = await connections.connect(url, request.param, settings=harness.PATIENT)
        try:
            yield Service(request.param, database)
        finally:
            await database.close()


def test_every_rule_of_the_prune_loop_is_tried() -> None:
    tried = {table for _, table in CASES} | ELSEWHERE
    rules = [row for retention in (RETENTION, PROVISIONER, WEIGHT_CALCULATOR, LEASE_BROKER) for row in retention]
    assert {row.table for row in rules if isinstance(row, Rule) and row.loop == PRUNE_LOOP} == tried


@pytest.mark.parametrize(("service", "table"), CASES, indirect=["service"])
async def test_rows_go_when_their_time_has_passed(service: Service, table: str) -> None:
    """A row that is a minute younger than its rule says stays; one that is a minute older is deleted and counted."""
    kept_seconds = service.rules[table].days * DAY_SECONDS
    await service.insert(table, 1, seconds=kept_seconds - 60)
    await service.insert(table, 2, seconds=kept_seconds + 60)
    before = PRUNED.labels(table)._value.get()
    await prune_all(service.database, service.retention)
    assert await service.count(table) == 1
    assert PRUNED.labels(table)._value.get() == before + 1
    await service.database.execute("UPDATE test_clock SET at = at + interval '2 minutes'")
    await prune_all(service.database, service.retention)
    assert await service.count(table) == 0


@pytest.mark.parametrize("service", ["lease-broker"], indirect=True)
async def test_a_backlog_is_deleted_in_chunks(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases, then the requests that wait for them to go, in one round, with at most a chunk per statement."""
    rows = 2 * CHUNK_ROWS + 10
    old = AT.format(seconds=9 * DAY_SECONDS)
    for table in ("leases", "requests", "history"):
        statement = service.rows[table].replace("'r' ||", "'q' ||").replace("$1", old).replace("$2", "n")
        await service.database.execute(f"{statement} FROM generate_series(1, {rows}) AS n")
    chunks: list[tuple[str, int]] = []
    execute = type(service.database).execute

    async def counted(self: Database, statement: str, *arguments: Any) -> str:
        done: str = await execute(self, statement, *arguments)
        chunks.append((statement.split()[2], int(done.removeprefix("DELETE "))))
        return done

    monkeypatch.setattr(type(service.database), "execute", counted)
    await prune_all(service.database, service.retention)
    assert max(number for _, number in chunks) == CHUNK_ROWS
    assert sum(number for _, number in chunks) == 3 * rows
    tables = [table for table, _ in chunks]
    assert "leases" not in tables[tables.index("requests") :], "requests were read while leases used them"
    assert [await service.count(table) for table in ("leases", "requests", "history")] == [0, 0, 0]


@pytest.mark.parametrize("service", ["lease-broker"], indirect=True)
async def test_a_rule_that_fails_delays_no_other(service: Service) -> None:
    """The step fails, so that it is logged and counted, and the next one goes on behind the rule."""
    broken = Rule(table="gap", rows="", after="", delete=Statement(text("DELETE FROM nothing")))
    await service.insert("gap", 1, seconds=61 * DAY_SECONDS)
    loop = PruneLoop((broken, *RETENTION), SimpleNamespace(audit_kept_days=60))
    failures = 0
    for _ in range(20):
        try:
            if not await loop.step(service.database):
                break
        except asyncpg.UndefinedTableError:
            failures += 1
    assert failures == 1
    assert await service.count("gap") == 0
    assert await loop.step(service.database) is False, "woken early"


@pytest.mark.parametrize("service", ["lease-broker"], indirect=True)
async def test_settings_replace_the_days(service: Service) -> None:
    await service.insert("leases", 1, seconds=2 * DAY_SECONDS)
    await service.insert("audit", 1, seconds=70 * DAY_SECONDS)
    await prune_all(service.database, service.retention, audit_kept_days=80)
    assert [await service.count("leases"), await service.count("audit")] == [1, 1]
    await prune_all(service.database, service.retention, ended_kept_days=1)
    assert [await service.count("leases"), await service.count("audit")] == [0, 0]


COMPACTED: Final = """
INSERT INTO outbox_subject (topic, subject, revision, deleted, created_at, touched_at)
SELECT 'slipway.pool.lifecycle.v1', subject, 7, subject = 'gone', at - interval '9 days', at - interval '9 days'
FROM test_clock, unnest('{gone, there}'::text[]) AS subject"""


@pytest.mark.parametrize("service", ["lease-broker"], indirect=True)
async def test_a_subject_of_a_compacted_topic_ends_with_its_tombstone(service: Service) -> None:
    """However long nothing was published about it: consumers would drop its lower revisions."""
    await service.database.execute(COMPACTED)
    async with service.database.acquire() as db:
        assert await db.execute(DELETE_SUBJECTS.text, 8 * DAY_SECONDS) == "DELETE 1"
    assert await service.database.fetchval("SELECT subject FROM outbox_subject") == "there"


REVISIONS: Final = """
INSERT INTO worker_pool (id, min_capacity, max_capacity, scaling_ratio, mode, profile, boot_evidence, claim_evidence,
    on_bad_image, freeze_after)
VALUES ('busy', 0, 1, '1', '', '', '', '', '', 1), ('calm', 0, 1, '1', '', '', '', '', '', 1);
INSERT INTO pool_revision (pool_id, revision, at, by, action, owner, revisions, spec, spec_digest, changes)
SELECT 'busy', n, at, 'b', 'apply', '', '{}', '{}', '', '[]' FROM test_clock, generate_series(1, 120) AS n;
INSERT INTO pool_revision (pool_id, revision, at, by, action, owner, revisions, spec, spec_digest, changes)
SELECT 'calm', n, at - interval '61 days', 'b', 'apply', '', '{}', '{}', '', '[]'
FROM test_clock, generate_series(1, 20) AS n;
INSERT INTO dirty_pool (pool_id, reason) VALUES ('busy', 'r'), ('gone', 'r')"""
KEPT: Final = """
SELECT pool_id, min(revision) AS oldest, count(*) AS rows FROM pool_revision GROUP BY pool_id ORDER BY pool_id"""


@pytest.mark.parametrize("service", ["provisioner"], indirect=True)
async def test_the_newest_revisions_of_a_pool_are_kept(service: Service) -> None:
    """A hundred of a pool that changes often, ten of one that has not changed for long. Marks of a pool that does not
    exist go too."""
    await service.database.execute(REVISIONS)
    await prune_all(service.database, service.retention)
    assert [tuple(row) for row in await service.database.fetch(KEPT)] == [("busy", 21, 100), ("calm", 11, 10)]
    assert [row["pool_id"] for row in await service.database.fetch("SELECT pool_id FROM dirty_pool")] == ["busy"]


FEW: Final = ELSEWHERE | {"launch_stop", "gangs", "unreachable_machine"} - {"demand"}
"""Tables that stay small, whose rules need no index on a time."""


LOCKED_BY_PLACE: Final = re.compile(r"^( +)->  LockRows .*\n(?:\1 .*\n)*?\1      ->  Tid Scan on ", re.MULTILINE)


@pytest.mark.parametrize("service", ROWS, indirect=True)
async def test_rules_find_rows_by_an_index(service: Service) -> None:
    """Rows that have not ended are not read, and no table is sorted or joined as a whole. Only found rows are locked:
    the search for more may take long."""
    async with service.database.acquire() as db, db.transaction():
        for plans in ("seqscan", "bitmapscan", "sort"):  # small tables are read as a whole otherwise
            await db.execute(f"SET LOCAL enable_{plans} = off")
        for rule in service.rules.values():
            if rule.delete is None or rule.table in FEW:
                continue
            statement = rule.delete.text.replace("$1::FLOAT", f"{rule.days * DAY_SECONDS}::float8")
            plan = "\n".join(row[0] for row in await db.fetch(f"EXPLAIN {statement}"))
            assert not {"Sort", "Hash", "Seq"} & set(plan.split()), plan
            assert "Index Cond: (" in plan or "first_rows" in plan, plan
            assert LOCKED_BY_PLACE.search(plan), plan


@pytest.mark.parametrize(
    ("service", "table", "user"),
    [("lease-broker", "requests", "leases"), ("provisioner", "launch_batch", "worker")],
    indirect=["service"],
)
async def test_rows_that_others_use_are_found_in_their_order(service: Service, table: str, user: str) -> None:
    """A chunk of a backlog reads no more than its rows, of which the planner has to expect enough. How it looks for one
    user of a row does not matter: a table of users without rows is read as a whole once the server has vacuumed it,
    which it does by itself at any time."""
    rule, rows = service.rules[table], 40 * CHUNK_ROWS
    at = f"{AT.format(seconds=2 * rule.days * DAY_SECONDS)} + n * 7919 % {rows} * interval '1 second'"
    statement = service.rows[table].replace("$1", at).replace("$2", "n")
    assert rule.delete is not None
    async with service.database.acquire() as db:
        await db.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")  # would come between the next steps
        await db.execute(f"{statement} FROM generate_series(1, {rows}) AS n; ANALYZE {table}")
        await db.execute(f"VACUUM {user}")
        steps = await db.fetch(f"EXPLAIN {rule.delete.text.replace('$1::FLOAT', f'{rule.days * DAY_SECONDS}::float8')}")
    plan = "\n".join(row[0] for row in steps)
    assert not re.search(rf"Sort|(?:Seq|Bitmap Heap) Scan on {table}\b", plan), plan
    assert re.search(rf"Index Scan using \w+ on {table}", plan), plan
