"""Lives of workers whose launch config has a maximum age, or gives them credentials that end."""

from typing import Final

import sqlalchemy as sa

from slipway_api.events.lifecycle import ASKED_TO_STOP, ENDED, REGISTERED
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_provisioner.store import demand
from slipway_provisioner.store.clock import NOW
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.deadlines import SEEN_SINCE_DOWNTIME, maximum_age, seconds
from slipway_provisioner.store.tables import FINISHING, in_states, worker, worker_pool

_LIVING: Final = f"""w.state IN ({states(REGISTERED)})
    OR (w.state IN ({states(ASKED_TO_STOP)}) AND w.may_finish AND w.idle_since IS NULL)"""
LIVES_MAX: Final = 1000
# Registered workers of the pool $1 that reach a maximum age, those first that reach it first, and as many that drain:
# their maximum age may have been raised or removed since. A thousand of these with long tasks leave others their turn.
# $2 are the deadlines, $4 the seconds of a day.
# Revisions are read first, since most pools have none of an age, and thousands of workers.
LIVES: Final = f"""
WITH revision AS MATERIALIZED (
    SELECT c.id AS config_id, {maximum_age("$2", "$4")} AS maximum_age_seconds,
        {seconds("credential_seconds", "$2")} AS credential_seconds, {seconds("drain_seconds", "$2")} AS drain_seconds
    FROM launch_config c JOIN launch_config_name n ON n.name = c.name
    WHERE c.pool_id = $1 AND c.state <> 'archived'),
aged AS MATERIALIZED (
    SELECT * FROM revision WHERE maximum_age_seconds IS NOT NULL OR credential_seconds IS NOT NULL OR EXISTS (
        SELECT FROM worker w WHERE w.pool_id = $1 AND w.drain_until IS NOT NULL AND ({_LIVING})))
SELECT w.worker_id, w.draining, w.leaving, w.has_task, coalesce(uptime_since(w.born_at), 0) AS age_seconds,
    extract(epoch FROM slipway_clock() - w.born_at)::float8 AS clock_seconds,
    w.maximum_age_seconds, w.credential_seconds, w.drain_seconds, w.drain_left_seconds
FROM (
    SELECT w.id::text AS worker_id, w.drain_until IS NOT NULL AS draining,
        w.state NOT IN ({states(REGISTERED)}) AS leaving,
        w.idle_since IS NULL OR NOT ({SEEN_SINCE_DOWNTIME}) AS has_task,
        coalesce(w.launched_at, w.registered_at, w.requested_at) AS born_at, w.drain_left_seconds, d.*,
        row_number() OVER (PARTITION BY w.drain_until IS NULL
            ORDER BY coalesce(w.launched_at, w.registered_at, w.requested_at)
                + least(d.maximum_age_seconds, d.credential_seconds) * interval '1 s', w.id) AS place
    FROM aged d
    JOIN worker w ON w.pool_id = $1 AND w.launch_config_id = d.config_id AND ({_LIVING})
    WHERE d.maximum_age_seconds IS NOT NULL OR d.credential_seconds IS NOT NULL OR w.drain_until IS NOT NULL) AS w
WHERE w.place <= {LIVES_MAX} ORDER BY w.draining DESC, w.place"""
DRAIN_SECONDS: Final = Statement(sa.select(demand.drain_seconds(sa.bindparam("pool_id", type_=sa.Text))))
# Asked to stop so early that they are terminated when their time is over.
OVERDUE: Final = Statement(
    sa.select(sa.cast(worker.c.id, sa.Text).label("id"))
    .where(
        worker.c.drain_until
        <= sa.literal_column(NOW)
        + sa.func.make_interval(0, 0, 0, 0, 0, 0, sa.bindparam("grace_seconds", type_=sa.Double)),
        ~in_states(ENDED),
        in_states(REGISTERED) | FINISHING,
    )
    .order_by(worker.c.drain_until, worker.c.id)
    .limit(200)
)
SET_ALERTED: Final = Statement(
    sa.update(worker_pool)
    .where(worker_pool.c.id == sa.bindparam("pool_id"))
    .values(age_alerted=sa.bindparam("alerted", type_=sa.Boolean))
)


async def drain_seconds(db: Connection, pool_id: str) -> float:
    """Default of the drain time: the longest task of the last day, from an hour to a day."""
    seconds: float = await db.fetchval(DRAIN_SECONDS.text, *DRAIN_SECONDS.arguments(pool_id=pool_id))
    return seconds


async def overdue(db: Connection, grace_seconds: float) -> list[str]:
    """Up to 200 workers whose drain time ends within the grace period of a stop."""
    return [row["id"] for row in await db.fetch(OVERDUE.text, *OVERDUE.arguments(grace_seconds=grace_seconds))]


async def set_alerted(tx: Connection, pool_id: str, *, alerted: bool) -> None:
    """Record that the alert on workers past their maximum age is raised or resolved. The pool is locked."""
    await tx.execute(SET_ALERTED.text, *SET_ALERTED.arguments(pool_id=pool_id, alerted=alerted))
