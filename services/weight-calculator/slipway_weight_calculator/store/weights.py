"""Published weight records: the newest of each launch config's revision."""

from collections.abc import Mapping
from typing import Final

import msgspec
from sqlalchemy import any_, bindparam, delete, or_, select
from sqlalchemy.dialects.postgresql import insert

from slipway_api.events.weight import WeightChanged
from slipway_common.database.postgres import Connection, Database
from slipway_common.database.sql import Statement, array, given, matches
from slipway_weight_calculator.store.tables import weight

READ: Final = Statement(select(weight.c.id, weight.c.record, weight.c.at, weight.c.archived).order_by(weight.c.id))
ADD: Final = insert(weight).from_select(
    weight.c.keys(),
    select(given(*weight.c)),
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
    .where(
        matches(weight.c.pool_id, "pool_id"),
        or_(matches(weight.c.id, "config"), weight.c.name == bindparam("config")),
        or_(
            ~weight.c.archived, bindparam("archived", type_=weight.c.archived.type), weight.c.id == bindparam("config")
        ),
    )
    .order_by(weight.c.pool_id, weight.c.id)
)

_decode: Final = msgspec.json.Decoder(WeightChanged).decode
_encode: Final = msgspec.json.Encoder().encode


class Published(msgspec.Struct, frozen=True):
    """A record published `at` seconds since the epoch; that of an archived revision stays as it is."""

    record: WeightChanged
    at: float
    archived: bool = False


async def read(db: Connection) -> dict[str, Published]:
    rows = await db.fetch(READ.text)
    return {row["id"]: Published(_decode(row["record"]), row["at"], row["archived"]) for row in rows}


async def write(tx: Connection, published: Mapping[str, Published | None]) -> None:
    """Store the published records; None, after a tombstone, deletes."""
    written = [each for each in published.values() if each is not None]
    if written:
        values = WRITE.arguments(
            id=[each.record.launch_config_id for each in written],
            name=[each.record.name for each in written],
            pool_id=[each.record.pool_id for each in written],
            record=[_encode(each.record).decode() for each in written],
            at=[each.at for each in written],
            archived=[each.archived for each in written],
        )
        await tx.execute(WRITE.text, *values)
    if gone := [config_id for config_id, each in published.items() if each is None]:
        await tx.execute(DELETE.text, gone)


async def listed(db: Database, pool_id: str | None, config: str | None, *, archived: bool = False) -> list[bytes]:
    """The records as published, as JSON; `config` is a name or one revision. Archived ones only if asked for."""
    rows = await db.fetch(LIST.text, *LIST.arguments(pool_id=pool_id, config=config, archived=archived))
    return [row["record"].encode() for row in rows]
