"""Launch configs: start check, pause and resume, with their events."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, matches, names
from slipway_common.events import launch_config as events
from slipway_common.events.launch_config import LaunchConfigState
from slipway_common.messaging import outbox
from slipway_provisioner.store import launch_stops, marks
from slipway_provisioner.store.tables import launch_config

C: Final = launch_config.c
FIELDS: Final = (C.id, *(C[name] for name in LaunchConfigState.__struct_fields__ if name != "launch_config_id"))
LOCK: Final = Statement(
    sa.select(C.id, C.state).where(C.id == sa.any_(array("ids", C.id))).order_by(C.id).with_for_update(key_share=True)
)
LOCK_ALL: Final = Statement(sa.select().select_from(launch_config).order_by(C.id).with_for_update(key_share=True))
# Shared with every other start; excluded by a pause, freeze, drain, archive, launch stop or change of mode.
SHARE: Final = """
SELECT FROM worker_pool p JOIN launch_config c ON c.pool_id = p.id, launch_stop_guard g
WHERE c.id = $1 FOR SHARE OF p, c, g"""
MAY_START: Final = f"""c.state = 'active' AND p.mode IN ('enforce', 'canary') AND NOT p.paused AND NOT p.frozen
    AND NOT p.deleted AND NOT EXISTS (
        SELECT FROM launch_stop WHERE {launch_stops.IN_FORCE} AND (
            scope = 'all' OR (scope = 'pool' AND scope_id = p.id)
            OR (scope = 'account' AND scope_id = c.account_id)))"""
STARTED: Final = C["account_id", "id", "zone", "instance_type", "image_revision", "settings"]
STARTABLE: Final = f"""
SELECT {names(STARTED, "c.")}
FROM worker_pool p JOIN launch_config c ON c.pool_id = p.id WHERE c.id = $1 AND {MAY_START}"""
_UNTIL: Final = sa.bindparam("until", type_=C.paused_until.type)
_BY: Final = sa.bindparam("by", type_=C.state_by.type)
# A pause signal replaces a pause of its own source or a shorter one; a person's command replaces any.
_REPLACED: Final = sa.or_(sa.bindparam("command", type_=sa.Boolean), C.state_by == _BY, C.paused_until < _UNTIL)
PAUSE: Final = Statement(
    sa.update(launch_config)
    .where(
        C.id == sa.bindparam("config_id"),
        sa.or_(C.state == "active", sa.and_(C.state == "paused", _REPLACED)),
        sa.or_(_UNTIL.is_(None), sa.func.slipway_clock() < _UNTIL),
    )
    .values(
        state="paused",
        state_reason=sa.bindparam("reason"),
        state_by=_BY,
        paused_until=_UNTIL,
        revision=C.revision + 1,
    )
    .returning(*FIELDS)
)
_RESUMED: Final = (
    sa.update(launch_config)
    .where(C.id == sa.bindparam("config_id"), C.state == "paused")
    .values(
        state="active",
        state_reason=sa.bindparam("reason"),
        state_by=sa.bindparam("by"),
        paused_until=sa.null(),
        revision=C.revision + 1,
    )
    .returning(*FIELDS)
)
RESUME: Final = Statement(_RESUMED.where(matches(C.state_by, "only_by")))
# The deadline is checked again under the row's lock, since the config may have been paused anew.
RESUME_OVERDUE: Final = Statement(_RESUMED.where(C.paused_until <= sa.func.slipway_clock()))
OVERDUE: Final = Statement(
    sa.select(C.id).where(C.state == "paused", C.paused_until <= sa.func.slipway_clock()).order_by(C.id)
)


def state(row: Any) -> dict[str, Any]:
    """Full state of a config, as carried by the events of the compacted topic."""
    values = dict(row)
    return {"launch_config_id": values.pop("id")} | values


async def lock(tx: Connection, ids: Sequence[str]) -> set[str]:
    """Lock configs before several are changed; returns the ids that exist and are not archived."""
    rows = await tx.fetch(LOCK.text, *LOCK.arguments(ids=sorted(set(ids))))
    return {row["id"] for row in rows if row["state"] != "archived"}


async def startable(tx: Connection, config_id: str) -> Any:
    """Row of the config if a call may start for it, else None. Commands that forbid it wait until the transaction ends.

    Two statements: a single one that waited for a lock would see the state before the wait and miss a launch stop.
    """
    await tx.execute(SHARE, config_id)
    return await tx.fetchrow(STARTABLE, config_id)


async def pause(tx: Connection, config_id: str, *, reason: str, by: str, until: datetime | None, command: bool) -> bool:
    """Pause a config; no start statement for it commits after this has committed.

    False if it is unknown or archived, `until` has passed, or (unless `command`) another source paused it for longer.
    """
    arguments = PAUSE.arguments(config_id=config_id, reason=reason, by=by, until=until, command=command)
    row = await tx.fetchrow(PAUSE.text, *arguments)
    if row is None:
        return False
    await outbox.enqueue(tx, [events.LaunchConfigPaused(**state(row), reason=reason, by=by, until=until)])
    await marks.dirty(tx, {row["pool_id"]}, reason="paused")
    return True


async def resume(tx: Connection, config_id: str, *, reason: str, by: str, only_by: str | None = None) -> bool:
    """Make a paused config active again. False if it was not paused (by `only_by`)."""
    return await _resume(tx, RESUME, config_id, reason, by, only_by=only_by)


async def resume_overdue(tx: Connection) -> int:
    """Resume configs whose pause has expired; returns their number."""
    reason, by = "the pause expired", "provisioner"
    rows = await tx.fetch(OVERDUE.text)
    return sum([await _resume(tx, RESUME_OVERDUE, row["id"], reason, by) for row in rows])


async def _resume(tx: Connection, statement: Statement, config_id: str, reason: str, by: str, **condition: Any) -> bool:
    arguments = statement.arguments(config_id=config_id, reason=reason, by=by, **condition)
    row = await tx.fetchrow(statement.text, *arguments)
    if row is None:
        return False
    await outbox.enqueue(tx, [events.LaunchConfigResumed(**state(row), reason=reason, by=by)])
    await marks.dirty(tx, {row["pool_id"]}, reason="resumed")
    return True
