"""View of the weight records: upserts them as rows for planning, and marks the affected pools dirty.

Of a shared window that grows these are the pools that wait for it, of one that trips its configs, or no longer does,
all its pools.
"""

from collections.abc import Iterable, Sequence

from slipway_api.events.topics import LAUNCH_CONFIG_WEIGHT, Topic
from slipway_api.events.weight import BOUNDLESS, SharedWindow
from slipway_common.database.postgres import Database
from slipway_common.messaging.records import Received
from slipway_provisioner.store import marks, waiting, weights


class WeightView:
    """View that reads the whole weight topic at each start. Records and shares without a higher revision or version
    change nothing. A tombstone deletes the record but not the state of shares."""

    topic: Topic = LAUNCH_CONFIG_WEIGHT

    async def apply(self, database: Database, records: Sequence[Received]) -> None:
        newest: dict[str, Received] = {r.subject: r for r in records}  # the last record of a key wins
        deleted = [subject for subject, r in newest.items() if r.event is None]
        live = [r for r in newest.values() if r.event is not None]
        async with database.acquire() as db:
            if deleted:
                await weights.delete(db, deleted)
            if not live:
                return
            async with db.transaction():
                stored = await weights.upsert(db, [(r.revision or 0, r.event) for r in live])
                touched = set(stored.values())
                changed = await weights.upsert_shared(db, _newest(shared for r in live for shared in r.event.shared))
                if changed:
                    await weights.delete_outdated_forgiveness(db, sorted({each.key for each in changed}))
                    touched |= await weights.pools_of(db, {each.key for each in changed if each.turned})
                    touched |= await weights.freezing_pools_of(db, {each.key for each in changed if each.failing})
                await weights.fold(db, stored)
                await marks.dirty(db, touched, reason="weight")
                if changed:
                    await waiting.wake(db, [each.share for each in changed], window_max=BOUNDLESS)


def _newest(windows: Iterable[SharedWindow]) -> list[SharedWindow]:
    """The newest version of each share."""
    newest: dict[tuple[str, str, str], SharedWindow] = {}
    for shared in windows:
        place = shared.kind, shared.id, shared.stage
        if place not in newest or newest[place].version < shared.version:
            newest[place] = shared
    return list(newest.values())
