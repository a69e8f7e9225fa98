"""Rows of launch configs. Every statement that locks several takes them by id ascending."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from slipway_common.events.launch_config import LaunchConfigState
from slipway_common.events.weight import WeightChanged
from slipway_common.postgres import Connection
from slipway_weight_calculator.domain.health import Health
from slipway_weight_calculator.domain.record import Config

COLUMNS: Final = "id, pool_id, zone, base_weight, price_factor, state, revision, health::text AS health, traceparent"

CLOCK: Final = "SELECT slipway_clock()"
INTRODUCE: Final = """
INSERT INTO launch_config (id, pool_id)
SELECT id, pool_id FROM unnest($1::text[], $2::text[]) AS g (id, pool_id)
WHERE NOT EXISTS (SELECT FROM launch_config c WHERE c.id = g.id) ORDER BY id
ON CONFLICT DO NOTHING"""
LOCK: Final = f"SELECT {COLUMNS} FROM launch_config WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE"
WRITE: Final = """
UPDATE launch_config c
SET health = g.health, closed = g.closed, next_probe_at = g.next_probe_at, traceparent = g.traceparent,
    unpublished = true
FROM unnest($1::text[], $2::jsonb[], $3::boolean[], $4::timestamptz[], $5::text[])
    AS g (id, health, closed, next_probe_at, traceparent)
WHERE c.id = g.id"""
DECLARE: Final = """
INSERT INTO launch_config AS c (id, pool_id, zone, base_weight, price_factor, state, revision)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::float8[], $5::float8[], $6::text[], $7::bigint[])
    AS g (id, pool_id, zone, base_weight, price_factor, state, revision) ORDER BY id
ON CONFLICT (id) DO UPDATE SET pool_id = excluded.pool_id, zone = excluded.zone, base_weight = excluded.base_weight,
    price_factor = excluded.price_factor, state = excluded.state, revision = excluded.revision, unpublished = true
WHERE excluded.revision >= c.revision"""
ARCHIVE: Final = "UPDATE launch_config SET state = 'archived', unpublished = true WHERE id = $1 AND state <> 'archived'"
# Pools where the passing of time may matter: a permit is due, or nothing is open.
WAITING: Final = f"""
SELECT {COLUMNS} FROM launch_config WHERE state <> 'archived' AND pool_id IN (
    SELECT pool_id FROM launch_config
    WHERE state <> 'archived' AND pool_id IN (SELECT pool_id FROM launch_config WHERE closed)
    GROUP BY pool_id
    HAVING bool_or(next_probe_at <= slipway_clock()) OR bool_and(closed OR state <> 'active'))
ORDER BY pool_id, id"""
STALE: Final = """
UPDATE launch_config SET unpublished = true WHERE id IN (
    SELECT id FROM launch_config
    WHERE NOT unpublished AND published IS NOT NULL AND looked_at < slipway_clock() - make_interval(secs => $1)
    ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED)"""
# A row that somebody is just changing is left to the next look, which that change's commit causes.
UNPUBLISHED: Final = f"""
SELECT {COLUMNS}, published, coalesce(extract(epoch FROM slipway_clock() - published_at), 0)::float8 AS published_age
FROM launch_config WHERE unpublished ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED"""
LOOKED: Final = """
UPDATE launch_config SET unpublished = false, looked_at = slipway_clock() WHERE id = ANY($1::text[])"""
PUBLISHED: Final = """
UPDATE launch_config c SET published = g.published, published_at = slipway_clock()
FROM unnest($1::text[], $2::jsonb[]) AS g (id, published) WHERE c.id = g.id"""
RECORDS: Final = """
SELECT published::text FROM launch_config
WHERE published IS NOT NULL AND ($1::text IS NULL OR pool_id = $1) ORDER BY pool_id, id"""

_health: Final = msgspec.json.Decoder(Health)


class Row(msgspec.Struct, frozen=True):
    """A launch config and all that is known of its health."""

    config: Config
    health: Health
    traceparent: str = ""


class Unpublished(msgspec.Struct, frozen=True):
    """A row to look at, what others know of it, and for how long they have."""

    row: Row
    published: WeightChanged | None
    published_age_seconds: float


async def clock(db: Connection) -> datetime:
    now: datetime = await db.fetchval(CLOCK)
    return now


async def introduce(tx: Connection, pool_of: dict[str, str]) -> None:
    """Make rows with defaults for ids that were never declared to us, so that their outcomes have a place."""
    await tx.execute(INTRODUCE, list(pool_of), list(pool_of.values()))


async def lock(tx: Connection, ids: Sequence[str]) -> list[Row]:
    return [_row(row) for row in await tx.fetch(LOCK, list(ids))]


async def write(tx: Connection, rows: Sequence[Row]) -> None:
    """Store the health of locked rows and have them published."""
    if rows:
        await tx.execute(
            WRITE,
            [row.config.id for row in rows],
            [row.health for row in rows],
            [row.health.gate.closed for row in rows],
            [row.health.gate.next_probe_at for row in rows],
            [row.traceparent for row in rows],
        )


async def declare(tx: Connection, states: Sequence[LaunchConfigState]) -> None:
    """Create or change rows; a state of a lower revision than the row's changes nothing. One state per id."""
    if states:
        await tx.execute(
            DECLARE,
            *zip(
                *(
                    (s.launch_config_id, s.pool_id, s.zone, s.base_weight, s.price_factor, s.state, s.revision)
                    for s in states
                ),
                strict=True,
            ),
        )


async def archive(tx: Connection, ids: Sequence[str]) -> None:
    for config_id in sorted(ids):
        await tx.execute(ARCHIVE, config_id)


async def waiting(db: Connection) -> list[Row]:
    """All configs of pools that time alone may change, pool by pool; not locked."""
    return [_row(row) for row in await db.fetch(WAITING)]


async def mark_stale(db: Connection, after_seconds: float) -> None:
    """Have rows looked at again whose weight the passing of time has moved."""
    await db.execute(STALE, after_seconds)


async def lock_unpublished(tx: Connection) -> list[Unpublished]:
    return [
        Unpublished(
            _row(row),
            None if row["published"] is None else msgspec.convert(row["published"], WeightChanged),
            row["published_age"],
        )
        for row in await tx.fetch(UNPUBLISHED)
    ]


async def mark_looked_at(tx: Connection, ids: Sequence[str]) -> None:
    await tx.execute(LOOKED, list(ids))


async def mark_published(tx: Connection, records: dict[str, WeightChanged | None]) -> None:
    """Keep what others now have; None after a tombstone."""
    if records:
        await tx.execute(PUBLISHED, list(records), list(records.values()))


async def published(db: Connection, pool_id: str | None) -> list[WeightChanged]:
    rows = await db.fetch(RECORDS, pool_id)
    return [msgspec.json.decode(row["published"], type=WeightChanged) for row in rows]


def _row(row: Any) -> Row:
    config = Config(
        id=row["id"],
        pool_id=row["pool_id"],
        zone=row["zone"],
        base_weight=row["base_weight"],
        price_factor=row["price_factor"],
        state=row["state"],
        revision=row["revision"],
    )
    return Row(config, _health.decode(row["health"]), row["traceparent"])
