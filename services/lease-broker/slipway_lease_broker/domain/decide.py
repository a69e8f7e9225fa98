"""The decision for one lease pool at one instant: leases ended by time, the limit in force, and the requests that
start. Pure and complete, with reasons; the caller only writes it.

The invariant: units are granted only while the cost held stays within the limit in force. A limit that falls below the
cost held revokes nothing; it stops granting until usage falls. Only an operation past its maximum wait goes over the
limit, and its grant is marked as such.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

import msgspec

from slipway_api.events.lease import LeaseGranted, LeaseLimitChanged, LeaseQueued
from slipway_lease_broker.domain import limits, unleased
from slipway_lease_broker.domain.admit import Admission, Grant
from slipway_lease_broker.domain.endings import apply_deadline, end_event, end_reason
from slipway_lease_broker.domain.ledger import (
    Entry,
    Group,
    Holding,
    Lease,
    LeasePool,
    Request,
    State,
    Tenant,
    accrue_idle,
    advance,
    alive_until,
    counted,
    queued,
)
from slipway_lease_broker.domain.situation import Queue, Situation
from slipway_lease_broker.domain.terms import BrokerTerms, Mode
from slipway_lease_broker.domain.text import quantity

Ids = Callable[[], str]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The rows to write after a decision, the events to publish, and the reasons."""

    pool: LeasePool  # with its state and counters after the decision
    ended: tuple[Lease, ...] = ()  # expired, lost, released by their hold, or lost and no longer counted
    postponed: tuple[Lease, ...] = ()  # past their deadlines, by downtimes
    granted: tuple[Lease, ...] = ()
    requests: tuple[Request, ...] = ()  # granted units, or LeaseQueued published
    awaited: frozenset[str] = frozenset()  # ids of requests granted units after their LeaseQueued
    tenants: tuple[Tenant, ...] = ()  # granted units
    groups: tuple[Group, ...] = ()  # with a member that started
    history: tuple[Entry, ...] = ()
    waiting: Mapping[str, str] = MappingProxyType({})  # id of a considered request that does not start → reason
    gangs: tuple[str, ...] = ()  # that may start as far as this pool is concerned
    wake_at: datetime | None  # when time alone will change something next
    again: bool = False  # more could be decided than was loaded
    hidden: frozenset[Queue] = frozenset()  # queues with requests not loaded, behind requests that cannot start
    idle_unit_seconds: float = 0.0  # of free units since the last decision, while requests waited
    grant_gap_seconds: float | None = None  # since the previous grant, when something was granted
    limit_cause: str = ""  # one word, when the limit in force changed
    events: tuple[Any, ...] = ()
    reasons: tuple[str, ...] = ()
    summary: str | None = None  # of the reasons, when there are events

    def __str__(self) -> str:
        return "\n".join(self.reasons)


