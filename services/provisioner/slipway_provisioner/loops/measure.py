"""Gauges of pools, launch configs and workers for Prometheus, and the age of the other services' heartbeats."""

from collections.abc import Callable
from typing import Final

from slipway_common.database.postgres import Database
from slipway_common.measure import Measure
from slipway_common.observability.metrics import Board, Readings
from slipway_provisioner.loops.watch import EFFECTS
from slipway_provisioner.store import gauges

HEARTBEAT_AGE: Final = "slipway_heartbeat_age_seconds"


class PoolMeasure:
    """Gauges of pools. A step reads those of POOLS_AT_ONCE pools, in turn: of 2,000 pools each is read every 50 s."""

    def __init__(self) -> None:
        self.board = Board(*gauges.POOL_NAMES)
        self._after = ""
        self._shown: set[str] = set()

    async def step(self, database: Database) -> None:
        """Show the next pools, and remove those of their place in the order that do not exist any more."""
        try:
            read = await gauges.read_pools(database, self._after)
        except Exception:
            await self._remove(self._shown)  # as outdated values would look current
            raise
        last = max(read) if len(read) == gauges.POOLS_AT_ONCE else ""
        await self._remove({id_ for id_ in self._shown - read.keys() if id_ > self._after and (not last or id_ < last)})
        for pool_id, readings in read.items():
            await self.board.show(readings, part=pool_id)
        self._shown |= read.keys()
        self._after = last

    async def _remove(self, pool_ids: set[str]) -> None:
        for pool_id in pool_ids:
            await self.board.show({}, part=pool_id)
        self._shown -= pool_ids


def measure(heartbeat_age_seconds: Callable[[str], float]) -> Measure:
    """Measure that reads all gauges; `heartbeat_age_seconds` takes a service name."""
    pools = PoolMeasure()

    async def read(database: Database) -> Readings:
        await pools.step(database)
        ages = {(service,): heartbeat_age_seconds(service) for service in EFFECTS}
        return {HEARTBEAT_AGE: ages, **await gauges.read(database)}

    return Measure((HEARTBEAT_AGE, *gauges.NAMES), read)
