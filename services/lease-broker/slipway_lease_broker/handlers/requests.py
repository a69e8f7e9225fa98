"""What askers and holders say on the request topic becomes rows; the lease pools it concerns become due.

Grants nothing. Confirms, renewals and releases are answered here, since they need no decision: under the pool's lock
a lease either lives or has ended.
"""

from collections.abc import Callable, Sequence
from functools import partial

from slipway_common.postgres import Connection
from slipway_common.records import Received
from slipway_lease_broker.admission import count, load, save
from slipway_lease_broker.store import pools


async def record_requests(tx: Connection, received: Sequence[Received]) -> Callable[[], None]:
    """Apply a batch of facts in order; returns how to count them once that is committed. Raises BadEvent for one that
    can never be applied."""
    told = [record for record in received if record.event is not None]
    facts = [record.event for record in told]
    locked = await pools.lock(tx, {fact.lease_pool_id for fact in facts})
    now = await pools.clock(tx)
    ledger = await load(tx, locked, facts)
    for record in told:
        ledger.record(record.event, now, record.traceparent, owner=record.source)
    await save(tx, ledger, now)
    await pools.mark(tx, ledger.pools_to_save(), ledger.dirty, ledger.deadlines)
    return partial(count, ledger)
