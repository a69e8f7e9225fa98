"""Reception of lease commands, per partition of the requests and over HTTP."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from sqlalchemy import any_, select, update

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, given
from slipway_lease_broker.domain.reception import Reception, continued, set_back
from slipway_lease_broker.store.pools import clock
from slipway_lease_broker.store.tables import reception

FIELDS: Final = reception.c["received_until", "downtimes"]
NAMED: Final = select(reception.c.way, *FIELDS).where(reception.c.way == any_(array("ways", reception.c.way)))
READ: Final = Statement(NAMED)
LOCK: Final = Statement(NAMED.order_by(reception.c.way).with_for_update())
# Rows are inserted before they are locked, so that two processes do not insert the same one.
ADD: Final = """
INSERT INTO reception (way, received_until)
SELECT way, slipway_clock() FROM unnest($1::text[]) AS given (way) ORDER BY way ON CONFLICT DO NOTHING"""
CHANGED: Final = given(reception.c.way, *FIELDS)
SAVE: Final = Statement(
    update(reception)
    .where(reception.c.way == CHANGED.c.way)
    .values({field.name: CHANGED.c[field.name] for field in FIELDS})
)
SAVE_SECONDS: Final = 2.0  # in memory, a reception may be ahead of its row by this much


async def begin(tx: Connection, ways: Sequence[str]) -> None:
    """Record that commands are received from now on, for ways in of which nothing is recorded."""
    if ways:
        await tx.execute(ADD, sorted(ways))


async def record(tx: Connection, ages: Mapping[str, float]) -> dict[str, Reception]:
    """Record until when commands were received: so many seconds ago, per way in. Returns the receptions."""
    ways = sorted(ages)
    after, changed = _continued(await tx.fetch(READ.text, ways), await clock(tx), ages)
    if changed or len(after) < len(ways):
        await tx.execute(ADD, ways)
        after, changed = _continued(await tx.fetch(LOCK.text, ways), await clock(tx), ages)
        columns = {field.name: [getattr(after[way], field.name) for way in changed] for field in FIELDS}
        await tx.execute(SAVE.text, *SAVE.arguments(way=changed, **columns))
    return after


def _continued(rows: Sequence[Any], now: datetime, ages: Mapping[str, float]) -> tuple[dict[str, Reception], list[str]]:
    """The stored receptions as of now, and the ways in whose rows have to be written."""
    before = {row["way"]: msgspec.convert(dict(row), Reception) for row in rows}
    until = {way: now - timedelta(seconds=ages[way]) for way in before}
    after = {way: continued(set_back(known, until[way], now), until[way]) for way, known in before.items()}
    changed = [
        way
        for way, known in before.items()
        if after[way].downtimes != known.downtimes
        or abs((after[way].received_until - known.received_until).total_seconds()) >= SAVE_SECONDS
    ]
    return after, changed
