"""Journal of turns: the ranges of the log that each turn consumed, and its time.

Replayed over the log from the first turn on, it reproduces the rows byte for byte. Turns are pruned after 7 days, like
the records of their topics, so this holds for the first 7 days of a calculator; later the journal only shows what
happened.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import msgspec

from slipway_common.database.postgres import Connection, Database
from slipway_common.messaging.consume import Batch
from slipway_common.messaging.leadership import Turn
from slipway_common.messaging.records import Received, Record

WRITE: Final = """
WITH turn AS (UPDATE leader SET seq = seq + 1 WHERE epoch = $1 RETURNING seq)
INSERT INTO journal (seq, epoch, at, until, taken, left_out, dead_lettered, settled)
SELECT seq, $1, $2, $3, $4, $5, $6, $7 FROM turn"""
READ: Final = "SELECT seq, epoch, at, until, taken, left_out, dead_lettered, settled FROM journal ORDER BY seq"
# The retention of the topics.
PRUNE: Final = "DELETE FROM journal WHERE written_at < slipway_clock() - interval '7 days'"

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


async def write(tx: Connection, turn: Turn, batch: Batch | None, settled: Iterable[Received]) -> None:
    taken: list[Range] = []
    left_out: list[Range] = []
    dead_lettered: list[Range] = []
    if batch is not None:
        taken = [(p.topic.name, p.partition, p.owned.next_offset, p.end) for p in batch.portions]
        left_out, dead_lettered = ranges(batch.left_out), ranges(dead.record for dead in batch.dead_records)
    await tx.execute(WRITE, turn.epoch, turn.at, turn.until, taken, left_out, dead_lettered, ranges(settled))


async def read(db: Connection) -> list[Entry]:
    return [msgspec.convert(dict(row), Entry) for row in await db.fetch(READ)]


async def prune(db: Database) -> None:
    await db.execute(PRUNE)


def ranges(records: Iterable[Record | Received]) -> list[Range]:
    """Offsets of records as ranges, in order, with adjacent ones merged."""
    places = sorted((record.topic, record.partition, record.offset) for record in records)
    if not places:
        return []
    starts = [0, *(n for n, (a, b) in enumerate(pairwise(places), 1) if (*a[:2], a[2] + 1) != b), len(places)]
    return [(*places[a], places[b - 1][2] + 1) for a, b in pairwise(starts)]
