"""Clock of the database, and conditions on what is due by it."""

from datetime import datetime
from typing import Final

from slipway_common.database.postgres import Connection, Database

CLOCK: Final = "SELECT slipway_clock()"
NOW: Final = f"({CLOCK})"
"""The clock, read once in a statement. Compared with a clock that is read for each row, a time is found by no index."""


def overdue(column: str, seconds: str) -> str:
    """Condition that a time is longer ago than this, or ahead of the clock, which was set back since. Of a range the
    server expects few rows, which it finds by an index; of a comparison with an unknown value a third of all rows."""
    since = f"{NOW} - {seconds} * interval '1 s'"
    return f"""(({column} >= '-infinity' AND {column} < {since})
        OR ({column} > {NOW} AND {column} <= 'infinity'))"""


async def clock(db: Connection | Database) -> datetime:
    """The database clock, on which events have their times."""
    now: datetime = await db.fetchval(CLOCK)
    return now
