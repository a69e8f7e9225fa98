"""Launch configs: their state as events carry it, the start check, pause and resume.

People, signals and commands act on the name of a launch config; a start acts on one revision.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from slipway_api.events import launch_config as events
from slipway_api.events.launch_config import LaunchConfigState
from slipway_common.base.audited import AuditedKind
from slipway_common.database import audit
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, matches, names
from slipway_common.messaging import outbox
from slipway_common.messaging.incarnation import TRUSTED
from slipway_provisioner.domain.pauses import BY_SIGNAL, Pausable
from slipway_provisioner.domain.roll_out import Standing
from slipway_provisioner.store import accounts, launch_stops, marks
from slipway_provisioner.store.clock import NOW
from slipway_provisioner.store.functions import FOR_START
from slipway_provisioner.store.tables import launch_config, launch_config_name, worker_pool

C: Final = launch_config.c
N: Final = launch_config_name.c
STATE: Final = sa.case((sa.and_(C.state == "active", N.paused), "paused"), else_=C.state).label("state")
"""State as shown to people: an active revision is paused with its name."""
# The revision that a removed launch config stood for is not current any more once it is archived: another one may be.
_CURRENT: Final = sa.and_(N.current_id == C.id, C.state != "archived")
CAPACITY: Final = sa.func.substr(C.capacity_key, len("capacity/") + 1).label("capacity_key")
"""Id of the capacity that a revision launches from."""
_SHOWN: Final = {
    "state": STATE,
    "current": _CURRENT.label("current"),
    "capacity_key": CAPACITY,
    "image_key": C.image.label("image_key"),
    "owner": sa.select(worker_pool.c.owner).where(worker_pool.c.id == C.pool_id).scalar_subquery().label("owner"),
}
_OF_NAME: Final = {field.name: field for field in N if field.name in ("base_weight", "price_factor")}
FIELDS: Final = (
    C.id,
    *(
        _SHOWN[name] if name in _SHOWN else _OF_NAME[name] if name in _OF_NAME else C[name]
        for name in LaunchConfigState.__struct_fields__
        if name != "launch_config_id"
    ),
)
"""Full state of a revision. A statement that returns it joins the name's row by OF_NAME."""
OF_NAME: Final = N.name == C.name

# A launch config is given by its name or by the id of one of its revisions.
_GIVEN: Final = sa.func.unnest(array("given", N.name)).table_valued("given").render_derived(name="given")
FOUND: Final = Statement(
    sa.select(_GIVEN.c.given, N.name).select_from(
        _GIVEN.outerjoin(launch_config, C.id == _GIVEN.c.given).join(
            launch_config_name, N.name == sa.func.coalesce(C.name, _GIVEN.c.given)
        )
    )
)
# All launch configs of the pools, since a source has a share of each: two requests for one pool are decided in turn.
_ASKED: Final = launch_config_name.alias("asked")
LOCK: Final = Statement(
    sa.select(*(N[name] for name in Pausable.__struct_fields__))
    .where(N.pool_id.in_(sa.select(_ASKED.c.pool_id).where(_ASKED.c.name == sa.any_(array("names", N.name)))))
    .order_by(N.name)
    .with_for_update(key_share=True)
)
SHARE: Final = f"""
SELECT FROM worker_pool p, launch_config_name n, launch_config c, launch_stop_guard g
WHERE c.id = $1 AND p.id = c.pool_id AND n.name = c.name {FOR_START}"""
MAY_START: Final = f"""c.state = 'active' AND NOT n.paused AND p.mode IN ('enforce', 'canary') AND NOT p.paused
    AND NOT p.frozen AND NOT p.deleted AND NOT {accounts.unreachable("c")} AND NOT {accounts.refuses_terminations("c")}
    AND NOT EXISTS (
        SELECT FROM launch_stop WHERE {launch_stops.IN_FORCE} AND (
            scope IN ('all', 'restore') OR (scope = 'pool' AND scope_id = p.id)
            OR (scope = 'account' AND scope_id = c.account_id)))
    AND ({TRUSTED})"""
STARTED: Final = C[
    "id", "name", "pool_id", "account_id", "region", "zone", "instance_type", "image_revision", "settings", "user_data"
]
STARTABLE: Final = f"""
SELECT {names(STARTED, "c.")}, (SELECT id FROM incarnation) AS incarnation
FROM worker_pool p, launch_config_name n, launch_config c
WHERE c.id = $1 AND p.id = c.pool_id AND n.name = c.name AND {MAY_START}"""
_UNTIL: Final = sa.bindparam("until", type_=N.paused_until.type)
_BY: Final = sa.bindparam("by", type_=N.paused_by.type)
# A pause signal replaces a pause of its own source, or a shorter one of another source. It replaces none of a person,
# since its source could resume the launch config before the person's time. A person's command replaces any.
_REPLACED: Final = sa.or_(
    sa.bindparam("command", type_=sa.Boolean),
    N.paused_by == _BY,
    sa.func.starts_with(N.paused_by, sa.literal_column(f"'{BY_SIGNAL}'")) & (N.paused_until < _UNTIL),
)
# What the next calls of a pool's launch configs are made of.
CURRENT: Final = Statement(
    sa.select(*STARTED)
    .join(launch_config_name, sa.and_(OF_NAME, N.current_id == C.id))
    .where(N.pool_id == sa.bindparam("pool_id"), N.declared, matches(N.name, "config_name"))
    .order_by(N.name)
    .limit(1)
)
PAUSE: Final = Statement(
    sa.update(launch_config_name)
    .where(
        N.name == sa.bindparam("config_name"),
        N.declared,
        sa.or_(~N.paused, _REPLACED),
        sa.or_(_UNTIL.is_(None), sa.func.slipway_clock() < _UNTIL),
    )
    .values(paused=True, paused_reason=sa.bindparam("reason"), paused_by=_BY, paused_until=_UNTIL)
    .returning(N.pool_id)
)
_RESUMED: Final = (
    sa.update(launch_config_name)
    .where(N.name == sa.bindparam("config_name"), N.paused)
    .values(paused=False, paused_reason=sa.bindparam("reason"), paused_by=sa.bindparam("by"), paused_until=sa.null())
    .returning(N.pool_id)
)
RESUME: Final = Statement(_RESUMED.where(matches(N.paused_by, "only_by")))
# The deadline is checked again under the row's lock, since the config may have been paused anew.
RESUME_OVERDUE: Final = Statement(_RESUMED.where(N.paused_until <= sa.func.slipway_clock()))
OVERDUE: Final = Statement(sa.select(N.name).where(N.paused, N.paused_until <= sa.literal_column(NOW)).order_by(N.name))
STANDING: Final = Statement(
    sa.select(C.id, N.name, N.current_id, STATE, C.drain_until)
    .join(launch_config_name, OF_NAME)
    .where(C.id == sa.bindparam("config_id"))
)
# New revisions of the rows of a name whose state is shown by the name's.
TOUCH: Final = Statement(
    sa.update(launch_config)
    .where(C.name == sa.bindparam("config_name"), OF_NAME, C.state == "active")
    .values(revision=C.revision + 1)
    .returning(*FIELDS)
)


