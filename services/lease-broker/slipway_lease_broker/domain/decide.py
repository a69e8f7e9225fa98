"""The decision for one lease pool at one instant: what time ends, which limit is in force, who starts. Pure; it is
complete, has its reasons, and is only written down by whoever asked for it.

The one rule that counts: units are granted only while what is held stays within the limit in force. A limit that falls
below what is held revokes nothing; it stops grants until enough has come back. Only an operation that waited for as
long as it may goes over it, and is told so.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

import msgspec

from slipway_common.events.lease import LeaseGranted, LeaseLimitChanged, LeaseQueued
from slipway_lease_broker.domain import limits
from slipway_lease_broker.domain.admit import Admission, Grant, Queue
from slipway_lease_broker.domain.endings import because, ending, pass_time
from slipway_lease_broker.domain.ledger import (
    Entry,
    Group,
    Lease,
    LeasePool,
    Request,
    State,
    Tenant,
    alive_until,
    counted,
    idled,
    queued,
)
from slipway_lease_broker.domain.terms import Mode

Ids = Callable[[], str]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Rows as they are to be, what to tell, and why."""

    pool: LeasePool  # with its state and counters after the decision
    ended: tuple[Lease, ...] = ()  # expired, lost, released by their hold, or lost and no longer counted
    granted: tuple[Lease, ...] = ()
    requests: tuple[Request, ...] = ()  # those that got units or were told to wait
    awaited: frozenset[str] = frozenset()  # requests that got units after they had been told to wait
    tenants: tuple[Tenant, ...] = ()  # those that were served
    groups: tuple[Group, ...] = ()  # those that started a member
    history: tuple[Entry, ...] = ()
    waiting: Mapping[str, str] = MappingProxyType({})  # request → why it does not start, of those that were looked at
    gangs: tuple[str, ...] = ()  # that may start as far as this pool is concerned
    wake_at: datetime | None  # when time alone will change something next
    again: bool = False  # more could be decided than was loaded
    hidden: frozenset[Queue] = frozenset()  # some stand there behind so many who cannot start that they were not loaded
    idle_unit_seconds: float = 0.0  # of free units since the last decision, while somebody waited
    grant_gap_seconds: float | None = None  # since the grant before, when something was granted
    limit_cause: str = ""  # one word, when the limit in force changed
    events: tuple[Any, ...] = ()
    why: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.why)

    def summary(self, lines: int = 20) -> str:
        """For a row that is written often: the last reasons say who waits, the first what ended."""
        if len(self.why) <= lines:
            return str(self)
        left_out = f"… {len(self.why) - lines} more …"
        return "\n".join((*self.why[: lines - 1], left_out, self.why[-1]))


