"""Retention: a rule or a reason for every table, and the loop that deletes rows by the rules.

A rule deletes rows that have ended, the oldest first, a chunk per transaction. It skips rows that another transaction
has locked, and locks nothing but the rows it deletes: nobody waits for pruning for longer than one chunk takes.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec
from sqlalchemy import (
    Boolean,
    ColumnElement,
    Delete,
    Double,
    Select,
    Table,
    any_,
    bindparam,
    delete,
    false,
    func,
    literal_column,
    select,
    true,
)

from slipway_common.base.clock import monotonic_seconds
from slipway_common.database.postgres import Database
from slipway_common.database.sql import Statement
from slipway_common.observability import metrics

CHUNK_ROWS: Final = 500
"""Rows that one statement of the prune loop deletes at most: a few milliseconds of work."""
HISTORY_DAYS: Final = 60.0
"""Retention of what only people read again."""
DAY_SECONDS: Final = 86_400.0
PRUNE_LOOP: Final = "prune"
EVERY_SECONDS: Final = 600.0
STEP_SECONDS: Final = 1.0
PRUNED: Final = metrics.counter("slipway_pruned_rows_total")
AGE: Final = bindparam("age_seconds", type_=Double)


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one table that are deleted: which, when, by which loop, and how many at once.

    They are deleted `days` `after` an event, or at once; a `setting` replaces the days. `delete` is the statement of
    the prune loop; other loops have their own. `chunk` says how many rows a statement deletes. Rows that are `used_by`
    other tables stay, so that the rules of these come first in each round.
    """

    table: str
    rows: str
    after: str
    days: float = 0.0
    setting: str = ""
    loop: str = PRUNE_LOOP
    chunk: str = f"{CHUNK_ROWS:,} rows"
    delete: Statement | None = None
    used_by: tuple[str, ...] = ()


class Bounded(msgspec.Struct, frozen=True):
    """A table from which nothing needs to be deleted, and why it does not grow."""

    table: str
    reason: str


Retention: TypeAlias = Sequence[Rule | Bounded]


def older(at: ColumnElement[Any], age_seconds: ColumnElement[Any] = AGE) -> ColumnElement[bool]:
    """Condition that a time is longer ago than an age, by default the retention of the rule.

    The clock is read in a sub-select, once: read for each row, it could not be compared through an index."""
    now = select(func.slipway_clock()).scalar_subquery()
    return at < now - func.make_interval(0, 0, 0, 0, 0, 0, age_seconds)


def unused_by(*uses: ColumnElement[bool]) -> ColumnElement[bool]:
    """Condition that no row refers to a row, looked up by an index for one row after another.

    As NOT EXISTS it could become a join of both tables, which reads all of them for each chunk. The planner takes a
    Boolean expression to be true for half of the rows; of IS NULL it would expect less than a chunk of unused rows,
    and read and sort all that have ended to find them."""
    used = select(false()).where(*uses).limit(1).scalar_subquery()
    return func.coalesce(used, true(), type_=Boolean)


def delete_ended(table: Table, *ended: ColumnElement[bool], order: Sequence[ColumnElement[Any]]) -> Delete:
    """Deletion of a chunk of rows that have ended, in the `order` of an index that finds them, the oldest first."""
    return _delete(table, select(_place(table)).select_from(table).where(*ended).order_by(*order).limit(CHUNK_ROWS))


def delete_oldest(table: Table, at: ColumnElement[Any], *, order: ColumnElement[Any]) -> Delete:
    """Deletion of the old ones among the first rows of an append-only table, in the `order` of its key.
    Needs no index on the time."""
    first = select(_place(table).label("place"), at.label("at")).select_from(table).order_by(order).limit(CHUNK_ROWS)
    rows = first.subquery("first_rows")
    return _delete(table, select(rows.c.place).where(older(rows.c.at)))


def _place(table: Table) -> ColumnElement[Any]:
    return literal_column(f"{table.name}.ctid")


def _delete(table: Table, found: Select[Any]) -> Delete:
    """Deletion of found rows. They are locked only once all are found: a chunk that is not full has read everything
    that has ended, which takes long where much of it is still used. A row that changes meanwhile is at another place,
    which the statement does not see, and stays."""
    free = select(_place(table)).select_from(table).where(_among(table, found))
    return delete(table).where(_among(table, free.with_for_update(of=table, skip_locked=True)))


def _among(table: Table, places: Select[Any]) -> ColumnElement[bool]:
    chosen = func.array(places.correlate(None).scalar_subquery())
    return _place(table) == any_(chosen)


class PruneLoop:
    """Deletes rows by the rules every ten minutes, a chunk of each rule in turn until nothing old is left. A rule whose
    rows are used by others waits for theirs: until then each chunk would read all rows that are still used.

    Each chunk is a transaction of its own, followed by a pause of the same length. A rule that fails delays no other:
    it is tried again in the next round.
    """

    def __init__(self, retention: Retention, settings: object) -> None:
        """`settings` has the retention of the rules that name one."""
        self._rules = [
            (rule, DAY_SECONDS * (getattr(settings, rule.setting) if rule.setting else rule.days))
            for rule in retention
            if isinstance(rule, Rule) and rule.delete is not None
        ]
        self._due: deque[tuple[Rule, float]] = deque()
        self._next_at = 0.0

    def begin_round(self) -> None:
        """Execute every rule again in the next steps."""
        self._due = deque(self._rules)
        self._next_at = monotonic_seconds() + EVERY_SECONDS

    async def step(self, database: Database) -> bool:
        """Delete for about a second; True if there is more to delete."""
        began = monotonic_seconds()
        if not self._due:
            if began < self._next_at:
                return False  # woken early
            self.begin_round()
        while self._due and monotonic_seconds() < began + STEP_SECONDS:
            rule, age_seconds = self._due.popleft()
            if any(other.table in rule.used_by for other, _ in self._due):
                self._due.append((rule, age_seconds))
                continue
            chunk_began = monotonic_seconds()
            if await prune(database, rule, age_seconds) > CHUNK_ROWS / 2:  # a few may be locked, or wait for others
                self._due.append((rule, age_seconds))
            await asyncio.sleep(monotonic_seconds() - chunk_began)
        return bool(self._due)


async def prune(database: Database, rule: Rule, age_seconds: float) -> int:
    """Delete a chunk of rows that have ended for longer than an age; returns their number."""
    assert rule.delete is not None
    arguments = {AGE.key: age_seconds} if AGE.key in rule.delete.names else {}
    deleted: str = await database.execute(rule.delete.text, *rule.delete.arguments(**arguments))
    rows = int(deleted.removeprefix("DELETE "))
    PRUNED.labels(rule.table).inc(rows)
    return rows
