"""Journal of turns: the ranges of the log that each turn consumed, and its time.

Replayed over the log from the first turn on, it reproduces the rows byte for byte. Turns are pruned after 7 days, like
the records of their topics, so this holds for the first 7 days of a calculator; later the journal only shows what
happened.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import msgspec
from sqlalchemy import bindparam, insert, select, update

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_common.messaging.consume import Batch
from slipway_common.messaging.leadership import Turn
from slipway_common.messaging.records import Received, Record
from slipway_weight_calculator.store.tables import journal, metadata

Range = tuple[str, int, int, int]
"""Topic, partition, first offset and the offset after the last."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. `left_out` and `dead_lettered` are parts of `taken`; `settled` are dead letters of earlier turns."""

    seq: int
    epoch: int
    at: float
    until: float
    taken: list[Range]
    left_out: list[Range]
    dead_lettered: list[Range]
    settled: list[Range]


FIELDS: Final = journal.c[Entry.__struct_fields__]
LEADER: Final = metadata.tables["leader"].c
TURN: Final = (
    update(metadata.tables["leader"])
    .where(LEADER.epoch == bindparam("epoch"))
    .values(seq=LEADER.seq + 1)
    .returning(LEADER.seq, LEADER.epoch)
    .cte("turn")
)
GIVEN: Final = [bindparam(field.name, type_=field.type) for field in FIELDS if field.name not in TURN.c]
WRITE: Final = Statement(
    insert(journal).from_select([*TURN.c.keys(), *(value.key for value in GIVEN)], select(TURN, *GIVEN))
)
READ: Final = Statement(select(*FIELDS).order_by(journal.c.seq))


async def write(tx: Connection, turn: Turn, batch: Batch | None, settled: Iterable[Received]) -> None:
    taken: list[Range] = []
    left_out: list[Range] = []
    dead_lettered: list[Range] = []
    if batch is not None:
        taken = [(p.topic.name, p.partition, p.owned.next_offset, p.end) for p in batch.portions]
        left_out, dead_lettered = ranges(batch.left_out), ranges(dead.record for dead in batch.dead_records)
    values = WRITE.arguments(
        epoch=turn.epoch,
        at=turn.at,
        until=turn.until,
        taken=taken,
        left_out=left_out,
        dead_lettered=dead_lettered,
        settled=ranges(settled),
    )
    await tx.execute(WRITE.text, *values)


async def read(db: Connection) -> list[Entry]:
    return [msgspec.convert(dict(row), Entry) for row in await db.fetch(READ.text)]


def ranges(records: Iterable[Record | Received]) -> list[Range]:
    """Offsets of records as ranges, in order, with adjacent ones merged."""
    places = sorted((record.topic, record.partition, record.offset) for record in records)
    if not places:
        return []
    starts = [0, *(n for n, (a, b) in enumerate(pairwise(places), 1) if (*a[:2], a[2] + 1) != b), len(places)]
    return [(*places[a], places[b - 1][2] + 1) for a, b in pairwise(starts)]
