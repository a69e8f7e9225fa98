"""Queue of Terraform workspaces: rows that are due for a run are claimed by replicas, each under a lock of its own."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from slipway_api.events.lifecycle import REGISTERED
from slipway_api.limits import NOTE
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, names, seconds
from slipway_common.messaging.incarnation import TRUSTED
from slipway_provisioner.domain.workspace_locks import Lock
from slipway_provisioner.domain.workspace_runs import RETRY_SECONDS_MAX, Next
from slipway_provisioner.domain.workspaces import Phase, Workspace
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.tables import account, workspace, workspace_listing
from slipway_provisioner.store.workspaces import FIELDS, from_row

C: Final = workspace.c
NOW: Final = sa.func.slipway_clock()
_ID: Final = C.id == sa.bindparam("workspace_id", type_=C.id.type)
_LIVE: Final = C.phase != Phase.GONE
_HERE: Final = sa.and_(C.account_id == sa.bindparam("account_id"), C.deployment == sa.bindparam("deployment"))
# One transaction at a time adds workspaces to an account, so that it counts all committed ones.
ROOM: Final = "SELECT pg_advisory_xact_lock(hashtextextended('workspaces/' || $1, 0))"
COUNT_LIVE: Final = Statement(sa.select(sa.func.count()).where(C.account_id == sa.bindparam("account_id"), _LIVE))
# Not those between two attempts, nor those of a retired account, which may wait for ever: launches are refused by it.
COUNT_WAITING: Final = Statement(
    sa.select(sa.func.count()).where(
        C.due_at <= NOW,
        C.holder == "",
        _LIVE,
        C.account_id.not_in(sa.select(account.c.id).where(account.c.retired)),
    )
)
EXIST: Final = Statement(sa.select(sa.exists().where(_LIVE) | sa.exists(sa.select(workspace_listing.c.account_id))))
OF_BATCH: Final = Statement(
    sa.select(*FIELDS)
    .where(_HERE, C.batch_id == sa.bindparam("batch_id", type_=C.batch_id.type), C.ordinal > 0)
    .order_by(C.ordinal)
)
LIVE: Final = Statement(
    sa.select(*FIELDS)
    .where(
        _HERE,
        _LIVE,
        sa.or_(
            sa.bindparam("batch_id", type_=C.batch_id.type).is_(None),
            sa.and_(C.batch_id == sa.bindparam("batch_id"), C.ordinal > 0),
        ),
    )
    .order_by(C.id)
)
_NAMED: Final = C.instance_id == sa.any_(sa.bindparam("ids", type_=sa.ARRAY(sa.Text)))
# Also while it is being refreshed: the end of that run keeps the phase, and makes the destruction due. One that is
# being destroyed already is left, since its count of failed runs would begin again.
DESTROY: Final = Statement(
    sa.update(workspace)
    .where(_HERE, _NAMED, C.phase == Phase.READY)
    .values(phase=Phase.DESTROYING, due_at=NOW, failed_runs=0)
)
NAMED: Final = Statement(sa.select(*FIELDS).where(_HERE, _NAMED, _LIVE).order_by(C.id))
# A run that is due later than the longest retry was scheduled before the clock was set back.
_AHEAD: Final = f"""due_at > slipway_clock() + {RETRY_SECONDS_MAX} * interval '1 s'
    AND due_at > slipway_clock() + effects_seconds * interval '1 s'"""
# A run whose lock has lapsed may still go on elsewhere; only its own replica could prove its end. Its workspace
# can be claimed safely: an apply becomes a look-up, which waits until that run can have no more effects before
# anything is applied; look-ups and refreshes create nothing; of two destructions one finds nothing left. What the
# other run saves is fenced, and it begins no apply, since that checks the fence again under the row lock.
# Nothing is run while the database may be a restored one or is unconfirmed: what it has queued may have been applied
# since. Nor in an account that is retired.
# The database's clock may jump. A lock of another run is taken over only if it is one of those in $4, $5 and $6, which
# the claimer has observed as lapsed for a while by its own clock.
CLAIM: Final = f"""
UPDATE workspace SET holder = $1, fence = fence + 1, locked_until = slipway_clock() + $2 * interval '1 s',
    phase = CASE WHEN holder <> '' AND phase = '{Phase.QUEUED}' THEN '{Phase.UNKNOWN}' ELSE phase END
WHERE id = ANY (ARRAY(
    SELECT w.id FROM workspace w
    WHERE (w.due_at <= slipway_clock() OR ({_AHEAD}))
        AND (w.holder = '' OR (w.id, w.fence, w.locked_until)
            IN (SELECT * FROM unnest($4::uuid[], $5::bigint[], $6::timestamptz[])))
        AND NOT EXISTS (SELECT FROM launch_stop WHERE scope = 'restore') AND ({TRUSTED})
        AND EXISTS (SELECT FROM account a WHERE a.id = w.account_id AND NOT a.retired)
    ORDER BY w.due_at LIMIT $3 FOR UPDATE OF w SKIP LOCKED))
