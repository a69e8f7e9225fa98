"""Applies lease commands to the loaded rows; raises BadEvent.

Pure. Commands grant nothing and do not let deadlines pass; both are decided afterwards (decide.py). A command that
comes too late, or with the wrong token or owner, changes nothing.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Final, TypeAlias

import msgspec

from slipway_api.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmed,
    LeaseConfirmRequested,
    LeaseExpired,
    LeaseGroup,
    LeaseLost,
    LeaseReleased,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
    LeaseUnleasedReported,
    ReplacedLease,
)
from slipway_common.base.errors import BadEvent
from slipway_lease_broker.domain import backoff, spread, throttling, unleased
from slipway_lease_broker.domain.adaptive import Evidence
from slipway_lease_broker.domain.endings import HOLD, RELEASED, REPLACED, ended_event, lost_event
from slipway_lease_broker.domain.holders import Left, active, claim, left, without
from slipway_lease_broker.domain.ledger import (
    Group,
    Lease,
    LeasePool,
    Ledger,
    Request,
    State,
    Tenant,
    accrue_idle,
    advance,
    alive_until,
    counted,
    new_request,
    queued,
)
from slipway_lease_broker.domain.ownership import Denial, denied, may_act
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.text import quantity
from slipway_lease_broker.domain.throttling import ThrottleReport

LeaseCommand: TypeAlias = (
    LeaseRequested
    | LeaseConfirmRequested
    | LeaseRenewRequested
    | LeaseCancelRequested
    | LeaseReleaseRequested
    | LeaseUnleasedReported
)

# Units are integer columns. A record beyond these limits would fail forever and look like a database error, so it is
# refused here.
UNITS_MAX: Final = 1_000_000
PRIORITY_MAX: Final = 9
SECONDS_MAX: Final = 31_536_000
EVIDENCE_MAX: Final = 1_000
QUOTA_MAX: Final = 2**31 - 1
# The members of a group belong to one event and start within one day.
SPREAD_SECONDS_MAX: Final = 86_400

# Results of a release that affect the backoff of its tenant. All others concern machines, images or providers.
FAILED: Final = "failed"
DONE: Final = "done"


def apply_command(
    ledger: Ledger,
    command: LeaseCommand,
    now: datetime,
    sender: Sender,
    *,
    traceparent: str = "",
    gang_id: str | None = None,
) -> Denial | None:
    """Apply one command of `sender`; returns the reason why it may not give it. With a `gang_id` a request starts
    together with the others of that gang. Raises BadEvent for a command that can never be applied."""
    pool = _pool_of(ledger, command, now)
    denial = denial_of(command, ledger, sender)
    if denial is Denial.WRONG_OWNER:
        ledger.refusals.append(denial)
    else:
        _apply(ledger, pool, command, denial, now, sender, traceparent=traceparent, gang_id=gang_id)
    return denial


def apply_permitted(
    ledger: Ledger,
    command: LeaseCommand,
    now: datetime,
    sender: Sender,
    *,
    traceparent: str = "",
    gang_id: str | None = None,
) -> None:
    """Apply one command that `sender` may give, as the caller has checked. Raises BadEvent as apply_command does."""
    pool = _pool_of(ledger, command, now)
    _apply(ledger, pool, command, None, now, sender, traceparent=traceparent, gang_id=gang_id)


def _pool_of(ledger: Ledger, command: LeaseCommand, now: datetime) -> LeasePool:
    """The lease pool of a command that can be applied, counted up to now. Raises BadEvent."""
    pool = ledger.pools.get(command.lease_pool_id)
    if pool is None:
        raise BadEvent(f"lease pool {command.lease_pool_id!r} is not declared")
    check(command)
    if pool.counted_at != now:
        pool = ledger.pools[pool.id] = accrue_idle(pool, now)
    return pool


def _apply(
    ledger: Ledger,
    pool: LeasePool,
    command: LeaseCommand,
    denial: Denial | None,
    now: datetime,
    sender: Sender,
    *,
    traceparent: str,
    gang_id: str | None,
) -> None:
    match command:
        case LeaseRequested():
            new = partial(new_request, now=now, sender=sender, traceparent=traceparent, gang_id=gang_id)
            _request(ledger, pool, command, new, now, sender)
        case LeaseCancelRequested():
            _cancel(ledger, pool, command, now, sender)
        case LeaseReleaseRequested():
            _release(ledger, pool, command, denial, now, sender)
        case LeaseUnleasedReported():
            _record_unleased(ledger, pool, command, now, sender)
        case LeaseConfirmRequested() | LeaseRenewRequested():
            _extend(ledger, pool, command, denial, now, sender)


def denial_of(command: LeaseCommand, ledger: Ledger, sender: Sender) -> Denial | None:
    """Reason why `sender` may not act on the request or lease that a command names; None if it may, or if there is no
    such request yet."""
    subject: Request | Lease | None
    if isinstance(command, LeaseRequested | LeaseCancelRequested):
        subject = ledger.requests.get((command.lease_pool_id, command.request_id))
    else:
        subject = ledger.leases.get((command.lease_pool_id, command.lease_id))
        if not isinstance(command, LeaseUnleasedReported):  # which names the lease to be made, and has no token yet
            return denied(subject, command.fencing_token, sender.name, admin=sender.admin)
    is_allowed = subject is None or may_act(subject.owner, sender.name, admin=sender.admin)
    return None if is_allowed else Denial.WRONG_OWNER


def _request(
    ledger: Ledger,
    pool: LeasePool,
    command: LeaseRequested,
    new: Callable[..., Request],
    now: datetime,
    sender: Sender,
) -> None:
    key = pool.id, command.request_id
    if (known := ledger.requests.get(key)) is not None:  # a repetition: its owner still waits
        holder = sender.holder or known.holder
        ledger.put_request(msgspec.structs.replace(known, last_requested_at=now, lapsed=False, holder=holder))
        if known.lapsed:
            ledger.pools[pool.id] = queued(pool, known, 0, known.waiting_units)
            ledger.dirty.add(pool.id)
        return
    since = _replace(ledger, pool, command, command.replaces, now, sender.name) if command.replaces is not None else now
    if command.group is not None:
        since = max(since, _join(ledger, pool, command.group, now, sender))
    added = new(command, since=since)
    ledger.put_request(added)
    if command.tenant != sender.name and not sender.over_kafka and (pool.id, command.tenant) not in ledger.tenants:
        ledger.put_tenant(Tenant(lease_pool_id=pool.id, tenant=command.tenant, owner=sender.name))
        ledger.tenants_by[pool.id, sender.name] = ledger.tenants_by.get((pool.id, sender.name), 0) + 1
    ledger.pools[pool.id] = queued(ledger.pools[pool.id], added, 0, command.units)
    ledger.dirty.add(pool.id)


def claim_lease(ledger: Ledger, lease: Lease, sender: Sender, now: datetime) -> Lease:
    """Give a live lease to the sender who asks for it again and may have it; see holders.py."""
    pool = ledger.pools[lease.lease_pool_id]
    after = claim(lease, sender, now, new_token=pool.last_token + 1)
    if after is lease:
        return lease
    kind, reason = "joined", f"{sender.holder} holds it, too"
    if after.fencing_token != lease.fencing_token:
        kind, reason = "taken-over", f"{sender.holder} holds it instead of {lease.holder}, which was not heard of"
        expires_at = max(lease.expires_at, alive_until(pool, lease.state, now, lease.hold_until))
        after = msgspec.structs.replace(after, expires_at=expires_at)
        ledger.pools[pool.id] = msgspec.structs.replace(pool, last_token=after.fencing_token)
        ledger.deadlines[pool.id] = min(after.deadline, ledger.deadlines.get(pool.id, after.deadline))
        ledger.events.append(confirmed_event(after))
    ledger.put_lease(after)
    if sender.join or after.fencing_token != lease.fencing_token:
        about = {"lease_id": lease.id, "request_id": lease.request_id}
        ledger.add_history(pool, kind, reason, now, sender.name, **about)
    return after


def _replace(
    ledger: Ledger, pool: LeasePool, command: LeaseRequested, replaced: ReplacedLease, now: datetime, owner: str
) -> datetime:
    """End the lease of an earlier attempt. Returns the start of the new request's wait: that of the earlier one if
    this is its first successor with the same tenant and operation, otherwise `now`; else one old lease could give
    its age to any number of requests."""
    lease = ledger.leases.get((pool.id, replaced.lease_id))
    # A request inherits age only from a lease of its own owner.
    denial = denied(lease, replaced.fencing_token, owner)
    if lease is None or denial is not None:
        ledger.refusals.append(refusal(lease, denial))
        return now
    if lease.live and len(active(lease)) == 1:  # others would lose theirs
        _return_units(ledger, pool, lease, lease.units, REPLACED, now, owner)
    if lease.replaced or (lease.tenant, lease.operation) != (command.tenant, command.operation):
        ledger.refusals.append("not an earlier attempt")
        return now
    ledger.put_lease(msgspec.structs.replace(ledger.leases[pool.id, lease.id], replaced=True))
    before = ledger.requests.get((pool.id, lease.request_id))
    return min(now, lease.granted_at if before is None else before.since)


def _join(ledger: Ledger, pool: LeasePool, wanted: LeaseGroup, now: datetime, sender: Sender) -> datetime:
    """Add a member to its group; returns when it may start. A group whose spread is over starts anew."""
    key = pool.id, spread.group_key(wanted, sender)
    group = ledger.groups.get(key)
    if group is None or now - group.first_at > timedelta(seconds=group.spread_seconds):
        group = Group(
            lease_pool_id=pool.id,
            name=key[1],
            size=wanted.size,
            spread_seconds=wanted.spread_seconds,
            first_at=now,
            last_start_at=None if group is None else group.last_start_at,
        )
    member = group.members if wanted.member is None else wanted.member
    ledger.groups[key] = msgspec.structs.replace(group, members=group.members + 1)
    ledger.changed_groups.add(key)
    return spread.due_at(group.first_at, member, spread.step(group.size, group.spread_seconds))


def _cancel(ledger: Ledger, pool: LeasePool, command: LeaseCancelRequested, now: datetime, sender: Sender) -> None:
    request = ledger.requests.get((pool.id, command.request_id))
    if request is None or request.waiting_units == 0:
        ledger.refusals.append("nothing to cancel")
        return
    after = msgspec.structs.replace(request, waiting_units=max(0, request.waiting_units - command.units))
    ledger.put_request(after)
    ledger.pools[pool.id] = queued(pool, request, request.counted_units, after.counted_units)
    ledger.dirty.add(pool.id)
    units = request.waiting_units - after.waiting_units
    ledger.add_history(pool, "cancelled", command.reason, now, sender.name, request_id=request.id, units=units)


def _release(
    ledger: Ledger,
    pool: LeasePool,
    command: LeaseReleaseRequested,
    denial: Denial | None,
    now: datetime,
    sender: Sender,
) -> None:
    lease = ledger.leases.get((pool.id, command.lease_id))
    if lease is not None and denial is None and is_late_evidence(pool, lease, command):
        _record_late_release(ledger, pool, lease, command, now, sender)
        return
    # A lost lease is not shortened by a release: its holder may have sent it before its last call.
    if lease is None or denial is not None or not lease.live:
        ledger.refusals.append(refusal(lease, denial))
        return
    match left(lease, sender):
        case Left.UNNAMED:
            ledger.refusals.append("unknown holder")
            return
        case Left.AGAIN:
            return
        case Left.OTHERS:
            if command.units < lease.units:  # the others use them all
                return
            ledger.put_lease(without(lease, sender.holder))
            ledger.deadlines[pool.id] = min(lease.deadline, ledger.deadlines.get(pool.id, lease.deadline))
            reason = f"{sender.holder} has released it: {command.result}"
            ledger.add_history(pool, "left", reason, now, sender.name, lease_id=lease.id, request_id=lease.request_id)
        case Left.LAST:
            _return_units(ledger, pool, lease, min(command.units, lease.units), command.result, now, sender.name)
            _end_hold_back(ledger, ledger.leases[pool.id, lease.id])
    _record_evidence(ledger, lease, command, now, sender)
    _update_backoff(ledger, lease, command.result, now)


def _end_hold_back(ledger: Ledger, lease: Lease) -> None:
    """End the wait of a tenant for unleased units beyond what counts, once these are released."""
    tenant = ledger.tenants.get((lease.lease_pool_id, lease.tenant))
    if lease.uncounted_units and not lease.live and tenant is not None and tenant.held_back_until == lease.hold_until:
        ledger.put_tenant(msgspec.structs.replace(tenant, held_back_until=None, held_back_reason=""))


def _return_units(
    ledger: Ledger, pool: LeasePool, lease: Lease, units: int, result: str, now: datetime, owner: str
) -> None:
    left = lease.units - units
    after = msgspec.structs.replace(lease, units=left)
    if left == 0:
        after = msgspec.structs.replace(
            after,
            state=advance(lease.state, "released"),
            ended_at=now,
            reason=REPLACED if result == REPLACED else RELEASED,
        )
    ledger.put_lease(after)
    ledger.pools[pool.id] = counted(pool, lease, lease.units, left)
    ledger.dirty.add(pool.id)
    ledger.events.append(
        LeaseReleased(
            lease_pool_id=pool.id,
            lease_id=lease.id,
            request_id=lease.request_id,
            units=units,
            remaining=left,
            reason=result,
        )
    )
    ledger.add_history(
        pool,
        "released",
        f"{quantity(units, 'unit')} released: {result}",
        now,
        owner,
        lease_id=lease.id,
        request_id=lease.request_id,
        units=units,
    )


def _record_late_release(
    ledger: Ledger, pool: LeasePool, lease: Lease, command: LeaseReleaseRequested, now: datetime, sender: Sender
) -> None:
    """Record the evidence of a release after the hold has ended: it returns no units, but is as true as before."""
    ledger.put_lease(msgspec.structs.replace(lease, reported_late=True))
    ledger.dirty.add(pool.id)
    ledger.add_history(
        pool,
        "reported-late",
        f"released after its hold had ended: {command.result}",
        now,
        sender.name,
        lease_id=lease.id,
        request_id=lease.request_id,
    )
    _record_evidence(ledger, lease, command, now, sender)


def _record_evidence(
    ledger: Ledger, lease: Lease, command: LeaseReleaseRequested, now: datetime, sender: Sender
) -> None:
    """Record the throttle evidence of a release. That of one holder alone makes only its own tenant wait; see
    throttling.py."""
    pool = ledger.pools[lease.lease_pool_id]
    until = throttling.pause_until(command.retry_after_seconds, now, pool.policy.retry_after_max_seconds)
    is_report = command.throttled or until is not None
    if not is_report and pool.policy.adaptive is None:
        return
    held = dict(ledger.held_by.get(pool.id, {}))
    is_recent = lease.ended_at is not None and now - lease.ended_at <= timedelta(seconds=pool.hold_seconds)
    if is_recent and lease.unleased_by is None:  # its hold has ended, so that it is no longer among the held ones
        held[lease.owner] = held.get(lease.owner, 0) + lease.granted_units
    is_trusted = sender.adapter or throttling.is_major(lease.owner, held)
    if is_report:
        report = ThrottleReport(lease.owner, now, until)
        judged = throttling.judge(
            report, pool.throttle_reports, is_adapter=sender.adapter, held=held, hold_seconds=pool.hold_seconds
        )
        pool = msgspec.structs.replace(pool, throttle_reports=judged.reports)
        is_trusted = judged.moves_pool
        if judged.moves_pool and judged.until is not None:
            pool = msgspec.structs.replace(pool, blocked_until=max(judged.until, pool.blocked_until or judged.until))
        elif judged.until is not None:
            ledger.hold_back(lease, judged.until, "reported a Retry-After that no other reporter has confirmed")
    if command.throttled:
        ledger.throttles.append(pool.id)
        alone = "" if is_trusted else "; one report moves only its own tenant"
        ledger.add_history(
            pool,
            "throttled",
            f"its holder was throttled by the provider{alone}",
            now,
            lease.owner,
            lease_id=lease.id,
            request_id=lease.request_id,
        )
    if pool.policy.adaptive is not None and len(pool.evidence) < EVIDENCE_MAX and (is_trusted or not command.throttled):
        evidence = Evidence(
            granted_at=lease.granted_at,
            throttled=command.throttled,
            quota_remaining=command.quota_remaining if is_trusted else None,
            late=not lease.live,
        )
        pool = msgspec.structs.replace(pool, evidence=(*pool.evidence, evidence))
    ledger.pools[pool.id] = pool


def _update_backoff(ledger: Ledger, lease: Lease, result: str, now: datetime) -> None:
    """Start or extend the backoff of a tenant whose lease failed; end it when a lease is done."""
    key = lease.lease_pool_id, lease.tenant
    terms = ledger.pools[lease.lease_pool_id].policy.backoff
    tenant = ledger.tenants.get(key)
    if result == FAILED and terms is not None:
        tenant = tenant or Tenant(lease_pool_id=lease.lease_pool_id, tenant=lease.tenant)
        failures, until = backoff.after_failure(
            tenant.failures,
            tenant.backoff_until,
            lease.granted_at,
            now,
            seconds=terms.seconds,
            max_seconds=terms.max_seconds,
        )
    elif result == DONE and tenant is not None and tenant.failures:
        failures, until = 0, None
    else:
        return
    ledger.put_tenant(msgspec.structs.replace(tenant, failures=failures, backoff_until=until))


def _extend(
    ledger: Ledger,
    pool: LeasePool,
    command: LeaseConfirmRequested | LeaseRenewRequested,
    denial: Denial | None,
    now: datetime,
    sender: Sender,
) -> None:
    """Confirm or renew a lease. Its state alone decides: a lease lives until its expiry has committed."""
    lease = ledger.leases.get((pool.id, command.lease_id))
    if lease is None or denial is not None or not lease.live:
        ledger.refusals.append(refusal(lease, denial))
        ledger.events.extend(lost_answers(pool, lease, command, now))
        return
    state = advance(lease.state, "confirmed" if isinstance(command, LeaseConfirmRequested) else "renewed")
    expires_at = alive_until(pool, state, now, lease.hold_until)
    if isinstance(command, LeaseRenewRequested):  # a renewal never shortens a lease that may live longer
        expires_at = max(expires_at, min(lease.expires_at, lease.hold_until))
    after = msgspec.structs.replace(
        lease, state=state, expires_at=expires_at, extended_at=now, over_kafka=sender.over_kafka
    )
    progress = command.progress if isinstance(command, LeaseRenewRequested) else None
    if progress is not None and progress != lease.progress:
        terms = pool.policy.no_progress_seconds
        until = None if terms is None else now + timedelta(seconds=terms)
        after = msgspec.structs.replace(after, progress=progress, progress_until=until)
    ledger.put_lease(after)
    ledger.deadlines[pool.id] = min(after.deadline, ledger.deadlines.get(pool.id, after.deadline))
    ledger.events.append(confirmed_event(after))
    if state is not lease.state:
        ledger.add_history(
            pool,
            "confirmed",
            "confirmed by its holder",
            now,
            sender.name,
            lease_id=lease.id,
            request_id=lease.request_id,
        )


def _record_unleased(
    ledger: Ledger, pool: LeasePool, command: LeaseUnleasedReported, now: datetime, sender: Sender
) -> None:
    """Count an unleased launch of a service as a lease. The answer carries its token; from then on it is a lease like
    any other, unless its hold has already ended."""
    lease = ledger.leases.get((pool.id, command.lease_id))
    if lease is None:
        if (pool.id, command.request_id) in ledger.requests:
            ledger.refusals.append("known request")
            return
        if any(lease_id == command.lease_id for _, lease_id in ledger.leases):  # of another pool
            ledger.refusals.append("known lease")
            return
        start = unleased.Start(
            request_id=command.request_id,
            operation=command.operation,
            units=command.units,
            started_at=command.started_at,
            tenant=command.tenant,
        )
        lease = unleased.charge(ledger, pool.id, start, now, sender, lease_id=command.lease_id)
    if lease.live:
        ledger.deadlines[pool.id] = min(lease.deadline, ledger.deadlines.get(pool.id, lease.deadline))
        ledger.events.append(confirmed_event(lease))
    else:
        ledger.events.append(ended_event(lease))


@cache
def _checked_fields(kind: type[LeaseCommand]) -> tuple[str, ...]:
    """Fields of a kind of command whose values have bounds."""
    bounded = ("_id", "_seconds")
    return tuple(
        name for name in kind.__struct_fields__ if name.endswith(bounded) or name in ("units", "quota_remaining")
    )


def check(command: LeaseCommand) -> None:
    """Raise BadEvent for values that no ledger can hold."""
    for name in _checked_fields(type(command)):
        value = getattr(command, name)
        if name.endswith("_id") and not value:
            raise BadEvent(f"{name} is empty")
        if name == "units" and not 1 <= value <= UNITS_MAX:
            raise BadEvent(f"units {value}: must be 1 to {UNITS_MAX}")
        if name.endswith("_seconds") and value is not None and not 0 <= value <= SECONDS_MAX:
            raise BadEvent(f"{name} {value:g}: must be 0 to {SECONDS_MAX}")
        if name == "quota_remaining" and value is not None and not 0 <= value <= QUOTA_MAX:
            raise BadEvent(f"quota_remaining {value}: must be 0 to {QUOTA_MAX}")
    if isinstance(command, LeaseRequested):
        _check_request(command)


def _check_request(command: LeaseRequested) -> None:
    if not 0 <= command.priority <= PRIORITY_MAX:
        raise BadEvent(f"priority {command.priority}: must be 0 to {PRIORITY_MAX}, {PRIORITY_MAX} first")
    if command.hold_seconds is not None and command.hold_seconds <= 0:
        raise BadEvent(f"hold_seconds {command.hold_seconds:g}: must be above 0")
    if (group := command.group) is not None:
        if not group.name:
            raise BadEvent("group.name is empty")
        if not (1 <= group.size <= UNITS_MAX and 0 < group.spread_seconds <= SPREAD_SECONDS_MAX):
            raise BadEvent(
                f"group {group.name}: size must be 1 to {UNITS_MAX} and spread above 0 and up to {SPREAD_SECONDS_MAX} s"
            )
        if group.member is not None and not 0 <= group.member < group.size:
            raise BadEvent(f"group {group.name}: member {group.member} of {group.size}; members count from 0")


def is_late_evidence(pool: LeasePool, lease: Lease, command: LeaseReleaseRequested) -> bool:
    """True for the first release of a lease that its hold ended, if it carries throttle evidence. For an adaptive limit
    a release without throttling is evidence too, or the limit would see only the throttled ones."""
    if lease.state is not State.RELEASED or lease.reason != HOLD or lease.reported_late:
        return False
    evidence = command.throttled or command.retry_after_seconds is not None or command.quota_remaining is not None
    return evidence or pool.policy.adaptive is not None


def confirmed_event(lease: Lease) -> LeaseConfirmed:
    return LeaseConfirmed(
        lease_pool_id=lease.lease_pool_id,
        lease_id=lease.id,
        fencing_token=lease.fencing_token,
        expires_at=lease.expires_at,
    )


def confirmation(lease: Lease) -> LeaseConfirmRequested:
    return LeaseConfirmRequested(
        lease_pool_id=lease.lease_pool_id, lease_id=lease.id, fencing_token=lease.fencing_token
    )


def refusal(lease: Lease | None, denial: Denial | None) -> str:
    """The reason for which a command about a lease changed nothing, as a metric label."""
    return f"already {lease.state}" if denial is None and lease is not None else str(denial)


def lost_answers(
    pool: LeasePool, lease: Lease | None, command: LeaseConfirmRequested | LeaseRenewRequested, now: datetime
) -> list[LeaseLost | LeaseReleased | LeaseExpired]:
    """Events for a holder whose lease has ended: it may not have received them.

    A stale token on a live lease gets no answer either, since the answer would reach the true holder. An unknown lease
    is lost: it was granted before a backup was restored.
    """
    if lease is None:
        return [LeaseLost(lease_pool_id=pool.id, lease_id=command.lease_id, request_id="", units=0, counted_until=now)]
    return [lost_event(lease) if lease.state is State.EXPIRED else ended_event(lease)] if not lease.live else []
