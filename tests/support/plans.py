"""What PostgreSQL reads to execute a statement."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from slipway_common.database.postgres import Connection, Database


async def rows_read(db: Connection | Database, statement: str, *given: Any) -> Counter[str]:
    """Execute a statement; returns the rows of each table that it has looked at."""
    (row,) = await db.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *given)
    shown = row["QUERY PLAN"]
    (root,) = msgspec.json.decode(shown) if isinstance(shown, str) else shown
    read: Counter[str] = Counter()
    for step in _steps(root["Plan"]):
        if table := step.get("Relation Name", ""):
            left_out = step.get("Rows Removed by Filter", 0) + step.get("Rows Removed by Index Recheck", 0)
            read[table] += round((step["Actual Rows"] + left_out) * step["Actual Loops"])
    return read


def _steps(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A plan and those below it."""
    yield plan
    for below in plan.get("Plans", ()):
        yield from _steps(below)
