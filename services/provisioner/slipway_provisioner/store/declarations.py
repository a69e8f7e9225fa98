"""Declared rows: accounts, pools, launch configs with their revisions, and the shares between these, with the events of
their changes.

Rows are read without locks, locked when their changes are known, and written in chunks, so that a declaration of any
size never occupies the event loop or the database for long.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.dml import ReturningInsert

from slipway_api.events import launch_config as config_events
from slipway_api.events import pool as pool_events
from slipway_api.events.lifecycle import ENDED, SERVING
from slipway_common.base.revisions import name_of
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, given, matches, names
from slipway_common.messaging import outbox
from slipway_provisioner.domain.comparison import (
    AccountRow,
    Fallback,
    Health,
    NameRow,
    PoolRow,
    Snapshot,
    StoredAccount,
    StoredName,
    StoredPool,
    Writes,
)
from slipway_provisioner.domain.declaration import Calls, Index, Known, Request
from slipway_provisioner.domain.revisions import RevisionRow, StoredRevision
from slipway_provisioner.store import configs, marks, tables, usage
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.configs import OF_NAME
from slipway_provisioner.store.tables import shared_window

CHUNK: Final = 100
Row = TypeVar("Row")

A: Final = tables.account.c
P: Final = tables.worker_pool.c
N: Final = tables.launch_config_name.c
C: Final = tables.launch_config.c
IDS: Final = array("ids", C.id)

# As carried by the events of the compacted topic.
POOL_STATE: Final = (
    P.id.label("pool_id"),
    *(P[name] for name in pool_events.PoolState.__struct_fields__ if name != "pool_id"),
)

# Reading, without locks.
ACCOUNTS: Final = Statement(
    sa.select(A.owner, A.spec_digest, A.region, *(A[name] for name in Calls.__struct_fields__)).where(~A.removed)
)
_POOLS: Final = sa.select(P.id, P.owner, P.spec_digest).where(~P.deleted)
POOLS: Final = Statement(_POOLS)
POOLS_OF: Final = Statement(_POOLS.where(P.id == sa.any_(IDS)))
STORED_ACCOUNTS: Final = Statement(
    sa.select(*(A[name] for name in StoredAccount.__struct_fields__)).where(A.id == sa.any_(IDS)).order_by(A.id)
)
LIMITS: Final = Statement(sa.select(A.id, A.limits).where(A.id == sa.any_(IDS)))
STORED_POOLS: Final = Statement(
    sa.select(*(P[name] for name in StoredPool.__struct_fields__)).where(P.id == sa.any_(IDS)).order_by(P.id)
)
_NAMES: Final = sa.select(*(N[name] for name in StoredName.__struct_fields__)).order_by(N.name)
STORED_NAMES: Final = Statement(_NAMES.where(N.name == sa.any_(IDS)))
STORED_NAMES_OF: Final = Statement(_NAMES.where(N.pool_id == sa.any_(IDS)))
# A revision that was proven before it tripped has to prove itself again.
_TRIPPED: Final = (
    sa.exists()
    .where(tables.weight.c.launch_config_id == C.id, tables.weight.c.record["state"].astext != "healthy")
    .correlate(tables.launch_config)
)
_STORED: Final = [C[name] for name in StoredRevision.__struct_fields__ if name != "proven"]
STORED_REVISIONS: Final = Statement(
    sa.select(*_STORED, sa.and_(C.proven_at.is_not(None), ~_TRIPPED).label("proven"))
    .where(C.name == sa.any_(IDS))
    .order_by(C.name, C.id)
)
USERS: Final = Statement(
    sa.select(N.pool_id, N.name, C.account_id)
    .join(tables.launch_config, sa.and_(OF_NAME, C.id == N.current_id))
    .where(C.account_id == sa.any_(IDS), N.declared)
    .order_by(N.pool_id, N.name)
)
LAUNCHING: Final = Statement(
    sa.select(P.id.label("pool_id"), P.mode, P.limits, C.account_id, C.instance_type, C.settings)
    .join(tables.launch_config, C.pool_id == P.id)
    .join(tables.launch_config_name, sa.and_(OF_NAME, C.id == N.current_id))
    .where(C.account_id == sa.any_(IDS), N.declared, ~P.deleted)
    .order_by(P.id, N.name)
)

TIMED: Final = Statement(
    sa.select(P.id.label("pool_id"), N.name, C.account_id, C.profile, N.deadlines, P.limits)
    .join(tables.launch_config, C.pool_id == P.id)
    .join(tables.launch_config_name, sa.and_(OF_NAME, C.id == N.current_id))
    .where(C.account_id == sa.any_(IDS), N.declared, ~P.deleted, P.id != sa.all_(array("except_pools", P.id)))
    .order_by(P.id, N.name)
)

SERVING_WORKERS: Final = f"""
SELECT launch_config_id AS id, count(*)::int AS serving FROM worker
WHERE pool_id = ANY($1::text[]) AND state IN ({states(SERVING)}) AND state NOT IN ({states(ENDED)}) GROUP BY 1"""
MACHINES: Final = f"""
SELECT account_id AS id, count(*)::int AS machines FROM worker
WHERE account_id = ANY($1::text[]) AND batch_id IS NOT NULL AND state NOT IN ({states(ENDED)}) GROUP BY 1"""
DECLARED_POOL: Final = Statement(
    sa.select(P.owner, P.spec, P.spec_digest).where(P.id == sa.bindparam("id"), ~P.deleted)
)
# What is wrong with a revision or with a key that it shares.
TRIPPED: Final = """
SELECT launch_config_id AS id, record ->> 'reason' AS reason FROM weight
WHERE launch_config_id = ANY($1::text[]) AND record ->> 'state' <> 'healthy'
UNION ALL SELECT key, reason FROM shared_window WHERE key = ANY($2::text[]) AND state = 'tripped'"""


SPECS: Final = {
    section: Statement(
        sa.select(of.id, sa.cast(sa.func.jsonb_build_object("owner", of.owner, "spec", of.spec), sa.Text).label("text"))
        .where(sa.not_(gone), of.id > sa.bindparam("after"), matches(of.owner, "owner"))
        .order_by(of.id)
        .limit(CHUNK)
    )
    for section, of, gone in (("accounts", A, A.removed), ("worker_pools", P, P.deleted))
}

# Locks, in the common order.
LOCK_POOLS: Final = Statement(
    sa.select(P.id).where(P.id == sa.any_(IDS)).order_by(P.id).with_for_update(key_share=True)
)
LOCK_NAMES: Final = Statement(
    sa.select(N.name).where(N.name == sa.any_(IDS)).order_by(N.name).with_for_update(key_share=True)
)
LOCK_REVISIONS: Final = Statement(
    sa.select(C.id).where(C.id == sa.any_(IDS)).order_by(C.id).with_for_update(key_share=True)
)
# Excludes those who take new launch configs into an account from those who move or remove it.
LOCK_ACCOUNTS: Final = Statement(sa.select(A.id).where(A.id == sa.any_(IDS)).order_by(A.id).with_for_update())
USE_ACCOUNTS: Final = Statement(
    sa.select(A.id).where(A.id == sa.any_(IDS)).order_by(A.id).with_for_update(read=True, key_share=True)
)


def _inserted(table: sa.Table, rows: sa.FromClause, *returned: sa.ColumnElement[Any]) -> ReturningInsert[Any]:
    """Insertion of rows, whose first column is the key, in the common order. A row that another transaction has
    inserted meanwhile is not touched, and missing in the answer."""
    key, *_ = rows.c
    inserted = insert(table).from_select([field.name for field in rows.c], sa.select(*rows.c).order_by(key))
    return inserted.on_conflict_do_nothing().returning(*returned)


# Accounts.
_ACCOUNT: Final = given(*(A[name] for name in AccountRow.__struct_fields__))
INSERT_ACCOUNTS: Final = Statement(_inserted(tables.account, _ACCOUNT, A.id))
UPDATE_ACCOUNTS: Final = Statement(
    sa.update(tables.account)
    .where(A.id == _ACCOUNT.c.id)
    .values({name: _ACCOUNT.c[name] for name in AccountRow.__struct_fields__ if name != "id"})
    .values(removed=False, check_began_at=sa.null())  # it is checked anew
)
REMOVE_ACCOUNTS: Final = Statement(
    sa.update(tables.account).where(A.id == sa.any_(IDS)).values(removed=True, owner="", spec_digest="")
)

# Pools.
_POOL: Final = given(*(P[name] for name in PoolRow.__struct_fields__))
INSERT_POOLS: Final = Statement(_inserted(tables.worker_pool, _POOL, *POOL_STATE))
UPDATE_POOLS: Final = Statement(
    sa.update(tables.worker_pool)
    .where(P.id == _POOL.c.id)
    .values({name: _POOL.c[name] for name in PoolRow.__struct_fields__ if name != "id"})
    .values(deleted=False, revision=P.revision + 1)
    .returning(*POOL_STATE)
)
# Pauses and freezes end with their object: one that is declared again is as declared. `unfrozen` pools had a freeze for
# a bad image, whose alert ends.
_RESUMED: Final = {"paused": False, "paused_reason": "", "paused_by": "", "paused_until": sa.null()}
_REMOVED: Final = (
    sa.select(P.id, (P.frozen & (P.frozen_by == sa.bindparam("frozen_by"))).label("unfrozen"))
    .where(P.id == sa.any_(IDS))
    .cte("removed")
)
REMOVE_POOLS: Final = Statement(
    sa.update(tables.worker_pool)
    .where(P.id == _REMOVED.c.id)
    .values(
        deleted=True,
        min_capacity=0,
        max_capacity=0,
        revision=P.revision + 1,
        frozen=False,
        frozen_reason="",
        frozen_by="",
        owner="",
        spec_digest="",
        **_RESUMED,
    )
    .returning(_REMOVED.c.unfrozen, *POOL_STATE)
)

# Launch configs and their revisions.
_NAME: Final = given(*(N[name] for name in NameRow.__struct_fields__))
INSERT_NAMES: Final = Statement(_inserted(tables.launch_config_name, _NAME, N.name))
UPDATE_NAMES: Final = Statement(
    sa.update(tables.launch_config_name)
    .where(N.name == _NAME.c.name)
    .values({name: _NAME.c[name] for name in NameRow.__struct_fields__ if name not in ("name", "pool_id")})
    .values(declared=True)
)
REMOVE_NAMES: Final = Statement(
    sa.update(tables.launch_config_name).where(N.name == sa.any_(IDS)).values(declared=False, **_RESUMED)
)
_REVISION: Final = given(*(C[name] for name in RevisionRow.__struct_fields__))
INSERT_REVISIONS: Final = Statement(
    sa.insert(tables.launch_config).from_select(
        [*RevisionRow.__struct_fields__, "state"],
        sa.select(*_REVISION.c, sa.literal("active")).order_by(_REVISION.c.id),
    )
)
# The current revision of a name, which may have been draining or archived.
ACTIVATE: Final = Statement(
    sa.update(tables.launch_config)
    .where(C.id == sa.any_(IDS))
    .values(
        state="active",
        state_reason="",
        state_by="",
        replaced_by="",
        drain_seconds=sa.null(),
        drain_from=sa.null(),
        drain_until=sa.null(),
        drain_terminate=False,
        proven_at=sa.case((~_TRIPPED, C.proven_at)),
        declared_at=sa.case((C.state == "archived", sa.func.slipway_clock()), else_=C.declared_at),
        archived_at=sa.null(),
        withdrawn_at=sa.null(),
    )
)
_FALLBACK: Final = given(*(C[name] for name in Fallback.__struct_fields__))
FALL_BACK: Final = Statement(
    sa.update(tables.launch_config)
    .where(C.id == _FALLBACK.c.id)
    .values({name: _FALLBACK.c[name] for name in Fallback.__struct_fields__ if name != "id"})
)
_HEALTH: Final = given(*(C[name] for name in Health.__struct_fields__))
ADAPT: Final = Statement(
    sa.update(tables.launch_config)
    .where(C.id == _HEALTH.c.id)
    .values({name: _HEALTH.c[name] for name in Health.__struct_fields__ if name != "id"})
)
STATES: Final = Statement(
    sa.select(*configs.FIELDS).join(tables.launch_config_name, OF_NAME).where(C.id == sa.any_(IDS)).order_by(C.id)
)
# All other revisions of changed launch configs are published anew, with the state that they have now.
TOUCH: Final = Statement(
    sa.update(tables.launch_config)
    .where(
        C.name == sa.any_(array("names", C.name)),
        OF_NAME,
        C.state != "archived",
        C.id != sa.all_(array("published", C.id)),
    )
    .values(revision=C.revision + 1)
    .returning(*configs.FIELDS)
)
SHARE: Final = shared_window.c["key", "stage"]
# One statement, in the common lock order. Shares that exist are not locked.
SHARED: Final = f"""
INSERT INTO shared_window ({names(SHARE)})
SELECT DISTINCT {names(SHARE, "k.")} FROM launch_config c CROSS JOIN LATERAL shared_keys(c) AS k
WHERE c.id = ANY($1::text[]) ORDER BY 1, 2 ON CONFLICT DO NOTHING"""


class ChangedMeanwhile(Exception):
    """Another transaction has changed what was read before it was locked. The transaction must be rolled back."""


class User(NamedTuple):
    """Declared launch config whose current revision launches in an account."""

    pool_id: str
    name: str
    account_id: str


async def index(db: Connection, pool_ids: Iterable[str] | None = None) -> Index:
    """All accounts that are declared, and all pools or those of `pool_ids`."""
    accounts = await db.fetch(ACCOUNTS.text)
    if pool_ids is None:
        pools = await db.fetch(POOLS.text)
    else:
        pools = await db.fetch(POOLS_OF.text, *POOLS_OF.arguments(ids=sorted(pool_ids)))
    return Index(
        accounts={row["id"]: Known(row["owner"], row["spec_digest"]) for row in accounts},
        pools={row["id"]: Known(row["owner"], row["spec_digest"]) for row in pools},
        regions={row["id"]: row["region"] for row in accounts},
        providers={row["id"]: row["provider"] for row in accounts},
        calls=[Calls(**{name: row[name] for name in Calls.__struct_fields__}) for row in accounts],
    )


async def snapshot(
    db: Connection, *, accounts: Iterable[str], pools: Iterable[str], config_names: Iterable[str]
) -> Snapshot:
    """Rows of these accounts and pools, and of the launch configs that are in the pools or have these names."""
    stored_names = await _fetched(db, STORED_NAMES_OF, pools, StoredName)
    stored_names += await _fetched(db, STORED_NAMES, config_names, StoredName)
    by_name = {stored.name: stored for stored in stored_names}
    revisions: dict[str, list[StoredRevision]] = {}
    for stored in await _fetched(db, STORED_REVISIONS, by_name, StoredRevision):
        revisions.setdefault(stored.name, []).append(stored)
    return Snapshot(
        accounts={stored.id: stored for stored in await _fetched(db, STORED_ACCOUNTS, accounts, StoredAccount)},
        pools={stored.id: stored for stored in await _fetched(db, STORED_POOLS, pools, StoredPool)},
        names=by_name,
        revisions=revisions,
    )


async def serving(db: Connection, pool_ids: Iterable[str]) -> dict[str, int]:
    """Number of serving workers of each revision in these pools."""
    found: dict[str, int] = {}
    for chunk in _chunks(sorted(pool_ids)):
        found |= {row["id"]: row["serving"] for row in await db.fetch(SERVING_WORKERS, chunk)}
    return found


async def machines(db: Connection, account_ids: Iterable[str]) -> dict[str, int]:
    """Number of live workers in these accounts for which a launch call was made."""
    return {row["id"]: row["machines"] for row in await db.fetch(MACHINES, sorted(account_ids))}


async def users(db: Connection, account_ids: Collection[str]) -> list[User]:
    """Declared launch configs whose current revision launches in these accounts."""
    return [User(*row) for row in await db.fetch(USERS.text, *USERS.arguments(ids=sorted(account_ids)))]


async def launching(db: Connection, account_ids: Collection[str]) -> list[dict[str, Any]]:
    """Current revisions of declared launch configs in accounts, with the mode and limits of their pools."""
    return [dict(row) for row in await db.fetch(LAUNCHING.text, *LAUNCHING.arguments(ids=sorted(account_ids)))]


async def timed(db: Connection, account_ids: Collection[str], *, except_pools: Collection[str]) -> list[dict[str, Any]]:
    """Declared launch configs in accounts with their deadlines and the limits of their pools, but for some pools."""
    arguments = TIMED.arguments(ids=sorted(account_ids), except_pools=sorted(except_pools))
    return [dict(row) for row in await db.fetch(TIMED.text, *arguments)]


async def account_limits(db: Connection, account_ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Declared limits of accounts, by their ids."""
    rows = await db.fetch(LIMITS.text, *LIMITS.arguments(ids=sorted(account_ids)))
    return {row["id"]: row["limits"] for row in rows}


