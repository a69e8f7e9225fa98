"""Until when holders of leases were heard, per partition of the requests and over HTTP."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import msgspec
from sqlalchemy import any_, select, update

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, given
from slipway_lease_broker.domain.hearing import Hearing, heard
from slipway_lease_broker.store.pools import clock
from slipway_lease_broker.store.tables import hearing

WAYS: Final = select(hearing.c.way, hearing.c.heard_at, hearing.c.quiet).where(
    hearing.c.way == any_(array("ways", hearing.c.way))
)
READ: Final = Statement(WAYS)
LOCK: Final = Statement(WAYS.order_by(hearing.c.way).with_for_update())
# Rows are inserted before they are locked, so that two processes do not insert the same one.
ADD: Final = """
INSERT INTO hearing (way, heard_at) SELECT way, slipway_clock() FROM unnest($1::text[]) AS given (way) ORDER BY way
ON CONFLICT DO NOTHING"""
CHANGED: Final = given(hearing.c.way, hearing.c.heard_at, hearing.c.quiet)
SAVE: Final = Statement(
    update(hearing).where(hearing.c.way == CHANGED.c.way).values(heard_at=CHANGED.c.heard_at, quiet=CHANGED.c.quiet)
)
SAVE_SECONDS: Final = 2.0  # in memory, a hearing may be ahead of its row by this much


async def listen(tx: Connection, ages: Mapping[str, float]) -> dict[str, Hearing]:
    """Record until when holders were heard: so many seconds ago, per way. Returns the hearings."""
    ways = sorted(ages)
    after, changed = await _advanced(tx, READ, ages)
    if changed or len(after) < len(ways):
        await tx.execute(ADD, ways)
        after, changed = await _advanced(tx, LOCK, ages)
        columns = {name: [getattr(after[way], name) for way in changed] for name in ("heard_at", "quiet")}
        await tx.execute(SAVE.text, *SAVE.arguments(way=changed, **columns))
    return after


async def _advanced(
    tx: Connection, query: Statement, ages: Mapping[str, float]
) -> tuple[dict[str, Hearing], list[str]]:
    """The known hearings as of now, and the ways whose rows have to be written."""
    before = {row["way"]: msgspec.convert(dict(row), Hearing) for row in await tx.fetch(query.text, list(ages))}
    now = await clock(tx)
    after = {way: heard(known, now - timedelta(seconds=ages[way])) for way, known in before.items()}
    changed = [
        way
        for way, known in before.items()
        if after[way].quiet != known.quiet or (after[way].heard_at - known.heard_at).total_seconds() >= SAVE_SECONDS
    ]
    return after, changed
