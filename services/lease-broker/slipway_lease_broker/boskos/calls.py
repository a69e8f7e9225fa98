"""What each call does to slots and leases: one transaction each. Raises Refused, and then nothing is changed."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from slipway_common.events.lease import LeaseRenewRequested, LeaseRequested
from slipway_common.ids import new_id
from slipway_common.postgres import Pool
from slipway_lease_broker.boskos.visit import Visit, Visits, reasons
from slipway_lease_broker.domain.limits import most_ever
from slipway_lease_broker.domain.slots import FREE, LEASED, Slot, given_back, is_grant, merged, taken
from slipway_lease_broker.metrics import REFUSED_FACTS
from slipway_lease_broker.store import answers, leases, slots

# Of one slot, all of it: a place for a project's name or a key, not for files.
USERDATA_BYTES_MAX: Final = 65_536
OPERATION: Final = "install"


class Refused(Exception):
    """An answer other than 200, with its text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Caller(msgspec.Struct, frozen=True):
    """`may_write(lease_pool_id)` raises Refused. `name` is that of the token, or the one of all who have none."""

    name: str
    may_write: Callable[[str], None]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """So many slots of a pool in a state, for an owner. With a request id it stands in the queue, and is the same
    request however often it is sent; without one it comes after all who stand there."""

    lease_pool_id: str
    state: str
    dest: str
    owner: str
    request_id: str | None = None
    number: int = 1
    renewed: bool = True  # whether its owner will renew it


class NotNow(msgspec.Struct, frozen=True):
    """Nothing is given out yet, and why."""

    reason: str


def unknown_type(name: str) -> Refused:
    return Refused(404, f'resource type "{name}" does not exist')


def unknown_slot(name: str) -> Refused:
    return Refused(404, f'resource "{name}" does not exist')