async def declared_pool(db: Connection, pool_id: str) -> Any:
    """Declaration of a pool: owner, spec and spec_digest; None if there is none."""
    return await db.fetchrow(DECLARED_POOL.text, *DECLARED_POOL.arguments(id=pool_id))


async def specs(
    db: Connection, sections: Iterable[str], owner: str | None
) -> AsyncGenerator[tuple[str, list[str]], None]:
    """Declared entries with their owners as of one moment: pages of a section, each entry as JSON text, in the order of
    their ids. Reading a snapshot delays no apply."""
    async with db.transaction(isolation="repeatable_read", readonly=True):
        for section in sections:
            statement, after = SPECS[section], ""
            while rows := await db.fetch(statement.text, *statement.arguments(after=after, owner=owner)):
                yield section, [row["text"] for row in rows]
                after = rows[-1]["id"]


async def tripped(db: Connection, revision_ids: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """Reasons of the revisions and keys that are tripped."""
    return {row["id"]: row["reason"] for row in await db.fetch(TRIPPED, revision_ids, keys)}


async def lock(tx: Connection, writes: Writes) -> None:
    """Lock the rows that the writes change, and no others, except that used accounts keep their region."""
    changed_accounts = [*_ids(writes.accounts), *writes.removed_accounts]
    for statement, ids in (
        (LOCK_POOLS, [*_ids(writes.pools), *writes.removed_pools]),
        (LOCK_NAMES, [*(name.name for name in writes.names), *writes.removed_names]),
        (
            LOCK_REVISIONS,
            [*writes.current, *_ids(writes.fallbacks), *_ids(writes.drains), *_ids(writes.health)],
        ),
        (LOCK_ACCOUNTS, changed_accounts),
        (USE_ACCOUNTS, writes.used_accounts.difference(changed_accounts)),
    ):
        for chunk in _chunks(sorted(set(ids))):
            await tx.execute(statement.text, *statement.arguments(ids=chunk))


async def put_accounts(tx: Connection, writes: Writes) -> None:
    """Insert, update and remove accounts. Raises ChangedMeanwhile if a new account exists."""
    for chunk in _chunks(sorted(writes.new_accounts, key=lambda account: account.id)):
        if len(await tx.fetch(INSERT_ACCOUNTS.text, *INSERT_ACCOUNTS.rows(chunk))) < len(chunk):
            raise ChangedMeanwhile
    for chunk in _chunks(writes.accounts):
        await tx.execute(UPDATE_ACCOUNTS.text, *UPDATE_ACCOUNTS.rows(chunk))
    await tx.execute(REMOVE_ACCOUNTS.text, *REMOVE_ACCOUNTS.arguments(ids=writes.removed_accounts))


async def put_pools(
    tx: Connection, writes: Writes, request: Request, *, frozen_by: str
) -> tuple[dict[str, int], list[str]]:
    """Insert, update and remove pools; returns the revisions of all, and the ids of removed ones that were `frozen_by`
    this. Raises ChangedMeanwhile if a new pool exists."""
    revisions: dict[str, int] = {}
    unfrozen: list[str] = []
    for statement, pools, event in (
        (INSERT_POOLS, writes.new_pools, pool_events.PoolCreated),
        (UPDATE_POOLS, writes.pools, pool_events.PoolUpdated),
    ):
        for chunk in _chunks(sorted(pools, key=lambda pool: pool.id)):
            rows = await tx.fetch(statement.text, *statement.rows(chunk))
            if len(rows) < len(chunk):
                raise ChangedMeanwhile
            await outbox.enqueue(tx, [_pool_event(row, event, request) for row in rows])
            revisions |= {row["pool_id"]: row["revision"] for row in rows}
    for ids in _chunks(sorted(writes.removed_pools)):
        for row in await tx.fetch(REMOVE_POOLS.text, *REMOVE_POOLS.arguments(ids=ids, frozen_by=frozen_by)):
            state = dict(row)
            if state.pop("unfrozen"):
                unfrozen.append(state["pool_id"])
            revisions[state["pool_id"]] = state["revision"]
            await outbox.enqueue(tx, [pool_events.PoolDeleted(**state)])
    for ids in _chunks(sorted(revisions)):
        await marks.dirty(tx, ids, reason="declared")
    return revisions, unfrozen


def _pool_event(row: Any, event: type[pool_events.PoolState], request: Request) -> pool_events.PoolState:
    if request.to_revision is not None:
        return pool_events.PoolRolledBack(**row, to_revision=request.to_revision, reason=request.reason, by=request.by)
    return event(**row)


async def put_configs(tx: Connection, writes: Writes) -> None:
    """Insert and update launch configs and their revisions, except drains, and publish them. Raises ChangedMeanwhile if
    a new name exists."""
    for chunk in _chunks(sorted(writes.new_names, key=lambda name: name.name)):
        if len(await tx.fetch(INSERT_NAMES.text, *INSERT_NAMES.rows(chunk))) < len(chunk):
            raise ChangedMeanwhile
    for chunk in _chunks(writes.names):
        await tx.execute(UPDATE_NAMES.text, *UPDATE_NAMES.rows(chunk))
    for ids in _chunks(writes.removed_names):
        await tx.execute(REMOVE_NAMES.text, *REMOVE_NAMES.arguments(ids=ids))
    for revisions in _chunks(sorted(writes.new_revisions, key=lambda revision: revision.id)):
        await tx.execute(INSERT_REVISIONS.text, *INSERT_REVISIONS.rows(revisions))
    for ids in _chunks(writes.current):
        await tx.execute(ACTIVATE.text, *ACTIVATE.arguments(ids=ids))
    for fallbacks in _chunks(writes.fallbacks):
        await tx.execute(FALL_BACK.text, *FALL_BACK.rows(fallbacks))
    for health in _chunks(writes.health):
        await tx.execute(ADAPT.text, *ADAPT.rows(health))
    new = sorted(revision.id for revision in writes.new_revisions)
    for ids in _chunks(sorted({*new, *writes.renewed})):
        await add_shares(tx, ids)
        await usage.add_outcomes(tx, ids)
    for health in _chunks(writes.health):
        await usage.copy(tx, _ids(health))
    for ids in _chunks(new):
        rows = await tx.fetch(STATES.text, *STATES.arguments(ids=ids))
        await outbox.enqueue(tx, [config_events.LaunchConfigCreated(**configs.state(row)) for row in rows])
    published = [*new, *_ids(writes.drains)]
    for changed in _chunks(sorted(_changed_names(writes))):
        rows = await tx.fetch(TOUCH.text, *TOUCH.arguments(names=changed, published=published))
        await outbox.enqueue(tx, [config_events.LaunchConfigUpdated(**configs.state(row)) for row in rows])


async def analyze(db: Connection) -> None:
    """Have every session plan its statements anew for the present sizes of the tables, a minute or more before
    autovacuum does: plans that were made while these were small read them whole at each execution."""
    await db.execute("ANALYZE account, worker_pool, launch_config_name, launch_config")


async def add_shares(tx: Connection, config_ids: Sequence[str]) -> None:
    """Insert the shares of revisions that do not exist yet."""
    await tx.execute(SHARED, config_ids)


def _changed_names(writes: Writes) -> set[str]:
    """Names of launch configs of which a revision that is neither new nor drained may have changed."""
    ids = [*writes.current, *_ids(writes.fallbacks), *_ids(writes.health)]
    return {name.name for name in writes.names} | set(map(name_of, ids))


async def _fetched(db: Connection, statement: Statement, ids: Iterable[str], kind: Callable[..., Row]) -> list[Row]:
    """Rows of a statement that takes ids, asked for and made in chunks."""
    rows: list[Row] = []
    for chunk in _chunks(sorted(set(ids))):
        rows += [kind(**row) for row in await db.fetch(statement.text, *statement.arguments(ids=chunk))]
    return rows


def _ids(rows: Iterable[Any]) -> list[str]:
    return [row.id for row in rows]


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    return (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
