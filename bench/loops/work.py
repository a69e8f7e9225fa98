"""Loops of the provisioner, and work for each of them: what makes a number of units due, and one round of the loop."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from bench.loops.fleet import LONG
from slipway_common.database.postgres import Database
from slipway_common.database.retention import PruneLoop
from slipway_common.measure import InTurn
from slipway_common.messaging.retention import RETENTION as MESSAGING_RETENTION
from slipway_provisioner.domain.cloud import Instance, InstanceState
from slipway_provisioner.loops import measure, plan, roll_out
from slipway_provisioner.loops.check_accounts import AccountChecks
from slipway_provisioner.store import gauges
from slipway_provisioner.store.functions import LIMITED_KEYS
from slipway_provisioner.store.retention import RETENTION
from tests.support.cloud import START
from tests.support.provisioner import Provisioner

Loop = Callable[[Provisioner], Awaitable[Any]]
STEPS_MAX: Final = 1_000
MARK: Final = "due"
"""Traceparent, or part of the id, of every row that is inserted to be due."""
OVERDUE: Final = "slipway_clock() - interval '30 days'"


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Work of a loop. `due` are statements that make $1 units due, the first of a fleet; `clean` undo what is left of
    them. Without `due` a round does `units` units anyway, and nothing is ever not due."""

    loop: str
    unit: str
    run: Loop
    due: Sequence[str] = ()
    clean: Sequence[str] = ()
    units: Callable[[Provisioner, int], Awaitable[int]] | None = None


