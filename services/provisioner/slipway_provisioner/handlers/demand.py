"""Demand reports become rows and make pools dirty."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from slipway_common.consume import Received
from slipway_common.errors import BadEvent
from slipway_common.events.pool import DemandReported
from slipway_common.postgres import Connection
from slipway_provisioner.store import demand, pools, workers

FUTURE: Final = timedelta(seconds=60)
TASKS_MAX: Final = 10_000_000


def problem(report: DemandReported, now: datetime) -> str:
    """Why a report cannot be believed; empty when it can. A report from the future would shadow all later ones."""
    if report.observed_at.tzinfo is None:
        return "observed_at has no time zone"
    if report.observed_at > now + FUTURE:
        return f"observed_at {report.observed_at.isoformat()} is more than 60 s in the future"
    if not (0 <= report.pending <= TASKS_MAX and 0 <= report.claimed <= TASKS_MAX):
        return f"pending and claimed must be 0 to {TASKS_MAX}"
    if not 0 < report.valid_for_seconds <= 86_400:
        return "valid_for_seconds must be above 0 and at most 86400"
    if not report.source:
        return "source is empty"
    return ""


async def record_demand(tx: Connection, received: Sequence[Received]) -> None:
    """Keep the newest report per (pool, source); older and repeated ones change nothing and wake nobody.

    Raises BadEvent for a report that cannot be believed or names an unknown pool.
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
    await store_reports(tx, reports)


async def store_reports(tx: Connection, reports: Sequence[tuple[DemandReported, str]]) -> bool:
    """Store checked reports; True when one of them was news."""
    changed = await demand.upsert_newest(tx, reports)
    await workers.mark_dirty(tx, {row["pool_id"] for row in changed}, because="demand")
    for row in changed:  # silence is not zero, but a stale report asks for nothing: look again then
        await pools.mark_later(tx, row["pool_id"], "stale", row["valid_for_seconds"])
    return bool(changed)
