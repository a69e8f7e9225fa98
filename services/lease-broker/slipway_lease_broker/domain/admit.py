"""Admission: which waiting requests start now, and with how many units. Pure.

Three classes, each served before the next: operations of weight 0; operations past their maximum wait, which proceed
over the limit and are counted; and all others, in the order of fairness.py. In the last class the first request that
lacks units blocks all later ones, apart from units reserved for their own operation: otherwise a stream of small
requests could starve a large one. A request that may not start by itself (its tenant backs off, its group starts it
later) is skipped and keeps its place. A member of a gang is never granted alone: at its turn its units are reserved.

A gang reserves nothing while it is blocked, that is while one of its members cannot start in its own pool for a reason
that neither time nor released units will change. Skipped members of blocked gangs block no other request.

In shadow and advisory pools all requests start at once, and the same rules compute which ones would have waited, and
for how long. In a drained or archived pool nothing starts, whatever its mode.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from heapq import heappop, heappush
from typing import Final

import msgspec

from slipway_lease_broker.domain import fairness
from slipway_lease_broker.domain.eta import eta_seconds
from slipway_lease_broker.domain.fairness import Contest, Shares
from slipway_lease_broker.domain.ledger import LeasePool, Request
from slipway_lease_broker.domain.limits import Limit
from slipway_lease_broker.domain.paces import Paces
from slipway_lease_broker.domain.rules import Blocks, Cause, Conditions, Verdict, first_verdict, stopped
from slipway_lease_broker.domain.situation import Queue, Situation
from slipway_lease_broker.domain.terms import Mode
from slipway_lease_broker.domain.text import brief_seconds

OVER_THE_LIMIT: Final = "proceeds over the limit: maximum wait of its operation exceeded"
WITH_ITS_GANG: Final = Verdict(0, "its gang starts once all of its pools have free units", Cause.GANG, Blocks.UNITS)


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

    def __init__(self, pool: LeasePool, limit: Limit, situation: Situation, now: datetime) -> None:
        self.pool, self.limit, self.now = pool, limit, now
        self.for_gang, self.blocked_gangs = situation.for_gang, situation.blocked_gangs
        self.paces = Paces(pool, limit, now)
        self.held = dict(pool.held)
        self.tenants = {tenant.tenant: tenant for tenant in situation.tenants}
        self.groups = {group.name: group for group in situation.groups}
        self._conditions = Conditions(pool, limit, now, self.tenants, self.groups)
        ahead = {t.tenant: t.virtual_finish for t in self.tenants.values() if t.virtual_finish > pool.virtual_time}
        self.shares = Shares(pool.virtual_time, ahead)
        self.grants: list[Grant] = []
        self.waiting: dict[str, str] = {}  # id of a considered request that does not start → reason
        self.wake_times: list[datetime] = []  # when time alone may let a request start
        self.finish: dict[str, float] = {}  # tenant → virtual finish of its last grant
        self.gangs: list[str] = []  # that may start as far as this pool is concerned
        self.complete = True
        self.hidden: set[Queue] = set()
        # Earliest end of a maximum wait among the requests still waiting, whatever blocks them.
        self.overdue_at: datetime | None = None

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
        # Heads that go before all others: 0 for an operation of weight 0, 1 for one past its maximum wait; by arrival.
        self._express: list[tuple[int, datetime, int, Queue]] = []
        self._contest: Contest | None = None  # of the other heads; None: it is to be formed anew
        self._reserved_for_gangs = 0  # units of gangs at their turn
        self._short_operations: set[str] = set()  # operations whose first request lacks units
        self._early_paces: set[str] = set()  # paces whose first request is too early
        self._stopped = False  # nothing that counts against the limit may start
        for queue in self._queues:
            self._contend(queue)

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
            queue = self._queues.get(request.queue)
            if queue and queue[-1] is not request:
                self._contend(request.queue)
            elif queue == []:
                del self._queues[request.queue]
                if request.queue in self._cut and request.queue in self._started:
                    self.complete = False
                    break
                if request.queue in self._cut:
                    self.hidden.add(request.queue)
        self.overdue_at = min((at for at in self._overdue_times.values() if at > self.now), default=None)
        return self

    def _lets_all_start(self) -> bool:
        return self.pool.policy.mode is not Mode.ENFORCE and not self.pool.stopped

    # Order of requests

    def _contend(self, queue: Queue) -> None:
        """Let the head of a queue contend."""
        head = self._queues[queue][-1]
        is_free = self._weight(head) == 0
        if is_free or self._is_overdue(head):
            heappush(self._express, (0 if is_free else 1, *_arrival(head), queue))
        elif self._contest is not None:
            self._contest.add(head)

    def _next(self) -> Request | None:
        """The next head. It contends no longer."""
        if self._express:
            *_, queue = heappop(self._express)
            return self._queues[queue][-1]
        if self._stopped:
            return None
        if self._contest is None:
            heads = self._contending()
            if len(self._queues) < 2:
                return heads[0] if heads else None
            self._contest = Contest(heads, self.shares, self.now, self.pool.policy.ageing_seconds)
        return self._contest.pop()

    def _contending(self) -> list[Request]:
        """The heads that have not been put off with their operation."""
        heads = [requests[-1] for requests in self._queues.values()]
        if self._short_operations:  # nothing is left but what is reserved: no other needs a look
            heads = [head for head in heads if self.pool.policy.operation(head.operation).reserved_units]
        return [head for head in heads if not self._waits(head.operation)]

    def _waits(self, operation: str) -> bool:
        """True if an earlier request of the operation lacks units, or one that shares its pace is too early."""
        return operation in self._short_operations or self.paces.key(operation) in self._early_paces

    def _weight(self, request: Request) -> int:
        return self.pool.policy.operation(request.operation).weight

    def _find_overdue_times(self, waiters: Iterable[Request]) -> dict[str, datetime]:
        operations = self.pool.policy.operations.items()
        longest = {name: one.max_wait_seconds for name, one in operations if one.max_wait_seconds is not None}
        if not longest or self.pool.stopped:
            return {}
        # A Retry-After takes precedence, and so does the restore of the database.
        earliest = max(filter(None, (self.pool.blocked_until, self.pool.incomplete_until, self.now)))
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

    # Verdict on one request

    def verdict(self, request: Request) -> Verdict:
        if self.pool.stopped:  # by an operator: applies in every mode and to every weight
            return stopped(self.limit)
        weight, with_gang = self._weight(request), self._starts_with_gang(request)
        if with_gang and (reason := self.blocked_gangs.get(request.gang_id or "")) is not None:
            return Verdict(0, reason, Cause.GANG)
        if with_gang and self.pool.policy.mode is not Mode.ENFORCE:
            return WITH_ITS_GANG
        if weight == 0 and request.since <= self.now:
            return WITH_ITS_GANG if with_gang else Verdict(request.waiting_units)
        if self._is_overdue(request):
            if with_gang:
                return WITH_ITS_GANG
            fits = self.free_cost(request.operation) >= request.waiting_units * weight
            return Verdict(request.waiting_units, "" if fits else OVER_THE_LIMIT)
        return first_verdict(self._conditions, request) or self._by_units(request, weight)

    def _by_units(self, request: Request, weight: int) -> Verdict:
        units = min(request.waiting_units, max(0, self.free_cost(request.operation)) // weight)
        if units == 0 or (units < request.waiting_units and request.starts_whole):
            return Verdict(0, self.usage(request.operation), Cause.FULL, Blocks.LATER)
        if not request.starts_whole:
            units = self.paces.units_now(request.operation, units)
        until = self.paces.free_at(request.operation, max(1, units))
        if until > self.now:
            reason = f"paced: next start in {brief_seconds(until - self.now)}; {self.usage(request.operation)}"
            return Verdict(0, reason, Cause.PACED, Blocks.OPERATION, until)
        return WITH_ITS_GANG if self._starts_with_gang(request) else Verdict(units)

    def free_cost(self, operation: str) -> int:
        """Cost still available to an operation; below zero when more is held than the limit allows."""
        unused = self.limit.units - sum(self.held.values()) - self._reserved_for_gangs
        if self._short_operations:  # an earlier request waits for units: only reserved units are left to later ones
            reserved = self.pool.policy.operation(operation).reserved_units
            return min(unused, reserved - self.held.get(operation, 0))
        return unused - sum(
            max(0, terms.reserved_units - self.held.get(other, 0))
            for other, terms in self.pool.policy.operations.items()
            if other != operation
        )

    def usage(self, operation: str) -> str:
        """Units held and reserved, as text: the reason why a request for more has to wait."""
        held, limit = sum(self.held.values()), self.limit
        gangs = f", {self._reserved_for_gangs} reserved for gangs" if self._reserved_for_gangs else ""
        reserved = limit.units - held - self._reserved_for_gangs - self.free_cost(operation)
        others = f", {reserved} reserved for others" if reserved > 0 else ""
        origin = "" if limit.cause == "declared" else f" (limit {limit.reason})"
        return f"{held} of {limit.units} held{gangs}{others}{origin}"

    # Effect of a verdict

    def _grant(self, grant: Grant) -> None:
        request, weight = grant.request, self._weight(grant.request)
        cost = grant.units * weight
        self.grants.append(grant)
        self._started.add(request.queue)
        self._contest = None  # the shares change
        left = request.waiting_units - grant.units
        queue = self._queues[request.queue]
        if left:
            queue[-1] = msgspec.structs.replace(request, waiting_units=left)
        else:
            queue.pop()
            self._overdue_times.pop(request.id, None)
        if cost:
            self.held[request.operation] = self.held.get(request.operation, 0) + cost
            self.paces.spend(request.operation, grant.units)
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
                self._contest = None
            case Blocks.OPERATION:
                self._early_paces.add(self.paces.key(request.operation))
                self._contest = None
            case Blocks.ALL:
                self._stopped = True
            case Blocks.UNITS:
                assert request.gang_id is not None
                self._reserved_for_gangs += request.waiting_units * self._weight(request)
                self.gangs.append(request.gang_id)
                self._queues[request.queue].pop()

    def _spared_seconds(self, request: Request, verdict: Verdict) -> float | None:
        """Estimated wait that the request was spared; None when it would have waited forever."""
        if verdict.units_max is not None and self.pool.policy.operation(request.operation).max_wait_seconds is None:
            return None
        until = max(self.paces.free_at(request.operation, request.waiting_units), verdict.until or self.now)
        for_units = eta_seconds(
            limit_units=self.limit.units,
            held_units=sum(self.held.values()),
            waiting_units=request.waiting_units * self._weight(request) - 1,
            granted_per_minute=0,
            hold_seconds=self.pool.hold_seconds,
        )
        return None if for_units is None else max(for_units, (until - self.now).total_seconds())


def _waits_since(request: Request) -> datetime:
    """Start of the maximum wait. An age inherited from an earlier attempt gives a place in the queue but does not count
    towards the maximum wait, since most of it was spent holding a lease."""
    return max(request.since, request.requested_at)


def _arrival(request: Request) -> tuple[datetime, int]:
    return request.since, request.place
