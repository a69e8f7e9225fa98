"""Steps of the provisioner that several interleavings take."""

from collections.abc import Sequence
from typing import Final

from slipway_api.events import lease as lease_events
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply import reaping
from slipway_provisioner.domain.roll_out import Drain
from slipway_provisioner.store import configs, launch_stops, pauses, roll_outs
from tests.support.provisioner import Provisioner, after, in_transaction, revision_id
from tests.support.starts import Forbid


async def gone(provisioner: Provisioner, worker_ids: Sequence[str]) -> None:
    """Record that the instances of workers are gone, as the instance reaper does."""
    await in_transaction(provisioner, lambda db: reaping.record_gone(db, worker_ids, "gone"))


async def drain(db: Connection) -> None:
    """Drain zone-a, as a replacement by `now` does."""
    await roll_outs.lock(db, roll_outs.Name("linux", "zone-a"))
    assert await roll_outs.drain(db, [Drain(id=revision_id(), state_reason="drill", state_by="op")])


async def stop_launches(db: Connection, scope: str, scope_id: str) -> None:
    await launch_stops.put(db, scope, scope_id, reason="drill", by="op", until=None)


FORBID: Final[dict[str, Forbid]] = {
    "launch stop on everything": lambda db: stop_launches(db, "all", ""),
    "launch stop on the account": lambda db: stop_launches(db, "account", "sim-a"),
    "launch stop on the pool": lambda db: stop_launches(db, "pool", "linux"),
    "pause of the pool": lambda db: pauses.pause(db, "linux", reason="drill", by="op", until=None),
    "pause": lambda db: configs.pause(db, "zone-a", reason="drill", by="op", until=None, command=True),
    "freeze": lambda db: pauses.freeze(db, "linux", reason="drill", by="op"),
    "drain": lambda db: drain(db),
}
SHARED: Final = (
    "store.functions.FOR_START",
    "store.functions.LOCK_STARTS",
    "store.configs.SHARE",
    "store.launch_stops.EXCLUDE_STARTS",
    "store.launch_stops.PUT",
    "store.configs.PAUSE",
    "store.configs.TOUCH",
    "store.pauses.PAUSE",
    "store.pauses.FREEZE",
)


def lost(grant: lease_events.LeaseGranted) -> lease_events.LeaseLost:
    return lease_events.LeaseLost(
        lease_pool_id=grant.lease_pool_id,
        lease_id=grant.lease_id,
        request_id=grant.request_id,
        units=grant.units,
        counted_until=after(70),
    )
