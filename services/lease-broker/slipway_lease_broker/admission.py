"""One admission transaction: lock the lease pools, read the clock, load rows, apply commands, decide, write; after the
commit, count and notify. Every way in uses it: Kafka, HTTP, gangs, Boskos and the loops."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Final

import msgspec

from slipway_api.events.lease import (
    LeaseCancelRequested,
    LeaseReleaseRequested,
    LeaseRequested,
    LeaseUnleasedReported,
)
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection, Database
from slipway_common.database.sql import Writes, together
from slipway_common.messaging import outbox
from slipway_common.observability.telemetry import logger
from slipway_common.web.limits import Turns
from slipway_common.web.runtime import Runtime
from slipway_lease_broker.domain import limits, spread
from slipway_lease_broker.domain.commands import apply_permitted, confirmation
from slipway_lease_broker.domain.decide import Decision, decide
from slipway_lease_broker.domain.exchange import Exchange, Outcome, Submission
from slipway_lease_broker.domain.gangs import cancellation, find_blocked_gangs, is_given_up, start_together
from slipway_lease_broker.domain.ledger import (
    Entry,
    Gang,
    Key,
    Lease,
    LeasePool,
    Ledger,
    Request,
    State,
    Tenant,
    accrue_idle,
)
from slipway_lease_broker.domain.ownership import may_act
from slipway_lease_broker.domain.receipt import answer, receivers
from slipway_lease_broker.domain.reception import Receiving
from slipway_lease_broker.domain.refusals import Refusal, unknown_lease_pool, wrong_owner
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.situation import Situation
from slipway_lease_broker.domain.submissions import is_report, names_tenant, record
from slipway_lease_broker.domain.terms import BrokerTerms, Mode
from slipway_lease_broker.domain.unleased import Start, charge, lost_id
from slipway_lease_broker.grant_waiters import GrantWaiters
from slipway_lease_broker.metrics import (
    ENDED_LEASES,
    GRANT_INTERVAL_SECONDS,
    GRANTED_UNITS,
    IDLE_UNIT_SECONDS,
    LIMIT_CHANGES,
    REFUSED_COMMANDS,
    THROTTLES,
    UNLEASED_STARTS,
    WAITED_SECONDS,
)
from slipway_lease_broker.store import answers, gangs, groups, history, leases, pools, requests, tenants
from slipway_lease_broker.store.traces import traced

LOG = logger(__name__)

RETRY_SECONDS: Final = 30.0  # after a failed decision

# Rows of each kind in one decision: a transaction must stay far below the server's statement time-out. A pool with more
# rows stays due, so that the next decision follows at once.
ROWS_MAX: Final = 1_000
# Rows read in addition from queues whose first requests were all skipped, shared by these queues.
HIDDEN_ROWS_MAX: Final = 4 * ROWS_MAX
# Transactions of single requests at a time. Each waits for the locks of its pools with a connection, of which the group
# commit, and with it each renewal in another pool, needs the others of its kind.
ALONE_MAX: Final = 2
NOTHING: Final[Mapping[str, datetime]] = MappingProxyType({})


class Admissions(msgspec.Struct, frozen=True, kw_only=True):
    """Admission transactions of this process, and the objects that they share.

    `receiving(lease_pool_id)` returns the downtimes of its commands: while they are not received, no deadline passes
    that they could move, and no request lapses.
    """

    terms: BrokerTerms
    receiving: Callable[[str], Receiving]
    waiters: GrantWaiters
    runtime: Runtime
    turns: Turns = msgspec.field(default_factory=Turns)
    alone_at_once: asyncio.Semaphore = msgspec.field(default_factory=partial(asyncio.Semaphore, ALONE_MAX))

    async def submit(
        self, database: Database, lease_pool_id: str, submissions: Sequence[Submission], *, at_once: bool
    ) -> list[Outcome]:
        """Commit submissions to one lease pool, and decide for it `at_once` or leave that to the decide loop."""
        async with self.transaction(database) as admission:
            await admission.lock([lease_pool_id])
            if not admission.pools:
                return [unknown_lease_pool(lease_pool_id) for _ in submissions]
            await admission.apply(submissions, at_once_max=1 if at_once else 0)
        return [outcome for _, outcome in admission.exchanges]

    @contextlib.asynccontextmanager
    async def alone(self, database: Database, caller: str) -> AsyncIterator["AdmissionTx"]:
        """Admission of one request of a caller, outside of the group commit, once it has its turn."""
        async with self.turns.of(caller), self.alone_at_once, self.transaction(database) as admission:
            yield admission

    @contextlib.asynccontextmanager
    async def transaction(self, database: Database) -> AsyncIterator["AdmissionTx"]:
        """Admission in a transaction on its own connection; after the commit, publish its events and notify waiters."""
        async with database.acquire() as db, db.transaction():
            admission = self.begin(db)
            yield admission
        admission.committed()
        if admission.more:
            self.runtime.wake()
        else:
            self.runtime.publish()

    def begin(self, tx: Connection) -> "AdmissionTx":
        """Admission within a transaction of the caller, who calls `committed` after the commit."""
        return AdmissionTx(tx, self.terms, receiving=self.receiving, waiters=self.waiters)


class AdmissionTx:
    """Admission within a transaction, in this order: `lock` or `claim` pools; `apply` commands, which loads the rows
    that they name, applies them and decides; after the commit, `committed`. Callers whose own rules need the rows call
    `load`, and `decide` or `leave_to_the_loop`, themselves. All but the locks may be repeated.
    """

    now: datetime  # database clock, read after the locks

    def __init__(
        self, tx: Connection, terms: BrokerTerms, *, receiving: Callable[[str], Receiving], waiters: GrantWaiters
    ) -> None:
        self.tx = tx
        self.pools: dict[str, LeasePool] = {}  # locked, as written last
        self.exchanges: list[Exchange] = []  # submissions of callers that get an answer, with their outcomes
        self.deciding: Collection[str] = ()  # pools for which `apply` has begun to decide
        self.decisions: list[Decision] = []
        self.more = False  # something is left to the loops
        self._terms = terms
        self._receiving = receiving
        self._waiters = waiters
        self._ledger = Ledger([], [], [])  # not written yet
        self._written: list[Ledger] = []

    async def lock(self, lease_pool_ids: Collection[str]) -> None:
        """Lock the pools that exist, in ascending order of ids."""
        await self._locked(await pools.lock(self.tx, lease_pool_ids))

    async def claim(self, lease_pool_ids: Sequence[str]) -> LeasePool | None:
        """Lock one of the pools that is still due and not locked by another transaction; None if there is none."""
        pool = await pools.claim(self.tx, lease_pool_ids)
        if pool is not None:
            await self._locked([pool])
        return pool

    async def _locked(self, locked: Sequence[LeasePool]) -> None:
        self.now = await pools.trusted_clock(self.tx)
        self.pools = {pool.id: pool for pool in locked}
        self._ledger = Ledger(locked, [], [])

    async def apply(
        self, submissions: Sequence[Submission], *, at_once_max: float = inf, put_off: Mapping[str, datetime] = NOTHING
    ) -> None:
        """Apply commands about the locked pools, and decide for the pools that become due. With more than `at_once_max`
        of them, or one that is `put_off` until later, leave the decisions to the loop."""
        granted = any(one.answered or isinstance(one.command, LeaseRequested) for one in submissions)
        ledger = await self.load(submissions, granted=granted)
        self.exchanges = record(submissions, ledger, self.now)
        is_put_off = any(put_off.get(name, self.now) > self.now for name in ledger.dirty)
        if not ledger.dirty or len(ledger.dirty) > at_once_max or is_put_off:
            await self.leave_to_the_loop()
        else:
            self.deciding = frozenset(ledger.dirty)
            await self.decide()

    async def load(self, submissions: Sequence[Submission], *, granted: bool = False) -> Ledger:
        """Load the rows that commands about the locked pools name, to apply the commands to; with `granted` also the
        leases of their requests."""
        commands = [submission.command for submission in submissions]
        of_requests = [command for command in commands if isinstance(command, LeaseRequested | LeaseCancelRequested)]
        requested = [command for command in of_requests if isinstance(command, LeaseRequested)]
        lease_ids = {
            command.lease_id for command in commands if not isinstance(command, LeaseRequested | LeaseCancelRequested)
        }
        replaced = {command.replaces.lease_id for command in requested if command.replaces is not None}
        lost = {name for command in requested if (name := lost_id(command.request_id))}
        named = await leases.named(self.tx, lease_ids | replaced | lost)
        unleased = [command for command in commands if isinstance(command, LeaseUnleasedReported)]
        request_keys = {(command.lease_pool_id, command.request_id) for command in [*of_requests, *unleased]}
        request_keys |= {(lease.lease_pool_id, lease.request_id) for lease in named if lease.id in replaced}
        has_releases = any(isinstance(command, LeaseReleaseRequested) for command in commands)
        known = await requests.lock(self.tx, request_keys)
        self._ledger = Ledger(
            self.pools.values(),
            [*named, *(await self._granted_to(known) if granted else ())],
            known,
            await tenants.named(
                self.tx,
                {(command.lease_pool_id, command.tenant) for command in requested}
                | {(lease.lease_pool_id, lease.tenant) for lease in named if has_releases},
            ),
            await groups.named(
                self.tx,
                {
                    (command.lease_pool_id, spread.group_key(command.group, one.sender))
                    for one in submissions
                    if isinstance(command := one.command, LeaseRequested) and command.group
                },
            ),
        )
        if reported := {one.command.lease_pool_id for one in submissions if is_report(one)}:
            self._ledger.held_by = await leases.held_by(self.tx, reported)
        self._ledger.tenants_by = await tenants.named_by(
            self.tx, {(one.command.lease_pool_id, one.sender.name) for one in submissions if names_tenant(one)}
        )
        return self._ledger

    async def charge(
        self, lease_pool_id: str, starts: Sequence[Start], sender: Sender, *, unleased_max: int | None
    ) -> tuple[list[Lease], int] | Refusal:
        """Count starts without a lease, each once, and leave the decision to the loop. Returns the lease of each start,
        and the number of new ones."""
        known = await requests.lock(self.tx, {(lease_pool_id, start.request_id) for start in starts})
        lost = await leases.named(self.tx, {name for start in starts if (name := lost_id(start.request_id))})
        lost = [lease for lease in lost if lease.lease_pool_id == lease_pool_id]
        owners = {f"request {one.id}": one.owner for one in known} | {f"lease {one.id}": one.owner for one in lost}
        for what, owner in owners.items():
            if not may_act(owner, sender.name):
                return wrong_owner(what)
        names = {sender.name, *(one.tenant for one in known), *(one.tenant for one in lost)}
        ledger = self._ledger = Ledger(
            [accrue_idle(self.pools[lease_pool_id], self.now)],
            [*lost, *await self._granted_to(known)],
            known,
            await tenants.named(self.tx, {(lease_pool_id, name) for name in names}),
        )
        charged = await leases.charged(self.tx, lease_pool_id, sender.name)
        allowance = limits.allowance(ledger.pools[lease_pool_id], *charged, unleased_max=unleased_max)
        found = []
        for start in starts:
            before = len(ledger.new_leases)
            lease = charge(ledger, lease_pool_id, start, self.now, sender, allowance, lease_id=new_id())
            found.append(lease)
            if len(ledger.new_leases) > before:
                allowance = allowance.after(lease)
        number = len(ledger.new_leases)
        await self.leave_to_the_loop()
        confirmed = {lease.id: lease for lease in await self.confirm([lease for lease in found if lease.live])}
        return [confirmed.get(lease.id, lease) for lease in found], number

    async def _granted_to(self, known: Iterable[Request]) -> list[Lease]:
        """The leases that were granted to requests, in order of tokens in each pool."""
        by_pool: dict[str, list[str]] = {}
        for request in known:
            by_pool.setdefault(request.lease_pool_id, []).append(request.id)
        return [lease for name, ids in by_pool.items() for lease in await answers.of_requests(self.tx, name, ids)]

    async def decide(self, lease_pool_ids: Collection[str] | None = None) -> None:
        """Write the rows that commands changed, and decide for these pools; for None, for those that became due.

        This costs one commit, one wait for the lock and one batch of events instead of two. In pools where no other
        request waits, new requests are decided before they are written, so that they are written once.
        """
        ledger = self._ledger
        due = sorted(ledger.dirty if lease_pool_ids is None else lease_pool_ids)
        alone = newcomers(ledger)
        async with together(self.tx) as writes:
            await self._save_rows(writes, ledger, skip_new_requests=alone)
        new = [request for of_pool in alone.values() for request in of_pool]
        # The tenants of new requests were read with the commands, or have no row.
        known = {(request.lease_pool_id, request.tenant): None for request in new} | ledger.tenants
        coming = await pools.coming(self.tx, due)
        events = traced(ledger.events, ledger.leases.values())
        made = []
        for name in due:
            decision, published = await self._decide_pool(
                ledger.pools[name], coming[name], known=known, new=alone.get(name, ())
            )
            made.append(decision)
            events += published
            self.pools[name] = decision.pool  # for the gangs of the next pool
        others = [pool for pool in ledger.pools_to_save() if pool.id not in due]
        async with together(self.tx) as writes:
            await self._write(writes, made, new=new)
            await pools.mark(writes, others, (), ledger.deadlines)
            await self._publish(writes, [*ledger.history, *(entry for one in made for entry in one.history)], events)
        self._record(made)

    async def leave_to_the_loop(self) -> None:
        """Write the rows that commands changed, and mark the pools due for the decide loop."""
        ledger = self._ledger
        async with together(self.tx) as writes:
            await self._save_rows(writes, ledger)
            await pools.mark(writes, ledger.pools_to_save(), ledger.dirty, ledger.deadlines)
            await self._publish(writes, ledger.history, traced(ledger.events, ledger.leases.values()))
        self._record(())
        self.more = self.more or bool(ledger.dirty)

    async def confirm(self, granted: Sequence[Lease]) -> list[Lease]:
        """Confirm reserved leases whose holder gets them in the answer after the commit."""
        ledger = self._ledger = Ledger(self.pools.values(), granted, [])
        for lease in granted:
            if lease.state is State.RESERVED:
                apply_permitted(ledger, confirmation(lease), self.now, Sender(name=lease.owner))
        await self.leave_to_the_loop()
        return list(ledger.leases.values())

    async def decide_gang(self, gang_id: str) -> None:
        """Write the requests of a gang and decide for all its pools; then start it, if it has its turn in one of them.
        Call it under the locks of all its pools and its own."""
        await self.decide(self.pools)
        if any(gang_id in decision.gangs for decision in self.decisions):
            await self.start_gang(gang_id)
        self.more = True  # the gang loop retries this gang, and others

    async def start_gang(self, gang_id: str) -> None:
        """Start a gang in all of its pools if each has free units for it, also ahead of other requests; else change
        nothing.

        Two gangs that reserve units in each other's pools would deadlock if each had to be first in all pools. Locks
        the pools first, in ascending order, as all writers do.
        """
        await self.lock(await gangs.pools_of(self.tx, gang_id))
        gang = await gangs.lock(self.tx, gang_id)
        if gang is None or gang.done_at is not None:
            return
        self.now = await pools.clock(self.tx)  # read again, since waiting for the lock of the gang takes time
        members = await gangs.members(self.tx, gang_id)
        if is_given_up(members):
            await self._give_up(gang, members)
        elif find_blocked_gangs(members, self.pools):
            # Its reserved units are freed; it gets no turn until it can start.
            await gangs.lose_turn(self.tx, gang_id)
            await pools.mark(self.tx, list(self.pools.values()), self.pools, {})
        else:
            await self._start(gang, members)

    async def _give_up(self, gang: Gang, members: Sequence[Request]) -> None:
        """Cancel the remaining requests of a gang of which one was cancelled."""
        ledger = self._ledger = Ledger(self.pools.values(), [], members)
        for member in members:
            if member.waiting_units:
                apply_permitted(ledger, cancellation(member), self.now, Sender(name=member.owner))
        await self.leave_to_the_loop()
        await gangs.done(self.tx, gang.id, self.now)

    async def _start(self, gang: Gang, members: Sequence[Request]) -> None:
        known = await tenants.named(self.tx, {(member.lease_pool_id, member.tenant) for member in members})
        made = start_together(members, self.pools, known, self.now, new_id=new_id, terms=self._terms)
        if not made:
            return
        events = [
            event
            for one, member in zip(made, members, strict=True)
            for event in traced(one.events, one.granted, [member])
        ]
        async with together(self.tx) as writes:
            await self._write(writes, made)
            await self._publish(writes, [entry for one in made for entry in one.history], events)
        self._record(made)
        await gangs.done(self.tx, gang.id, self.now)

    def committed(self) -> None:
        """Count what was done, and notify the callers that wait. Call it after the commit."""
        for ledger in self._written:
            count_commands(ledger)
        for decision in self.decisions:
            count_decision(decision)
        self._waiters.committed(self.decisions, self.exchanges)

    async def _decide_pool(
        self, pool: LeasePool, coming: pools.Coming, *, known: Mapping[Key, Tenant | None], new: Sequence[Request]
    ) -> tuple[Decision, list[outbox.Traced]]:
        """Decide for a pool; returns the events as well. Reads no rows that it already has: no tenants that are
        `known`, of which None has no row, and no requests if all waiting ones are `new` and not written yet."""
        situation = await self._situation(pool, coming, known, new)
        confirms = self._waiters.confirms if self.exchanges else lambda *_: False
        decided = partial(
            decide,
            now=self.now,
            new_id=new_id,
            terms=self._terms,
            is_received=receivers(self.exchanges, pool.id, confirms),
        )
        decision = decided(pool, situation)
        if hidden := decision.hidden:
            deep = min(ROWS_MAX, max(2 * requests.PER_QUEUE_MIN, HIDDEN_ROWS_MAX // len(hidden)))
            waiters = [waiter for waiter in situation.waiters if waiter.queue not in hidden]
            waiters += await requests.of_queues(self.tx, pool.id, hidden, per_queue=deep)
            situation = msgspec.structs.replace(situation, deeper=dict.fromkeys(hidden, deep))
            decision = decided(pool, await self._with_waiters(situation, pool, waiters, known))
        self.exchanges = answer(decision, self.exchanges)
        granted, waiting = [*situation.due, *decision.granted], [*situation.waiters, *situation.unannounced]
        return decision, traced(decision.events, granted, waiting)

    async def _situation(
        self, pool: LeasePool, coming: pools.Coming, known: Mapping[Key, Tenant | None], new: Sequence[Request]
    ) -> Situation:
        """The situation of a pool."""
        tx, now = self.tx, self.now
        due: list[Lease] = []
        lapsed: list[Request] = []
        waiters: list[Request] = []
        unannounced: list[Request] = []
        per_queue = 1
        # Nothing passes while the database may lack leases.
        receiving = Receiving(kafka=None, http=None) if pool.incomplete(now) else self._receiving(pool.id)
        waiter_ttl = timedelta(seconds=self._terms.waiter_ttl_seconds)
        next_deadline, requested_at = coming
        is_due = receiving.either and next_deadline is not None and next_deadline <= now
        is_stale = receiving.both and requested_at is not None and requested_at < now - waiter_ttl
        if is_due:
            due = await leases.due(tx, pool.id, now, receiving, limit=ROWS_MAX)
        if is_stale:
            lapsed = await requests.lapse(tx, pool.id, stale_since=now - waiter_ttl, limit=ROWS_MAX)
        if is_due or is_stale:
            later, requested_at = (await pools.coming(tx, [pool.id], after=now))[pool.id]
            # Leases that are held back keep the pool due.
            next_deadline = later if receiving.both else next_deadline
        if new:
            waiters, unannounced = sorted(new, key=lambda one: (*one.queue, one.since, one.place)), list(new)
            per_queue, requested_at = ROWS_MAX, now
        elif pool.waiting_requests:
            waiters, per_queue = await requests.heads(tx, pool.id, enough=enough(pool, due))
            if len(waiters) < pool.waiting_requests:
                unannounced = await requests.unannounced(tx, pool.id, limit=ROWS_MAX)
            else:  # the heads are all waiting requests
                unannounced = sorted((one for one in waiters if one.queued_at is None), key=lambda one: one.place)
        # Requests lapse at a time of their own, not when a unit becomes free: commands may not be received then.
        if requested_at is not None:
            next_deadline = min(requested_at + waiter_ttl, next_deadline or requested_at + waiter_ttl)
        if pool.incomplete_until is not None and next_deadline is not None:
            next_deadline = max(next_deadline, pool.incomplete_until)
        situation = Situation(
            per_queue=per_queue,
            due=due,
            receiving=receiving,
            unannounced=unannounced,
            lapsed=lapsed,
            next_deadline=next_deadline,
            more=ROWS_MAX in (len(due), len(unannounced), len(lapsed)),
        )
        return await self._with_waiters(situation, pool, waiters, known)

    async def _with_waiters(
        self, situation: Situation, pool: LeasePool, waiters: Sequence[Request], known: Mapping[Key, Tenant | None]
    ) -> Situation:
        """The situation with these waiters and the rows that belong to them."""
        tx = self.tx
        keys = {(pool.id, waiter.tenant) for waiter in waiters}
        found = [tenant for key in keys & known.keys() if (tenant := known[key]) is not None]
        return msgspec.structs.replace(
            situation,
            waiters=waiters,
            tenants=found + await tenants.named(tx, keys - known.keys()),
            groups=await groups.named(tx, {(pool.id, waiter.group_name) for waiter in waiters if waiter.group_name}),
            blocked_gangs=await self._blocked_gangs(pool, waiters),
        )

    async def _blocked_gangs(self, pool: LeasePool, waiters: Sequence[Request]) -> dict[str, str]:
        """Gangs waiting in `pool` that cannot start in another pool, with the reason. Other pools are read without a
        lock; `start_gang` finds units reserved by mistake, under all locks."""
        waiting = {waiter.gang_id for waiter in waiters if waiter.gang_id is not None}
        if not waiting:
            return {}
        members = await gangs.elsewhere(self.tx, waiting, pool.id)
        others = await pools.named(self.tx, {member.lease_pool_id for member in members})
        return find_blocked_gangs(members, {other.id: other for other in others} | self.pools)

    async def _save_rows(self, writes: Writes, ledger: Ledger, *, skip_new_requests: Container[str] = ()) -> None:
        """Write the rows that commands changed, except the pools and the new requests of the given pools."""
        new = [request for request in ledger.requests_to_add() if request.lease_pool_id not in skip_new_requests]
        await leases.save(writes, ledger.leases_to_save())
        await requests.save(writes, ledger.requests_to_save())
        await requests.add(writes, new)
        await leases.add(writes, ledger.leases_to_add())
        await tenants.save(writes, ledger.tenants_to_save())
        await groups.save(writes, ledger.groups_to_save())

    async def _write(self, writes: Writes, made: Sequence[Decision], *, new: Sequence[Request] = ()) -> None:
        """Write the rows of decisions, except history and events; the `new` requests are not in the database yet."""
        changed = {(one.lease_pool_id, one.id): one for decision in made for one in decision.requests}
        added = [changed.pop((one.lease_pool_id, one.id), one) for one in new]
        await leases.save(writes, [lease for one in made for lease in (*one.ended, *one.postponed)])
        await leases.add(writes, [lease for one in made for lease in one.granted])
        await requests.add(writes, added)
        await requests.save(writes, list(changed.values()))
        await tenants.save(writes, [tenant for one in made for tenant in one.tenants])
        await groups.save(writes, [group for one in made for group in one.groups])
        await gangs.have_turn(writes, {gang for one in made for gang in one.gangs}, self.now)
        await pools.settle(writes, made, self.now)

    async def _publish(self, writes: Writes, entries: Sequence[Entry], events: Sequence[outbox.Traced]) -> None:
        await history.add(writes, entries)
        await outbox.enqueue(self.tx, events, at=self.now, writes=writes)

    def _record(self, made: Sequence[Decision]) -> None:
        """Remember what was written, for `committed` and for what follows in this transaction."""
        self._written.append(self._ledger)
        self.decisions += made
        self.more = self.more or any(decision.again for decision in made)
        self.pools |= self._ledger.pools | {decision.pool.id: decision.pool for decision in made}
        self._ledger = Ledger(self.pools.values(), [], [])


def newcomers(ledger: Ledger) -> dict[str, list[Request]]:
    """New requests in order of arrival, by lease pool, for due pools where no other request waits. Requests of gangs
    are left out: the decision of another pool has to find them in the database."""
    found: dict[str, list[Request]] = {}
    for place, request in enumerate(ledger.requests_to_add()):
        found.setdefault(request.lease_pool_id, []).append(msgspec.structs.replace(request, place=place))
    return {
        name: new
        for name, new in found.items()
        if name in ledger.dirty
        and all(request.waiting_units and request.gang_id is None for request in new)
        and len(new) == ledger.pools[name].waiting_requests < ROWS_MAX
    }


def enough(pool: LeasePool, due: Sequence[Lease]) -> int:
    """Number of requests that one decision needs: about as many as units may become free in it."""
    if pool.policy.mode is not Mode.ENFORCE:
        return ROWS_MAX
    free = pool.limit_units - pool.held_cost + sum(lease.cost for lease in due)
    return min(ROWS_MAX, max(requests.PER_QUEUE_MIN, free + 1))


def count_commands(ledger: Ledger) -> None:
    """Update the metrics of applied commands."""
    for reason in ledger.refusals:
        REFUSED_COMMANDS.labels(reason).inc()
    for lease in ledger.leases_to_add():
        UNLEASED_STARTS.labels(lease.lease_pool_id).inc()
    for pool in ledger.throttles:
        THROTTLES.labels(pool).inc()


def count_decision(decision: Decision) -> None:
    """Update the metrics of a decision."""
    pool = decision.pool.id
    for lease in decision.ended:
        ENDED_LEASES.labels(pool, lease.state.value).inc()
    for lease in decision.granted:
        GRANTED_UNITS.labels(pool).inc(lease.units)
        WAITED_SECONDS.labels(pool).observe(lease.waited_seconds)
    if decision.idle_unit_seconds:
        IDLE_UNIT_SECONDS.labels(pool).inc(decision.idle_unit_seconds)
    if decision.grant_gap_seconds is not None:
        GRANT_INTERVAL_SECONDS.labels(pool).observe(decision.grant_gap_seconds)
    if decision.limit_cause:
        LIMIT_CHANGES.labels(pool, decision.limit_cause).inc()
    if decision.events:
        LOG.debug("decided", lease_pool=pool, reasons=decision.reasons)
