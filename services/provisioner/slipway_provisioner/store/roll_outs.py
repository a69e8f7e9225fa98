"""Roll-outs of launch configs: proofs, drains, archived revisions and their deletion, with their events."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from slipway_api.events.launch_config import LaunchConfigArchived, LaunchConfigDraining, LaunchConfigUpdated
from slipway_api.events.lifecycle import ENDED, REGISTERED, STOPPABLE
from slipway_common.database.postgres import Connection
from slipway_common.database.retention import CHUNK_ROWS
from slipway_common.database.sql import Statement, array, given
from slipway_common.messaging import outbox
from slipway_common.messaging.outbox import Tombstone
from slipway_provisioner.domain.roll_out import Drain, Progress, succeeded_starts
from slipway_provisioner.store import configs, demand, marks
from slipway_provisioner.store.clock import NOW
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.configs import OF_NAME
from slipway_provisioner.store.tables import (
    FINISHING,
    config_usage,
    in_states,
    launch_config,
    launch_config_name,
    launch_config_outcomes,
    weight,
    worker,
    worker_pool,
)

C: Final = launch_config.c
N: Final = launch_config_name.c
P: Final = worker_pool.c
_NOW: Final = sa.func.slipway_clock()


class Name(msgspec.Struct, frozen=True, order=True):
    """Name of a launch config, and its pool."""

    pool_id: str
    name: str


# Names with a fallback, a drain, or an alert on one, and those whose current revision is not proven and has a new
# weight record. Other names cost nothing.
RECORD_SECONDS: Final = 10.0
DUE: Final = f"""
SELECT pool_id, name FROM launch_config WHERE state = 'active' AND replaced_by <> ''
UNION SELECT pool_id, name FROM launch_config WHERE state = 'draining'
UNION SELECT pool_id, name FROM launch_config WHERE drain_alerted
UNION SELECT c.pool_id, c.name FROM weight g CROSS JOIN LATERAL (
    SELECT pool_id, name FROM launch_config
    WHERE id = g.launch_config_id AND state = 'active' AND proven_at IS NULL LIMIT 1) AS c
WHERE g.received_at > {NOW} - interval '{RECORD_SECONDS} s' AND g.received_at <= 'infinity'
    AND g.record ->> 'state' = 'healthy'
ORDER BY 1, 2"""
LOCK_POOL: Final = Statement(sa.select().select_from(worker_pool).where(P.id == sa.bindparam("id")).with_for_update())
LOCK_NAME: Final = Statement(
    sa.select().select_from(launch_config_name).where(N.name == sa.bindparam("name")).with_for_update(key_share=True)
)
LOCK_CONFIGS: Final = Statement(
    sa.select()
    .select_from(launch_config)
    .where(C.name == sa.bindparam("name"), C.state != "archived")
    .order_by(C.id)
    .with_for_update(key_share=True)
)
# At a deadline also those that were asked to stop as idle ones, and have a task that they claimed at that moment.
TERMINABLE: Final = in_states(STOPPABLE) | FINISHING
WITHOUT_TASK: Final = sa.or_(~in_states(REGISTERED), worker.c.idle_since.is_not(None))
OF: Final = f"""
SELECT c.pool_id, c.name, c.id, c.state, n.current_id = c.id AS current, c.replaced_by,
    c.proven_at IS NOT NULL AS proven, c.starts_before::int AS starts_before, g.record, c.claim_evidence,
    ARRAY[p.max_capacity, n.max_capacity] AS maxima, c.drain_from, c.drain_until, c.drain_terminate,
    c.drain_alerted, w.live, w.stoppable, w.without_task
FROM launch_config c JOIN launch_config_name n ON n.name = c.name JOIN worker_pool p ON p.id = c.pool_id
LEFT JOIN weight g ON g.launch_config_id = c.id
CROSS JOIN LATERAL (
    SELECT count(*)::int AS live, count(*) FILTER (WHERE {Statement(TERMINABLE).text})::int AS stoppable,
        count(*) FILTER (WHERE state IN ({states(STOPPABLE)}) AND ({Statement(WITHOUT_TASK).text}))::int AS without_task
    FROM worker WHERE pool_id = c.pool_id AND launch_config_id = c.id AND state NOT IN ({states(ENDED)})) AS w
