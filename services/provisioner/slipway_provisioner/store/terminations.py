"""Workers whose termination is asked for, accepted or refused, and accounts that refuse too many."""

from collections.abc import Sequence
from typing import Final

import msgspec
import sqlalchemy as sa

from slipway_api.events.lifecycle import ASKED_TO_STOP, ENDED
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_provisioner.domain.refused_terminations import Stuck, Terminations
from slipway_provisioner.store import accounts
from slipway_provisioner.store.clock import NOW
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.tables import GRACE_SINCE, account, in_states, worker

GRACE: Final = Statement(GRACE_SINCE).text
# A worker that never registered cannot be asked to stop; the others get the grace period to stop by themselves. For one
# that was asked to stop as idle it begins after the task that it may have claimed at that moment. A row that is taken
# moves to the end of the queue whatever the call's result, so a failing account does not block others. A request in the
# future was made before the clock was set back.
TAKE_STOPPING: Final = f"""
UPDATE worker SET termination_requested_at = slipway_clock() WHERE id = ANY (ARRAY(
    SELECT id FROM worker WHERE state IN ({states(ASKED_TO_STOP)}) AND instance_id IS NOT NULL
        AND NOT {accounts.unreachable("worker")}
        AND {GRACE} >= '-infinity' AND {GRACE} < {NOW} - $1 * interval '1 s'
        AND (registered_at IS NULL OR (uptime_since(stopping_at) > $1
            AND (NOT may_finish OR uptime_since(idle_since) > $1)))
        AND (termination_requested_at IS NULL
            OR termination_requested_at NOT BETWEEN {NOW} - $2 * interval '1 s' AND {NOW})
    ORDER BY termination_requested_at NULLS FIRST, id LIMIT 50 FOR UPDATE SKIP LOCKED))
RETURNING id::text AS worker_id, account_id, instance_id, termination_refusals > 0 AS refused"""
# Accounts with a worker whose termination is refused, and those that refuse too many. Mostly there are none: what they
# were asked is read in another statement, whose plan depends on its parameters and takes longer than this.
REFUSING_ACCOUNTS: Final = f"""
SELECT id FROM account WHERE refuses_terminations UNION
SELECT account_id FROM worker WHERE termination_refusals > 0 AND state NOT IN ({states(ENDED)})"""
REFUSING: Final = f"""
SELECT a.id AS account_id, a.refuses_terminations AS refusing, w.refused, w.live + e.ended AS asked
FROM account a
CROSS JOIN LATERAL (
    SELECT (count(*) FILTER (WHERE termination_refusals > 0))::int AS refused,
        (count(*) FILTER (WHERE termination_refusals > 0
            OR termination_requested_at > slipway_clock() - $1 * interval '1 s'))::int AS live
    FROM worker WHERE account_id = a.id AND state NOT IN ({states(ENDED)})) AS w
CROSS JOIN LATERAL (
    SELECT count(*)::int AS ended FROM worker
    WHERE account_id = a.id AND state IN ({states(ENDED)}) AND instance_id IS NOT NULL
        AND ended_at > {NOW} - $1 * interval '1 s'
        AND termination_requested_at > slipway_clock() - $1 * interval '1 s') AS e
WHERE a.id = ANY($2) ORDER BY a.id"""
SET_REFUSING: Final = Statement(
    sa.update(account)
    .where(account.c.id == sa.bindparam("account_id"), account.c.refuses_terminations != sa.bindparam("refusing"))
    .values(refuses_terminations=sa.bindparam("refusing"))
    .returning(sa.true())
)
IS_REFUSING: Final = Statement(
    sa.select(account.c.refuses_terminations).where(account.c.id == sa.bindparam("account_id"))
)
STUCK: Final = Statement(
    sa.select(sa.cast(worker.c.id, sa.Text).label("worker_id"), worker.c.instance_id)
    .where(
        worker.c.account_id == sa.bindparam("account_id"),
        ~in_states(ENDED),
        worker.c.termination_refusals > 0,
        worker.c.stuck_at.is_not(None),
    )
    .order_by(worker.c.id)
)


class Terminable(msgspec.Struct, frozen=True):
    """A worker whose instance may be terminated now. `refused`: its last termination was refused."""

    worker_id: str
    account_id: str
    instance_id: str
    refused: bool


async def take_terminable(db: Connection, *, grace_seconds: float, again_seconds: float) -> list[Terminable]:
    """Take up to 50 instances of stopping workers past the grace period, each at most once in `again_seconds`."""
    return [Terminable(**row) for row in await db.fetch(TAKE_STOPPING, grace_seconds, again_seconds)]


async def refusing(db: Connection, hour_seconds: float) -> list[Terminations]:
    """Terminations of the last hour in each account that refuses any, or counts as one that refuses too many."""
    account_ids = [row["id"] for row in await db.fetch(REFUSING_ACCOUNTS)]
    return [Terminations(**row) for row in await db.fetch(REFUSING, hour_seconds, account_ids)] if account_ids else []


async def record_refusing(tx: Connection, account_id: str, *, refusing: bool) -> bool:
    """Store whether an account refuses too many terminations; True if that has changed."""
    arguments = SET_REFUSING.arguments(account_id=account_id, refusing=refusing)
    return await tx.fetchval(SET_REFUSING.text, *arguments) is not None


async def is_refusing(db: Connection, account_id: str) -> bool:
    """True if an account refuses too many terminations."""
    return bool(await db.fetchval(IS_REFUSING.text, *IS_REFUSING.arguments(account_id=account_id)))


async def stuck(db: Connection, account_id: str) -> Sequence[Stuck]:
    """Stuck workers of an account."""
    return [Stuck(**row) for row in await db.fetch(STUCK.text, *STUCK.arguments(account_id=account_id))]