def decide(
    pool: LeasePool,
    due: Sequence[Lease],
    waiters: Sequence[Request],
    now: datetime,
    *,
    new_id: Ids,
    lost_linger_seconds: float,
    per_queue: int,
    deeper: Mapping[Queue, int] = MappingProxyType({}),
    untold: Sequence[Request] = (),
    lapsed: Sequence[Request] = (),
    tenants: Sequence[Tenant] = (),
    groups: Sequence[Group] = (),
    next_deadline: datetime | None = None,
    more: bool = False,
    for_gang: bool = False,
    held_up: Mapping[str, str] = MappingProxyType({}),
) -> Decision:
    """`due` are counted leases whose deadline has passed, `waiters` the first `per_queue` of each queue, or
    as many as `deeper` says.

    `untold` wait, beyond the heads or among them, and were not told so yet, in order of arrival; `lapsed` are those
    that are passed over from now on. `next_deadline` is the earliest of the counted leases that are not due. `more`
    says that more ended, waits untold or fell silent than was loaded. With `for_gang` the waiter is a gang's and may
    start: its other pools are decided for in the same transaction. `held_up` are gangs that keep nothing, and why. The
    durations are in seconds.
    """
    pool = idled(pool, now)
    pool, ended = _pass_time(pool, due, now, lost_linger_seconds)
    for request in lapsed:
        pool = queued(pool, request.waiting_units, 0)
    pool, adapted_why = limits.adapted(pool, now)
    pool, alert = limits.aged(pool, now)
    limit = limits.in_force(pool)

    admission = Admission(
        pool,
        limit.units,
        waiters,
        now,
        tenants=tenants,
        groups=groups,
        per_queue=per_queue,
        deeper=deeper,
        for_gang=for_gang,
        held_up=held_up,
    ).run()
    granted = [lease_of(pool, grant, now, new_id(), number) for number, grant in enumerate(admission.grants, start=1)]
    rows = {request.id: request for request in (*untold, *waiters)}
    before = dict(rows)
    for grant, lease in zip(admission.grants, granted, strict=True):
        row = rows[grant.request.id]
        rows[row.id] = msgspec.structs.replace(row, waiting_units=row.waiting_units - grant.units)
        pool = queued(counted(pool, lease, lease.units), row.waiting_units, rows[row.id].waiting_units)
    told = [rows[request.id] for request in untold if rows[request.id].waiting_units]
    rows |= {request.id: msgspec.structs.replace(request, queued_at=now) for request in told}

    changed = limit_changed(pool, limit.units, adapted_why or limit.reason)
    idle_unit_seconds, last_granted_at = pool.idle_unit_seconds, pool.last_granted_at
    pool = msgspec.structs.replace(
        pool,
        idle_unit_seconds=0.0,
        last_granted_at=now if granted else last_granted_at,
        last_token=pool.last_token + len(granted),
        limit_in_force=limit.units,
        limit_reason=limit.reason,
        paced_until=admission.paced_until,
        paced_interval_seconds=admission.pacing.interval_seconds if admission.pacing else None,
        virtual_time=admission.shares.virtual_time,
    )
    history = (
        *(ended_entry(lease, then, now) for lease, then in ended),
        *([limit_entry(changed, now)] if changed else []),
        *(granted_entry(lease) for lease in granted),
        *(
            waiting_entry(request, "lapsed", "nobody asks for it any more: passed over until somebody does", now)
            for request in lapsed
        ),
        *(
            waiting_entry(request, "queued", admission.waiting.get(request.id, "others are ahead"), now)
            for request in told
        ),
    )
    return Decision(
        pool=pool,
        ended=tuple(then for _, then in ended),
        granted=tuple(granted),
        requests=tuple(row for name, row in rows.items() if row is not before[name]),
        awaited=frozenset(grant.request.id for grant in admission.grants if grant.request.queued_at is not None),
        tenants=_served(pool.id, tenants, admission.finish),
        groups=tuple(group for group in admission.groups.values() if group not in groups),
        history=history,
        waiting=admission.waiting,
        gangs=tuple(admission.gangs),
        wake_at=min(
            (
                at
                for at in (
                    next_deadline,
                    *(then.deadline for _, then in ended if then.ended_at is None),
                    *(lease.deadline for lease in granted),
                    *admission.wake,
                    admission.overdue_at(),
                    limits.looks_again_at(pool, now),
                )
                if at is not None
            ),
            default=None,
        ),
        again=more or not admission.complete,
        hidden=frozenset(admission.hidden),
        idle_unit_seconds=idle_unit_seconds,
        grant_gap_seconds=(now - last_granted_at).total_seconds() if granted and last_granted_at else None,
        limit_cause=limit.cause if changed else "",
        events=(
            *(event for lease, then in ended if (event := ending(lease, then)) is not None),
            *([changed] if changed else []),
            *([alert] if alert else []),
            *(grant_event(lease) for lease in granted),
            *(
                queued_event(request, position)
                for position, request in enumerate(told, start=pool.waiting_requests - len(told) + 1)
            ),
        ),
        why=why(pool, history, admission.waiting),
    )


def _pass_time(
    pool: LeasePool, due: Sequence[Lease], now: datetime, lost_linger_seconds: float
) -> tuple[LeasePool, list[tuple[Lease, Lease]]]:
    """The pool without what ceased to count, and each lease that changed before and after."""
    delay = pool.policy.lock_delay_seconds
    linger = timedelta(seconds=lost_linger_seconds if delay is None else delay)
    ended = [(lease, then) for lease in due if (then := pass_time(lease, now, linger)) is not lease]
    for lease, then in ended:
        if then.ended_at is not None:
            pool = counted(pool, lease, -lease.units)
    return pool, ended


