"""Steps for workers of full age: marks that they drain, stops of those whose drain time is over, and the alert."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.lifecycle import REGISTERED
from slipway_common.database.postgres import Connection
from slipway_common.messaging import outbox
from slipway_provisioner.domain import ageing
from slipway_provisioner.domain import workers as domain
from slipway_provisioner.domain.ageing import Ageing
from slipway_provisioner.domain.pool import Observed
from slipway_provisioner.domain.workers import Worker, hastened, stopping
from slipway_provisioner.store import ageing as store
from slipway_provisioner.store import pools, workers


async def marked(
    tx: Connection, observed: Observed, steps: Ageing, locked: Sequence[Worker], now: datetime
) -> list[Worker]:
    """The locked workers, of which those that begin to drain know until when, and those that no longer do keep what is
    left of their drain time, or forget it."""
    lives = {life.worker_id: life for life in observed.lives}
    begin = {*steps.drain, *steps.stop}
    is_usual = any(lives[id_].drain_seconds is None for id_ in begin)
    default = await store.drain_seconds(tx, observed.pool.id) if is_usual else 0.0
    after = []
    for worker in locked:
        if worker.id in begin:
            worker = domain.draining(worker, ageing.drain_until(lives[worker.id], now, default))
        elif worker.id in steps.keep:
            worker = domain.not_draining(worker, now)
        elif worker.id in steps.forget:
            worker = msgspec.structs.replace(worker, drain_until=None, drain_left_seconds=None)
        after.append(worker)
    return after


async def alert(tx: Connection, observed: Observed, steps: Ageing) -> None:
    """Raise or resolve the alert on workers that nothing could replace. The pool is locked."""
    pool = observed.pool
    if bool(steps.irreplaceable) != pool.age_alerted:
        await store.set_alerted(tx, pool.id, alerted=bool(steps.irreplaceable))
        kind = AlertRaised if steps.irreplaceable else AlertResolved
        await outbox.enqueue(tx, [ageing.alert(kind, pool.id, steps)])


async def stop_overdue(db: Connection, grace_seconds: float) -> bool:
    """Stop workers whose drain time is over, also with a task; False if there are none."""
    ids = await store.overdue(db, grace_seconds)
    if not ids:
        return False
    async with db.transaction():
        locked = [worker for worker in await workers.lock(db, ids) if worker.drain_until is not None]
        now = await pools.now(db)
        registered = [worker for worker in locked if worker.state in REGISTERED]
        await workers.save(db, [stopping(worker, ageing.OVERDUE, now) for worker in registered])
        finishing = [worker for worker in locked if worker.is_finishing]
        await workers.save_without_events(db, [hastened(worker, ageing.OVERDUE, now) for worker in finishing])
    return True
