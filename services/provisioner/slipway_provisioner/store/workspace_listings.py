"""Listings of the resources of accounts, and rows for the workspaces of those that have none."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from slipway_api.limits import NOTE
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, seconds
from slipway_provisioner.domain.orphan_workspaces import Resource, Row
from slipway_provisioner.domain.workspaces import Phase, Workspace
from slipway_provisioner.store.tables import launch_config, launch_stop, workspace, workspace_listing

L: Final = workspace_listing.c
W: Final = workspace.c
FIELDS: Final = Row.__struct_fields__
NOW: Final = sa.func.slipway_clock()
_OF: Final = L.account_id == sa.bindparam("account_id")
ADD: Final = Statement(
    postgresql.insert(workspace_listing).values(account_id=sa.bindparam("account_id")).on_conflict_do_nothing()
)
GET: Final = Statement(
    sa.select(
        *L["listed_at", "found", "problem"],
        sa.exists(sa.select(launch_stop.c.scope).where(launch_stop.c.scope == "restore")).label("restored"),
    ).where(_OF)
)
# A listing whose replica is killed is due again after its longest time. Without `all` only those are due that have
# never been completed, or not since a restore. It changes nothing, and need not wait for a confirmation.
CLAIM: Final = """
UPDATE workspace_listing SET fence = fence + 1, due_at = slipway_clock() + $1 * interval '1 s'
WHERE account_id = ANY (ARRAY(
    SELECT l.account_id FROM workspace_listing l
    WHERE l.due_at <= slipway_clock() AND ($2 OR l.listed_at IS NULL)
        AND EXISTS (SELECT FROM account a WHERE a.id = l.account_id AND NOT a.retired)
    ORDER BY l.listed_at NULLS FIRST, l.due_at LIMIT 1 FOR UPDATE OF l SKIP LOCKED))
RETURNING account_id, fence, slipway_clock() AS began_at"""
FINISH: Final = Statement(
    sa.update(workspace_listing)
    .where(_OF, L.fence == sa.bindparam("token", type_=L.fence.type))
    .values(
        listed_at=sa.bindparam("began_at", type_=L.listed_at.type),
        found=sa.bindparam("resources", type_=L.found.type),
        problem="",
        due_at=NOW + seconds("due"),
    )
)
FAIL: Final = Statement(
    sa.update(workspace_listing)
    .where(_OF, L.fence == sa.bindparam("token", type_=L.fence.type))
    .values(problem=sa.bindparam("reason"), due_at=NOW + seconds("due"))
)
# What a restored database has listed is older than what it has lost, which is listed once it has settled.
DISTRUST: Final = """
UPDATE workspace_listing l SET listed_at = NULL, found = '[]', problem = '', fence = fence + 1000000,
    due_at = slipway_clock() + coalesce((
        SELECT a.settled_seconds FROM account a WHERE a.id = l.account_id), 0) * interval '1 s'
