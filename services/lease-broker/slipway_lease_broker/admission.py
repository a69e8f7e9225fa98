"""Application of lease commands and decisions for lease pools, in the caller's transaction: load rows, let the domain
decide, write the result. Shared by the Kafka handler, the decide loop and HTTP."""

from collections.abc import Callable, Container, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

import msgspec

from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_common.events.lease import (
    LeaseCancelRequested,
    LeaseReleaseRequested,
    LeaseRequested,
    LeaseUnleasedReported,
)
from slipway_common.messaging import outbox
from slipway_common.observability.telemetry import logger
from slipway_lease_broker.domain import spread
from slipway_lease_broker.domain.admit import Queue, find_blocked_gangs
from slipway_lease_broker.domain.commands import Key, LeaseCommand, Ledger
from slipway_lease_broker.domain.decide import Decision, decide
from slipway_lease_broker.domain.ledger import Gang, Lease, LeasePool, Request, Tenant
from slipway_lease_broker.domain.receipt import confirm_received
from slipway_lease_broker.domain.terms import Mode
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
from slipway_lease_broker.store import gangs, groups, history, leases, pools, requests, tenants
from slipway_lease_broker.store.traces import traced

LOG = logger(__name__)

RETRY_SECONDS: Final = 30.0  # after a failed decision

# Rows of each kind in one decision: a transaction must stay far below the server's statement time-out. A pool with more
# rows stays due, so that the next decision follows at once.
ROWS_MAX: Final = 1_000
# Rows read in addition from queues whose first requests were all skipped, shared by these queues.
HIDDEN_ROWS_MAX: Final = 4 * ROWS_MAX


async def load(tx: Connection, locked: Sequence[LeasePool], commands: Sequence[LeaseCommand]) -> Ledger:
    """Load the rows that commands about locked pools name."""
    of_requests = [command for command in commands if isinstance(command, LeaseRequested | LeaseCancelRequested)]
    requested = [command for command in of_requests if isinstance(command, LeaseRequested)]
    lease_ids = {
        command.lease_id for command in commands if not isinstance(command, LeaseRequested | LeaseCancelRequested)
    }
    replaced = {command.replaces.lease_id for command in requested if command.replaces is not None}
    named = await leases.named(tx, lease_ids | replaced)
    unleased = [command for command in commands if isinstance(command, LeaseUnleasedReported)]
    request_keys = {(command.lease_pool_id, command.request_id) for command in [*of_requests, *unleased]}
    request_keys |= {(lease.lease_pool_id, lease.request_id) for lease in named if lease.id in replaced}
    has_releases = any(isinstance(command, LeaseReleaseRequested) for command in commands)
    return Ledger(
        locked,
        named,
        await requests.named(tx, request_keys),
        await tenants.named(
            tx,
            {(command.lease_pool_id, command.tenant) for command in requested}
            | {(lease.lease_pool_id, lease.tenant) for lease in named if has_releases},
        ),
        await groups.named(
            tx, {(command.lease_pool_id, spread.group_key(command.group)) for command in requested if command.group}
        ),
    )


async def save(tx: Connection, ledger: Ledger, now: datetime) -> None:
    """Write the rows that commands changed, except the pools: the caller marks them due, or decides for them in the
    same transaction."""
    await _save_rows(tx, ledger)
    await history.add(tx, ledger.history)
    await outbox.enqueue(tx, traced(ledger.events, ledger.leases.values()), at=now)


async def leave_to_the_loop(tx: Connection, ledger: Ledger, now: datetime) -> list[Decision]:
    """Write the rows that commands changed, and mark the pools due for the decide loop."""
    await save(tx, ledger, now)
    await pools.mark(tx, ledger.pools_to_save(), ledger.dirty, ledger.deadlines)
    return []


async def _save_rows(tx: Connection, ledger: Ledger, *, skip_new_requests: Container[str] = ()) -> None:
    """Write all changed rows, except the new requests of the given lease pools."""
    await leases.save(tx, ledger.leases_to_save())
    await requests.save(tx, ledger.requests_to_save())
    await requests.add(
        tx, [request for request in ledger.requests_to_add() if request.lease_pool_id not in skip_new_requests]
    )
    await leases.add(tx, ledger.leases_to_add())
    await tenants.save(tx, ledger.tenants_to_save())
    await groups.save(tx, ledger.groups_to_save())