async def _until_done(step: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(STEPS_MAX):
        if not await step():
            return
    raise AssertionError(f"more is due after {STEPS_MAX} steps")


async def _check_accounts(provisioner: Provisioner) -> None:
    checks = AccountChecks(provisioner.settings, provisioner.providers)
    await _until_done(lambda: checks.step(provisioner.database))


async def _resend(provisioner: Provisioner) -> None:
    await plan.resend_requests(provisioner.database, resend_seconds=LONG)


async def _admit_unleased(provisioner: Provisioner) -> None:
    provisioner.broker_unavailable_seconds = LONG
    await provisioner.admit_unleased()


async def _roll_out(provisioner: Provisioner) -> None:
    await _until_done(lambda: roll_out.roll_out_next(provisioner.database))


async def _prune(provisioner: Provisioner) -> None:
    loop = PruneLoop((*MESSAGING_RETENTION, *RETENTION), provisioner.settings)
    await _until_done(lambda: loop.step(provisioner.database))


class _Measured:
    """Pools measured in turn, by provisioner, as in a process of its own."""

    def __init__(self) -> None:
        self._of: dict[int, InTurn] = {}

    async def step(self, provisioner: Provisioner) -> None:
        await self._of[id(provisioner)].step(provisioner.database)

    async def pools(self, provisioner: Provisioner, _: int) -> int:
        """Number of pools of a step. At first all pools are measured once, since a new series costs more."""
        pools: int = await provisioner.database.fetchval("SELECT count(*) FROM worker_pool")
        if id(provisioner) not in self._of:
            self._of[id(provisioner)] = measure.pools()
            for _ in range(0, pools, gauges.POOLS_AT_ONCE):
                await self.step(provisioner)
        return min(gauges.POOLS_AT_ONCE, pools)


_MEASURED: Final = _Measured()


async def _swept(provisioner: Provisioner, units: int) -> int:
    """Pools to sweep: not the first, with which a round of all pools also proves the shared windows."""
    others: int = await provisioner.database.fetchval("SELECT count(*) - 1 FROM worker_pool")
    return min(units, others)


async def _rows(_: Provisioner, units: int) -> int:
    """Rows to prune, so many that a round is not most of their cost."""
    return units * 25


async def _instances_listed(provisioner: Provisioner, _: int) -> int:
    """Let the cloud list the instances of one account; returns their number."""
    rows = await provisioner.database.fetch(
        "SELECT instance_id, batch_id::text, launch_config_id FROM worker "
        "WHERE account_id = 'account-0' AND state <> 'stopped' AND instance_id IS NOT NULL"
    )
    provisioner.cloud.page_size = 200
    provisioner.cloud.live = {
        row["instance_id"]: Instance(
            id=row["instance_id"],
            batch_id=row["batch_id"],
            launch_config_id=row["launch_config_id"],
            created_at=START,
            state=InstanceState.RUNNING,
        )
        for row in rows
    }
    return len(rows)


async def _reap(provisioner: Provisioner) -> None:
    await provisioner.reap()
    provisioner.cloud.live = {}


def _workers(state: str, **columns: str) -> str:
    """Statement that inserts $1 workers of this state, one in each of the first launch configs of the first account."""
    usual = {"requested_at": "slipway_clock()"} | {key: f"c.{key}" for key in LIMITED_KEYS} | columns
    return f"""
INSERT INTO worker (id, pool_id, launch_config_id, account_id, image_revision, decision_id, traceparent, state,
    {", ".join(usual)})
SELECT c.worker_id, c.pool_id, c.id, c.account_id, c.image_revision, c.worker_id, '{MARK}', '{state}',
    {", ".join(usual.values())}
FROM (SELECT l.*, gen_random_uuid() AS worker_id FROM launch_config l
    WHERE l.account_id = 'account-0' AND l.state = 'active' ORDER BY l.id LIMIT $1) AS c"""


_INSTANCE: Final = {
    "instance_id": f"'i-{MARK}-' || c.worker_id",
    "batch_id": "c.worker_id",
    "launched_at": OVERDUE,
}
_REGISTERED: Final = _INSTANCE | {"registered_at": OVERDUE, "last_seen_at": "slipway_clock()"}
_CLEAN_WORKERS: Final = (f"DELETE FROM worker WHERE traceparent = '{MARK}'",)
_LEASES: Final = f"""
INSERT INTO lease (id, request_id, lease_pool_id, launch_config_id, fencing_token, units, state, expires_at, hold_until,
    ttl_seconds, traceparent, granted_units, renewed_at)
SELECT '{MARK}-' || c.id, '{MARK}', 'sim-a', c.id, 1, 1, 'confirmed', slipway_clock() + interval '1 day',
    slipway_clock() + interval '1 day', 300, '{MARK}', 1, {{renewed_at}}
FROM launch_config c WHERE account_id = 'account-0' ORDER BY c.id LIMIT $1"""
_CLEAN_LEASES: Final = (f"DELETE FROM lease WHERE traceparent = '{MARK}'",)
_BATCHES: Final = f"""
INSERT INTO launch_batch (id, launch_config_id, pool_id, account_id, lease_id, token, body, units, state, call_deadline,
    called_at, timeout_seconds, handle, poll_at)
SELECT batch_id, launch_config_id, pool_id, account_id, '', '{MARK}-' || batch_id, '{{{{}}}}', 1, 'calling',
    {{deadline}}, {OVERDUE}, 5, {{handle}}
FROM worker WHERE traceparent = '{MARK}' LIMIT $1"""
_CLEAN_BATCHES: Final = (f"DELETE FROM launch_batch WHERE token LIKE '{MARK}-%'", *_CLEAN_WORKERS)
_REVISIONS: Final = f"""
INSERT INTO launch_config (id, name, digest, pool_id, account_id, region, zone, instance_type, image_revision, settings,
    profile, boot_evidence, claim_evidence, on_bad_image, freeze_after, state, replaced_by, drain_from, drain_until)
SELECT id || '-{MARK}', name, digest, pool_id, account_id, region, zone, instance_type, image_revision, settings,
    profile, boot_evidence, claim_evidence, on_bad_image, freeze_after, 'draining', 'natural', {OVERDUE}, {OVERDUE}
FROM launch_config WHERE account_id = 'account-0' ORDER BY id LIMIT $1"""

WORK: Final = (
    Work(loop="plan", unit="", run=Provisioner.plan),
    Work(
        loop="resend-requests",
        unit="request",
        run=_resend,
        due=(
            _workers("requested", request_id=f"'{MARK}-' || c.worker_id"),
            f"""INSERT INTO lease_request (id, lease_pool_id, pool_id, launch_config_id, units, sent_at, traceparent)
            SELECT request_id, 'sim-a', pool_id, launch_config_id, 1, {OVERDUE}, '{MARK}' FROM worker
            WHERE traceparent = '{MARK}' LIMIT $1""",
        ),
        clean=(*_CLEAN_WORKERS, f"DELETE FROM lease_request WHERE traceparent = '{MARK}'"),
    ),
    Work(loop="admit-unleased", unit="", run=_admit_unleased),
    Work(
        loop="launch",
        unit="launch",
        run=Provisioner.launch,
        due=(
            _LEASES.format(renewed_at="slipway_clock()"),
            _workers("requested", lease_id=f"'{MARK}-' || c.id", holds_unit="true"),
        ),
        clean=("DELETE FROM launch_batch WHERE lease_id LIKE 'due-%'", *_CLEAN_WORKERS, *_CLEAN_LEASES),
    ),
    Work(
        loop="resolve",
        unit="unknown call",
        run=Provisioner.resolve,
        due=(
            _workers("launching", batch_id="c.worker_id"),
            _BATCHES.format(deadline=OVERDUE, handle="'', NULL"),
        ),
        clean=_CLEAN_BATCHES,
    ),
    Work(
        loop="poll",
        unit="accepted call",
        run=Provisioner.poll,
        due=(
            _workers("launching", batch_id="c.worker_id"),
            _BATCHES.format(deadline="slipway_clock() + interval '1 day'", handle=f"'{MARK}', {OVERDUE}"),
        ),
        clean=_CLEAN_BATCHES,
    ),
    Work(
        loop="expire",
        unit="boot time-out",
        run=Provisioner.expire,
        due=(_workers("starting", **_INSTANCE),),
        clean=(*_CLEAN_WORKERS, "DELETE FROM console_output"),
    ),
    Work(
        loop="expire",
        unit="unresponsive worker",
        run=Provisioner.expire,
        due=(_workers("running", **_REGISTERED | {"last_seen_at": OVERDUE}),),
        clean=_CLEAN_WORKERS,
    ),
    Work(
        loop="expire",
        unit="idle worker despite demand",
        run=Provisioner.expire,
        due=(
            _workers("running", **_REGISTERED, idle_since=OVERDUE, first_claimed_at=OVERDUE),
            f"""UPDATE demand SET pending_since = {OVERDUE}, claimed_seen_at = {OVERDUE}
            WHERE $1::int > 0 AND pool_id IN (SELECT pool_id FROM worker WHERE traceparent = '{MARK}')""",
        ),
        clean=(
            *_CLEAN_WORKERS,
            "UPDATE demand SET pending_since = slipway_clock(), claimed_seen_at = slipway_clock() "
            "WHERE pending_since < slipway_clock() - interval '1 day'",
        ),
    ),
    Work(
        loop="expire",
        unit="end of a drain",
        run=Provisioner.expire,
        due=(_workers("running", **_REGISTERED, drain_until=OVERDUE),),
        clean=_CLEAN_WORKERS,
    ),
    Work(
        loop="expire",
        unit="lease to renew",
        run=Provisioner.expire,
        due=(_LEASES.format(renewed_at=OVERDUE),),
        clean=_CLEAN_LEASES,
    ),
    Work(
        loop="expire",
        unit="stale source",
        run=Provisioner.expire,
        due=(
            f"""INSERT INTO demand (pool_id, source, pending, claimed, observed_at, valid_for_seconds)
            SELECT id, '{MARK}', 0, 0, {OVERDUE}, 60 FROM worker_pool ORDER BY id LIMIT $1""",
        ),
        clean=(f"DELETE FROM demand WHERE source = '{MARK}'",),
    ),
    Work(
        loop="terminate-instances",
        unit="instance",
        run=Provisioner.terminate_instances,
        due=(_workers("stopping", **_REGISTERED, stopping_at=OVERDUE),),
        clean=_CLEAN_WORKERS,
    ),
    Work(
        loop="roll-out",
        unit="end of a drain",
        run=_roll_out,
        due=(_REVISIONS,),
        clean=(f"DELETE FROM launch_config WHERE id LIKE '%-{MARK}'",),
    ),
    Work(
        loop="console",
        unit="console output",
        run=Provisioner.consoles,
        due=(
            f"""INSERT INTO console_output (image_revision, account_id, pool_id, launch_config_id, batch_id, worker_id,
                instance_id, reason)
            SELECT '{MARK}-' || id, account_id, pool_id, id, gen_random_uuid(), gen_random_uuid(), '{MARK}', ''
            FROM launch_config WHERE account_id = 'account-0' ORDER BY id LIMIT $1""",
        ),
        clean=("DELETE FROM console_output",),
    ),
    Work(
        loop="reap",
        unit="listed instance",
        run=_reap,
        due=("UPDATE account SET reaped_at = NULL WHERE $1::int > 0 AND id = 'account-0'",),
        units=_instances_listed,
    ),
    Work(
        loop="check-accounts",
        unit="account",
        run=_check_accounts,
        due=("UPDATE account SET check_began_at = NULL WHERE $1::int > 0 AND id = 'account-0'",),
        units=lambda _, __: asyncio.sleep(0, 1),
    ),
    Work(
        loop="sweep",
        unit="pool",
        run=Provisioner.sweep,
        due=(
            f"""UPDATE worker_pool SET swept_at = {OVERDUE} WHERE id IN (
            SELECT id FROM worker_pool ORDER BY length(id), id OFFSET 1 LIMIT $1)""",
        ),
        units=_swept,
    ),
    Work(loop="measure", unit="pool", run=_MEASURED.step, units=_MEASURED.pools),
    Work(
        loop="prune",
        unit="row",
        run=_prune,
        due=(
            f"""INSERT INTO claim (worker_id, source, task_id, claimed_at, pool_id, reported_at, started_at, ended_at)
            SELECT gen_random_uuid(), 'queue', '{MARK}', n, id, {OVERDUE}, {OVERDUE}, {OVERDUE}
            FROM worker_pool CROSS JOIN generate_series(1, $1::int) AS n WHERE id = 'pool-0'""",
        ),
        units=_rows,
    ),
)
AFTER: Final = ("DELETE FROM outbox", "DELETE FROM dirty_pool")
"""Statements that remove the work which these loops make for the relay and for the planner."""


async def make_due(database: Database, work: Work, units: int) -> None:
    """Make units due."""
    for statement in work.due:
        done = await database.execute(statement, units)
        if done.split()[-1] == "0":
            raise AssertionError(f"{work.loop}: nothing is due after {statement}")


async def clean(database: Database, work: Work) -> None:
    for statement in (*work.clean, *AFTER):
        await database.execute(statement)