def _served(pool_id: str, tenants: Sequence[Tenant], finish: Mapping[str, float]) -> tuple[Tenant, ...]:
    """Tenants that were granted something."""
    known = {tenant.tenant: tenant for tenant in tenants}
    return tuple(
        msgspec.structs.replace(
            known.get(name) or Tenant(lease_pool_id=pool_id, tenant=name), virtual_finish=virtual_finish
        )
        for name, virtual_finish in finish.items()
    )


def lease_of(pool: LeasePool, grant: Grant, now: datetime, lease_id: str, number: int) -> Lease:
    """The lease of a grant; `number` counts the grants of this decision from 1."""
    request, policy = grant.request, pool.policy
    hold_until = now + timedelta(seconds=min(request.hold_seconds or pool.hold_seconds, pool.hold_seconds))
    no_progress = policy.no_progress_seconds
    return Lease(
        id=lease_id,
        lease_pool_id=pool.id,
        request_id=request.id,
        fencing_token=pool.last_token + number,
        granted_units=grant.units,
        units=grant.units,
        state=State.RESERVED,
        granted_at=now,
        expires_at=alive_until(pool, State.RESERVED, now, hold_until),
        hold_until=hold_until,
        traceparent=request.traceparent,
        tenant=request.tenant,
        operation=request.operation,
        weight=policy.operation(request.operation).weight,
        owner=request.owner,
        progress_until=None if no_progress is None else now + timedelta(seconds=no_progress),
        waited_seconds=max(0.0, (now - request.asked_at).total_seconds()),
        mode=policy.mode,
        advised_wait_seconds=grant.spared_seconds,
        reason=grant.reason,
        gang_id=request.gang_id,
    )


def limit_changed(pool: LeasePool, limit_units: int, reason: str) -> LeaseLimitChanged | None:
    """What subscribers hear of a limit that changed otherwise than by a declaration, which tells it itself."""
    if pool.limit_in_force is None or pool.limit_in_force == limit_units:
        return None
    return LeaseLimitChanged(
        lease_pool_id=pool.id, limit=limit_units, previous_limit=pool.limit_in_force, reason=reason
    )


def grant_event(lease: Lease) -> LeaseGranted:
    tells = lease.mode is not Mode.SHADOW
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
        advised_wait_seconds=lease.advised_wait_seconds if tells else None,
        reason=lease.reason if tells else "",
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
        reason=because(lease, then),
        lease_id=lease.id,
        request_id=lease.request_id,
        units=lease.units,
    )


def limit_entry(changed: LeaseLimitChanged, now: datetime) -> Entry:
    return Entry(lease_pool_id=changed.lease_pool_id, at=now, kind="limit", reason=changed.reason, units=changed.limit)


def granted_entry(lease: Lease) -> Entry:
    spared = "" if lease.advised_wait_seconds is None else f" for {lease.advised_wait_seconds:.0f} s"
    late = f"; {lease.mode} mode: would have waited{spared}: {lease.reason}" if lease.mode is not Mode.ENFORCE else ""
    why = late if lease.reason and late else f"; {lease.reason}" if lease.reason else ""
    return Entry(
        lease_pool_id=lease.lease_pool_id,
        at=lease.granted_at,
        kind="granted",
        reason=f"{lease.units} units granted to request {lease.request_id}{why}",
        lease_id=lease.id,
        request_id=lease.request_id,
        units=lease.units,
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


def why(pool: LeasePool, history: Sequence[Entry], waiting: Mapping[str, str]) -> tuple[str, ...]:
    """The reasons, one a line: what changed, then who waits for what."""
    lines = [
        f"lease {entry.lease_id}: {entry.reason}" if entry.lease_id else f"{entry.kind}: {entry.reason}"
        for entry in history
        if entry.lease_id or entry.kind == "limit"
    ]
    if pool.waiting_requests:
        first = next(iter(waiting.values()), f"{pool.held_cost} of {pool.limit_in_force} held")
        lines.append(f"{pool.waiting_requests} requests wait for {pool.waiting_units} units: {first}")
    return tuple(lines)
