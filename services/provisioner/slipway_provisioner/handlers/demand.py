"""Consumer of demand reports and of tombstones, which end their sources: stores them and marks their pools dirty."""

from collections.abc import Sequence
from datetime import datetime

from slipway_api.percent import decoded
from slipway_common.base.errors import BadEvent
from slipway_common.database.postgres import Connection
from slipway_common.messaging.records import Received
from slipway_provisioner.domain.demand import Report, ended_by_tombstone, problem, reported
from slipway_provisioner.store import demand, pools


async def record_demand(tx: Connection, received: Sequence[Received]) -> None:
    """Store the newest report per (pool, source); older and repeated ones change nothing.

    Raises BadEvent for an invalid report or tombstone, or an unknown pool. A tombstone of an unknown pool ends nothing.
    """
    known, now = await pools.known(tx, sorted(map(_pool_id, received)))
    reports = [_report(one, now) for one in received]
    for report in reports:
        if report.pool_id not in known and not report.end_reason:
            raise BadEvent(f"no pool {report.pool_id}")
    await demand.store(tx, [report for report in reports if report.pool_id in known])


def _pool_id(received: Received) -> str:
    pool_id: str = decoded(received.subject)[0] if received.event is None else received.event.pool_id
    return pool_id


def _report(received: Received, now: datetime) -> Report:
    """The report of an event, or the end that a tombstone is. Raises BadEvent."""
    if received.event is None:
        return ended_by_tombstone(received.subject, received.time, now, by=received.source)
    if reason := problem(received.event, now):
        raise BadEvent(reason)
    return reported(received.event, by=received.source, traceparent=received.traceparent)
