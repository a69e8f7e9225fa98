"""Due lease pools are decided for: the one place where units are granted and where time ends leases. Runs in every
replica; a lease pool's row lock makes one decision at a time of it."""

from collections.abc import Callable

import msgspec

from slipway_common import outbox
from slipway_common.ids import new_id
from slipway_common.postgres import Pool
from slipway_common.telemetry import logger
from slipway_lease_broker.domain.decide import Decision, decide
from slipway_lease_broker.domain.ledger import LeasePool
from slipway_lease_broker.metrics import ENDED_LEASES, GRANTED_UNITS, WAITED_SECONDS
from slipway_lease_broker.store import leases, pools, requests
from slipway_lease_broker.store.traces import traced

LOG = logger(__name__)


class DecideLoop(msgspec.Struct, frozen=True):
    """`caught_up(lease_pool_id)` is false until this process has read that pool's requests to the end it saw when it
    took them over: until then renewals may be waiting there, so no deadline passes; units are granted all the same."""

    caught_up: Callable[[str], bool]
    lost_linger_seconds: float

    async def step(self, database: Pool) -> bool:
        """Decide for one due lease pool and commit the decision; False when none is due."""
        async with database.acquire() as db:
            wanted = [name for name, dirty in await pools.due(db) if dirty or self.caught_up(name)]
            if not wanted:
                return False
            async with db.transaction():
                pool = await pools.claim(db, wanted)
                if pool is None:
                    return False
                now = await pools.clock(db)
                waiters = await requests.waiting(db, pool.id)
                held = await leases.counted(db, pool.id)
                decision = decide(
                    pool, held, waiters, now, new_id=new_id,
                    lost_linger_seconds=self.lost_linger_seconds, expire=self.caught_up(pool.id),
                )  # fmt: skip
                await leases.save(db, decision.ended)
                await leases.add(db, decision.granted)
                await requests.save(db, decision.requests)
                await pools.settle(db, pool, decision, now)
                await outbox.enqueue(db, traced(decision.events, [*held, *decision.granted], waiters), at=now)
        tell(pool, decision, {waiter.id: (now - waiter.asked_at).total_seconds() for waiter in waiters})
        return True


def tell(pool: LeasePool, decision: Decision, waited_seconds: dict[str, float]) -> None:
    """Count what was decided."""
    for lease in decision.ended:
        ENDED_LEASES.labels(pool.id, lease.state.value).inc()
    for lease in decision.granted:
        GRANTED_UNITS.labels(pool.id).inc(lease.units)
        WAITED_SECONDS.labels(pool.id).observe(waited_seconds[lease.request_id])
    if decision.events:
        LOG.debug("decided", lease_pool=pool.id, why=decision.why)
