"""The journal is kept as long as the topics that it speaks of. Any instance may forget what is older."""

from typing import Final

from slipway_common.clock import monotonic_seconds
from slipway_common.postgres import Pool
from slipway_weight_calculator.store import journal

EVERY_SECONDS: Final = 3600.0


class PruneLoop:
    """Looks once an hour, however often it is rung."""

    def __init__(self) -> None:
        self._next_at = 0.0

    async def step(self, pool: Pool) -> bool:
        if monotonic_seconds() >= self._next_at:
            await journal.prune(pool)
            self._next_at = monotonic_seconds() + EVERY_SECONDS
        return False
