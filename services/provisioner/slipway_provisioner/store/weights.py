"""Weight records and the shared windows that they carry, as rows for planning."""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec
import sqlalchemy as sa

from slipway_api.events.scopes import Key
from slipway_api.events.weight import SharedWindow, WeightChanged
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, arrays, columns, names
from slipway_provisioner.domain.pool import Share
from slipway_provisioner.store.functions import KEYS
from slipway_provisioner.store.tables import launch_config, shared_window, weight

RECORDED: Final = (weight.c.launch_config_id, weight.c.revision, weight.c.record)
UPSERT: Final = f"""
INSERT INTO weight AS w ({names(RECORDED)}, received_at)
SELECT {names(RECORDED)}, slipway_clock() FROM unnest({arrays(RECORDED)}) AS u ({names(RECORDED)})
ORDER BY launch_config_id
ON CONFLICT (launch_config_id) DO UPDATE SET
    ({names(RECORDED[1:])}, received_at) = ({names(RECORDED[1:], "excluded.")}, excluded.received_at)
WHERE w.revision < excluded.revision
RETURNING launch_config_id, (record ->> 'pool_id') AS pool_id"""
# After the rows of shared windows are locked, since a planner locks those before workers, and workers are locked before
# their outcomes.
_FOLDED: Final = "coalesce((g.record -> 'stages' -> o.stage ->> 'failures_folded')::bigint, 0)"
FOLD: Final = f"""
UPDATE launch_config_outcomes o SET folded = f.folded FROM (
    SELECT o.launch_config_id, o.stage, {_FOLDED} AS folded
    FROM launch_config_outcomes o JOIN weight g ON g.launch_config_id = o.launch_config_id
    WHERE o.launch_config_id = ANY($1::text[]) AND o.folded <> {_FOLDED}
    ORDER BY o.launch_config_id, o.stage FOR UPDATE OF o) AS f
WHERE (o.launch_config_id, o.stage) = (f.launch_config_id, f.stage)"""
GIVEN: Final = weight.c.launch_config_id == sa.any_(array("ids", weight.c.launch_config_id))
LOCKED: Final = sa.select(weight.c.launch_config_id).where(GIVEN).order_by(weight.c.launch_config_id).with_for_update()
DELETE: Final = Statement(sa.delete(weight).where(weight.c.launch_config_id.in_(LOCKED)))
# Fields of a shared window in an event, by the columns of its row; the key is passed as text.
WINDOW: Final = {
    shared_window.c[column]: field
    for column, field in {
        "key": "",
        "stage": "stage",
        "version": "version",
        "size": "window",
        "state": "state",
        "unconfirmed": "unconfirmed",
        "reason": "reason",
    }.items()
}
CHANGED: Final = tuple(WINDOW)[2:]
# Versions that are not newer are dropped before rows are locked, since every record of a scope repeats the share. The
# rows are locked and read before any is written, by the count: before version 18 PostgreSQL returns no old rows.
UPSERT_SHARED: Final = f"""
WITH given AS (
    SELECT u.* FROM unnest({arrays(WINDOW)}) AS u ({names(WINDOW)})
    WHERE NOT EXISTS (
        SELECT FROM shared_window k WHERE (k.key, k.stage) = (u.key, u.stage) AND k.version >= u.version)),
before AS (
    SELECT s.key, s.stage, s.state, s.unconfirmed
    FROM shared_window s JOIN given g ON (g.key, g.stage) = (s.key, s.stage)
    ORDER BY s.key, s.stage FOR UPDATE OF s),
stored AS (
    INSERT INTO shared_window AS s ({names(WINDOW)})
    SELECT * FROM given WHERE (SELECT count(*) FROM before) >= 0 ORDER BY key, stage
    ON CONFLICT (key, stage) DO UPDATE SET ({names(CHANGED)}) = ({names(CHANGED, "excluded.")})
    WHERE s.version < excluded.version
    RETURNING s.key, s.stage, s.state, s.unconfirmed)
SELECT key, stage, coalesce(b.state, 'healthy') <> s.state AS turned,
    s.unconfirmed > coalesce(b.unconfirmed, 0) AS failing
FROM stored s LEFT JOIN before b USING (key, stage)"""
# A success came between, so all failures since then count, even once there are as many as were forgiven.
DELETE_FORGIVEN: Final = """
DELETE FROM forgiven f USING shared_window s
WHERE (s.key, s.stage) = (f.key, f.stage) AND s.key = ANY($1::text[]) AND s.unconfirmed < f.unconfirmed"""
SHARED_KEYS: Final = [launch_config.c[name] for name in KEYS]
_POOLS_OF: Final = (
    sa.select(launch_config.c.pool_id)
    .distinct()
    .where(launch_config.c.state != "archived", sa.or_(*(key == sa.any_(array("keys", key)) for key in SHARED_KEYS)))
)
POOLS_OF: Final = Statement(_POOLS_OF)
FREEZING_POOLS_OF: Final = Statement(_POOLS_OF.where(launch_config.c.on_bad_image == "freeze"))


class Changed(msgspec.Struct, frozen=True):
    """A shared window that has changed. `turned`: it trips its configs now, or no longer; `failing`: more of its starts
    are unconfirmed."""

    key: str
    stage: str
    turned: bool
    failing: bool

    @property
    def share(self) -> Share:
        return Key.of(self.key), self.stage


async def upsert(tx: Connection, records: Sequence[tuple[int, WeightChanged]]) -> dict[str, str]:
    """Store (revision, record) pairs that are newer than their rows; returns the pools of those by their configs."""
    ids = [record.launch_config_id for _, record in records]
    bodies = [record for _, record in records]
    rows = await tx.fetch(UPSERT, ids, [revision for revision, _ in records], bodies)
    return {row["launch_config_id"]: row["pool_id"] for row in rows}


async def fold(tx: Connection, config_ids: Collection[str]) -> None:
    """Count the failures that the newest records of these configs have folded as such. Their shared windows are
    stored."""
    await tx.execute(FOLD, sorted(config_ids))


async def delete(db: Connection, config_ids: Sequence[str]) -> None:
    await db.execute(DELETE.text, *DELETE.arguments(ids=sorted(config_ids)))


async def upsert_shared(tx: Connection, windows: Sequence[SharedWindow]) -> list[Changed]:
    """Store shared windows that are newer than their rows, each given once; returns those."""
    if not windows:
        return []
    keys = [Key(window.kind, window.id).text for window in windows]
    rows = await tx.fetch(UPSERT_SHARED, keys, *columns(windows, list(WINDOW.values())[1:]).values())
    return [Changed(**row) for row in rows]


async def delete_outdated_forgiveness(tx: Connection, keys: Sequence[str]) -> None:
    """Delete the `forgiven` counts that a later success of the same key has made obsolete."""
    await tx.execute(DELETE_FORGIVEN, keys)


async def pools_of(db: Connection, keys: Collection[str]) -> set[str]:
    """Pools with a config that uses one of the shared keys."""
    rows = await db.fetch(POOLS_OF.text, *POOLS_OF.arguments(keys=sorted(keys))) if keys else ()
    return {row["pool_id"] for row in rows}


async def freezing_pools_of(db: Connection, keys: Collection[str]) -> set[str]:
    """Of these pools, those that a bad image freezes."""
    rows = await db.fetch(FREEZING_POOLS_OF.text, *FREEZING_POOLS_OF.arguments(keys=sorted(keys))) if keys else ()
    return {row["pool_id"] for row in rows}
