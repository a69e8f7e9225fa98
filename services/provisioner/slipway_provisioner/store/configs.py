"""Launch config states: pause and resume, with their events."""

from datetime import datetime
from typing import Any, Final

from slipway_common import outbox
from slipway_common.events import launch_config as events
from slipway_common.postgres import Connection
from slipway_provisioner.store import marks

COLUMNS: Final = (
    "id, pool_id, account_id, region, zone, instance_type, image_revision, base_weight, price_factor, state, revision"
)
PAUSE: Final = f"""
UPDATE launch_config SET state = 'paused', state_reason = $2, state_by = $3, paused_until = $4,
    revision = revision + 1
WHERE id = $1 AND state IN ('active', 'paused') AND ($4::timestamptz IS NULL OR $4 > slipway_clock())
RETURNING {COLUMNS}"""
RESUME: Final = f"""
UPDATE launch_config SET state = 'active', state_reason = $2, state_by = $3, paused_until = NULL,
    revision = revision + 1
WHERE id = $1 AND state = 'paused' AND ($4::text IS NULL OR state_by = $4) RETURNING {COLUMNS}"""
OVERDUE: Final = "SELECT id FROM launch_config WHERE state = 'paused' AND paused_until <= slipway_clock() ORDER BY id"


def state(row: Any) -> dict[str, Any]:
    """The whole state, as events of the compacted topic carry it."""
    values = dict(row)
    return {"launch_config_id": values.pop("id")} | values


async def pause(tx: Connection, config_id: str, *, reason: str, by: str, until: datetime | None) -> bool:
    """Pause a config; once committed no start statement for it commits. False: unknown, archived, or expired."""
    row = await tx.fetchrow(PAUSE, config_id, reason, by, until)
    if row is None:
        return False
    await outbox.enqueue(tx, [events.LaunchConfigPaused(**state(row), reason=reason, by=by, until=until)])
    await marks.dirty(tx, {row["pool_id"]}, because="paused")
    return True


async def resume(tx: Connection, config_id: str, *, reason: str, by: str, only_by: str | None = None) -> bool:
    """Make a paused config active again. False: it was not paused (by `only_by`)."""
    row = await tx.fetchrow(RESUME, config_id, reason, by, only_by)
    if row is None:
        return False
    await outbox.enqueue(tx, [events.LaunchConfigResumed(**state(row), reason=reason, by=by)])
    await marks.dirty(tx, {row["pool_id"]}, because="resumed")
    return True


async def resume_overdue(tx: Connection) -> int:
    """Resume configs whose pause has run out."""
    rows = await tx.fetch(OVERDUE)
    for row in rows:
        await resume(tx, row["id"], reason="the pause ran out", by="provisioner")
    return len(rows)
