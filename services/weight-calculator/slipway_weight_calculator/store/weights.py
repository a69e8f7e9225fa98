"""Published weight records: the newest of each launch config."""

from collections.abc import Mapping
from typing import Final

import msgspec
from sqlalchemy import any_, bindparam, delete, select
from sqlalchemy.dialects.postgresql import insert

from slipway_common.database.postgres import Connection, Database
from slipway_common.database.sql import Statement, array, given, matches
from slipway_common.events.weight import WeightChanged
from slipway_weight_calculator.store.tables import weight

READ: Final = Statement(select(weight.c.id, weight.c.record, weight.c.at).order_by(weight.c.id))
ADD: Final = insert(weight).from_select(
    weight.c.keys(),
    select(given(weight.c.id, weight.c.pool_id, weight.c.record), bindparam("at", type_=weight.c.at.type)),
)
WRITE: Final = Statement(
    ADD.on_conflict_do_update(
        index_elements=[weight.c.id],
        set_={field.name: ADD.excluded[field.name] for field in weight.c if not field.primary_key},
    )
)
DELETE: Final = Statement(delete(weight).where(weight.c.id == any_(array("ids", weight.c.id))))
LIST: Final = Statement(
    select(weight.c.record)
    .where(matches(weight.c.pool_id, "pool_id"), matches(weight.c.id, "id"))
    .order_by(weight.c.pool_id, weight.c.id)
)

_decode: Final = msgspec.json.Decoder(WeightChanged).decode
_encode: Final = msgspec.json.Encoder().encode


class Published(msgspec.Struct, frozen=True):
    """A record published `at` seconds since the epoch."""

    record: WeightChanged
    at: float


async def read(db: Connection) -> dict[str, Published]:
    return {row["id"]: Published(_decode(row["record"]), row["at"]) for row in await db.fetch(READ.text)}


async def write(tx: Connection, records: Mapping[str, WeightChanged | None], at: float) -> None:
    """Store the published records; None, after a tombstone, deletes."""
    written = [record for record in records.values() if record is not None]
    if written:
        values = WRITE.arguments(
            id=[record.launch_config_id for record in written],
            pool_id=[record.pool_id for record in written],
            record=[_encode(record).decode() for record in written],
            at=at,
        )
        await tx.execute(WRITE.text, *values)
    if gone := [config_id for config_id, record in records.items() if record is None]:
        await tx.execute(DELETE.text, gone)


async def listed(db: Database, pool_id: str | None, config_id: str | None) -> list[msgspec.Raw]:
    """The records as published, as JSON."""
    rows = await db.fetch(LIST.text, *LIST.arguments(pool_id=pool_id, id=config_id))
    return [msgspec.Raw(row["record"].encode()) for row in rows]
