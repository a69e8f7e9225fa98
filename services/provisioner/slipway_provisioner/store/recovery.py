"""Differences between a restored database and what runs: read without locks, for people."""

from collections.abc import Collection, Sequence
from typing import Any, Final

import sqlalchemy as sa

from slipway_api.events.lifecycle import WAITING
from slipway_api.http.provisioner.recovery import MissingInstance, OpenCall, UnlistedAccount
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array
from slipway_provisioner.domain.launching import BatchState, call_body
from slipway_provisioner.domain.recovery import LiveRevision, LostClaims, Orphan, lost_claims
from slipway_provisioner.store.tables import in_states, launch_config, metadata, worker, worker_pool

C: Final = launch_config.c
_REVISIONS: Final = sa.select(C.id, C.pool_id, C.account_id, C.image_revision).where(
    C.id == sa.any_(array("ids", C.id)), C.state != "archived"
)
REVISIONS: Final = Statement(_REVISIONS.order_by(C.id))
POOLS: Final = worker_pool.c
LOCK_POOLS: Final = Statement(
    sa.select(POOLS.id).where(POOLS.id == sa.any_(array("ids", POOLS.id))).order_by(POOLS.id).with_for_update()
)
W: Final = worker.c
WAITING_OF: Final = Statement(
    sa.select(sa.cast(W.id, sa.Text).label("id"))
    .where(W.pool_id == sa.any_(array("pool_ids", W.pool_id)), in_states(WAITING))
    .order_by(W.id)
)
LOCK_REVISIONS: Final = Statement(_REVISIONS.order_by(C.id).with_for_update(read=True))
BODY: Final = Statement(
    sa.select(
        *C["id", "zone", "instance_type", "image_revision", "settings"],
        sa.select(metadata.tables["incarnation"].c.id).scalar_subquery().label("incarnation"),
    ).where(C.id == sa.bindparam("config_id"))
)
ENDED: Final = """
SELECT w.account_id, w.instance_id FROM worker w
JOIN unnest($1::text[], $2::text[]) AS o (account_id, instance_id) USING (account_id, instance_id)"""
MISSING: Final = """
SELECT m.account_id, w.id::text AS worker_id, w.pool_id, w.instance_id, w.state, m.found_at
FROM missing_instance m JOIN worker w ON w.id = m.worker_id ORDER BY m.account_id, w.id"""
OPEN_CALLS: Final = f"""
SELECT id::text AS batch_id, account_id, launch_config_id, units, started_at FROM launch_batch
WHERE state = '{BatchState.CALLING}' ORDER BY started_at"""
CLAIMED: Final = """
SELECT pool_id, source, claimed FROM demand
WHERE claimed > 0 AND observed_at + valid_for_seconds * interval '1 s' > slipway_clock()"""
CLAIMS: Final = """
SELECT pool_id, source, count(*)::int AS known FROM claim WHERE ended_at IS NULL GROUP BY pool_id, source"""
# What was called for until the restore may take effect until the deadline of its call, and is listed after the
# visibility delay of its provider: until a listing began after both, what runs in the account is unknown. In a retired
# one nothing is launched.
NOT_LISTED: Final = """
SELECT a.id AS account_id, s.at + a.settled_seconds * interval '1 s' AS counts_from FROM account a, launch_stop s
WHERE s.scope = 'restore' AND NOT a.removed AND NOT a.retired
    AND (a.listed_at >= s.at + a.settled_seconds * interval '1 s') IS NOT TRUE ORDER BY a.id"""


async def revisions(db: Connection, ids: Collection[str]) -> dict[str, LiveRevision]:
    """Revisions of launch configs that are not archived, by id."""
    rows = await db.fetch(REVISIONS.text, *REVISIONS.arguments(ids=sorted(ids)))
    return {row["id"]: LiveRevision(**row) for row in rows}


async def lock_pools(tx: Connection, ids: Collection[str]) -> None:
    """Lock pools, so that none is planned before the transaction ends."""
    await tx.fetch(LOCK_POOLS.text, *LOCK_POOLS.arguments(ids=sorted(ids)))


async def waiting_of(tx: Connection, pool_ids: Collection[str]) -> list[str]:
    """Ids of the intents of pools that wait for a lease or their call."""
    rows = await tx.fetch(WAITING_OF.text, *WAITING_OF.arguments(pool_ids=sorted(pool_ids)))
    return [row["id"] for row in rows]


async def lock_revisions(tx: Connection, ids: Collection[str]) -> dict[str, LiveRevision]:
    """Revisions of launch configs that are not archived, by id, locked so that none is archived before the transaction
    ends."""
    rows = await tx.fetch(LOCK_REVISIONS.text, *LOCK_REVISIONS.arguments(ids=sorted(ids)))
    return {row["id"]: LiveRevision(**row) for row in rows}


async def ended(db: Connection, orphans: Sequence[Orphan]) -> set[tuple[str, str]]:
    """Accounts and instances among the orphans that have the row of a worker: it has ended."""
    rows = await db.fetch(ENDED, [each.account_id for each in orphans], [each.instance_id for each in orphans])
    return {(row["account_id"], row["instance_id"]) for row in rows}


async def body(tx: Connection, config_id: str) -> dict[str, Any]:
    """Body of a launch call for a revision, as it is today."""
    return call_body(await tx.fetchrow(BODY.text, *BODY.arguments(config_id=config_id)))


async def missing(db: Connection) -> list[MissingInstance]:
    """Workers whose instance was not listed in the newest pass over their account."""
    return [MissingInstance(**row) for row in await db.fetch(MISSING)]


async def open_calls(db: Connection) -> list[OpenCall]:
    """Launch batches whose outcome is unknown."""
    return [OpenCall(**row) for row in await db.fetch(OPEN_CALLS)]


async def lost(db: Connection) -> list[LostClaims]:
    """Sources whose tasks run without an open claim."""
    claimed = {(row["pool_id"], row["source"]): row["claimed"] for row in await db.fetch(CLAIMED)}
    known = {(row["pool_id"], row["source"]): row["known"] for row in await db.fetch(CLAIMS)}
    return lost_claims(claimed, known)


async def not_listed(db: Connection) -> list[UnlistedAccount]:
    """Accounts of which no listing has everything that was launched before the restore, without retired ones."""
    return [UnlistedAccount(**row) for row in await db.fetch(NOT_LISTED)]
