"""Changes of leases: bind a grant to waiting intents, return intents to the queue at its end, release units once."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from slipway_api.events.lease import LeaseExpired, LeaseGranted, LeaseLost, LeaseQueued, LeaseReleased
from slipway_common.database.postgres import Connection
from slipway_provisioner.domain.workers import Worker, admitted, delayed, held_units, without_units
from slipway_provisioner.store import leases, pools, workers

UNITS_MAX: Final = 1_000_000  # of a request


async def bind(tx: Connection, grants: Sequence[tuple[LeaseGranted, str]]) -> None:
    """Bind new grants, each of another request, to the intents that wait for them, oldest first, and release the units
    that none needs. The leases and their requests are locked. With each comes its trace."""
    new = await leases.grant(tx, grants)
    by_request = {grant.request_id: grant for grant, _ in grants if grant.lease_id in new}
    waiting = await workers.lock_waiting_for(tx, {id_: grant.units for id_, grant in by_request.items()})
    bound = [admitted(worker, by_request[worker.request_id].lease_id) for worker in waiting if worker.request_id]
    taken = Counter(worker.request_id for worker in bound if worker.request_id)
    if bound:
        await leases.bind(tx, bound, taken)
    for request_id, grant in sorted(by_request.items(), key=lambda item: item[1].lease_id):
        if taken[request_id] < grant.units:
            await leases.release(tx, grant.lease_id, grant.units - taken[request_id], "surplus")


async def end(tx: Connection, event: LeaseReleased | LeaseExpired | LeaseLost, reason: str) -> None:
    """End a lease. Its intents without a call request admission again; calls already made continue and are recorded.
    If its grant was never received, the intents that would have taken its units do. The lease and its request are
    locked."""
    if await leases.lock(tx, event.lease_id) is None:
        config_id = await leases.requested_config(tx, event.request_id)
        if config_id is None or not await leases.insert_ended(tx, event, config_id, await pools.now(tx)):
            return
        waiting = await workers.lock_waiting(tx, event.request_id, event.units)
        await leases.take(tx, event.request_id, len(waiting))
    else:
        waiting = await workers.lock_leased(tx, event.lease_id)
        await leases.end(tx, event.lease_id)
    await workers.save(tx, [delayed(worker, reason) for worker in waiting])


async def queue(tx: Connection, event: LeaseQueued) -> None:
    """Return intents beyond the units that wait for admission to the queue, under a new request: every grant and end of
    the request came before this event, and those of their units did not arrive. The request is locked."""
    waiting = await workers.lock_waiting(tx, event.request_id, UNITS_MAX)
    surplus = waiting[event.units :]
    if surplus:
        await leases.take(tx, event.request_id, len(surplus))
    await workers.save(tx, [delayed(worker, "its request waits no longer") for worker in surplus])


async def release(tx: Connection, some: Sequence[Worker], result: str, **evidence: Any) -> list[Worker]:
    """Release the units that workers hold, each once; returns the workers without them. Rows are locked."""
    units = held_units(some)
    for lease_id in sorted(units):
        await leases.release(tx, lease_id, units[lease_id], result, **evidence)
    return without_units(some)


async def request_again(tx: Connection) -> bool:
    """Request leases for delayed intents anew, one per config; False if there are none."""
    delayed_intents = await workers.lock_delayed(tx)
    groups: dict[tuple[str, str, str], list[Worker]] = {}
    for lease_pool_id, worker in delayed_intents:
        groups.setdefault((lease_pool_id, worker.pool_id, worker.launch_config_id), []).append(worker)
    for (lease_pool_id, pool_id, config_id), members in groups.items():
        request_id = await leases.request(
            tx,
            lease_pool_id=lease_pool_id,
            pool_id=pool_id,
            launch_config_id=config_id,
            units=len(members),
            traceparent=members[0].traceparent,
        )
        requesting = [msgspec.structs.replace(worker, request_id=request_id) for worker in members]
        await workers.save_without_events(tx, requesting)
    return bool(delayed_intents)
