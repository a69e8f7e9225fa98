"""Gauges of pools, launch configs and workers for Prometheus, and the age of the other services' heartbeats."""

from collections.abc import Callable
from typing import Final

from slipway_common.database.postgres import Database
from slipway_common.measure import InTurn, Measure
from slipway_common.observability.metrics import Readings
from slipway_provisioner.loops.watch import EFFECTS
from slipway_provisioner.store import gauges

HEARTBEAT_AGE: Final = "slipway_heartbeat_age_seconds"


def pools() -> InTurn:
    """Gauges of pools: of 2,000 pools each is read every 50 s."""
    return InTurn(gauges.POOL_NAMES, gauges.read_pools)


def measure(heartbeat_age_seconds: Callable[[str], float]) -> Measure:
    """Measure that reads all gauges; `heartbeat_age_seconds` takes a service name."""
    in_turn = pools()

    async def read(database: Database) -> Readings:
        await in_turn.step(database)
        ages = {(service,): heartbeat_age_seconds(service) for service in EFFECTS}
        return {HEARTBEAT_AGE: ages, **await gauges.read(database)}

    return Measure((HEARTBEAT_AGE, *gauges.NAMES), read)