WHERE account_id IN (SELECT account_id FROM workspace_listing ORDER BY account_id FOR UPDATE)"""
ROWS: Final = Statement(
    sa.select(
        sa.cast(W.id, sa.Text).label("id"),
        W.phase,
        sa.cast(W.batch_id, sa.Text).label("batch_id"),
        W.launch_config_id,
        sa.func.greatest(W.created_at, W.ended_at, W.effects_until).label("settled_at"),
    ).where(W.id == sa.any_(sa.bindparam("ids", type_=sa.ARRAY(W.id.type))))
)
KNOWN_CONFIG: Final = Statement(
    sa.select(launch_config.c.id).where(
        launch_config.c.id == sa.bindparam("config_id"), launch_config.c.account_id == sa.bindparam("account_id")
    )
)
# Only for a workspace that has no row, or is gone: another one is live, or is being destroyed already.
_INSERTED: Final = postgresql.insert(workspace).values(
    id=sa.bindparam("workspace_id", type_=W.id.type),
    deployment=sa.bindparam("deployment"),
    incarnation=sa.bindparam("incarnation"),
    account_id=sa.bindparam("account_id"),
    batch_id=sa.bindparam("batch_id", type_=W.batch_id.type),
    ordinal=sa.select(sa.func.least(sa.func.min(W.ordinal), 1) - 1)
    .where(W.batch_id == sa.bindparam("batch_id"))
    .scalar_subquery(),
    launch_config_id=sa.bindparam("launch_config_id"),
    phase=Phase.ORPHAN,
    effects_seconds=0.0,
    due_at=NOW,
)
RECLAIM: Final = Statement(
    _INSERTED.on_conflict_do_update(
        index_elements=[W.id],
        set_={
            "phase": Phase.ORPHAN,
            "due_at": NOW,
            "ended_at": None,
            "failed_runs": 0,
            "instance_id": None,
            "problem": "",
        },
        where=W.phase == Phase.GONE,
    ).returning(W.id)
)


class StoredListing(msgspec.Struct, frozen=True):
    """The newest complete listing of an account, None if there is none; `problem` is that of a later one that failed.
    `restored`: the database is a restored one that waits for a confirmation."""

    listed_at: datetime | None
    found: Sequence[Resource]
    problem: str
    restored: bool


async def get(db: Connection, account_id: str) -> StoredListing:
    """Listing of an account, which is due at once if there has never been one."""
    arguments = GET.arguments(account_id=account_id)
    if (row := await db.fetchrow(GET.text, *arguments)) is None:
        await db.execute(ADD.text, *ADD.arguments(account_id=account_id))
        row = await db.fetchrow(GET.text, *arguments)
    return msgspec.convert(dict(row), StoredListing)


async def claim(db: Connection, *, lock_seconds: float, all_: bool) -> tuple[str, int, datetime] | None:
    """Account that is due to be listed, a token of this listing, and the time; None if there is none."""
    row = await db.fetchrow(CLAIM, lock_seconds, all_)
    return None if row is None else (row["account_id"], row["fence"], row["began_at"])


async def finish(
    tx: Connection, account_id: str, fence: int, found: Sequence[Resource], *, began_at: datetime, due_seconds: float
) -> None:
    """Store a listing in place of the one before, unless its token is an earlier one."""
    resources = msgspec.to_builtins(found)
    arguments = FINISH.arguments(
        account_id=account_id, token=fence, resources=resources, began_at=began_at, due=due_seconds
    )
    await tx.execute(FINISH.text, *arguments)


async def fail(db: Connection, account_id: str, fence: int, problem: str, *, due_seconds: float) -> None:
    """Record that a listing has failed; the one before stays."""
    arguments = FAIL.arguments(account_id=account_id, token=fence, reason=NOTE.cut(problem), due=due_seconds)
    await db.execute(FAIL.text, *arguments)


async def distrust(tx: Connection) -> None:
    """Forget what a restored database has listed, and have all accounts listed again."""
    await tx.execute(DISTRUST)


async def rows(db: Connection, ids: Sequence[str]) -> dict[str, Row]:
    """Rows of those of these workspaces that have one, by id. The ids are UUIDs."""
    found = await db.fetch(ROWS.text, *ROWS.arguments(ids=[*ids]))
    return {row["id"]: Row(**{name: row[name] for name in FIELDS} | {"phase": Phase(row["phase"])}) for row in found}


async def is_known(db: Connection, account_id: str, config_id: str) -> bool:
    """True if a revision of a launch config is of this account."""
    arguments = KNOWN_CONFIG.arguments(account_id=account_id, config_id=config_id)
    return await db.fetchval(KNOWN_CONFIG.text, *arguments) is not None


async def reclaim(tx: Connection, row: Workspace) -> bool:
    """Make a row for an orphan, or use that of the workspace which is gone. False if the workspace is not gone."""
    arguments = RECLAIM.arguments(
        workspace_id=row.id,
        deployment=row.deployment,
        incarnation=row.incarnation,
        account_id=row.account_id,
        batch_id=row.batch_id,
        launch_config_id=row.launch_config_id,
    )
    return await tx.fetchval(RECLAIM.text, *arguments) is not None
