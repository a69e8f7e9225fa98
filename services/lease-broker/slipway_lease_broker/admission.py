"""What is between the store and the rules: facts about locked lease pools, and the decision for one of them, are
loaded, worked out by the domain and written, in the caller's transaction. Kafka, the decide loop and HTTP share it."""

from collections.abc import Callable, Container, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

import msgspec

from slipway_common import outbox
from slipway_common.events.lease import (
    LeaseCancelRequested,
    LeaseReleaseRequested,
    LeaseRequested,
    LeaseUnleasedReported,
)
from slipway_common.ids import new_id
from slipway_common.postgres import Connection
from slipway_common.telemetry import logger
from slipway_lease_broker.domain import spread
from slipway_lease_broker.domain.admit import Queue, gangs_held_up
from slipway_lease_broker.domain.decide import Decision, decide
from slipway_lease_broker.domain.facts import Fact, Key, Ledger
from slipway_lease_broker.domain.ledger import Gang, Lease, LeasePool, Request, Tenant
from slipway_lease_broker.domain.presence import confirmed
from slipway_lease_broker.domain.terms import Mode
from slipway_lease_broker.metrics import (
    ENDED_LEASES,
    GRANT_GAP_SECONDS,
    GRANTED_UNITS,
    IDLE_UNIT_SECONDS,
    LIMIT_CHANGES,
    REFUSED_FACTS,
    THROTTLES,
    UNLEASED_STARTS,
    WAITED_SECONDS,
)
from slipway_lease_broker.store import gangs, groups, history, leases, pools, requests, tenants
from slipway_lease_broker.store.traces import traced

LOG = logger(__name__)

RETRY_SECONDS: Final = 30.0  # until what no decision could be made for is tried again

# What one decision takes on at most: a transaction must stay far below the server's statement time-out. A pool with
# more stays due, so the next decision follows at once.
ROWS_MAX: Final = 1_000
# Read of those queues whose first were all passed over, shared by them: rows that are read, and hardly written.
HIDDEN_ROWS_MAX: Final = 4 * ROWS_MAX


async def load(tx: Connection, locked: Sequence[LeasePool], facts: Sequence[Fact]) -> Ledger:
    """The rows that facts about locked pools name."""
    asks = [fact for fact in facts if isinstance(fact, LeaseRequested | LeaseCancelRequested)]
    asked = [fact for fact in asks if isinstance(fact, LeaseRequested)]
    lease_ids = {fact.lease_id for fact in facts if not isinstance(fact, LeaseRequested | LeaseCancelRequested)}
    replaced = {fact.replaces.lease_id for fact in asked if fact.replaces is not None}
    named = await leases.named(tx, lease_ids | replaced)
    started = [fact for fact in facts if isinstance(fact, LeaseUnleasedReported)]
    request_keys = {(fact.lease_pool_id, fact.request_id) for fact in [*asks, *started]}
    request_keys |= {(lease.lease_pool_id, lease.request_id) for lease in named if lease.id in replaced}
    judged = any(isinstance(fact, LeaseReleaseRequested) for fact in facts)
    return Ledger(
        locked,
        named,
        await requests.named(tx, request_keys),
        await tenants.named(
            tx,
            {(fact.lease_pool_id, fact.tenant) for fact in asked}
            | {(lease.lease_pool_id, lease.tenant) for lease in named if judged},
        ),
        await groups.named(tx, {(fact.lease_pool_id, spread.group_key(fact.group)) for fact in asked if fact.group}),
    )


async def save(tx: Connection, ledger: Ledger, now: datetime) -> None:
    """Write what facts changed, but for their pools: those are marked due, or decided for in the same transaction."""
    await _save_rows(tx, ledger)
    await history.add(tx, ledger.history)
    await outbox.enqueue(tx, traced(ledger.answers, ledger.leases.values()), at=now)


async def leave_to_the_loop(tx: Connection, ledger: Ledger, now: datetime) -> list[Decision]:
    """Write what facts changed, and let the decide loop decide."""
    await save(tx, ledger, now)
    await pools.mark(tx, ledger.pools_to_save(), ledger.dirty, ledger.deadlines)
    return []