async def save_and_decide(
    tx: Connection,
    ledger: Ledger,
    now: datetime,
    *,
    expire: Callable[[str], bool],
    lost_linger_seconds: float,
    waiter_ttl_seconds: float,
    receiving: Container[str] = (),
) -> list[Decision]:
    """Write the rows that commands changed, and decide for each pool that has become due; see `decide_pool`.

    This costs one commit, one wait for the lock and one batch of events instead of two. In pools where no other request
    waits, new requests are decided before they are written, so that they are written once.
    """
    alone = newcomers(ledger)
    await _save_rows(tx, ledger, skip_new_requests=alone)
    made, events = [], traced(ledger.events, ledger.leases.values())
    for name in sorted(ledger.dirty):
        decision, decided_events = await _decide_rows(
            tx,
            ledger.pools[name],
            now,
            expire=expire(name),
            lost_linger_seconds=lost_linger_seconds,
            waiter_ttl_seconds=waiter_ttl_seconds,
            receiving=receiving,
            known=ledger.tenants,
            new=alone.get(name, ()),
        )
        made.append(decision)
        events += decided_events
    later = [pool for pool in ledger.pools_to_save() if pool.id not in ledger.dirty]
    await pools.mark(tx, later, (), ledger.deadlines)
    await history.add(tx, [*ledger.history, *(entry for decision in made for entry in decision.history)])
    await outbox.enqueue(tx, events, at=now)
    return made


async def decide_pool(
    tx: Connection,
    pool: LeasePool,
    now: datetime,
    *,
    expire: bool,
    lost_linger_seconds: float,
    waiter_ttl_seconds: float,
    receiving: Container[str] = (),
) -> Decision:
    """Decide for a locked `pool` as of `now`, a time read after the lock. Writes all rows, with the pool's state and
    counters; the caller commits, then calls `count_decision`.

    Without `expire` no deadline passes and no request lapses, because commands may be waiting to be read. Leases of
    requests in `receiving` are confirmed by the answer that the caller sends after the commit.
    """
    decision, events = await _decide_rows(
        tx,
        pool,
        now,
        expire=expire,
        lost_linger_seconds=lost_linger_seconds,
        waiter_ttl_seconds=waiter_ttl_seconds,
        receiving=receiving,
    )
    await history.add(tx, decision.history)
    await outbox.enqueue(tx, events, at=now)
    return decision


