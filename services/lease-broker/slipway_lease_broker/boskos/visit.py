"""One call's transaction: the locks of its lease pools, its time, and what it says to their ledger."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_common.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmRequested,
    LeaseReleaseRequested,
    LeaseRequested,
)
from slipway_common.postgres import Connection, Pool
from slipway_lease_broker.admission import count, load, save_and_decide
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.facts import UNITS_MAX, Fact, Ledger
from slipway_lease_broker.domain.ledger import Lease, LeasePool
from slipway_lease_broker.domain.slots import Slot
from slipway_lease_broker.store import answers, leases, pools, requests, slots

# Of the process's connections: its loops, consumers and the desk need the others.
VISITS_MAX: Final = 2


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How the broker is set up, as far as slots go. Durations are in seconds."""

    expired_state: str = "dirty"
    request_ttl_seconds: float = 30.0
    lost_linger_seconds: float = 70.0
    waiter_ttl_seconds: float = 120.0


class Visit:
    """A transaction that holds the locks of `pools`, as of `now`. `caller` is who is told in events and history."""

    def __init__(
        self,
        tx: Connection,
        locked: Sequence[LeasePool],
        now: datetime,
        caller: str,
        *,
        terms: Terms,
        caught_up: Callable[[str], bool],
    ) -> None:
        self.tx, self.now, self.caller, self.terms = tx, now, caller, terms
        self.pools = {pool.id: pool for pool in locked}
        self.ledgers: list[Ledger] = []
        self.decisions: list[Decision] = []
        self._caught_up = caught_up

    async def say(self, *facts: Fact) -> None:
        """Record facts and decide where they ask for it. Every owner's leases may be named: slots have owners of their
        own, who were asked about before."""
        if not facts:
            return
        ledger = await load(self.tx, list(self.pools.values()), facts)
        for fact in facts:
            ledger.record(fact, self.now, owner=self.caller, admin=True)
        await self._write(ledger)

    async def grant(self, asks: Sequence[LeaseRequested], *earlier: Fact) -> dict[str, Lease] | None:
        """The leases of these requests by their ids, confirmed; None unless all of them are granted. What is not
        granted waits in the ledger. `earlier` facts are said before, also where nothing is asked."""
        await self.say(*earlier, *asks)
        wanted = {ask.request_id for ask in asks}
        found = [
            lease
            for pool_id in sorted({ask.lease_pool_id for ask in asks})
            for lease in await answers.of_requests(self.tx, pool_id, wanted)
            if lease.live
        ]
        if len(found) < len(wanted):
            return None
        ledger = Ledger(self.pools.values(), found, [])
        for lease in found:
            confirmed = LeaseConfirmRequested(
                lease_pool_id=lease.lease_pool_id, lease_id=lease.id, fencing_token=lease.fencing_token
            )
            ledger.record(confirmed, self.now, owner=lease.owner)
        await self._write(ledger)
        return {lease.request_id: lease for lease in ledger.leases.values()}

    async def give_back(self, held: Sequence[Slot], result: str) -> None:
        """A unit of its lease for each of these slots."""
        facts = [
            LeaseReleaseRequested(
                lease_pool_id=slot.lease_pool_id,
                lease_id=slot.lease_id,
                fencing_token=slot.fencing_token,
                units=1,
                result=result,
            )
            for slot in held
            if slot.lease_id is not None and slot.fencing_token is not None
        ]
        if facts:
            await self.say(*facts)

    async def end(self, ended: Collection[Lease]) -> None:
        """Let the deadline of these leases pass now: whoever held them is gone, and may still be at work."""
        due = [msgspec.structs.replace(lease, expires_at=self.now) for lease in ended]
        await leases.save(self.tx, due)
        touched = [self.pools[name] for name in sorted({lease.lease_pool_id for lease in due})]
        await pools.mark(self.tx, touched, (), {pool.id: self.now for pool in touched})

    async def until_hold(self, granted: Lease) -> None:
        """Let a lease live until its hold passes: nobody will renew it."""
        await leases.save(self.tx, [msgspec.structs.replace(granted, expires_at=granted.hold_until)])

    async def leave(self, lease_pool_id: str, ledger_ids: Collection[str], reason: str) -> list[Fact]:
        """Facts that end requests whose askers are gone, and what was granted to them meanwhile."""
        if not ledger_ids:
            return []
        granted = await answers.of_requests(self.tx, lease_pool_id, ledger_ids)
        waiting = await requests.named(self.tx, {(lease_pool_id, name) for name in ledger_ids})
        facts: list[Fact] = [
            LeaseReleaseRequested(
                lease_pool_id=lease_pool_id,
                lease_id=lease.id,
                fencing_token=lease.fencing_token,
                units=lease.units,
                result="cancelled",
            )
            for lease in granted
            if lease.live
        ]
        facts += [
            LeaseCancelRequested(lease_pool_id=lease_pool_id, request_id=request.id, units=UNITS_MAX, reason=reason)
            for request in waiting
            if request.waiting_units
        ]
        return facts

    async def _write(self, ledger: Ledger) -> None:
        made = await save_and_decide(
            self.tx,
            ledger,
            self.now,
            expire=self._caught_up,
            lost_linger_seconds=self.terms.lost_linger_seconds,
            waiter_ttl_seconds=self.terms.waiter_ttl_seconds,
        )
        self.ledgers.append(ledger)
        self.decisions += made
        self.pools |= ledger.pools | {decision.pool.id: decision.pool for decision in made}


class Visits:
    """Begins transactions. After each commit its decisions are `decided`, and its events `published(more)`."""

    def __init__(
        self,
        terms: Terms,
        *,
        caught_up: Callable[[str], bool],
        decided: Callable[[Decision], None],
        published: Callable[[bool], None],
    ) -> None:
        self.terms = terms
        self._caught_up = caught_up
        self._decided = decided
        self._published = published
        self._turns = asyncio.Semaphore(VISITS_MAX)

    @contextlib.asynccontextmanager
    async def begin(self, database: Pool, lease_pool_ids: Collection[str], caller: str) -> AsyncIterator[Visit]:
        """Commits at the end, with everything as if it had not been said when the caller raises. Slots of leases that
        have ended are free by then."""
        async with self._turns:
            async with database.acquire() as db, db.transaction():
                locked = await pools.lock(db, lease_pool_ids)
                now = await pools.clock(db)
                await slots.free_ended(db, [pool.id for pool in locked], self.terms.expired_state, now)
                visit = Visit(db, locked, now, caller, terms=self.terms, caught_up=self._caught_up)
                yield visit
            for ledger in visit.ledgers:
                count(ledger)
            for decision in visit.decisions:
                self._decided(decision)
            self._published(any(decision.again for decision in visit.decisions))


def reasons(decisions: Sequence[Decision]) -> Mapping[str, str]:
    """Why requests wait that these decisions looked at."""
    return {name: why for decision in decisions for name, why in decision.waiting.items()}
