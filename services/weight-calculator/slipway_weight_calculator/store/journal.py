"""How what is known came about: each turn's ranges of the log, and its instant.

Replayed over the log from the first turn on it gives the same rows, byte for byte: for the first 7 days of a
calculator. Then its oldest turns go, as the records do that they speak of; what is left tells what happened, and no
longer how the rows began."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import msgspec

from slipway_common.consume import Batch
from slipway_common.owner import Turn
from slipway_common.postgres import Connection, Pool
from slipway_common.records import Received, Record

WRITE: Final = """
WITH turn AS (UPDATE owner SET seq = seq + 1 WHERE epoch = $1 RETURNING seq)
INSERT INTO journal (seq, epoch, at, until, taken, left_out, buried, settled)
SELECT seq, $1, $2, $3, $4, $5, $6, $7 FROM turn"""
READ: Final = "SELECT seq, epoch, at, until, taken, left_out, buried, settled FROM journal ORDER BY seq"
# As long as the topics keep what it speaks of.
PRUNE: Final = "DELETE FROM journal WHERE written_at < slipway_clock() - interval '7 days'"

Range = tuple[str, int, int, int]
"""Topic, partition, the first offset and the one behind the last."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. `left_out` and `buried` are parts of `taken`; what was `settled` had been buried by an earlier turn."""

    seq: int
    epoch: int
    at: float
    until: float
    taken: list[Range]
    left_out: list[Range]
    buried: list[Range]
    settled: list[Range]


async def write(tx: Connection, turn: Turn, batch: Batch | None, settled: Iterable[Received]) -> None:
    taken: list[Range] = []
    left_out: list[Range] = []
    buried: list[Range] = []
    if batch is not None:
        taken = [(p.topic.name, p.partition, p.owned.next_offset, p.end) for p in batch.portions]
        left_out, buried = ranges(batch.left_out), ranges(dead.record for dead in batch.buried)
    await tx.execute(WRITE, turn.epoch, turn.at, turn.until, taken, left_out, buried, ranges(settled))


async def read(db: Connection) -> list[Entry]:
    return [msgspec.convert(dict(row), Entry) for row in await db.fetch(READ)]


async def prune(db: Pool) -> None:
    await db.execute(PRUNE)


def ranges(records: Iterable[Record | Received]) -> list[Range]:
    """The places of records, neighbours together, in order."""
    places = sorted((record.topic, record.partition, record.offset) for record in records)
    if not places:
        return []
    starts = [0, *(n for n, (a, b) in enumerate(pairwise(places), 1) if (*a[:2], a[2] + 1) != b), len(places)]
    return [(*places[a], places[b - 1][2] + 1) for a, b in pairwise(starts)]
