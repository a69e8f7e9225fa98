"""Changes of workers by findings of the instance reaper: missing instances and running instances."""

from collections.abc import Sequence

from slipway_common.database.postgres import Connection
from slipway_common.events.lifecycle import ASKED_TO_STOP, IN_FLIGHT, LIVE
from slipway_common.events.worker import WorkerRegistered
from slipway_provisioner.apply.leases import release
from slipway_provisioner.domain.workers import lost, seen_running, stopped
from slipway_provisioner.store import demand, instances, pools, workers


async def record_gone(tx: Connection, worker_ids: Sequence[str], reason: str) -> None:
    """Record that instances are gone: stopping workers become stopped, others lost. Releases their lease units."""
    live = [worker for worker in await workers.lock(tx, sorted(worker_ids)) if worker.state in LIVE]
    now = await pools.now(tx)
    await demand.close_claims(tx, [worker.id for worker in live], now)
    released = await release(tx, live, "gone")
    await workers.save(
        tx, [(stopped if worker.state in ASKED_TO_STOP else lost)(worker, reason, now) for worker in released]
    )


async def record_running(tx: Connection, account_id: str, instance_ids: Sequence[str]) -> list[WorkerRegistered]:
    """Record boots confirmed by the provider; returns their events. Releases lease units, as a registration does."""
    ids = await instances.booted(tx, account_id, instance_ids)
    booted = [worker for worker in await workers.lock(tx, ids) if worker.state in IN_FLIGHT["boot"]]
    now = await pools.now(tx)
    changes = [seen_running(worker, now) for worker in await release(tx, booted, "registered")]
    await workers.save(tx, changes)
    return [event for _, event in changes]