class Calls:
    def __init__(self, visits: Visits) -> None:
        self._visits = visits

    async def acquire(self, database: Pool, caller: Caller, wanted: Wanted) -> list[Slot] | NotNow:
        """All that is wanted, or nothing yet."""
        pool_id = wanted.lease_pool_id
        if not await slots.exist(database, pool_id):
            raise unknown_type(pool_id)
        caller.may_write(pool_id)
        async with self._visits.begin(database, [pool_id], caller.name) as visit:
            if wanted.request_id is not None:
                held = await slots.of_request(visit.tx, pool_id, wanted.owner, wanted.request_id)
                if held:
                    return held
            answer = await _take(visit, wanted)
            if isinstance(answer, NotNow) and wanted.request_id is None:
                raise Refused(404, answer.reason)  # it waits nowhere, so nothing of it stays
            return answer

    async def withdraw(self, database: Pool, caller: Caller, wanted: Wanted) -> None:
        """Nobody takes the answer to what is wanted with a request id: neither its place nor its slots stay."""
        assert wanted.request_id is not None
        pool_id, state, owner = wanted.lease_pool_id, wanted.state, wanted.owner
        async with self._visits.begin(database, [pool_id], caller.name) as visit:
            held = await slots.of_request(visit.tx, pool_id, owner, wanted.request_id)
            await visit.give_back(held, "cancelled")
            await slots.save(visit.tx, [given_back(slot, state, visit.now) for slot in held])
            left = await slots.leave(visit.tx, pool_id, state, owner, wanted.request_id)
            await visit.say(*await visit.leave(pool_id, left, "nobody takes the answer"))

    async def acquire_by_state(
        self, database: Pool, caller: Caller, *, state: str, dest: str, owner: str, names: Sequence[str]
    ) -> list[Slot]:
        """All of the named slots, each in `state` and free to take, or none."""
        pool_ids = {slot.lease_pool_id for slot in await slots.named(database, names)}
        for pool_id in sorted(pool_ids):
            caller.may_write(pool_id)
        async with self._visits.begin(database, pool_ids, caller.name) as visit:
            found = {slot.name: slot for slot in await slots.named(visit.tx, names)}
            if missing := [name for name in names if name not in found or found[name].lease_pool_id not in visit.pools]:
                raise Refused(404, f"no such resources: {', '.join(missing)}; none was acquired")
            if other := [slot.name for slot in found.values() if slot.owner or slot.state != state]:
                raise Refused(404, f"not {state}, or owned: {', '.join(sorted(other))}; none was acquired")
            granted: Mapping[str, Any] = {}
            if is_grant(state, dest):
                held = [found[name].lease_pool_id for name in names]
                asks = [_ask(visit, pool_id, new_id(), held.count(pool_id)) for pool_id in sorted(pool_ids)]
                by_request = await visit.grant(asks)
                if by_request is None:
                    why = next(iter(reasons(visit.decisions).values()), "others are ahead")
                    raise Refused(404, f"no lease now: {why}; none was acquired")
                granted = {lease.lease_pool_id: lease for lease in by_request.values()}
            after = [
                taken(found[name], dest, owner, visit.now, lease=granted.get(found[name].lease_pool_id))
                for name in names
            ]
            await slots.save(visit.tx, after)
            return after

    async def release(self, database: Pool, caller: Caller, *, name: str, dest: str, owner: str) -> None:
        pool_id = await _pool_of(database, name)
        caller.may_write(pool_id)
        async with self._visits.begin(database, [pool_id], caller.name) as visit:
            slot = await _owned(visit, pool_id, name, owner)
            await visit.give_back([slot], "done")
            await slots.save(visit.tx, [given_back(slot, dest, visit.now)])

    async def update(
        self, database: Pool, caller: Caller, *, name: str, owner: str, state: str, userdata: Mapping[str, str]
    ) -> None:
        """A sign of life, and user data."""
        pool_id = await _pool_of(database, name)
        caller.may_write(pool_id)
        async with self._visits.begin(database, [pool_id], caller.name) as visit:
            slot = await _owned(visit, pool_id, name, owner)
            if slot.state != state:
                raise Refused(409, f'resource "{name}" is {slot.state}, not {state}')
            after = msgspec.structs.replace(slot, userdata=merged(slot.userdata, userdata), updated_at=visit.now)
            if len(msgspec.json.encode(after.userdata)) > USERDATA_BYTES_MAX:
                raise Refused(400, f'user data of "{name}" would take more than {USERDATA_BYTES_MAX} bytes')
            if slot.lease_id is not None and slot.fencing_token is not None:
                await visit.say(
                    LeaseRenewRequested(lease_pool_id=pool_id, lease_id=slot.lease_id, fencing_token=slot.fencing_token)
                )
            await slots.save(visit.tx, [after])

    async def reset(
        self, database: Pool, caller: Caller, *, lease_pool_id: str, state: str, dest: str, expire_seconds: float
    ) -> dict[str, str]:
        """Take slots from owners who have been silent for so long; returns the owner of each."""
        caller.may_write(lease_pool_id)
        async with self._visits.begin(database, [lease_pool_id], caller.name) as visit:
            if not visit.pools:
                return {}
            before = visit.now - timedelta(seconds=expire_seconds)
            stale = await slots.stale(visit.tx, lease_pool_id, state, before)
            by_lease: dict[str, list[Slot]] = {}
            for slot in stale:
                if slot.lease_id is not None:
                    by_lease.setdefault(slot.lease_id, []).append(slot)
            ended = []
            for lease in await leases.named(visit.tx, by_lease):
                if lease.units <= len(by_lease[lease.id]):
                    ended.append(lease)
                else:  # its holder is alive elsewhere
                    await visit.give_back(by_lease[lease.id], "reset")
            await visit.end(ended)
            await slots.save(visit.tx, [given_back(slot, dest, visit.now) for slot in stale])
            return {slot.name: slot.owner for slot in stale}

    async def metric(self, database: Pool, caller: Caller, lease_pool_id: str) -> dict[str, Any]:
        """Slots by state and by owner."""
        async with self._visits.begin(database, [lease_pool_id], caller.name) as visit:
            rows = await slots.states(visit.tx, lease_pool_id)
            if not rows:
                raise unknown_type(lease_pool_id)
            current: dict[str, int] = {}
            owners: dict[str, int] = {}
            for state, owner, number in rows:
                current[state] = current.get(state, 0) + number
                owners[owner] = owners.get(owner, 0) + number
            return {"type": lease_pool_id, "current": current, "owner": owners}

    async def check_number(self, database: Pool, caller: Caller, lease_pool_id: str, number: int) -> None:
        """Refused where so many slots would be waited for in vain: more than there are, or than are ever leased at
        once."""
        if not (there := await slots.count(database, lease_pool_id)):
            raise unknown_type(lease_pool_id)
        caller.may_write(lease_pool_id)
        never = f"{number} of {lease_pool_id} can never be acquired"
        if number > there:
            raise Refused(500, f"{never}: there are {there}")
        found = await answers.pool(database, lease_pool_id)
        most = None if found is None else most_ever(found[0], OPERATION)
        if most is not None and number > most:
            raise Refused(500, f"{never}: the limit allows {most} at once")


