"""Pools, launch configs and their workers, for Prometheus; and for how long the other services have been silent."""

from collections.abc import Callable
from typing import Final

from slipway_common.measure import Measure
from slipway_common.metrics import Readings
from slipway_common.postgres import Pool
from slipway_provisioner.loops.watch import EFFECTS
from slipway_provisioner.store import gauges

SILENT: Final = "slipway_heartbeat_silent_seconds"


def measure(silent_seconds: Callable[[str], float]) -> Measure:
    """`silent_seconds(service)` since it was last heard."""

    async def read(pool: Pool) -> Readings:
        silent = {(service,): silent_seconds(service) for service in EFFECTS}
        return {SILENT: silent, **await gauges.read(pool)}

    return Measure((SILENT, *gauges.NAMES), read)
