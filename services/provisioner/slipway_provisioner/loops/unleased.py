"""Unleased launches: while the lease-broker is unavailable, admits intents without a lease at the last granted pace.

Each is reported to the broker in the same transaction, so that it is charged once the broker reads the topic.
"""

from collections.abc import Callable

import msgspec

from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection, Database
from slipway_common.events.lease import LeaseUnleasedReported
from slipway_common.messaging import outbox
from slipway_common.observability.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.domain.unleased import next_start
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import leases, pools, unleased, workers

LOG = logger(__name__)


async def admit_unleased(
    database: Database, *, settings: Settings, broker_unavailable_seconds: Callable[[], float]
) -> bool:
    """Admit one intent of each lease pool whose pace allows it; False if none was admitted."""
    if settings.broker_unavailable_mode != "safe" or not settings.launching or not broker_unavailable_seconds():
        return False
    admitted = False
    async with database.acquire() as db:
        for lease_pool_id in await unleased.waiting(db):
            async with db.transaction():
                lease_id = await _admit(db, lease_pool_id)
            if lease_id is not None:
                admitted = True
                metrics.UNLEASED.labels(lease_pool_id).inc()
                LOG.warning("admitted an unleased launch", lease_pool=lease_pool_id, lease=lease_id)
    return admitted


async def _admit(tx: Connection, lease_pool_id: str) -> str | None:
    """Admit one intent under an unleased lease row; returns the lease id, or None if none may start now."""
    not_before = await unleased.lock(tx, lease_pool_id)
    pace = await unleased.pace(tx, lease_pool_id)
    now = await pools.now(tx)
    next_at = next_start(pace, not_before, now)
    request_id = None if next_at is None else await unleased.longest_waiting(tx, lease_pool_id)
    if pace is None or next_at is None or request_id is None:
        return None
    await leases.lock_all(tx, [], [request_id])
    config_id = await leases.requested_config(tx, request_id)
    waiting = [] if config_id is None else await workers.lock_waiting(tx, request_id, 1)
    if config_id is None or not waiting:
        return None
    (worker,) = waiting
    started = LeaseUnleasedReported(
        lease_pool_id=lease_pool_id,
        lease_id=new_id(),
        request_id=new_id(),
        units=1,
        tenant=worker.pool_id,
        started_at=now,
    )
    await leases.insert_unleased(tx, started, config_id, worker.traceparent, hold_seconds=pace.hold_seconds)
    admitted = msgspec.structs.replace(worker, lease_id=started.lease_id, holds_unit=True)
    await workers.save_without_events(tx, [admitted])
    await leases.cancel(tx, request_id, 1, "unleased launch")
    await outbox.enqueue(tx, [outbox.Traced(started, worker.traceparent)])
    await unleased.spend(tx, lease_pool_id, next_at)
    return started.lease_id
