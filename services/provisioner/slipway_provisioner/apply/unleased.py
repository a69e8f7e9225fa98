"""Admission of an intent without a lease, reported to the broker in the same transaction to be charged later."""

from slipway_api.events.lease import LeaseUnleasedReported
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_provisioner.domain.unleased import next_start
from slipway_provisioner.domain.workers import admitted
from slipway_provisioner.store import leases, pools, unleased, workers


async def admit(tx: Connection, lease_pool_id: str) -> str | None:
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
    await leases.cancel(tx, request_id, 1, "unleased launch")
    await leases.insert_unleased(tx, started, config_id, worker.traceparent, hold_seconds=pace.hold_seconds)
    await workers.save_without_events(tx, [admitted(worker, started.lease_id)])
    await unleased.spend(tx, lease_pool_id, next_at)
    return started.lease_id
