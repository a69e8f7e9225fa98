"""Admission: which waiting requests start now, and with how many units. Pure.

Three classes, each served before the next: operations of weight 0; operations past their maximum wait, which proceed
over the limit and are counted; and all others, in the order of fairness.py. In the last class the first request that
lacks units blocks all later ones, apart from units reserved for their own operation: otherwise a stream of small
requests could starve a large one. A request that may not start by itself (its tenant backs off, its group starts it
later) is skipped and keeps its place. A member of a gang is never granted alone: at its turn its units are reserved.

A gang reserves nothing while it is blocked, that is while one of its members cannot start in its own pool for a reason
that neither time nor released units will change. Skipped members of blocked gangs block no other request.

In shadow and advisory pools all requests start at once, and the same rules compute which ones would have waited, and
for how long. In a drained or retired pool nothing starts, whatever its mode.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Final

import msgspec

from slipway_lease_broker.domain import fairness, pacing, spread
from slipway_lease_broker.domain.adaptive import even_pacing
from slipway_lease_broker.domain.eta import eta_seconds
from slipway_lease_broker.domain.fairness import Head, Shares
from slipway_lease_broker.domain.ledger import LeasePool, Request
from slipway_lease_broker.domain.limits import adaptive_terms, in_force, reserved_for_others
from slipway_lease_broker.domain.pacing import Pacing
from slipway_lease_broker.domain.situation import Queue, Situation
from slipway_lease_broker.domain.terms import Mode
from slipway_lease_broker.domain.text import quantity

OVER_THE_LIMIT: Final = "proceeds over the limit: maximum wait of its operation exceeded"


class Blocks(Enum):
    """The requests that are blocked by one that may not start."""

    NOTHING = "nothing"  # it can never be granted: more units than will ever be free
    QUEUE = "queue"  # its own tenant, group or operation, which may not start by itself
    LATER = "later"  # all later requests, apart from units reserved for their own operation
    ALL = "all"  # everything that is paced
    UNITS = "units"  # its own units only: they are reserved until its gang can start in all pools


class Cause(Enum):
    """Rule that makes a request wait. Only rules to whose reason queue_status.py adds something have a cause."""

    STOPPED = auto()  # by an operator
    GROUP = auto()
    BACKOFF = auto()
    PROVIDER = auto()
    LIMIT = auto()  # it requests more than the limit
    UNITS = auto()
    PACING = auto()


class Verdict(msgspec.Struct, frozen=True):
    """Number of units of a request that may start now; if none, the reason, the requests that this blocks, and the time
    at which it may change by itself."""

    units: int = 0
    reason: str = ""
    blocks: Blocks = Blocks.NOTHING
    until: datetime | None = None
    cause: Cause | None = None


WITH_ITS_GANG: Final = Verdict(0, "its gang starts once all of its pools have free units", Blocks.UNITS)


class Grant(msgspec.Struct, frozen=True):
    """A start of `units` of a request. `spared_seconds` is the wait that a shadow or advisory pool spared it, `reason`
    the reason for that wait."""

    request: Request
    units: int
    reason: str = ""
    spared_seconds: float | None = None


class Admission:
    """One round over the heads of the queues: its grants, and the state after it.

    When the loaded requests of a queue run out, its next one is unknown. If some of them started, the round ends and is
    not `complete`. If all of them were skipped, the other queues go on, since they would never have a turn otherwise,
    and `hidden` names the queue, so that the caller can load the requests behind.
    """

    def __init__(self, pool: LeasePool, limit_units: int, situation: Situation, now: datetime) -> None:
        self.pool, self.limit, self.now = pool, limit_units, now
        self.for_gang, self.blocked_gangs = situation.for_gang, situation.blocked_gangs
        self.pacing = pacing_of(pool, limit_units)
        self.paced_until = repaced(pool, self.pacing, now)
        self.most_ahead = pacing.most_ahead(self.pacing, limit_units, pool.hold_seconds)
        self.held = dict(pool.held)
        self.tenants = {tenant.tenant: tenant for tenant in situation.tenants}
        self.groups = {group.name: group for group in situation.groups}
        ahead = {t.tenant: t.virtual_finish for t in self.tenants.values() if t.virtual_finish > pool.virtual_time}
        self.shares = Shares(pool.virtual_time, ahead)
        self.grants: list[Grant] = []
        self.waiting: dict[str, str] = {}  # id of a considered request that does not start → reason
        self.wake_times: list[datetime] = []  # when time alone may let a request start
        self.finish: dict[str, float] = {}  # tenant → virtual finish of its last grant
        self.gangs: list[str] = []  # that may start as far as this pool is concerned
        self.complete = True
        self.hidden: set[Queue] = set()

        waiters, deeper = situation.waiters, situation.deeper
        self._overdue_times = self._find_overdue_times(waiters)  # id of a waiting request → end of its maximum wait
        self._queues: dict[Queue, list[Request]] = {}  # in reverse order
        # Overdue requests come first: one that inherited the age of an earlier attempt must not hide them.
        for request in sorted(waiters, key=lambda one: (not self._is_overdue(one), *_arrival(one)), reverse=True):
            self._queues.setdefault(request.queue, []).append(request)
        self._cut = {
            queue for queue, requests in self._queues.items() if len(requests) >= deeper.get(queue, situation.per_queue)
        }
        self._started: set[Queue] = set()  # with at least one grant
        # Some requests may go before all others: their operation has weight 0 or a maximum wait.
        self._has_express = bool(self._overdue_times) or any(one.weight == 0 for one in pool.policy.operations.values())
        self._reserved_for_gangs = 0  # units of gangs at their turn
        self._short_operations: set[str] = set()  # operations whose first request lacks units
        self._stopped = False  # nothing paced may start

    def run(self) -> "Admission":
        while (request := self._next()) is not None:
            verdict = self.verdict(request)
            if verdict.units:
                self._grant(Grant(request, verdict.units, verdict.reason))
            elif self._lets_all_start() and not self._starts_with_gang(request):
                spared = self._spared_seconds(request, verdict)
                self._grant(Grant(request, request.waiting_units, verdict.reason, spared))
            else:
                self._defer(request, verdict)
            if not self._queues.get(request.queue, True):
                del self._queues[request.queue]
                if request.queue in self._cut and request.queue in self._started:
                    self.complete = False
                    break
                if request.queue in self._cut:
                    self.hidden.add(request.queue)
        return self

    def _lets_all_start(self) -> bool:
        return self.pool.policy.mode is not Mode.ENFORCE and not self.pool.stopped

    # Order of requests

    def _next(self) -> Request | None:
        heads = [requests[-1] for requests in self._queues.values()]
        if not heads:
            return None
        if self._has_express:
            free = [head for head in heads if self._weight(head) == 0]
            if overdue := free or [head for head in heads if self._is_overdue(head)]:
                return min(overdue, key=_arrival)
        if self._stopped:
            return None
        of = {
            Head(tenant=head.tenant, priority=head.priority, requested_at=head.since, place=head.place): head
            for head in heads
            if head.operation not in self._short_operations
        }
        first = fairness.next_head(of, self.shares, self.now, self.pool.policy.ageing_seconds)
        return None if first is None else of[first]

    def _weight(self, request: Request) -> int:
        return self.pool.policy.operation(request.operation).weight

    def _find_overdue_times(self, waiters: Iterable[Request]) -> dict[str, datetime]:
        operations = self.pool.policy.operations.items()
        longest = {name: one.max_wait_seconds for name, one in operations if one.max_wait_seconds is not None}
        if not longest or self.pool.stopped:
            return {}
        earliest = self.pool.blocked_until or self.now  # a Retry-After takes precedence
        return {
            request.id: max(_waits_since(request) + timedelta(seconds=longest[request.operation]), earliest)
            for request in waiters
            if request.operation in longest
        }

    def _is_overdue(self, request: Request) -> bool:
        overdue_at = self._overdue_times.get(request.id)
        return overdue_at is not None and self.now >= overdue_at

    def _starts_with_gang(self, request: Request) -> bool:
        """True if the request can only start together with its gang."""
        return request.gang_id is not None and not self.for_gang

    def _is_blocked_by_provider(self) -> bool:
        return self.pool.blocked_until is not None and self.now < self.pool.blocked_until

    # Verdict on one request

    def verdict(self, request: Request) -> Verdict:
        if self.pool.stopped:  # by an operator: applies in every mode and to every weight
            return Verdict(0, in_force(self.pool).reason, Blocks.QUEUE, cause=Cause.STOPPED)
        weight, with_gang = self._weight(request), self._starts_with_gang(request)
        if with_gang and (reason := self.blocked_gangs.get(request.gang_id or "")) is not None:
            return Verdict(0, reason)
        if with_gang and self.pool.policy.mode is not Mode.ENFORCE:
            return WITH_ITS_GANG
        if weight == 0 and request.since <= self.now:
            return WITH_ITS_GANG if with_gang else Verdict(request.waiting_units)
        if self._is_overdue(request):
            if with_gang:
                return WITH_ITS_GANG
            fits = self.free_cost(request.operation) >= request.waiting_units * weight
            return Verdict(request.waiting_units, "" if fits else OVER_THE_LIMIT)
        if (not_yet := self._not_yet(request)) is not None:
            return not_yet
        if self._is_blocked_by_provider():
            until = self.pool.blocked_until
            return Verdict(0, "the provider asked for a pause (Retry-After)", Blocks.ALL, until, Cause.PROVIDER)
        return self._by_units(request, weight)

    def _not_yet(self, request: Request) -> Verdict | None:
        """A verdict that blocks the queue of the request whatever units are free; None if there is no such reason."""
        if request.since > self.now:
            return Verdict(0, "its group starts it later", Blocks.QUEUE, request.since, Cause.GROUP)
        if (group := self.groups.get(request.group_name)) is not None:
            step = spread.step(group.size, group.spread_seconds)
            until = spread.free_at(request.since, group.last_start_at, step)
            if until > self.now:
                return Verdict(0, "another member of its group has just started", Blocks.QUEUE, until)
        tenant = self.tenants.get(request.tenant)
        if tenant is not None and tenant.backoff_until is not None and tenant.backoff_until > self.now:
            reason = f"tenant {request.tenant} backs off after {quantity(tenant.failures, 'failure')}"
            return Verdict(0, reason, Blocks.QUEUE, tenant.backoff_until, Cause.BACKOFF)
        return None

    def _by_units(self, request: Request, weight: int) -> Verdict:
        is_whole = request.whole or request.gang_id is not None
        most = self.limit - reserved_for_others(self.pool, request.operation)
        if request.waiting_units * weight > most and (is_whole or weight > most):
            blocks = Blocks.QUEUE if weight > most else Blocks.NOTHING  # those behind it have the same operation
            return Verdict(0, f"requests more than the limit of {self.limit} ever allows", blocks, cause=Cause.LIMIT)
        units = min(request.waiting_units, max(0, self.free_cost(request.operation)) // weight)
        if units == 0 or (is_whole and units < request.waiting_units):
            return Verdict(0, self._shortage(request), Blocks.LATER, cause=Cause.UNITS)
        if self.pacing is not None:
            if not is_whole:
                units = min(units, pacing.units_now(self.paced_until, self.now, self.pacing))
            until = pacing.free_at(self.paced_until, self.now, max(1, units), self.pacing)
            if until > self.now:
                return Verdict(0, "starts are paced", Blocks.ALL, until, Cause.PACING)
        return WITH_ITS_GANG if self._starts_with_gang(request) else Verdict(units)

    def free_cost(self, operation: str) -> int:
        """Cost still available to an operation; below zero when more is held than the limit allows."""
        unused = self.limit - sum(self.held.values()) - self._reserved_for_gangs
        if self._short_operations:  # an earlier request waits for units: only reserved units are left to later ones
            reserved = self.pool.policy.operation(operation).reserved_units
            return min(unused, reserved - self.held.get(operation, 0))
        return unused - sum(
            max(0, terms.reserved_units - self.held.get(other, 0))
            for other, terms in self.pool.policy.operations.items()
            if other != operation
        )

    def _shortage(self, request: Request) -> str:
        held = sum(self.held.values())
        gangs = f", {self._reserved_for_gangs} reserved for gangs" if self._reserved_for_gangs else ""
        reserved = self.limit - held - self._reserved_for_gangs - self.free_cost(request.operation)
        others = f", {reserved} reserved for others" if reserved > 0 else ""
        return f"{held} of {self.limit} held{gangs}{others}"

    # Effect of a verdict

    def _grant(self, grant: Grant) -> None:
        request, weight = grant.request, self._weight(grant.request)
        cost = grant.units * weight
        self.grants.append(grant)
        self._started.add(request.queue)
        left = request.waiting_units - grant.units
        queue = self._queues[request.queue]
        if left:
            queue[-1] = msgspec.structs.replace(request, waiting_units=left)
        else:
            queue.pop()
            self._overdue_times.pop(request.id, None)
        if cost:
            self.held[request.operation] = self.held.get(request.operation, 0) + cost
            self.paced_until = pacing.spend(self.paced_until, self.now, grant.units, self.pacing, self.most_ahead)
            self.shares = fairness.charged(self.shares, request.tenant, cost, self.pool.policy.tenants)
            self.finish[request.tenant] = self.shares.finish[request.tenant]
        if (group := self.groups.get(request.group_name)) is not None:
            self.groups[group.name] = msgspec.structs.replace(group, last_start_at=self.now)

    def _defer(self, request: Request, verdict: Verdict) -> None:
        self.waiting[request.id] = verdict.reason
        if verdict.until is not None:
            self.wake_times.append(verdict.until)
        match verdict.blocks:
            case Blocks.NOTHING:
                self._queues[request.queue].pop()
            case Blocks.QUEUE:
                del self._queues[request.queue]
            case Blocks.LATER:
                self._short_operations.add(request.operation)
            case Blocks.ALL:
                self._stopped = True
            case Blocks.UNITS:
                assert request.gang_id is not None
                self._reserved_for_gangs += request.waiting_units * self._weight(request)
                self.gangs.append(request.gang_id)
                self._queues[request.queue].pop()

    def _spared_seconds(self, request: Request, verdict: Verdict) -> float | None:
        """Estimated wait that the request was spared; None when it would have waited forever."""
        paced = pacing.free_at(self.paced_until, self.now, request.waiting_units, self.pacing)
        until = max(paced, verdict.until or self.now)
        for_units = eta_seconds(
            limit_units=self.limit,
            held_units=sum(self.held.values()),
            waiting_units=request.waiting_units * self._weight(request) - 1,
            granted_per_minute=0,
            hold_seconds=self.pool.hold_seconds,
        )
        return None if for_units is None else max(for_units, (until - self.now).total_seconds())

    def overdue_at(self) -> datetime | None:
        """Earliest end of a maximum wait among the requests still waiting, whatever blocks them."""
        return min((at for at in self._overdue_times.values() if at > self.now), default=None)


def pacing_of(pool: LeasePool, limit_units: int) -> Pacing | None:
    """The pacing in effect; None: starts are not paced."""
    declared = pool.policy.pacing
    if isinstance(declared, str):
        return None
    if declared is not None:
        return declared
    bounds, state = pool.policy.adaptive, pool.adaptive
    if bounds is not None and state is not None and state.units == limit_units:  # it is the limit in force
        return even_pacing(state, adaptive_terms(pool, bounds))
    if limit_units == 0 and pool.paced_interval_seconds is not None:
        # Stopped for a while: converting `paced_until` to the pace of a limit of 0 and back would lose most of it.
        return Pacing(pool.paced_interval_seconds)
    return pacing.default_pacing(limit_units, pool.hold_seconds)


def repaced(pool: LeasePool, terms: Pacing | None, now: datetime) -> datetime | None:
    """`paced_until` of the pool under `terms`, converted if it was computed with another interval."""
    if terms is None or pool.paced_interval_seconds == terms.interval_seconds:
        return pool.paced_until if terms is not None else None
    before = None if pool.paced_interval_seconds is None else Pacing(pool.paced_interval_seconds)
    return pacing.repaced(pool.paced_until, now, before, terms)


def _waits_since(request: Request) -> datetime:
    """Start of the maximum wait. An age inherited from an earlier attempt gives a place in the queue but does not count
    towards the maximum wait, since most of it was spent holding a lease."""
    return max(request.since, request.requested_at)


def _arrival(request: Request) -> tuple[datetime, int]:
    return request.since, request.place
