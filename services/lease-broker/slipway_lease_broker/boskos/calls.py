"""Effects of Boskos calls on slots and leases, one transaction each. A call that raises Refused changes nothing."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from slipway_api.events.lease import LeaseRenewRequested, LeaseRequested
from slipway_api.http.boskos import Metric
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Database
from slipway_lease_broker.boskos.transactions import SlotTransaction, SlotTransactions, reasons
from slipway_lease_broker.domain.holders import takeover_at
from slipway_lease_broker.domain.ledger import Lease, new_request
from slipway_lease_broker.domain.limits import highest
from slipway_lease_broker.domain.ownership import Denial, may_act
from slipway_lease_broker.domain.rules import never_starts
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.slots import FREE, LEASED, Slot, is_grant, merged, taken
from slipway_lease_broker.metrics import REFUSED_COMMANDS
from slipway_lease_broker.store import answers, leases, slots

# User data of one slot: room for a project's name or a key, not for files.
USERDATA_BYTES_MAX: Final = 65_536
OPERATION: Final = "install"


class Refused(Exception):
    """An answer other than 200, with its status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Caller(msgspec.Struct, frozen=True):
    """The caller of a Boskos call. `may_write(lease_pool_id)` and `may_read` raise Refused. `name` is that of the
    token; callers without a token share one name."""

    name: str
    may_write: Callable[[str], None]
    may_read: Callable[[str], None]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A request for `count` slots of a pool in a state, for an owner. With a request id it has a place in the queue and
    is the same request however often it is sent; without one it comes after all requests in the queue."""

    lease_pool_id: str
    state: str
    dest: str
    owner: str
    request_id: str | None = None
    count: int = 1
    renewed: bool = True  # its owner will renew it


class NotAvailable(msgspec.Struct, frozen=True):
    """No slot can be acquired yet, with the reason."""

    reason: str


def unknown_type(name: str) -> Refused:
    return Refused(404, f'resource type "{name}" does not exist')


def unknown_slot(name: str) -> Refused:
    return Refused(404, f'resource "{name}" does not exist')


class Calls:
    def __init__(self, transactions: SlotTransactions) -> None:
        self._transactions = transactions

    async def acquire(self, database: Database, caller: Caller, wanted: Wanted) -> list[Slot] | NotAvailable:
        """Acquire all wanted slots, or none yet."""
        pool_id = wanted.lease_pool_id
        if not await slots.exist(database, pool_id):
            raise unknown_type(pool_id)
        caller.may_write(pool_id)
        async with self._transactions.begin(database, [pool_id], caller.name) as transaction:
            if wanted.request_id is not None:
                held = await slots.of_request(transaction.tx, pool_id, wanted.owner, wanted.request_id)
                for slot in held:
                    _check_token(slot, caller.name)
                if held:
                    return held
            stale_since = transaction.now - timedelta(seconds=self._transactions.terms.slot_request_ttl_seconds)
            answer = await _take(transaction, wanted, stale_since)
            if isinstance(answer, NotAvailable) and wanted.request_id is None:
                raise Refused(404, answer.reason)  # it has no place in a queue: roll back
            return answer

    async def withdraw(self, database: Database, caller: Caller, wanted: Wanted) -> None:
        """Withdraw a request with a request id whose caller is gone: it loses its place and its slots."""
        assert wanted.request_id is not None
        pool_id, state, owner = wanted.lease_pool_id, wanted.state, wanted.owner
        async with self._transactions.begin(database, [pool_id], caller.name) as transaction:
            held = await slots.of_request(transaction.tx, pool_id, owner, wanted.request_id)
            await transaction.release(held, "cancelled")
            await transaction.free(held, state)
            left = await slots.leave(transaction.tx, pool_id, state, owner, wanted.request_id)
            await transaction.apply(*await transaction.abandon(pool_id, left, "the caller has disconnected"))

    async def acquire_by_state(
        self, database: Database, caller: Caller, *, state: str, dest: str, owner: str, names: Sequence[str]
    ) -> list[Slot]:
        """Acquire all of the named slots, each in `state` and without an owner, or none."""
        pool_ids = {slot.lease_pool_id for slot in await slots.named(database, names)}
        for pool_id in sorted(pool_ids):
            caller.may_write(pool_id)
        async with self._transactions.begin(database, pool_ids, caller.name) as transaction:
            found = {slot.name: slot for slot in await slots.named(transaction.tx, names)}
            if missing := [
                name for name in names if name not in found or found[name].lease_pool_id not in transaction.pools
            ]:
                raise Refused(404, f"resources not found: {', '.join(missing)}; none was acquired")
            if other := [slot.name for slot in found.values() if slot.owner or slot.state != state]:
                raise Refused(404, f"not in state {state}, or owned: {', '.join(sorted(other))}; none was acquired")
            granted: Mapping[str, Lease] = {}
            if is_grant(state, dest):
                held = [found[name].lease_pool_id for name in names]
                lease_requests = [
                    _lease_request(transaction.caller, pool_id, new_id(), held.count(pool_id))
                    for pool_id in sorted(pool_ids)
                ]
                by_request = await transaction.grant(lease_requests)
                if by_request is None:
                    reason = next(iter(reasons(transaction.decisions).values()), "others are ahead")
                    raise Refused(404, f"no lease available: {reason}; none was acquired")
                granted = {lease.lease_pool_id: lease for lease in by_request.values()}
            after = [
                taken(
                    found[name],
                    dest,
                    owner,
                    transaction.now,
                    acquired_by=caller.name,
                    lease=granted.get(found[name].lease_pool_id),
                )
                for name in names
            ]
            await slots.save(transaction.tx, after)
            return after

    async def release(self, database: Database, caller: Caller, *, name: str, dest: str, owner: str) -> None:
        pool_id = await _pool_of(database, name)
        caller.may_write(pool_id)
        async with self._transactions.begin(database, [pool_id], caller.name) as transaction:
            slot = await _owned(transaction, pool_id, name, owner)
            await transaction.release([slot], "done")
            await transaction.free([slot], dest)

    async def update(
        self, database: Database, caller: Caller, *, name: str, owner: str, state: str, userdata: Mapping[str, str]
    ) -> None:
        """Update the user data of a slot; also serves as the heartbeat of its owner."""
        pool_id = await _pool_of(database, name)
        caller.may_write(pool_id)
        async with self._transactions.begin(database, [pool_id], caller.name) as transaction:
            slot = await _owned(transaction, pool_id, name, owner)
            if slot.state != state:
                raise Refused(409, f'resource "{name}" is {slot.state}, not {state}')
            after = msgspec.structs.replace(slot, userdata=merged(slot.userdata, userdata), updated_at=transaction.now)
            if len(msgspec.json.encode(after.userdata)) > USERDATA_BYTES_MAX:
                raise Refused(400, f'user data of "{name}" would exceed {USERDATA_BYTES_MAX} bytes')
            if slot.lease_id is not None and slot.fencing_token is not None:
                await transaction.apply(
                    LeaseRenewRequested(lease_pool_id=pool_id, lease_id=slot.lease_id, fencing_token=slot.fencing_token)
                )
            await slots.save(transaction.tx, [after])

    async def reset(
        self, database: Database, caller: Caller, *, lease_pool_id: str, state: str, dest: str, expire_seconds: float
    ) -> dict[str, str]:
        """Take slots from owners that have not updated them for `expire_seconds`; returns these owners by slot."""
        caller.may_write(lease_pool_id)
        async with self._transactions.begin(database, [lease_pool_id], caller.name) as transaction:
            if not transaction.pools:
                return {}
            before = transaction.now - timedelta(seconds=expire_seconds)
            stale = await slots.stale(transaction.tx, lease_pool_id, state, before)
            held = await leases.named(transaction.tx, {slot.lease_id for slot in stale if slot.lease_id is not None})
            kept = {lease.id for lease in held if _is_renewed(transaction, lease)}
            stale = [slot for slot in stale if slot.lease_id not in kept]
            by_lease: dict[str, list[Slot]] = {}
            for slot in stale:
                if slot.lease_id is not None:
                    by_lease.setdefault(slot.lease_id, []).append(slot)
            ended = []
            for lease in held:
                if lease.id in kept:
                    continue
                if lease.units <= len(by_lease[lease.id]):
                    ended.append(lease)
                else:  # its holder also has other slots under the lease
                    await transaction.release(by_lease[lease.id], "reset")
            await transaction.end(ended)
            await transaction.free(stale, dest)
            return {slot.name: slot.owner for slot in stale}

    async def metric(self, database: Database, caller: Caller, lease_pool_id: str) -> Metric:
        """Number of slots by state and by owner."""
        caller.may_read(lease_pool_id)
        async with self._transactions.begin(database, [lease_pool_id], caller.name) as transaction:
            rows = await slots.states(transaction.tx, lease_pool_id)
            if not rows:
                raise unknown_type(lease_pool_id)
            current: dict[str, int] = {}
            owners: dict[str, int] = {}
            for state, owner, count in rows:
                current[state] = current.get(state, 0) + count
                owners[owner] = owners.get(owner, 0) + count
            return Metric(type=lease_pool_id, current=current, owner=owners)

    async def check_count(self, database: Database, caller: Caller, lease_pool_id: str, count: int) -> None:
        """Raise Refused for a number of slots that can never be acquired: more than exist, or than can be leased at
        once."""
        if not (existing := await slots.count(database, lease_pool_id)):
            raise unknown_type(lease_pool_id)
        caller.may_write(lease_pool_id)
        never = f"{count} of {lease_pool_id} can never be acquired"
        if count > existing:
            raise Refused(500, f"{never}: only {existing} exist")
        found = await answers.pool(database, lease_pool_id)
        if found is not None:
            pool, now = found
            request = new_request(
                _lease_request(caller.name, lease_pool_id, new_id(), count), now, sender=Sender(name=caller.name)
            )
            if (verdict := never_starts(pool, highest(pool), request)) is not None:
                raise Refused(500, f"{never}: {verdict.reason}")


async def _take(transaction: SlotTransaction, wanted: Wanted, stale_since: datetime) -> list[Slot] | NotAvailable:
    """Take slots when the request has its turn in the queue for slots and the pool grants a lease. Requests that were
    not repeated since `stale_since` lose their place."""
    tx, pool_id, state = transaction.tx, wanted.lease_pool_id, wanted.state
    dropped = await slots.drop_stale(tx, pool_id, stale_since)
    earlier = await transaction.abandon(pool_id, dropped, "the request was not repeated in time")
    lease_request_id, place = new_id(), None
    if wanted.request_id is not None:
        joined = await slots.join(
            tx,
            pool_id,
            state,
            wanted.owner,
            wanted.request_id,
            requested_by=transaction.caller,
            slot_count=wanted.count,
            lease_request_id=lease_request_id,
            now=transaction.now,
        )
        if joined is None:
            raise Refused(
                401, f'request "{wanted.request_id}" of "{wanted.owner}" was made with another token; use that token'
            )
        lease_request_id, place = joined.lease_request_id, joined.place
    ahead = await slots.ahead(tx, pool_id, state, place)
    found = await slots.available(tx, pool_id, state, ahead=ahead, count=wanted.count)
    if len(found) < wanted.count:
        await transaction.apply(*earlier)
        return NotAvailable(f"no {pool_id} is {state} and not owned" + (f"; {ahead} requested ahead" if ahead else ""))
    lease = None
    if is_grant(state, wanted.dest):
        if any(not lease.live for lease in await answers.of_requests(tx, pool_id, [lease_request_id])):
            # A lease was granted between two polls of the client, and has already ended.
            assert wanted.request_id is not None
            lease_request_id = new_id()
            await slots.replace_lease_request(tx, pool_id, state, wanted.owner, wanted.request_id, lease_request_id)
        lease_request = _lease_request(transaction.caller, pool_id, lease_request_id, wanted.count)
        granted = await transaction.grant([lease_request], *earlier)
        if granted is None:
            reason = reasons(transaction.decisions).get(lease_request_id, "others are ahead")
            return NotAvailable(f"no lease of {pool_id} available: {reason}")
        lease = granted[lease_request_id]
        if not wanted.renewed:
            await transaction.extend_to_hold(lease)
    else:
        await transaction.apply(*earlier)
    after = [
        taken(
            slot,
            wanted.dest,
            wanted.owner,
            transaction.now,
            acquired_by=transaction.caller,
            request_id=wanted.request_id,
            lease=lease,
        )
        for slot in found
    ]
    await slots.save(tx, after)
    if wanted.request_id is not None:
        await slots.leave(tx, pool_id, state, wanted.owner, wanted.request_id)
    return after


def _lease_request(tenant: str, lease_pool_id: str, request_id: str, units: int) -> LeaseRequested:
    return LeaseRequested(
        lease_pool_id=lease_pool_id,
        request_id=request_id,
        units=units,
        tenant=tenant,
        operation=OPERATION,
        whole=True,
    )


async def _pool_of(database: Database, name: str) -> str:
    """The lease pool of a slot; raises Refused for an unknown slot."""
    for slot in await slots.named(database, [name]):
        return slot.lease_pool_id
    raise unknown_slot(name)


async def _owned(transaction: SlotTransaction, lease_pool_id: str, name: str, owner: str) -> Slot:
    """The slot of this owner; raises Refused if another one owns it."""
    found = [slot for slot in await slots.named(transaction.tx, [name]) if slot.lease_pool_id == lease_pool_id]
    if not found:
        raise unknown_slot(name)
    _check_token(found[0], transaction.caller)
    if not may_act(found[0].owner, owner):
        REFUSED_COMMANDS.labels(Denial.FENCED).inc()  # Boskos has no fencing token but the owner's name
        raise Refused(401, f'resource "{name}" is owned by "{found[0].owner}", not by "{owner}"')
    return found[0]


def _check_token(slot: Slot, caller: str) -> None:
    """Raise Refused if a slot was acquired with another token."""
    if slot.acquired_by and not may_act(slot.acquired_by, caller):
        raise Refused(401, f'resource "{slot.name}" was acquired with another token; use that token')


def _is_renewed(transaction: SlotTransaction, lease: Lease) -> bool:
    """True if a lease of another token was renewed lately, so that no `expire` of this caller ends it."""
    is_own = may_act(lease.owner, transaction.caller)
    return not is_own and transaction.now <= takeover_at(lease, transaction.pools[lease.lease_pool_id])


def leased(lease_pool_id: str, owner: str, count: int) -> Wanted:
    """The request of the ci-tools lease proxy: free slots to be leased, which are not renewed until their release."""
    return Wanted(
        lease_pool_id=lease_pool_id,
        state=FREE,
        dest=LEASED,
        owner=owner,
        request_id=new_id(),
        count=count,
        renewed=False,
    )
