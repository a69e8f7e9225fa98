"""Accounts that do not answer: what they leave open, and what may still run in retired ones."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from slipway_api.events.lifecycle import ASKED_TO_STOP, ENDED, IN_FLIGHT, LEAVING, SERVING
from slipway_api.http.provisioner.accounts import Account, UnreachableMachine
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, given
from slipway_provisioner.domain.account_check import CheckState
from slipway_provisioner.domain.launching import BatchState
from slipway_provisioner.domain.reachability import Machine
from slipway_provisioner.domain.workspaces import Phase
from slipway_provisioner.store import marks, usage
from slipway_provisioner.store.clock import NOW
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.tables import account, launch_config, unreachable_machine

A: Final = account.c
_ID: Final = A.id == sa.bindparam("account_id")
LOCK: Final = Statement(sa.select(A.unreachable, A.retired).where(_ID).with_for_update())
SINCE: Final = Statement(sa.select(A.unanswered_since).where(_ID))
ANSWERED: Final = Statement(
    sa.update(account)
    .where(_ID, A.unanswered_since.is_not(None))
    .values(unanswered_since=None)
    .returning(A.unreachable)
)
UNANSWERED: Final = """
UPDATE account SET unanswered_since = coalesce(unanswered_since, slipway_clock() - $2 * interval '1 s')
WHERE id = $1 RETURNING NOT unreachable AND uptime_since(unanswered_since) > $3"""
SET_UNREACHABLE: Final = Statement(sa.update(account).where(_ID).values(unreachable=sa.bindparam("unreachable")))
SET_RETIRED: Final = Statement(sa.update(account).where(_ID).values(retired=sa.bindparam("retired")))
POOLS: Final = Statement(
    sa.select(launch_config.c.pool_id)
    .distinct()
    .where(launch_config.c.account_id == sa.bindparam("account_id"), launch_config.c.state != "archived")
)
# Once the deadline of its call has passed, an outcome can only be looked up. Batches are locked before their workers,
# as for every outcome.
_UNKNOWN: Final = f"""
SELECT b.id::text FROM launch_batch b JOIN account a ON a.id = b.account_id
WHERE b.state = '{BatchState.CALLING}' AND b.call_deadline < {NOW} AND {{condition}}
ORDER BY b.id LIMIT 50 FOR UPDATE OF b SKIP LOCKED"""
OPEN_CALLS: Final = _UNKNOWN.format(
    condition=f"""b.account_id = $1 AND EXISTS (
    SELECT FROM worker w WHERE w.batch_id = b.id AND w.state IN ({states(IN_FLIGHT["launch"])}))"""
)
RETIRED_CALLS: Final = _UNKNOWN.format(condition="a.retired")
# Workers that can still be asked to stop get the grace period. They are looked up by their account, since there are
# seldom retired ones.
RETIRED_WORKERS: Final = f"""
SELECT w.id::text FROM account a CROSS JOIN LATERAL (
    SELECT id, registered_at, stopping_at FROM worker
    WHERE account_id = a.id AND state IN ({states(ASKED_TO_STOP)}) AND instance_id IS NOT NULL OFFSET 0) AS w
WHERE a.retired AND (w.registered_at IS NULL OR uptime_since(w.stopping_at) > $1)
ORDER BY w.id LIMIT 200"""
_MACHINES: Final = given(*(unreachable_machine.c[name] for name in Machine.__struct_fields__))
RECORD: Final = Statement(
    postgresql.insert(unreachable_machine)
    .from_select(list(Machine.__struct_fields__), sa.select(_MACHINES))
    .on_conflict_do_nothing()
)
# An unknown call has left something only if its tag is listed.
FORGET: Final = """
DELETE FROM unreachable_machine WHERE account_id = $1 AND CASE
    WHEN instance_id IS NULL THEN batch_id::text <> ALL($3) ELSE instance_id <> ALL($2) END"""
LEFT: Final = "SELECT EXISTS (SELECT FROM unreachable_machine WHERE account_id = $1)"
MACHINES: Final = Statement(
    sa.select(unreachable_machine)
    .where(unreachable_machine.c.account_id == sa.bindparam("account_id"))
    .order_by(unreachable_machine.c.since, unreachable_machine.c.worker_id)
    .limit(1000)
)
ACCOUNTS: Final = f"""
SELECT a.id, a.owner, a.provider, a.region, a.identity, a.lease_pool_id, a.removed, a.unreachable, a.retired,
    a.unanswered_since, a.throttled, a.throttled_since, a.throttled_calls, a.mass_unresponsive, a.listing_problem,
    a.passed_at, a.checked_at, f.problems, f.warnings, f.problem,
    w.serving, w.leaving, b.unknown_calls, m.may_still_run
FROM account a
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE state IN ({states(SERVING)}))::int AS serving,
        count(*) FILTER (WHERE state IN ({states(LEAVING)}))::int AS leaving
    FROM worker WHERE account_id = a.id AND state NOT IN ({states(ENDED)})) AS w
CROSS JOIN LATERAL (
    SELECT count(*)::int AS unknown_calls FROM launch_batch
    WHERE account_id = a.id AND state = '{BatchState.CALLING}' AND call_deadline < slipway_clock()) AS b