RETURNING {names(FIELDS)}, greatest(0, extract(epoch FROM effects_until - slipway_clock()))::float AS unsettled"""
# A lock that ends later than any renewal could set it was renewed before the clock was set back.
LAPSED: Final = f"""
SELECT id::text, fence, locked_until FROM workspace
WHERE (due_at <= slipway_clock() OR ({_AHEAD})) AND holder <> ''
    AND locked_until NOT BETWEEN slipway_clock() AND slipway_clock() + $1 * interval '1 s'"""
_EFFECTS: Final = sa.text("effects_seconds * interval '1 s'")
BEGIN: Final = Statement(sa.update(workspace).where(_ID).values(effects_until=NOW + _EFFECTS))
RENEW: Final = """
UPDATE workspace w SET locked_until = slipway_clock() + $3 * interval '1 s'
FROM unnest($1::uuid[], $2::bigint[]) AS g (id, fence)
WHERE w.id = g.id AND w.fence = g.fence AND w.holder <> ''
RETURNING w.id::text"""
FINISH: Final = Statement(
    sa.update(workspace)
    .where(_ID)
    .values(
        phase=sa.bindparam("next", type_=C.phase.type),
        holder="",
        locked_until=None,
        due_at=NOW + seconds("due"),
        effects_until=sa.func.coalesce(NOW + seconds("effects"), C.effects_until),
        failed_runs=sa.bindparam("failed_runs", type_=C.failed_runs.type),
        interruptions=sa.bindparam("interruptions", type_=C.interruptions.type),
        instance_id=sa.bindparam("instance_id", type_=C.instance_id.type),
        address=sa.bindparam("address"),
        outcome=sa.func.coalesce(sa.bindparam("outcome", type_=C.outcome.type), C.outcome),
        problem=sa.bindparam("problem"),
        refreshed_at=sa.func.coalesce(sa.bindparam("refreshed_at", type_=C.refreshed_at.type), C.refreshed_at),
        ended_at=sa.case((sa.bindparam("next", type_=C.phase.type) == Phase.GONE, NOW), else_=None),
    )
)
# After a restore, what is queued may have been applied since, by a run that may still have effects. Runs from before
# are fenced, also those with a higher token than the restored row.
DISTRUST: Final = f"""
UPDATE workspace SET phase = CASE phase WHEN '{Phase.QUEUED}' THEN '{Phase.UNKNOWN}' ELSE phase END,
    holder = '', locked_until = NULL, fence = fence + 1000000,
    effects_until = greatest(effects_until, slipway_clock() + effects_seconds * interval '1 s')
WHERE id IN (SELECT id FROM workspace WHERE phase <> '{Phase.GONE}' ORDER BY id FOR UPDATE)"""
HELD: Final = Statement(
    sa.select(C.id).where(C.holder == sa.bindparam("holder"), _LIVE).order_by(C.id).with_for_update()
)
# Once until its next contact: a worker that was refreshed since it was last seen is left to its deadline.
REFRESH_UNRESPONSIVE: Final = f"""
UPDATE workspace w SET due_at = slipway_clock(), failed_runs = 0 FROM worker k
WHERE w.phase = '{Phase.READY}' AND w.due_at IS NULL AND w.holder = ''
    AND k.account_id = w.account_id AND k.instance_id = w.instance_id AND k.state IN ({states(REGISTERED)})
    AND k.last_seen_at < slipway_clock() - $1 * interval '1 s'
    AND coalesce(w.refreshed_at, w.created_at) < k.last_seen_at