async def _decide_rows(
    tx: Connection,
    pool: LeasePool,
    now: datetime,
    *,
    expire: bool,
    lost_linger_seconds: float,
    waiter_ttl_seconds: float,
    receiving: Container[str],
    known: Mapping[Key, Tenant] = MappingProxyType({}),
    new: Sequence[Request] = (),
) -> tuple[Decision, list[outbox.Traced]]:
    """Decide and write all rows except history and events; returns the events. Reads no rows that it already has: no
    tenants that are `known`, and no requests if all waiting ones are `new` and not written yet."""
    due: list[Lease] = []
    lapsed: list[Request] = []
    waiters: list[Request] = []
    unannounced: list[Request] = []
    per_queue = 1
    waiter_ttl = timedelta(seconds=waiter_ttl_seconds)
    next_deadline, requested_at = await pools.coming(tx, pool.id, None)
    is_due = expire and next_deadline is not None and next_deadline <= now
    is_stale = expire and requested_at is not None and requested_at < now - waiter_ttl
    if is_due:
        due = await leases.due(tx, pool.id, now, limit=ROWS_MAX)
    if is_stale:
        lapsed = await requests.lapse(tx, pool.id, stale_since=now - waiter_ttl, limit=ROWS_MAX)
    if is_due or is_stale:
        next_deadline, requested_at = await pools.coming(tx, pool.id, now)
    if new:
        waiters, unannounced = sorted(new, key=lambda one: (*one.queue, one.since, one.place)), list(new)
        per_queue, requested_at = ROWS_MAX, now
    elif pool.waiting_requests:
        waiters, per_queue = await requests.heads(tx, pool.id, enough=enough(pool, due))
        if len(waiters) < pool.waiting_requests:
            unannounced = await requests.unannounced(tx, pool.id, limit=ROWS_MAX)
        else:  # the heads are all waiting requests
            unannounced = sorted((one for one in waiters if one.queued_at is None), key=lambda one: one.place)
    # Requests lapse at a time of their own, not when a unit becomes free: that decision may run without `expire`.
    if requested_at is not None:
        next_deadline = min(requested_at + waiter_ttl, next_deadline or requested_at + waiter_ttl)

    async def decide_among(waiters: Sequence[Request], deeper: Mapping[Queue, int]) -> Decision:
        keys = {(pool.id, waiter.tenant) for waiter in waiters}
        return decide(
            pool,
            due,
            waiters,
            now,
            new_id=new_id,
            lost_linger_seconds=lost_linger_seconds,
            per_queue=per_queue,
            deeper=deeper,
            unannounced=unannounced,
            lapsed=lapsed,
            tenants=[known[key] for key in keys & known.keys()] + await tenants.named(tx, keys - known.keys()),
            groups=await groups.named(tx, {(pool.id, waiter.group_name) for waiter in waiters if waiter.group_name}),
            next_deadline=next_deadline,
            more=ROWS_MAX in (len(due), len(unannounced), len(lapsed)),
            blocked_gangs=await _blocked_gangs(tx, pool, waiters),
        )

    decision = await decide_among(waiters, {})
    if hidden := decision.hidden:
        deep = min(ROWS_MAX, max(2 * requests.PER_QUEUE_MIN, HIDDEN_ROWS_MAX // len(hidden)))
        waiters = [waiter for waiter in waiters if waiter.queue not in hidden]
        waiters += await requests.of_queues(tx, pool.id, hidden, per_queue=deep)
        decision = await decide_among(waiters, dict.fromkeys(hidden, deep))
    decision = confirm_received(decision, receiving, now)
    if new:
        decided = {request.id: request for request in decision.requests}
        await requests.add(tx, [decided.get(request.id, request) for request in new])
        decision = msgspec.structs.replace(decision, requests=())
    await _write_rows(tx, decision, now)
    return decision, traced(decision.events, [*due, *decision.granted], [*waiters, *unannounced])


async def _blocked_gangs(tx: Connection, pool: LeasePool, waiters: Sequence[Request]) -> dict[str, str]:
    """Gangs waiting in `pool` that cannot start in another pool, with the reason. Other pools are read without a lock;
    `decide_gang` finds units reserved by mistake, under all locks."""
    waiting = {waiter.gang_id for waiter in waiters if waiter.gang_id is not None}
    if not waiting:
        return {}
    members = await gangs.elsewhere(tx, waiting, pool.id)
    others = await pools.named(tx, {member.lease_pool_id for member in members})
    return find_blocked_gangs(members, {other.id: other for other in others})


async def request_gang(
    tx: Connection,
    gang: Gang,
    ledger: Ledger,
    now: datetime,
    *,
    expire: Callable[[str], bool],
    lost_linger_seconds: float,
    waiter_ttl_seconds: float,
) -> list[Decision]:
    """Write the requests of a gang, applied to `ledger` under the locks of all its pools and its own, and decide for
    each pool; then for the gang, if it has its turn in one of them. The caller commits, then calls `count_decision` for
    each decision."""
    await save(tx, ledger, now)
    decisions = [
        await decide_pool(
            tx,
            pool,
            now,
            expire=expire(pool.id),
            lost_linger_seconds=lost_linger_seconds,
            waiter_ttl_seconds=waiter_ttl_seconds,
        )
        for _, pool in sorted(ledger.pools.items())
    ]
    if any(gang.id in decision.gangs for decision in decisions):
        decisions += await decide_gang(tx, gang.id, lost_linger_seconds=lost_linger_seconds)
    return decisions


async def decide_gang(tx: Connection, gang_id: str, *, lost_linger_seconds: float) -> list[Decision]:
    """Start a gang in all of its pools if each has free units for it, also ahead of other requests; else change
    nothing.

    Two gangs that reserve units in each other's pools would deadlock if each had to be first in all pools. Locks the
    pools first, in ascending order, as all writers do.
    """
    locked = {pool.id: pool for pool in await pools.lock(tx, await gangs.pools_of(tx, gang_id))}
    gang = await gangs.lock(tx, gang_id)
    if gang is None or gang.done_at is not None:
        return []
    now = await pools.clock(tx)
    members = await gangs.members(tx, gang_id)
    if any(member.waiting_units == 0 for member in members):
        await _give_up(tx, gang, list(locked.values()), members, now)
        return []
    if find_blocked_gangs(members, locked):  # its reserved units are freed; it gets no turn until it can start
        await gangs.lose_turn(tx, gang_id)
        await pools.mark(tx, list(locked.values()), locked, {})
        return []
    decisions = []
    for member in members:
        decision = decide(
            locked[member.lease_pool_id],
            [],
            [member],
            now,
            new_id=new_id,
            lost_linger_seconds=lost_linger_seconds,
            per_queue=2,
            for_gang=True,
            unannounced=[member] if member.queued_at is None else [],
            tenants=await tenants.named(tx, {(member.lease_pool_id, member.tenant)}),
            more=True,
        )
        if member.lapsed or not decision.granted:
            return []
        decisions.append(decision)
    for decision, member in zip(decisions, members, strict=True):
        await _write_rows(tx, decision, now)
        await history.add(tx, decision.history)
        await outbox.enqueue(tx, traced(decision.events, decision.granted, [member]), at=now)
    await gangs.done(tx, gang_id, now)
    return decisions


async def _give_up(
    tx: Connection, gang: Gang, locked: Sequence[LeasePool], members: Sequence[Request], now: datetime
) -> None:
    """Cancel the remaining requests of a gang of which one was cancelled: they can never start."""
    ledger = Ledger(locked, [], members)
    for member in members:
        if member.waiting_units:
            ledger.apply(
                LeaseCancelRequested(
                    lease_pool_id=member.lease_pool_id,
                    request_id=member.id,
                    units=member.waiting_units,
                    reason="another request of its gang was cancelled",
                ),
                now,
                owner=member.owner,
            )
    await save(tx, ledger, now)
    await pools.mark(tx, ledger.pools_to_save(), ledger.dirty, ledger.deadlines)
    await gangs.done(tx, gang.id, now)


async def _write_rows(tx: Connection, decision: Decision, now: datetime) -> None:
    await leases.save(tx, decision.ended)
    await leases.add(tx, decision.granted)
    await requests.save(tx, decision.requests)
    await tenants.save(tx, decision.tenants)
    await groups.save(tx, decision.groups)
    await gangs.have_turn(tx, decision.gangs, now)
    await pools.settle(tx, decision, now)


def newcomers(ledger: Ledger) -> dict[str, list[Request]]:
    """New requests in order of arrival, by lease pool, for due pools where no other request waits."""
    found: dict[str, list[Request]] = {}
    for place, request in enumerate(ledger.requests_to_add()):
        found.setdefault(request.lease_pool_id, []).append(msgspec.structs.replace(request, place=place))
    return {
        name: new
        for name, new in found.items()
        if name in ledger.dirty
        and all(request.waiting_units for request in new)
        and len(new) == ledger.pools[name].waiting_requests < ROWS_MAX
    }


def enough(pool: LeasePool, due: Sequence[Lease]) -> int:
    """Number of requests that one decision needs: about as many as units may become free in it."""
    if pool.policy.mode is not Mode.ENFORCE:
        return ROWS_MAX
    free = pool.limit_units - pool.held_cost + sum(lease.cost for lease in due)
    return min(ROWS_MAX, max(requests.PER_QUEUE_MIN, free + 1))


def count_commands(ledger: Ledger) -> None:
    """Update the metrics of applied commands. Call it after the commit."""
    for reason in ledger.refusals:
        REFUSED_COMMANDS.labels(reason).inc()
    for lease in ledger.leases_to_add():
        UNLEASED_STARTS.labels(lease.lease_pool_id).inc()
    for pool in ledger.throttles:
        THROTTLES.labels(pool).inc()


def count_decision(decision: Decision) -> None:
    """Update the metrics of a decision. Call it after the commit."""
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