async def _take(visit: Visit, wanted: Wanted) -> list[Slot] | NotNow:
    """At its turn in the queue for slots, then at the pool's decision."""
    tx, pool_id, state = visit.tx, wanted.lease_pool_id, wanted.state
    silent_since = visit.now - timedelta(seconds=visit.terms.request_ttl_seconds)
    silent = await slots.forget_silent(tx, pool_id, silent_since)
    earlier = await visit.leave(pool_id, silent, "its asker fell silent")
    ledger_id, place = new_id(), None
    if wanted.request_id is not None:
        stands = await slots.join(
            tx,
            pool_id,
            state,
            wanted.owner,
            wanted.request_id,
            number=wanted.number,
            ledger_id=ledger_id,
            now=visit.now,
        )
        ledger_id, place = stands.ledger_id, stands.place
    ahead = await slots.ahead(tx, pool_id, state, place)
    found = await slots.available(tx, pool_id, state, ahead=ahead, number=wanted.number)
    if len(found) < wanted.number:
        await visit.say(*earlier)
        return NotNow(f"no {pool_id} is {state} and not owned" + (f"; {ahead} are asked for before" if ahead else ""))
    lease = None
    if is_grant(state, wanted.dest):
        if any(not lease.live for lease in await answers.of_requests(tx, pool_id, [ledger_id])):
            # It was granted while its asker did not ask, and has passed.
            assert wanted.request_id is not None
            ledger_id = new_id()
            await slots.ask_anew(tx, pool_id, state, wanted.owner, wanted.request_id, ledger_id)
        granted = await visit.grant([_ask(visit, pool_id, ledger_id, wanted.number)], *earlier)
        if granted is None:
            return NotNow(f"no lease of {pool_id} now: {reasons(visit.decisions).get(ledger_id, 'others are ahead')}")
        lease = granted[ledger_id]
        if not wanted.renewed:
            await visit.until_hold(lease)
    else:
        await visit.say(*earlier)
    after = [
        taken(slot, wanted.dest, wanted.owner, visit.now, request_id=wanted.request_id, lease=lease) for slot in found
    ]
    await slots.save(tx, after)
    if wanted.request_id is not None:
        await slots.leave(tx, pool_id, state, wanted.owner, wanted.request_id)
    return after


def _ask(visit: Visit, lease_pool_id: str, request_id: str, units: int) -> LeaseRequested:
    return LeaseRequested(
        lease_pool_id=lease_pool_id,
        request_id=request_id,
        units=units,
        tenant=visit.caller,
        operation=OPERATION,
        whole=True,
    )


async def _pool_of(database: Pool, name: str) -> str:
    """The lease pool of a slot; Refused for an unknown one."""
    for slot in await slots.named(database, [name]):
        return slot.lease_pool_id
    raise unknown_slot(name)


async def _owned(visit: Visit, lease_pool_id: str, name: str, owner: str) -> Slot:
    """The slot, if `owner` has it; otherwise Refused."""
    found = [slot for slot in await slots.named(visit.tx, [name]) if slot.lease_pool_id == lease_pool_id]
    if not found:
        raise unknown_slot(name)
    if found[0].owner != owner:
        REFUSED_FACTS.labels("stale token").inc()  # the owner's name is all the token that Boskos has
        raise Refused(401, f'resource "{name}" is owned by "{found[0].owner}", not by "{owner}"')
    return found[0]


def leased(lease_pool_id: str, owner: str, number: int) -> Wanted:
    """What ci-tools' proxy asks: free slots to be leased, which nobody renews until they are given back."""
    return Wanted(
        lease_pool_id=lease_pool_id,
        state=FREE,
        dest=LEASED,
        owner=owner,
        request_id=new_id(),
        number=number,
        renewed=False,
    )