def decide(
    pool: LeasePool,
    situation: Situation,
    now: datetime,
    *,
    new_id: Ids,
    terms: BrokerTerms,
    is_received: Callable[[str], bool] = lambda _: False,
) -> Decision:
    """Decide for a lease pool. `is_received` is true of the id of a request whose caller gets its grant with the answer
    to an open call, which confirms it."""
    pool = accrue_idle(pool, now)
    pool, ended, postponed = _apply_deadlines(pool, situation, now, terms.lost_linger_seconds)
    for request in situation.lapsed:
        pool = queued(pool, request, request.waiting_units, 0)
    pool, adapted_reason = limits.adapted(pool, now)
    pool, alert = limits.aged(pool, now)
    pool, excess_alert = unleased.announced(pool, now)
    limit = limits.in_force(pool)

    admission = Admission(pool, limit, situation, now).run()
    granted = [
        lease_of(pool, grant, now, new_id(), number, is_received=is_received(grant.request.id))
        for number, grant in enumerate(admission.grants, start=1)
    ]
    rows = {request.id: request for request in (*situation.unannounced, *situation.waiters)}
    before = dict(rows)
    groups_before = {group.name: group for group in situation.groups}
    for grant, lease in zip(admission.grants, granted, strict=True):
        row = rows[grant.request.id]
        rows[row.id] = msgspec.structs.replace(row, waiting_units=row.waiting_units - grant.units)
        pool = queued(counted(pool, lease, 0, lease.units), row, row.waiting_units, rows[row.id].waiting_units)
    announced = [rows[request.id] for request in situation.unannounced if rows[request.id].waiting_units]
    rows |= {request.id: msgspec.structs.replace(request, queued_at=now) for request in announced}

    changed = limit_changed(pool, limit.units, adapted_reason or limit.reason)
    idle_unit_seconds, last_granted_at = pool.idle_unit_seconds, pool.last_granted_at
    pool = msgspec.structs.replace(
        pool,
        idle_unit_seconds=0.0,
        last_granted_at=now if granted else last_granted_at,
        last_token=pool.last_token + len(granted),
        limit_in_force=limit.units,
        limit_reason=limit.reason,
        paces=admission.paces.after(),
        virtual_time=admission.shares.virtual_time,
    )
    history = (
        *(ended_entry(lease, then, now) for lease, then in ended),
        *([limit_entry(changed, now)] if changed else []),
        *(granted_entry(lease) for lease in granted),
        *(
            waiting_entry(request, "lapsed", "not repeated in time: skipped until it is repeated", now)
            for request in situation.lapsed
        ),
        *(
            waiting_entry(request, "queued", admission.waiting.get(request.id, "others are ahead"), now)
            for request in announced
        ),
    )
    events = (
        *(event for lease, then in ended if (event := end_event(lease, then)) is not None),
        *([changed] if changed else []),
        *([alert] if alert else []),
        *([excess_alert] if excess_alert else []),
        *(grant_event(lease) for lease in granted),
        *(
            queued_event(request, position)
            for position, request in enumerate(announced, start=pool.waiting_requests - len(announced) + 1)
        ),
    )
    lines = reasons(pool, history, admission.waiting)
    return Decision(
        pool=pool,
        ended=tuple(then for _, then in ended),
        postponed=tuple(postponed),
        granted=tuple(granted),
        requests=tuple(row for name, row in rows.items() if row is not before[name]),
        awaited=frozenset(grant.request.id for grant in admission.grants if grant.request.queued_at is not None),
        tenants=_served(pool.id, situation.tenants, admission.finish),
        groups=tuple(group for group in admission.groups.values() if group is not groups_before[group.name]),
        history=(*history, *(received_entry(lease) for lease in granted if lease.state is State.CONFIRMED)),
        waiting=admission.waiting,
        gangs=tuple(admission.gangs),
        wake_at=min(
            (
                at
                for at in (
                    situation.next_deadline,
                    *(then.deadline for _, then in ended if then.ended_at is None),
                    *(lease.deadline for lease in postponed),
                    *(lease.deadline for lease in granted),
                    *admission.wake_times,
                    admission.overdue_at,
                    limits.reconsider_at(pool, now),
                    None if pool.excess is None else pool.excess.until,
                )
                if at is not None
            ),
            default=None,
        ),
        again=situation.more or not admission.complete,
        hidden=frozenset(admission.hidden),
        idle_unit_seconds=idle_unit_seconds,
        grant_gap_seconds=(now - last_granted_at).total_seconds() if granted and last_granted_at else None,
        limit_cause=limit.cause if changed else "",
        events=events,
        reasons=lines,
        summary=summary(lines) if events else None,
    )


def _apply_deadlines(
    pool: LeasePool, situation: Situation, now: datetime, lost_linger_seconds: float
) -> tuple[LeasePool, list[tuple[Lease, Lease]], list[Lease]]:
    """The pool without the units that no longer count, each ended lease before and after, and the postponed leases."""
    delay = pool.policy.lock_delay_seconds
    linger = timedelta(seconds=lost_linger_seconds if delay is None else delay)
    passed = [(lease, apply_deadline(lease, now, linger, situation.receiving)) for lease in situation.due]
    ended = [(lease, then) for lease, then in passed if not then.live]
    for lease, then in ended:
        if then.ended_at is not None:
            pool = counted(pool, lease, lease.units, 0)
    return pool, ended, [then for lease, then in passed if then.live and then is not lease]


def _served(pool_id: str, tenants: Sequence[Tenant], finish: Mapping[str, float]) -> tuple[Tenant, ...]:
    """The tenants that were granted units."""
    known = {tenant.tenant: tenant for tenant in tenants}
    return tuple(
        msgspec.structs.replace(
            known.get(name) or Tenant(lease_pool_id=pool_id, tenant=name), virtual_finish=virtual_finish
        )
        for name, virtual_finish in finish.items()
    )


def lease_of(
    pool: LeasePool, grant: Grant, now: datetime, lease_id: str, number: int, *, is_received: bool = False
) -> Lease:
    """The lease of a grant, confirmed if it is received; `number` counts the grants of this decision from 1."""
    request, policy = grant.request, pool.policy
    hold_until = now + timedelta(seconds=min(request.hold_seconds or pool.hold_seconds, pool.hold_seconds))
    no_progress = policy.no_progress_seconds
    state = advance(State.RESERVED, "confirmed") if is_received else State.RESERVED
    return Lease(
        id=lease_id,
        lease_pool_id=pool.id,
        request_id=request.id,
        fencing_token=pool.last_token + number,
        granted_units=grant.units,
        units=grant.units,
        state=state,
        granted_at=now,
        expires_at=alive_until(pool, state, now, hold_until),
        hold_until=hold_until,
        traceparent=request.traceparent,
        tenant=request.tenant,
        operation=request.operation,
        weight=policy.operation(request.operation).weight,
        owner=request.owner,
        progress_until=None if no_progress is None else now + timedelta(seconds=no_progress),
        waited_seconds=max(0.0, (now - request.requested_at).total_seconds()),
        mode=policy.mode,
        advised_wait_seconds=grant.spared_seconds,
        reason=grant.reason,
        gang_id=request.gang_id,
        extended_at=now,
        over_kafka=request.over_kafka,
        holders={request.holder: Holding(since=now)} if request.holder else {},
    )


