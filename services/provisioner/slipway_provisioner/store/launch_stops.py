"""Launch stops: no launches anywhere, in an account or in a pool, until a time or until the stop is lifted."""

from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from slipway_api.http.provisioner.pools import LaunchStop
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_provisioner.store.tables import account, dirty_pool, launch_stop, launch_stop_guard, worker_pool

STOP: Final = launch_stop.c
# Condition that a row of launch_stop is in force, for statements in text.
IN_FORCE: Final = f"({Statement(STOP.until.is_(None) | (STOP.until > sa.func.slipway_clock())).text})"
# Excludes every start statement, which shares this row: a start that begins later sees the stop.
EXCLUDE_STARTS: Final = Statement(sa.select().select_from(launch_stop_guard).with_for_update())
_NEW: Final = insert(launch_stop).values({field.name: sa.bindparam(field.name) for field in STOP if field.name != "at"})
PUT: Final = Statement(
    _NEW.on_conflict_do_update(
        index_elements=[STOP.scope, STOP.scope_id],
        set_={field.name: _NEW.excluded[field.name] for field in STOP if not field.primary_key},
    )
)
LIFT: Final = Statement(
    sa.delete(launch_stop)
    .where(STOP.scope == sa.bindparam("scope"), STOP.scope_id == sa.bindparam("scope_id"))
    .returning(STOP.reason, STOP.by, STOP.until)
)
# Every pool is planned again at once, and when the stop expires.
MARK: Final = Statement(
    sa.insert(dirty_pool).from_select(
        ["pool_id", "reason", "due_at"],
        sa.select(
            worker_pool.c.id,
            sa.literal("launch stop"),
            sa.func.coalesce(sa.bindparam("due_at", type_=dirty_pool.c.due_at.type), sa.func.slipway_clock()),
        )
        .where(~worker_pool.c.deleted)
        .order_by(worker_pool.c.id),
    )
)
LISTED: Final = Statement(sa.select(launch_stop).where(sa.text(IN_FORCE)).order_by(STOP.scope, STOP.scope_id))
TARGETS: Final = {
    "account": Statement(sa.select(sa.exists().where(account.c.id == sa.bindparam("id")))),
    "pool": Statement(sa.select(sa.exists().where(worker_pool.c.id == sa.bindparam("id"), ~worker_pool.c.deleted))),
}


async def in_force(db: Connection) -> list[LaunchStop]:
    """Launch stops in force now."""
    return [LaunchStop(**row) for row in await db.fetch(LISTED.text)]


async def has_target(tx: Connection, scope: str, scope_id: str) -> bool:
    """True if the account or pool exists. Scope "all" has no id."""
    if scope == "all":
        return not scope_id
    return bool(await tx.fetchval(TARGETS[scope].text, *TARGETS[scope].arguments(id=scope_id)))


async def put(tx: Connection, scope: str, scope_id: str, *, reason: str, by: str, until: datetime | None) -> None:
    """Set a launch stop, or replace its reason and end."""
    await tx.execute(EXCLUDE_STARTS.text)
    values = PUT.arguments(scope=scope, scope_id=scope_id, reason=reason, by=by, until=until)
    await tx.execute(PUT.text, *values)
    await _mark(tx, None)
    if until is not None:
        await _mark(tx, until)


async def lift(tx: Connection, scope: str, scope_id: str) -> dict[str, Any] | None:
    """Lift a launch stop, and return its reason, who set it, and its end; None if none was set."""
    await tx.execute(EXCLUDE_STARTS.text)
    lifted = await tx.fetchrow(LIFT.text, *LIFT.arguments(scope=scope, scope_id=scope_id))
    await _mark(tx, None)
    return None if lifted is None else dict(lifted)


async def _mark(tx: Connection, due_at: datetime | None) -> None:
    """Mark every pool dirty for a time, or for now."""
    await tx.execute(MARK.text, *MARK.arguments(due_at=due_at))
