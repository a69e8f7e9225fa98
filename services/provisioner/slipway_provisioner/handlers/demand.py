"""Consumer of demand reports: stores them and marks their pools dirty."""

from collections.abc import Sequence

from slipway_common.base.errors import BadEvent
from slipway_common.database.postgres import Connection
from slipway_common.messaging.records import Received
from slipway_provisioner.domain.demand import problem
from slipway_provisioner.store import demand, pools


async def record_demand(tx: Connection, received: Sequence[Received]) -> None:
    """Store the newest report per (pool, source); older and repeated ones change nothing.

    Raises BadEvent for an invalid report or an unknown pool.
    """
    reports = [(r.event, r.traceparent) for r in received if r.event is not None]
    if not reports:
        return
    now = await pools.now(tx)
    known = await pools.known(tx, sorted({report.pool_id for report, _ in reports}))
    for report, _ in reports:
        if reason := problem(report, now):
            raise BadEvent(reason)
        if report.pool_id not in known:
            raise BadEvent(f"no pool {report.pool_id}")
    await demand.store(tx, reports)