WHERE c.name = ANY($1::text[]) AND c.state <> 'archived' ORDER BY c.name, c.id"""
PROVE: Final = Statement(
    sa.update(launch_config).where(C.id == sa.bindparam("config_id")).values(proven_at=_NOW).returning(C.pool_id)
)
DISPROVE: Final = Statement(
    sa.update(launch_config)
    .where(C.id == sa.bindparam("config_id"))
    .values(proven_at=sa.null(), starts_before=sa.bindparam("starts", type_=C.starts_before.type))
)
REINSTATE: Final = Statement(
    sa.update(launch_config)
    .where(C.id == sa.bindparam("config_id"), OF_NAME, C.state == "draining")
    .values(
        state="active",
        state_reason="",
        state_by="",
        drain_from=sa.null(),
        drain_until=sa.null(),
        revision=C.revision + 1,
    )
    .returning(*configs.FIELDS)
)
SET_ALERTED: Final = Statement(
    sa.update(launch_config)
    .where(C.id == sa.bindparam("config_id"))
    .values(drain_alerted=sa.bindparam("alerted", type_=sa.Boolean))
)
DRAINS: Final = given(*(C[name] for name in Drain.__struct_fields__))
DRAIN_SECONDS: Final = sa.func.coalesce(
    DRAINS.c.drain_seconds,
    C.drain_seconds,
    sa.cast(N.deadlines["drain_seconds"].astext, sa.Double),
    demand.drain_seconds(C.pool_id),
)
# One that was replaced by `now` may have a leaked secret: this is remembered until somebody reactivates it.
_WITHDRAWN: Final = sa.and_(DRAINS.c.replaced_by == "now", DRAINS.c.drain_terminate)
# A revision that drains already keeps the time at which that began, and an earlier deadline.
DRAIN: Final = Statement(
    sa.update(launch_config)
    .where(C.id == DRAINS.c.id, OF_NAME, C.state != "archived")
    .values(
        {field: DRAINS.c[field] for field in ("state_reason", "state_by", "replaced_by", "drain_terminate")}
        | {
            "state": "draining",
            "withdrawn_at": sa.case((_WITHDRAWN, _NOW), else_=C.withdrawn_at),
            "drain_from": sa.func.coalesce(C.drain_from, _NOW),
            "drain_until": sa.func.least(C.drain_until, _NOW + sa.func.make_interval(0, 0, 0, 0, 0, 0, DRAIN_SECONDS)),
            "revision": C.revision + 1,
        }
    )
    .returning(C.state_reason, C.state_by, C.drain_terminate, *configs.FIELDS)
)
ARCHIVE: Final = Statement(
    sa.update(launch_config)
    .where(C.id == sa.bindparam("config_id"), OF_NAME, C.state == "draining")
    .values(state="archived", archived_at=_NOW, drain_alerted=False, revision=C.revision + 1)
    .returning(*configs.FIELDS)
)
_TERMINABLE: Final = (
    sa.select(sa.cast(worker.c.id, sa.Text).label("id"))
    .where(
        worker.c.pool_id == sa.bindparam("pool_id"),
        worker.c.launch_config_id == sa.bindparam("config_id"),
        TERMINABLE,
    )
    .order_by(worker.c.id)
    .limit(200)
)
LEFT: Final = Statement(_TERMINABLE)
LEFT_WITHOUT_TASK: Final = Statement(_TERMINABLE.where(in_states(STOPPABLE), WITHOUT_TASK))
# Revisions without a live worker for the retention, with their names; locked like a roll-out before they are deleted.
EXPIRED: Final = f"""
SELECT DISTINCT pool_id, name FROM (
    SELECT pool_id, name FROM launch_config
    WHERE state = 'archived' AND archived_at < {NOW} - make_interval(secs => $1)
    ORDER BY archived_at LIMIT 100) AS oldest"""
_EXPIRED: Final = (
    C.state == "archived",
    C.archived_at < _NOW - sa.func.make_interval(0, 0, 0, 0, 0, 0, sa.bindparam("kept_seconds", type_=sa.Double)),
)
EXPIRED_OF: Final = Statement(
    sa.select(*configs.FIELDS)
    .join(launch_config_name, OF_NAME)
    .where(C.name == sa.bindparam("name"), *_EXPIRED)
    .order_by(C.id)
    .limit(CHUNK_ROWS)
    .with_for_update(of=launch_config)
)
_IDS: Final = array("ids", C.id)
DELETE: Final = (
    Statement(sa.delete(launch_config_outcomes).where(launch_config_outcomes.c.launch_config_id == sa.any_(_IDS))),
    Statement(sa.delete(config_usage).where(config_usage.c.launch_config_id == sa.any_(_IDS))),
    Statement(sa.delete(weight).where(weight.c.launch_config_id == sa.any_(_IDS))),
    Statement(sa.delete(launch_config).where(C.id == sa.any_(_IDS))),
)
DELETE_NAME: Final = Statement(
    sa.delete(launch_config_name).where(
        N.name == sa.bindparam("name"), ~N.declared, ~sa.exists().where(C.name == sa.bindparam("name"))
    )
)


async def due(db: Connection) -> dict[Name, list[Progress]]:
    """Launch configs whose roll-out may have a step to take, with their revisions. Takes no locks."""
    names = [Name(**row) for row in await db.fetch(DUE)]
    revisions = await of(db, [name.name for name in names]) if names else {}
    return {name: revisions.get(name.name, []) for name in names}


async def lock(tx: Connection, name: Name) -> None:
    """Lock a name with its pool and its revisions that are not archived, in the common order."""
    await tx.execute(LOCK_POOL.text, *LOCK_POOL.arguments(id=name.pool_id))
    await tx.execute(LOCK_NAME.text, *LOCK_NAME.arguments(name=name.name))
    await tx.execute(LOCK_CONFIGS.text, *LOCK_CONFIGS.arguments(name=name.name))


async def of(db: Connection, names: Sequence[str]) -> dict[str, list[Progress]]:
    """Revisions of names that are not archived, by name."""
    found: dict[str, list[Progress]] = {}
    for row in await db.fetch(OF, names):
        found.setdefault(row["name"], []).append(Progress(**row))
    return found


async def prove(tx: Connection, config_id: str) -> None:
    """Record that a revision has proven itself."""
    pool_id = await tx.fetchval(PROVE.text, *PROVE.arguments(config_id=config_id))
    await marks.dirty(tx, {pool_id}, reason="proven")


async def reinstate(tx: Connection, config_id: str, current: Progress) -> None:
    """Make a draining revision the fallback of the `current` one again, which has to prove itself by more starts."""
    starts = succeeded_starts(current.record, current.claim_evidence)
    await tx.execute(DISPROVE.text, *DISPROVE.arguments(config_id=current.id, starts=starts))
    row = await tx.fetchrow(REINSTATE.text, *REINSTATE.arguments(config_id=config_id))
    await outbox.enqueue(tx, [LaunchConfigUpdated(**configs.state(row))])
    await marks.dirty(tx, {row["pool_id"]}, reason="reinstated")


async def drain(tx: Connection, drains: Sequence[Drain]) -> list[str]:
    """Drain revisions: they launch nothing more, and their workers leave after their task. Returns the ids of those
    that were not archived. Their names are locked."""
    if not drains:
        return []
    rows = [dict(row) for row in await tx.fetch(DRAIN.text, *DRAIN.rows(sorted(drains, key=lambda drain: drain.id)))]
    await outbox.enqueue(tx, [_draining(row) for row in rows])
    await marks.dirty(tx, {row["pool_id"] for row in rows}, reason="draining")
    return [row["id"] for row in rows]


async def archive(tx: Connection, config_id: str) -> None:
    """Archive a draining revision, which has no live worker. Its pool is locked, so that no plan launches any."""
    row = await tx.fetchrow(ARCHIVE.text, *ARCHIVE.arguments(config_id=config_id))
    await outbox.enqueue(tx, [LaunchConfigArchived(**configs.state(row))])


async def set_alerted(tx: Connection, config_id: str, *, alerted: bool) -> None:
    """Record that the alert on a drain is raised or resolved."""
    await tx.execute(SET_ALERTED.text, *SET_ALERTED.arguments(config_id=config_id, alerted=alerted))


async def left(db: Connection, pool_id: str, config_id: str, *, without_task: bool) -> list[str]:
    """Ids of up to 200 workers of a revision that may be asked to stop, only those `without_task` if that is set."""
    statement = LEFT_WITHOUT_TASK if without_task else LEFT
    rows = await db.fetch(statement.text, *statement.arguments(pool_id=pool_id, config_id=config_id))
    return [row["id"] for row in rows]


async def expired(db: Connection, kept_seconds: float) -> list[Name]:
    """Names with revisions that have been archived for longer than `kept_seconds`."""
    return [Name(**row) for row in await db.fetch(EXPIRED, kept_seconds)]


async def delete_expired(tx: Connection, name: str, kept_seconds: float) -> int:
    """Delete expired revisions of a name with their counts and weights, and the name if none is left and it is not
    declared. Returns their number. The name is locked."""
    rows = await tx.fetch(EXPIRED_OF.text, *EXPIRED_OF.arguments(name=name, kept_seconds=kept_seconds))
    ids = [row["id"] for row in rows]
    await outbox.enqueue(tx, [Tombstone(LaunchConfigArchived(**configs.state(row))) for row in rows])
    for statement in DELETE:
        await tx.execute(statement.text, *statement.arguments(ids=ids))
    await tx.execute(DELETE_NAME.text, *DELETE_NAME.arguments(name=name))
    return len(ids)


def _draining(row: dict[str, Any]) -> LaunchConfigDraining:
    values = dict(row)
    reason, by, terminate = (values.pop(name) for name in ("state_reason", "state_by", "drain_terminate"))
    return LaunchConfigDraining(**configs.state(values), reason=reason, by=by, terminate=terminate)