CROSS JOIN LATERAL (
    SELECT count(*)::int AS may_still_run FROM unreachable_machine WHERE account_id = a.id) AS m
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE found ->> 'state' = '{CheckState.PROBLEM}')::int AS problems,
        count(*) FILTER (WHERE found ->> 'state' = '{CheckState.WARNING}')::int AS warnings,
        coalesce((array_agg(found ->> 'message' ORDER BY found ->> 'kind' = 'launch-config')
            FILTER (WHERE found ->> 'state' = '{CheckState.PROBLEM}'))[1], '') AS problem
    FROM jsonb_array_elements(a.findings) AS found) AS f
WHERE (NOT a.removed OR w.serving + w.leaving + m.may_still_run > 0 OR a.protected <> '{{}}'
        OR EXISTS (SELECT FROM orphan_instance o WHERE o.account_id = a.id)
        OR EXISTS (SELECT FROM workspace s WHERE s.account_id = a.id AND s.phase <> '{Phase.GONE}'))
    AND ($1::text IS NULL OR a.id = $1)
ORDER BY a.id"""


async def lock(tx: Connection, account_id: str) -> Any:
    """Lock an account; returns whether it is unreachable and retired, or None if there is none."""
    return await tx.fetchrow(LOCK.text, *LOCK.arguments(account_id=account_id))


async def unanswered_since(db: Connection, account_id: str) -> datetime | None:
    """Start of the first call without an answer since the last one that was answered; None if there is none."""
    since: datetime | None = await db.fetchval(SINCE.text, *SINCE.arguments(account_id=account_id))
    return since


async def answered(tx: Connection, account_id: str) -> bool:
    """Record that an account has answered; True if it was unreachable."""
    return bool(await tx.fetchval(ANSWERED.text, *ANSWERED.arguments(account_id=account_id)))


async def unanswered(tx: Connection, account_id: str, *, after_seconds: float, unreachable_seconds: float) -> bool:
    """Record that a call was not answered within `after_seconds`; True if the account has not answered for
    `unreachable_seconds` of uptime, and does not count as unreachable yet."""
    return bool(await tx.fetchval(UNANSWERED, account_id, after_seconds, unreachable_seconds))


async def set_unreachable(tx: Connection, account_id: str, *, unreachable: bool) -> None:
    """Change whether an account counts as unreachable, and plan its pools again."""
    await tx.execute(SET_UNREACHABLE.text, *SET_UNREACHABLE.arguments(account_id=account_id, unreachable=unreachable))
    await usage.copy_account(tx, account_id)
    await mark(tx, account_id)


async def set_retired(tx: Connection, account_id: str, *, retired: bool) -> None:
    """Retire or reinstate an account, and plan its pools again."""
    await tx.execute(SET_RETIRED.text, *SET_RETIRED.arguments(account_id=account_id, retired=retired))
    await usage.copy_account(tx, account_id)
    await mark(tx, account_id)


async def mark(tx: Connection, account_id: str) -> None:
    """Mark the pools that launch in an account dirty."""
    rows = await tx.fetch(POOLS.text, *POOLS.arguments(account_id=account_id))
    await marks.dirty(tx, [row["pool_id"] for row in rows], reason="account")


async def lock_open_calls(tx: Connection, account_id: str) -> list[str]:
    """Lock up to 50 batches of an account whose calls are past their deadline and have intents that wait for them."""
    return [row["id"] for row in await tx.fetch(OPEN_CALLS, account_id)]


async def lock_retired_calls(tx: Connection) -> list[str]:
    """Lock up to 50 batches of retired accounts whose calls are past their deadline."""
    return [row["id"] for row in await tx.fetch(RETIRED_CALLS)]


async def retired_workers(db: Connection, grace_seconds: float) -> list[str]:
    """Up to 200 stopping workers of retired accounts that are past the grace period."""
    return [row["id"] for row in await db.fetch(RETIRED_WORKERS, grace_seconds)]


async def record(tx: Connection, machines: Sequence[Machine]) -> None:
    """Record machines that may still run."""
    if machines:
        await tx.execute(RECORD.text, *RECORD.rows(machines))


async def forget(db: Connection, account_id: str, *, instance_ids: Collection[str], batch_ids: Collection[str]) -> None:
    """Delete the machines of an account that its listing, of these instances and tags, does not have."""
    if await db.fetchval(LEFT, account_id):  # else a long listing would be sent for nothing
        await db.execute(FORGET, account_id, list(instance_ids), list(batch_ids))


async def machines(db: Connection, account_id: str) -> list[UnreachableMachine]:
    """Machines that may still run in an account, oldest first."""
    return [
        UnreachableMachine(**row) for row in await db.fetch(MACHINES.text, *MACHINES.arguments(account_id=account_id))
    ]


async def accounts(db: Connection, account_id: str | None = None) -> list[Account]:
    """Accounts as shown to people: declared ones, and removed ones in which something may be left."""
    return [Account(**row) for row in await db.fetch(ACCOUNTS, account_id)]
