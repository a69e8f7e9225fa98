"""Clock of the database."""

from datetime import datetime
from typing import Final

from slipway_common.database.postgres import Connection, Database

CLOCK: Final = "SELECT slipway_clock()"


async def clock(db: Connection | Database) -> datetime:
    """The database clock, on which events have their times."""
    now: datetime = await db.fetchval(CLOCK)
    return now
