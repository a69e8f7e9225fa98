"""What askers and holders say on the request topic becomes rows, and is decided upon in the same transaction.

Confirms, renewals and releases are answered here, since they need no decision: under the pool's lock a lease either
lives or has ended. For lease pools where units or waiters changed the decision is made at once, by the function that
the decide loop uses. What is left to the loop is time, and whatever one transaction should not take on.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from slipway_common.postgres import Connection, is_infrastructure
from slipway_common.records import Received
from slipway_lease_broker.admission import RETRY_SECONDS, count, leave_to_the_loop, load, tell
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.facts import Ledger
from slipway_lease_broker.store import pools

# The locks of a batch are held until it commits: with more pools than these, each is left to the loop.
AT_ONCE_MAX: Final = 4

Decide: TypeAlias = Callable[[Connection, Ledger, datetime], Awaitable[list[Decision]]]


class Recorder:
    """Records batches of facts. `decide` writes what they changed and decides, as `save_and_decide` does; `committed`
    is called with each decision after the commit."""

    def __init__(self, decide: Decide, *, committed: Callable[[Decision], None] = tell) -> None:
        self._decide = decide
        self._committed = committed
        # Facts must not be taken for bad because a decision failed: for so long such pools are the loop's.
        self._failed: dict[str, datetime] = {}

    async def record(self, tx: Connection, received: Sequence[Received]) -> Callable[[], None]:
        """As `record_requests`."""
        return await record_requests(tx, received, decide=self._at_once, committed=self._committed)

    async def _at_once(self, tx: Connection, ledger: Ledger, now: datetime) -> list[Decision]:
        if len(ledger.dirty) > AT_ONCE_MAX or any(self._failed.get(name, now) > now for name in ledger.dirty):
            return await leave_to_the_loop(tx, ledger, now)
        try:
            return await self._decide(tx, ledger, now)
        except Exception as error:
            if not is_infrastructure(error):
                self._failed |= dict.fromkeys(ledger.dirty, now + timedelta(seconds=RETRY_SECONDS))
            raise


async def record_requests(
    tx: Connection,
    received: Sequence[Received],
    *,
    decide: Decide = leave_to_the_loop,
    committed: Callable[[Decision], None] = tell,
) -> Callable[[], None]:
    """Apply a batch of facts in order; returns what to do once that is committed. Raises BadEvent for one that can
    never be applied."""
    told = [record for record in received if record.event is not None]
    facts = [record.event for record in told]
    locked = await pools.lock(tx, {fact.lease_pool_id for fact in facts})
    now = await pools.clock(tx)
    ledger = await load(tx, locked, facts)
    for record in told:
        ledger.record(record.event, now, record.traceparent, owner=record.source)
    decisions = await decide(tx, ledger, now)

    def afterwards() -> None:
        count(ledger)
        for decision in decisions:
            committed(decision)

    return afterwards
