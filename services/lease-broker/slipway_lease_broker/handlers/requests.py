"""Consumer of lease commands: applies a batch of the request topic and decides in the same transaction.

Confirms, renewals and releases are answered here, since they need no decision: under the pool's lock a lease is either
live or ended. For lease pools with changed units or requests the decision is made at once, by the function that the
decide loop uses. The loop handles deadlines, and batches that are too large for one transaction.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from slipway_common.database.postgres import Connection, is_infrastructure
from slipway_common.messaging.records import Received
from slipway_lease_broker.admission import RETRY_SECONDS, count_commands, count_decision, leave_to_the_loop, load
from slipway_lease_broker.domain.commands import Ledger
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.store import pools

# The locks of a batch are held until it commits: a batch with more due pools is left to the loop.
AT_ONCE_MAX: Final = 4

Decide: TypeAlias = Callable[[Connection, Ledger, datetime], Awaitable[list[Decision]]]


class LeaseCommandHandler:
    """Applies batches of lease commands. `decide` writes the changed rows and decides, like `save_and_decide`;
    `committed` is called with each decision after the commit."""

    def __init__(self, decide: Decide, *, committed: Callable[[Decision], None] = count_decision) -> None:
        self._decide = decide
        self._committed = committed
        # Lease pool → until when its decisions are left to the loop after one failed here. Without this, commands would
        # be dead-lettered because of a decision that fails.
        self._failed: dict[str, datetime] = {}

    async def handle(self, tx: Connection, received: Sequence[Received]) -> Callable[[], None]:
        """Apply a batch; see `handle_commands`."""
        return await handle_commands(tx, received, decide=self._at_once, committed=self._committed)

    async def _at_once(self, tx: Connection, ledger: Ledger, now: datetime) -> list[Decision]:
        if len(ledger.dirty) > AT_ONCE_MAX or any(self._failed.get(name, now) > now for name in ledger.dirty):
            return await leave_to_the_loop(tx, ledger, now)
        try:
            return await self._decide(tx, ledger, now)
        except Exception as error:
            if not is_infrastructure(error):
                self._failed |= dict.fromkeys(ledger.dirty, now + timedelta(seconds=RETRY_SECONDS))
            raise


async def handle_commands(
    tx: Connection,
    received: Sequence[Received],
    *,
    decide: Decide = leave_to_the_loop,
    committed: Callable[[Decision], None] = count_decision,
) -> Callable[[], None]:
    """Apply a batch of commands in order; returns a function to call after the commit. Raises BadEvent for a command
    that can never be applied."""
    known = [record for record in received if record.event is not None]
    commands = [record.event for record in known]
    locked = await pools.lock(tx, {command.lease_pool_id for command in commands})
    now = await pools.clock(tx)
    ledger = await load(tx, locked, commands)
    for record in known:
        ledger.apply(record.event, now, record.traceparent, owner=record.source)
    decisions = await decide(tx, ledger, now)

    def afterwards() -> None:
        count_commands(ledger)
        for decision in decisions:
            committed(decision)

    return afterwards
