"""Pruning of the journal: turns are kept as long as the records of their topics. Runs on every replica."""

from typing import Final

from slipway_common.base.clock import monotonic_seconds
from slipway_common.database.postgres import Database
from slipway_weight_calculator.store import journal

EVERY_SECONDS: Final = 3600.0


class PruneLoop:
    """Prunes once an hour, however often it is woken."""

    def __init__(self) -> None:
        self._next_at = 0.0

    async def step(self, database: Database) -> bool:
        if monotonic_seconds() >= self._next_at:
            await journal.prune(database)
            self._next_at = monotonic_seconds() + EVERY_SECONDS
        return False