def limit_changed(pool: LeasePool, limit_units: int, reason: str) -> LeaseLimitChanged | None:
    """The event for a limit that changed other than by a declaration, which publishes its own."""
    if pool.limit_in_force is None or pool.limit_in_force == limit_units:
        return None
    return LeaseLimitChanged(
        lease_pool_id=pool.id, limit=limit_units, previous_limit=pool.limit_in_force, reason=reason
    )


def grant_event(lease: Lease) -> LeaseGranted:
    is_advised = lease.mode is not Mode.SHADOW
    return LeaseGranted(
        lease_pool_id=lease.lease_pool_id,
        lease_id=lease.id,
        request_id=lease.request_id,
        units=lease.units,
        fencing_token=lease.fencing_token,
        expires_at=lease.expires_at,
        hold_until=lease.hold_until,
        waited_seconds=lease.waited_seconds,
        mode=lease.mode,
        advised_wait_seconds=lease.advised_wait_seconds if is_advised else None,
        reason=lease.reason if is_advised else "",
        owner=lease.owner,
    )


def queued_event(request: Request, position: int) -> LeaseQueued:
    return LeaseQueued(
        lease_pool_id=request.lease_pool_id, request_id=request.id, units=request.waiting_units, position=position
    )


def ended_entry(lease: Lease, then: Lease, now: datetime) -> Entry:
    return Entry(
        lease_pool_id=lease.lease_pool_id,
        at=now,
        kind="freed" if lease.state is State.LOST else then.state.value,
        reason=end_reason(lease, then),
        lease_id=lease.id,
        request_id=lease.request_id,
        units=lease.units,
    )


def limit_entry(changed: LeaseLimitChanged, now: datetime) -> Entry:
    return Entry(lease_pool_id=changed.lease_pool_id, at=now, kind="limit", reason=changed.reason, units=changed.limit)


def granted_entry(lease: Lease) -> Entry:
    spared = "" if lease.advised_wait_seconds is None else f" {lease.advised_wait_seconds:.0f} s"
    is_enforced = lease.mode is Mode.ENFORCE
    advised = "" if is_enforced else f"; {lease.mode} mode: would have waited{spared}: {lease.reason}"
    reason = advised if lease.reason and advised else f"; {lease.reason}" if lease.reason else ""
    return Entry(
        lease_pool_id=lease.lease_pool_id,
        at=lease.granted_at,
        kind="granted",
        reason=f"{quantity(lease.units, 'unit')} granted to request {lease.request_id}{reason}",
        lease_id=lease.id,
        request_id=lease.request_id,
        units=lease.units,
    )


def received_entry(lease: Lease) -> Entry:
    return Entry(
        lease_pool_id=lease.lease_pool_id,
        at=lease.granted_at,
        kind="confirmed",
        reason="confirmed by receipt of the grant",
        lease_id=lease.id,
        request_id=lease.request_id,
        actor=lease.owner,
    )


def waiting_entry(request: Request, kind: str, reason: str, now: datetime) -> Entry:
    return Entry(
        lease_pool_id=request.lease_pool_id,
        at=now,
        kind=kind,
        reason=reason,
        request_id=request.id,
        units=request.waiting_units,
    )


def reasons(pool: LeasePool, history: Sequence[Entry], waiting: Mapping[str, str]) -> tuple[str, ...]:
    """The reasons of a decision, one per line: changes first, then the waiting requests."""
    lines = [
        f"lease {entry.lease_id}: {entry.reason}" if entry.lease_id else f"{entry.kind}: {entry.reason}"
        for entry in history
        if entry.lease_id or entry.kind == "limit"
    ]
    if pool.waiting_requests:
        first = next(iter(waiting.values()), f"{pool.held_cost} of {pool.limit_in_force} held")
        verb = "waits" if pool.waiting_requests == 1 else "wait"
        requests = quantity(pool.waiting_requests, "request")
        lines.append(f"{requests} {verb} for {quantity(pool.waiting_units, 'unit')}: {first}")
    return tuple(lines)


def summary(lines: Sequence[str], most: int = 20) -> str:
    """The lines as text, at most `most` of them: the first ones, which name ended leases, and the last one, which names
    the waiting requests."""
    if len(lines) > most:
        lines = (*lines[: most - 1], f"… {len(lines) - most} more …", lines[-1])
    return "\n".join(lines)