def state(row: Any) -> dict[str, Any]:
    """Full state of a revision, as carried by the events of the compacted topic."""
    values = dict(row)
    return {"launch_config_id": values.pop("id")} | values


async def found(db: Connection, given: Sequence[str]) -> dict[str, str]:
    """Names of launch configs that are given by name or by the id of a revision; unknown ones are left out."""
    rows = await db.fetch(FOUND.text, *FOUND.arguments(given=sorted(set(given))))
    return {row["given"]: row["name"] for row in rows}


async def lock_pools(tx: Connection, config_names: Sequence[str]) -> dict[str, Pausable]:
    """Lock all launch configs of the pools of some, before any of them is paused; returns them by name."""
    rows = await tx.fetch(LOCK.text, *LOCK.arguments(names=sorted(set(config_names))))
    return {row["name"]: Pausable(**row) for row in rows}


async def standing(db: Connection, config_id: str) -> Standing:
    """Standing of a revision for its workers."""
    return Standing(**await db.fetchrow(STANDING.text, *STANDING.arguments(config_id=config_id)))


async def startable(tx: Connection, config_id: str) -> Any:
    """Row of the revision, with the incarnation of this database, if a call may start for it, else None. Commands that
    forbid it wait until the transaction ends.

    Two statements: a single one that waited for a lock would see the state before the wait and miss a launch stop.
    """
    await tx.execute(SHARE, config_id)
    return await tx.fetchrow(STARTABLE, config_id)


async def current(db: Connection, pool_id: str, name: str | None) -> Any:
    """Row of the current revision of a pool's declared launch config, of the first one if no name is given; None if
    there is none."""
    return await db.fetchrow(CURRENT.text, *CURRENT.arguments(pool_id=pool_id, config_name=name))


async def pause(tx: Connection, name: str, *, reason: str, by: str, until: datetime | None, command: bool) -> bool:
    """Pause a launch config; no start statement for one of its revisions commits after this has committed.

    False if it is unknown or not declared, `until` has passed, or (unless `command`) a person has paused it, or another
    source for longer.
    """
    arguments = PAUSE.arguments(config_name=name, reason=reason, by=by, until=until, command=command)
    pool_id = await tx.fetchval(PAUSE.text, *arguments)
    if pool_id is None:
        return False
    rows = await tx.fetch(TOUCH.text, *TOUCH.arguments(config_name=name))
    await audit.record_command(tx, AuditedKind.CONFIG, name, "pause", by=by, paused=True, reason=reason, until=until)
    paused = [events.LaunchConfigPaused(**state(row), reason=reason, by=by, until=until) for row in rows]
    await outbox.enqueue(tx, paused)
    await marks.dirty(tx, {pool_id}, reason="paused")
    return True


async def resume(tx: Connection, name: str, *, reason: str, by: str, only_by: str | None = None) -> bool:
    """Resume a paused launch config. False if it was not paused (by `only_by`)."""
    return await _resume(tx, RESUME, name, reason, by, only_by=only_by)


async def resume_overdue(db: Connection) -> int:
    """Resume launch configs whose pause has expired, each in a transaction; returns their number."""
    resumed, reason, by = 0, "the pause expired", "provisioner"
    for row in await db.fetch(OVERDUE.text):
        async with db.transaction():
            resumed += await _resume(db, RESUME_OVERDUE, row["name"], reason, by)
    return resumed


async def _resume(tx: Connection, statement: Statement, name: str, reason: str, by: str, **condition: Any) -> bool:
    arguments = statement.arguments(config_name=name, reason=reason, by=by, **condition)
    pool_id = await tx.fetchval(statement.text, *arguments)
    if pool_id is None:
        return False
    rows = await tx.fetch(TOUCH.text, *TOUCH.arguments(config_name=name))
    await audit.record_command(tx, AuditedKind.CONFIG, name, "resume", by=by, paused=False, reason=reason)
    await outbox.enqueue(tx, [events.LaunchConfigResumed(**state(row), reason=reason, by=by) for row in rows])
    await marks.dirty(tx, {pool_id}, reason="resumed")
    return True
