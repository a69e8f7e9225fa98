"""Transaction of one Boskos call: the locks of its lease pools, its time, and its commands to their ledger."""

import contextlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

import msgspec

from slipway_api.events.lease import LeaseCancelRequested, LeaseReleaseRequested, LeaseRequested
from slipway_common.database.postgres import Database
from slipway_lease_broker.admission import Admissions, AdmissionTx
from slipway_lease_broker.apply import count_limits, remove_left
from slipway_lease_broker.domain.commands import UNITS_MAX, LeaseCommand
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.declaration import PoolChange
from slipway_lease_broker.domain.exchange import Submission
from slipway_lease_broker.domain.ledger import Lease, LeasePool
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.slots import Slot, released
from slipway_lease_broker.store import answers, leases, pools, requests, slots


class SlotTransaction:
    """A transaction that holds the locks of `pools`, as of `now`. `caller` is named in events and history."""

    def __init__(self, admission: AdmissionTx, caller: str) -> None:
        self.tx, self.now, self.caller = admission.tx, admission.now, caller
        self.freed = False  # slots that left their list have lost their owner
        self._admission = admission

    @property
    def pools(self) -> Mapping[str, LeasePool]:
        return self._admission.pools

    @property
    def decisions(self) -> Sequence[Decision]:
        return self._admission.decisions

    async def apply(self, *commands: LeaseCommand) -> None:
        """Apply lease commands and decide for pools that became due. Leases of every owner may be named, since slots
        have owners of their own, which were checked before."""
        if not commands:
            return
        sender = Sender(name=self.caller, admin=True)
        await self._admission.apply(
            [Submission(command=command, sender=sender, answered=False) for command in commands]
        )

    async def grant(self, lease_requests: Sequence[LeaseRequested], *earlier: LeaseCommand) -> dict[str, Lease] | None:
        """Apply `earlier` commands and these requests. Returns the confirmed leases by request id, None unless all
        requests are granted; requests that are not granted wait in the ledger."""
        await self.apply(*earlier, *lease_requests)
        wanted = {request.request_id for request in lease_requests}
        found = [
            lease
            for pool_id in sorted({request.lease_pool_id for request in lease_requests})
            for lease in await answers.of_requests(self.tx, pool_id, wanted)
            if lease.live
        ]
        if len(found) < len(wanted):
            return None
        return {lease.request_id: lease for lease in await self._admission.confirm(found)}

    async def release(self, held: Sequence[Slot], result: str) -> None:
        """Release one unit of its lease for each of these slots."""
        commands = [
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
        if commands:
            await self.apply(*commands)

    async def free(self, owned: Sequence[Slot], state: str) -> None:
        """Take these slots from their owners."""
        await slots.save(self.tx, [released(slot, state, self.now) for slot in owned])
        self.freed = self.freed or any(slot.removed_at is not None for slot in owned)

    async def end(self, ended: Collection[Lease]) -> None:
        """End leases by letting their deadline pass now: the holder is gone, but its work may still be in flight."""
        due = [msgspec.structs.replace(lease, expires_at=self.now) for lease in ended]
        await leases.save(self.tx, due)
        touched = [self.pools[name] for name in sorted({lease.lease_pool_id for lease in due})]
        await pools.mark(self.tx, touched, (), {pool.id: self.now for pool in touched})

    async def extend_to_hold(self, granted: Lease) -> None:
        """Extend a lease to the end of its hold, since nobody will renew it."""
        await leases.save(self.tx, [msgspec.structs.replace(granted, expires_at=granted.hold_until)])

    async def abandon(self, lease_pool_id: str, request_ids: Collection[str], reason: str) -> list[LeaseCommand]:
        """The commands that cancel abandoned lease requests and release the leases granted to them."""
        if not request_ids:
            return []
        granted = await answers.of_requests(self.tx, lease_pool_id, request_ids)
        waiting = await requests.named(self.tx, {(lease_pool_id, name) for name in request_ids})
        commands: list[LeaseCommand] = [
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
        commands += [
            LeaseCancelRequested(lease_pool_id=lease_pool_id, request_id=request.id, units=UNITS_MAX, reason=reason)
            for request in waiting
            if request.waiting_units
        ]
        return commands


class SlotTransactions:
    """Begins the transactions of Boskos calls."""

    def __init__(self, admissions: Admissions) -> None:
        self.terms = admissions.terms
        self._admissions = admissions

    @contextlib.asynccontextmanager
    async def begin(
        self, database: Database, lease_pool_ids: Collection[str], caller: str
    ) -> AsyncIterator[SlotTransaction]:
        """Begin a transaction with the locks of its pools. It commits at the end and is rolled back when the caller
        raises. Slots of ended leases are freed first; slots that left their list are removed once they are free."""
        changes: list[PoolChange] = []
        async with self._admissions.alone(database, caller) as admission:
            await admission.lock(lease_pool_ids)
            expired_state = self.terms.slot_expired_state
            await slots.free_ended(admission.tx, list(admission.pools), expired_state, admission.now)
            if gone := await remove_left(admission.tx, list(admission.pools), by=caller):
                changes += gone
                await admission.lock(lease_pool_ids)  # reads the new limits
            transaction = SlotTransaction(admission, caller)
            yield transaction
            if transaction.freed:
                changes += await remove_left(admission.tx, list(admission.pools), by=caller)
        count_limits(changes)


def reasons(decisions: Sequence[Decision]) -> Mapping[str, str]:
    """The reasons of waiting requests in these decisions, by request id."""
    return {name: reason for decision in decisions for name, reason in decision.waiting.items()}
