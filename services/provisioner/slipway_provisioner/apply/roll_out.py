"""Steps of the roll-out of a launch config: proof, drain of the fallback, and the end of draining revisions."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.lifecycle import STOPPABLE
from slipway_common.database.postgres import Connection
from slipway_common.messaging import outbox
from slipway_provisioner.domain import roll_out
from slipway_provisioner.domain.roll_out import Drain, Progress
from slipway_provisioner.domain.workers import hastened, stopping, stopping_idle
from slipway_provisioner.store import pools, roll_outs, workers
from slipway_provisioner.store.roll_outs import Name

BY: Final = "provisioner"


async def step(tx: Connection, name: Name) -> bool:
    """Take the steps that are due for one launch config; False if there are none any more."""
    await roll_outs.lock(tx, name)
    revisions = (await roll_outs.of(tx, [name.name])).get(name.name, [])
    now = await pools.now(tx)
    due = roll_out.verdict(revisions, now)
    for revision in due.prove:
        await roll_outs.prove(tx, revision.id)
    for revision in due.reinstate:
        await roll_outs.reinstate(tx, revision.id, next(known for known in revisions if known.current))
    await roll_outs.drain(tx, [_drain(revision, revisions) for revision in due.drain])
    for revision in due.archive:
        await roll_outs.archive(tx, revision.id)
    await _alert(tx, due.alert, [revision for revision in (*due.archive, *due.resolve) if revision.drain_alerted])
    for revision, overdue in due.stop:
        await _stop(tx, revision, now, overdue=overdue)
    return bool(due)


async def delete_expired(tx: Connection, name: Name, kept_seconds: float) -> bool:
    """Delete the revisions of a launch config that have been archived for long; False if there are none."""
    await roll_outs.lock(tx, name)
    return await roll_outs.delete_expired(tx, name.name, kept_seconds) > 0


def _drain(fallback: Progress, revisions: Sequence[Progress]) -> Drain:
    """Drain of a fallback, on the terms that it got when it was replaced."""
    current = next((revision.id for revision in revisions if revision.current), "")
    return Drain(
        id=fallback.id,
        state_reason=f"replaced by {current}",
        state_by=BY,
        replaced_by=fallback.replaced_by,
        drain_terminate=fallback.drain_terminate,
    )


async def _alert(tx: Connection, raised: Sequence[Progress], resolved: Sequence[Progress]) -> None:
    """Raise alerts on drains that take long, and resolve those of revisions that no longer drain."""
    for revision in (*raised, *resolved):
        await roll_outs.set_alerted(tx, revision.id, alerted=revision in raised)
    alerts = [roll_out.overdue(AlertRaised, revision) for revision in raised]
    await outbox.enqueue(tx, [*alerts, *(roll_out.overdue(AlertResolved, revision) for revision in resolved)])


async def _stop(tx: Connection, revision: Progress, now: datetime, *, overdue: bool) -> None:
    """Ask workers of a draining revision to stop, those with a task only if it is `overdue`."""
    reason = f"drain deadline of {revision.id}" if overdue else roll_out.draining_reason(revision.id)
    ids = await roll_outs.left(tx, revision.pool_id, revision.id, without_task=not overdue)
    locked = await workers.lock(tx, ids)
    left = [worker for worker in locked if worker.state in STOPPABLE and (overdue or not worker.has_task)]
    await workers.save(tx, [(stopping if overdue else stopping_idle)(worker, reason, now) for worker in left])
    if overdue:
        await workers.save_without_events(tx, [hastened(w, reason, now) for w in locked if w.is_finishing])
