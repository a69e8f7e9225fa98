"""One decision for one locked lease pool: what it needs is read, decided by the domain, and written down, all in the
caller's transaction. The decide loop and requests over HTTP share it."""

from datetime import datetime
from typing import Final

from slipway_common import outbox
from slipway_common.ids import new_id
from slipway_common.postgres import Connection
from slipway_common.telemetry import logger
from slipway_lease_broker.domain.decide import Decision, decide
from slipway_lease_broker.domain.ledger import LeasePool
from slipway_lease_broker.metrics import ENDED_LEASES, GRANTED_UNITS, WAITED_SECONDS
from slipway_lease_broker.store import groups, history, leases, pools, requests, tenants
from slipway_lease_broker.store.traces import traced

LOG = logger(__name__)

# What one decision takes on at most: a transaction must stay far below the server's statement time-out. A pool with
# more stays due, so the next decision follows at once.
LEASES_MAX: Final = 1_000
WAITERS_MAX: Final = 1_000


async def decide_pool(
    tx: Connection, pool: LeasePool, now: datetime, *, expire: bool, lost_linger_seconds: float
) -> Decision:
    """Decide for `pool`, which the caller has locked, as of `now`, read after the lock. Writes everything, the pool's
    state and counters included; the caller commits, then calls `tell`."""
    due = await leases.due(tx, pool.id, now, limit=LEASES_MAX) if expire else []
    waiters = await requests.heads(tx, pool.id, per_queue=WAITERS_MAX) if pool.waiting_units else []
    untold = await requests.untold(tx, pool.id, limit=WAITERS_MAX) if pool.waiting_units else []
    decision = decide(
        pool, due, waiters, now,
        new_id=new_id, lost_linger_seconds=lost_linger_seconds, untold=untold,
        tenants=await tenants.named(tx, pool.id, {waiter.tenant for waiter in waiters}),
        groups={
            group.name: group
            for group in await groups.named(tx, {(pool.id, w.group_name) for w in waiters if w.group_name})
        },
        next_deadline=await leases.next_deadline(tx, pool.id, now),
        more=len(due) == LEASES_MAX or len(untold) == WAITERS_MAX,
        expire=expire,
    )  # fmt: skip
    await leases.save(tx, decision.ended)
    await leases.add(tx, decision.granted)
    await requests.save(tx, decision.requests)
    await tenants.save(tx, decision.tenants)
    await groups.save(tx, decision.groups)
    await history.add(tx, decision.history)
    await pools.settle(tx, decision, now)
    await outbox.enqueue(tx, traced(decision.events, [*due, *decision.granted], [*waiters, *untold]), at=now)
    return decision


def tell(decision: Decision) -> None:
    """Count what was decided, once it is committed."""
    pool = decision.pool.id
    for lease in decision.ended:
        ENDED_LEASES.labels(pool, lease.state.value).inc()
    for lease in decision.granted:
        GRANTED_UNITS.labels(pool).inc(lease.units)
        WAITED_SECONDS.labels(pool).observe(lease.waited_seconds)
    if decision.events:
        LOG.debug("decided", lease_pool=pool, why=decision.why)
