"""Ends of sources of demand: of those that no longer report, and those that a person removes."""

from datetime import timedelta

import msgspec

from slipway_common.base.audited import AuditedKind
from slipway_common.database import audit
from slipway_common.database.postgres import Connection
from slipway_common.messaging import outbox
from slipway_common.observability.telemetry import logger
from slipway_provisioner.domain.demand import ended
from slipway_provisioner.domain.sources import settled
from slipway_provisioner.store import demand, pools, sources

LOG = logger(__name__)


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """The last report of a source that was removed. `was_fresh`: its monitor probably goes on."""

    pending: int
    claimed: int
    was_fresh: bool


async def settle_sources(tx: Connection, protected_seconds: float) -> bool:
    """Raise alerts on some sources that became stale, resolve those on sources that are not stale any more, and drop
    those that have expired; False if there are none."""
    unsettled = await sources.lock_unsettled(tx, protected_seconds)
    changes = [change for source in unsettled if (change := settled(source, protected_seconds)) is not None]
    if not changes:
        return False
    await sources.settle(tx, changes)
    await outbox.enqueue(tx, [change.alert for change in changes if change.alert is not None])
    for change in changes:
        if change.end_reason:
            LOG.warning("source of demand ended", pool=change.pool_id, source=change.source, reason=change.end_reason)
    return True


async def remove_source(tx: Connection, pool_id: str, source: str, *, by: str, reason: str) -> Removed | None:
    """End a source; None if there is no such source.

    A report that is not newer than this moment and than its last one does not bring it back, also if it is read again.
    """
    last = await sources.lock(tx, pool_id, source)
    if last is None:
        return None
    now = await pools.now(tx)
    why = f"removed by {by}: {reason}" if reason else f"removed by {by}"
    await demand.store(tx, [ended(pool_id, source, max(last["observed_at"], now), by=by, reason=why)])
    await audit.record_command(
        tx, AuditedKind.POOL, pool_id, "remove demand source", by=by, source=source, reason=reason
    )
    was_fresh = last["observed_at"] + timedelta(seconds=last["valid_for_seconds"]) > now
    return Removed(pending=last["pending"], claimed=last["claimed"], was_fresh=was_fresh)