RETURNING w.id"""
REFRESH_OLDEST: Final = f"""
UPDATE workspace SET due_at = slipway_clock(), failed_runs = 0 WHERE id = (
    SELECT id FROM workspace
    WHERE phase = '{Phase.READY}' AND due_at IS NULL AND holder = ''
        AND coalesce(refreshed_at, created_at) < slipway_clock() - $1 * interval '1 s'
    ORDER BY coalesce(refreshed_at, created_at) LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id"""


async def lock_room(tx: Connection, account_id: str) -> None:
    """Prevent other transactions from adding workspaces to an account until this one ends."""
    await tx.execute(ROOM, account_id)


async def live_number(tx: Connection, account_id: str) -> int:
    """Number of the workspaces of an account that are not gone."""
    number: int = await tx.fetchval(COUNT_LIVE.text, *COUNT_LIVE.arguments(account_id=account_id))
    return number


async def waiting_number(tx: Connection) -> int:
    """Number of workspaces that wait for a run."""
    number: int = await tx.fetchval(COUNT_WAITING.text)
    return number


async def exist(db: Connection) -> bool:
    """True if there is a workspace that is not gone, or an account to list."""
    return bool(await db.fetchval(EXIST.text, *EXIST.arguments()))


async def of_batch(db: Connection, *, account_id: str, deployment: str, batch_id: str) -> list[Workspace]:
    arguments = OF_BATCH.arguments(account_id=account_id, deployment=deployment, batch_id=batch_id)
    return [from_row(row) for row in await db.fetch(OF_BATCH.text, *arguments)]


async def live(db: Connection, *, account_id: str, deployment: str, batch_id: str | None) -> list[Workspace]:
    arguments = LIVE.arguments(account_id=account_id, deployment=deployment, batch_id=batch_id)
    return [from_row(row) for row in await db.fetch(LIVE.text, *arguments)]


async def destroy(tx: Connection, *, account_id: str, deployment: str, instance_ids: Sequence[str]) -> list[Workspace]:
    """Make the destruction of ready workspaces due, by their instances; returns all of them that are not gone."""
    arguments = DESTROY.arguments(account_id=account_id, deployment=deployment, ids=[*instance_ids])
    await tx.execute(DESTROY.text, *arguments)
    return await named(tx, account_id=account_id, deployment=deployment, instance_ids=instance_ids)


async def named(db: Connection, *, account_id: str, deployment: str, instance_ids: Sequence[str]) -> list[Workspace]:
    """Workspaces of instances that are not gone."""
    arguments = NAMED.arguments(account_id=account_id, deployment=deployment, ids=[*instance_ids])
    return [from_row(row) for row in await db.fetch(NAMED.text, *arguments)]


async def lapsed(db: Connection, *, lock_seconds: float) -> list[Lock]:
    """Locks that have lapsed by the database's clock, or end later than any renewal could set them."""
    return [Lock(**row) for row in await db.fetch(LAPSED, lock_seconds)]


async def claim(
    tx: Connection, holder: str, *, lock_seconds: float, most: int, take_over: Sequence[Lock] = ()
) -> list[tuple[Workspace, float]]:
    """Lock workspaces that are due, also those with a lock to `take_over` that was not renewed meanwhile. Each comes
    with the seconds for which earlier runs may have effects."""
    found = []
    columns = [[getattr(lock, name) for lock in take_over] for name in Lock.__struct_fields__]
    for row in await tx.fetch(CLAIM, holder, lock_seconds, most, *columns):
        values = dict(row)
        unsettled = values.pop("unsettled")
        found.append((from_row(values), unsettled or 0.0))
    return found


async def begin(tx: Connection, workspace_id: str) -> None:
    """Record until when an apply that begins may have effects."""
    await tx.execute(BEGIN.text, *BEGIN.arguments(workspace_id=workspace_id))


async def renew(db: Connection, fences: Sequence[tuple[str, int]], *, lock_seconds: float) -> set[str]:
    """Renew the locks of these workspaces, given with their fencing tokens; returns the ids of those still held."""
    ids, tokens = [id_ for id_, _ in fences], [fence for _, fence in fences]
    return {row["id"] for row in await db.fetch(RENEW, ids, tokens, lock_seconds)}


async def finish(tx: Connection, workspace_id: str, next_: Next, *, refreshed_at: datetime | None) -> None:
    """Record what follows a run, and release its lock. The row is locked."""
    arguments = FINISH.arguments(
        workspace_id=workspace_id,
        next=next_.phase,
        due=next_.due_seconds,
        effects=next_.effects_seconds,
        failed_runs=next_.failed_runs,
        interruptions=next_.interruptions,
        instance_id=next_.instance_id,
        address=next_.address,
        outcome=_outcome(next_),
        problem=NOTE.cut(next_.problem),
        refreshed_at=refreshed_at,
    )
    await tx.execute(FINISH.text, *arguments)


def _outcome(next_: Next) -> dict[str, Any] | None:
    if next_.put_back:
        return {"put_back": NOTE.cut(next_.problem)}
    return None if next_.outcome is None else dict(msgspec.to_builtins(next_.outcome))


async def distrust(tx: Connection) -> None:
    """Have everything that is queued in a restored database looked up before it is applied, and fence earlier runs."""
    await tx.execute(DISTRUST)


async def held(tx: Connection, holder: str) -> list[str]:
    """Lock the workspaces that a process holds; returns their ids."""
    return [str(row["id"]) for row in await tx.fetch(HELD.text, *HELD.arguments(holder=holder))]


async def refresh_unresponsive(db: Connection, after_seconds: float) -> int:
    """Make a refresh due for each workspace whose worker is unresponsive; returns their number."""
    return len(await db.fetch(REFRESH_UNRESPONSIVE, after_seconds))


async def refresh_oldest(db: Connection, age_seconds: float) -> bool:
    """Make a refresh due for the ready workspace whose last one is longest ago; False if none is that old."""
    return await db.fetchval(REFRESH_OLDEST, age_seconds) is not None
