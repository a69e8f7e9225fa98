"""Published weight records: the newest of each launch config."""

from collections.abc import Mapping
from typing import Final

import msgspec

from slipway_common.database.postgres import Connection, Database
from slipway_common.events.weight import WeightChanged

READ: Final = "SELECT id, record, at FROM weight ORDER BY id"
WRITE: Final = """
INSERT INTO weight SELECT id, pool_id, record, $4 FROM unnest($1::text[], $2::text[], $3::text[])
    AS g (id, pool_id, record)
ON CONFLICT (id) DO UPDATE SET pool_id = excluded.pool_id, record = excluded.record, at = excluded.at"""
DELETE: Final = "DELETE FROM weight WHERE id = ANY($1::text[])"
LIST: Final = """
SELECT record FROM weight WHERE ($1::text IS NULL OR pool_id = $1) AND ($2::text IS NULL OR id = $2)
ORDER BY pool_id, id"""

_decode: Final = msgspec.json.Decoder(WeightChanged).decode
_encode: Final = msgspec.json.Encoder().encode


class Published(msgspec.Struct, frozen=True):
    """A record published `at` seconds since the epoch."""

    record: WeightChanged
    at: float


async def read(db: Connection) -> dict[str, Published]:
    return {row["id"]: Published(_decode(row["record"]), row["at"]) for row in await db.fetch(READ)}


async def write(tx: Connection, records: Mapping[str, WeightChanged | None], at: float) -> None:
    """Store the published records; None, after a tombstone, deletes."""
    written = [record for record in records.values() if record is not None]
    if written:
        ids, pools = [record.launch_config_id for record in written], [record.pool_id for record in written]
        await tx.execute(WRITE, ids, pools, [_encode(record).decode() for record in written], at)
    if gone := [config_id for config_id, record in records.items() if record is None]:
        await tx.execute(DELETE, gone)


async def listed(db: Database, pool_id: str | None, config_id: str | None) -> list[msgspec.Raw]:
    """The records as published, as JSON."""
    return [msgspec.Raw(row["record"].encode()) for row in await db.fetch(LIST, pool_id, config_id)]
