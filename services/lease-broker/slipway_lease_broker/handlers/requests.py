"""What askers and holders say on the request topic becomes rows; the lease pools it concerns become due.

Grants nothing. Confirms, renewals and releases are answered here, since they need no decision: under the pool's lock
a lease either lives or has ended.
"""

from collections.abc import Sequence

from slipway_common import outbox
from slipway_common.consume import Received
from slipway_common.events.lease import LeaseCancelRequested, LeaseRequested
from slipway_common.postgres import Connection
from slipway_lease_broker.domain.facts import Ledger
from slipway_lease_broker.metrics import REFUSED_FACTS
from slipway_lease_broker.store import leases, pools, requests
from slipway_lease_broker.store.traces import traced


async def record_requests(tx: Connection, received: Sequence[Received]) -> None:
    """Apply a batch of facts in order. Raises BadEvent for one that can never be applied."""
    told = [record for record in received if record.event is not None]
    facts = [record.event for record in told]
    asks = [fact for fact in facts if isinstance(fact, LeaseRequested | LeaseCancelRequested)]
    lease_ids = {fact.lease_id for fact in facts if not isinstance(fact, LeaseRequested | LeaseCancelRequested)}

    locked = await pools.lock(tx, {fact.lease_pool_id for fact in facts})
    now = await pools.clock(tx)
    ledger = Ledger(
        locked,
        await leases.named(tx, lease_ids),
        await requests.named(tx, {(fact.lease_pool_id, fact.request_id) for fact in asks}),
    )
    for record in told:
        ledger.record(record.event, now, record.traceparent, owner=record.source)

    await leases.save(tx, ledger.leases_to_save())
    await requests.save(tx, ledger.requests_to_save())
    await requests.add(tx, ledger.requests_to_add())
    await pools.mark(tx, ledger.pools_to_save(), ledger.dirty, ledger.deadlines)
    await outbox.enqueue(tx, traced(ledger.answers, ledger.leases.values()), at=now)
    for reason in ledger.refusals:
        REFUSED_FACTS.labels(reason).inc()