async def _save_rows(tx: Connection, ledger: Ledger, *, but: Container[str] = ()) -> None:
    """All but the new requests of some lease pools."""
    await leases.save(tx, ledger.leases_to_save())
    await requests.save(tx, ledger.requests_to_save())
    await requests.add(tx, [request for request in ledger.requests_to_add() if request.lease_pool_id not in but])
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
    here: Container[str] = (),
) -> list[Decision]:
    """Write what facts changed, and decide for each pool that they ask a decision of; `decide_pool` has the rest.

    One commit, one wait for the lock and one batch of events, where recording and deciding apart would pay for two.
    Where nobody else waits, new requests are decided upon before they are written, and written once.
    """
    alone = newcomers(ledger)
    await _save_rows(tx, ledger, but=alone)
    made, events = [], traced(ledger.answers, ledger.leases.values())
    for name in sorted(ledger.dirty):
        decision, told = await _decide_rows(
            tx,
            ledger.pools[name],
            now,
            expire=expire(name),
            lost_linger_seconds=lost_linger_seconds,
            waiter_ttl_seconds=waiter_ttl_seconds,
            here=here,
            known=ledger.tenants,
            new=alone.get(name, ()),
        )
        made.append(decision)
        events += told
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
    here: Container[str] = (),
) -> Decision:
    """Decide for `pool`, which the caller has locked, as of `now`, read after the lock. Writes everything, the pool's
    state and counters included; the caller commits, then calls `tell`.

    With `expire` off no deadline passes and nobody is taken for silent: what they say may be waiting to be read. Leases
    of requests that are `here` are confirmed by the answer that the caller sends once it has committed.
    """
    decision, events = await _decide_rows(
        tx,
        pool,
        now,
        expire=expire,
        lost_linger_seconds=lost_linger_seconds,
        waiter_ttl_seconds=waiter_ttl_seconds,
        here=here,
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
    here: Container[str],
    known: Mapping[Key, Tenant] = MappingProxyType({}),
    new: Sequence[Request] = (),
) -> tuple[Decision, list[outbox.Traced]]:
    """Decide and write all but history and events; returns the events too. Asks for no rows that cannot matter: not
    for tenants that are `known`, and for no waiters where all that wait are `new` and not written yet."""
    due: list[Lease] = []
    lapsed: list[Request] = []
    waiters: list[Request] = []
    untold: list[Request] = []
    per_queue = 1
    patience = timedelta(seconds=waiter_ttl_seconds)
    next_deadline, asked_at = await pools.coming(tx, pool.id, None)
    is_due = expire and next_deadline is not None and next_deadline <= now
    is_silent = expire and asked_at is not None and asked_at < now - patience
    if is_due:
        due = await leases.due(tx, pool.id, now, limit=ROWS_MAX)
    if is_silent:
        lapsed = await requests.lapse(tx, pool.id, silent_since=now - patience, limit=ROWS_MAX)
    if is_due or is_silent:
        next_deadline, asked_at = await pools.coming(tx, pool.id, now)
    if new:
        waiters, untold = sorted(new, key=lambda one: (*one.queue, one.since, one.place)), list(new)
        per_queue, asked_at = ROWS_MAX, now
    elif pool.waiting_requests:
        waiters, per_queue = await requests.heads(tx, pool.id, enough=enough(pool, due))
        if len(waiters) < pool.waiting_requests:
            untold = await requests.untold(tx, pool.id, limit=ROWS_MAX)
        else:  # none waits beyond the heads
            untold = sorted((one for one in waiters if one.queued_at is None), key=lambda one: one.place)
    # Passed over in time, not when a unit is free: that may be noticed where nobody may be taken for silent.
    if asked_at is not None:
        next_deadline = min(asked_at + patience, next_deadline or asked_at + patience)

    async def among(waiters: Sequence[Request], deeper: Mapping[Queue, int]) -> Decision:
        asking = {(pool.id, waiter.tenant) for waiter in waiters}
        return decide(
            pool,
            due,
            waiters,
            now,
            new_id=new_id,
            lost_linger_seconds=lost_linger_seconds,
            per_queue=per_queue,
            deeper=deeper,
            untold=untold,
            lapsed=lapsed,
            tenants=[known[key] for key in asking & known.keys()] + await tenants.named(tx, asking - known.keys()),
            groups=await groups.named(tx, {(pool.id, waiter.group_name) for waiter in waiters if waiter.group_name}),
            next_deadline=next_deadline,
            more=ROWS_MAX in (len(due), len(untold), len(lapsed)),
            held_up=await _held_up(tx, pool, waiters),
        )

    decision = await among(waiters, {})
    if hidden := decision.hidden:
        deep = min(ROWS_MAX, max(2 * requests.PER_QUEUE_MIN, HIDDEN_ROWS_MAX // len(hidden)))
        waiters = [waiter for waiter in waiters if waiter.queue not in hidden]
        waiters += await requests.of_queues(tx, pool.id, hidden, per_queue=deep)
        decision = await among(waiters, dict.fromkeys(hidden, deep))
    decision = confirmed(decision, here, now)
    if new:
        decided = {request.id: request for request in decision.requests}
        await requests.add(tx, [decided.get(request.id, request) for request in new])
        decision = msgspec.structs.replace(decision, requests=())
    await _write_rows(tx, decision, now)
    return decision, traced(decision.events, [*due, *decision.granted], [*waiters, *untold])


async def _held_up(tx: Connection, pool: LeasePool, waiters: Sequence[Request]) -> dict[str, str]:
    """The gangs among those that wait in `pool` which cannot start elsewhere. Other pools are read without a lock: who
    keeps units wrongly for that is found by `decide_gang`, under all locks."""
    waiting = {waiter.gang_id for waiter in waiters if waiter.gang_id is not None}
    if not waiting:
        return {}
    members = await gangs.elsewhere(tx, waiting, pool.id)
    others = await pools.named(tx, {member.lease_pool_id for member in members})
    return gangs_held_up(members, {other.id: other for other in others})


async def ask_gang(
    tx: Connection,
    gang: Gang,
    ledger: Ledger,
    now: datetime,
    *,
    expire: Callable[[str], bool],
    lost_linger_seconds: float,
    waiter_ttl_seconds: float,
) -> list[Decision]:
    """Write what a gang asks, recorded in `ledger` under the locks of all its pools and its own, and decide for each of
    them; then for the gang, if one of them lets it start. The caller commits, then calls `tell` with each decision."""
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
    """Start a gang in all its pools if each has room for it, whoever is ahead of it there; else nothing changes.

    Two gangs that keep units for each other's pools would wait for ever if each had to be first in all. Locks the
    pools first and in ascending order, as everybody does.
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
    if gangs_held_up(members, locked):  # what it keeps goes to others; no pool gives it a turn before it can start
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
            untold=[member] if member.queued_at is None else [],
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
    """One of its requests was cancelled, so the others can never start: they keep nothing any longer."""
    ledger = Ledger(locked, [], members)
    for member in members:
        if member.waiting_units:
            ledger.record(
                LeaseCancelRequested(
                    lease_pool_id=member.lease_pool_id,
                    request_id=member.id,
                    units=member.waiting_units,
                    reason="another of its gang was cancelled",
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
    """New requests in order of arrival, of those lease pools to be decided for where nobody else waits."""
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
    """How many requests a decision may come to: hardly more than units may become free in it."""
    if pool.policy.mode is not Mode.ENFORCE:
        return ROWS_MAX
    free = pool.limit_units - pool.held_cost + sum(lease.cost for lease in due)
    return min(ROWS_MAX, max(requests.PER_QUEUE_MIN, free + 1))


def count(ledger: Ledger) -> None:
    """Count what facts said, once it is committed."""
    for reason in ledger.refusals:
        REFUSED_FACTS.labels(reason).inc()
    for lease in ledger.leases_to_add():
        UNLEASED_STARTS.labels(lease.lease_pool_id).inc()
    for pool in ledger.throttles:
        THROTTLES.labels(pool).inc()


def tell(decision: Decision) -> None:
    """Count what was decided, once it is committed."""
    pool = decision.pool.id
    for lease in decision.ended:
        ENDED_LEASES.labels(pool, lease.state.value).inc()
    for lease in decision.granted:
        GRANTED_UNITS.labels(pool).inc(lease.units)
        WAITED_SECONDS.labels(pool).observe(lease.waited_seconds)
    if decision.idle_unit_seconds:
        IDLE_UNIT_SECONDS.labels(pool).inc(decision.idle_unit_seconds)
    if decision.grant_gap_seconds is not None:
        GRANT_GAP_SECONDS.labels(pool).observe(decision.grant_gap_seconds)
    if decision.limit_cause:
        LIMIT_CHANGES.labels(pool, decision.limit_cause).inc()
    if decision.events:
        LOG.debug("decided", lease_pool=pool, why=decision.why)
