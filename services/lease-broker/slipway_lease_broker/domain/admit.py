"""Who of the waiting starts now, and with how much. Pure.

Three lines, each served before the next: operations that weigh nothing; operations past their maximum wait, which
proceed over the limit and are counted; and all others, in the order of fairness.py. Of those the first that lacks
units holds back all that come later, but for units kept for their own operation: else a stream of small requests
would pass a large one for ever. Who may not start by itself (its tenant backs off, its group starts it later) is
passed over, and keeps its place. A member of a gang is granted nowhere alone: at its turn its units are kept for it.

A gang keeps nothing while it is held up: a member of it can start in its own pool under no circumstances that are to be
waited for. Whoever is passed over like that holds back nobody, however many they are.

In shadow and advisory pools everybody starts at once, and the same rules say what would have waited, and how long.
In a pool that was drained or retired nobody starts, whatever its mode.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from slipway_lease_broker.domain import fairness, pacing, spread
from slipway_lease_broker.domain.adaptive import even_pacing
from slipway_lease_broker.domain.eta import eta_seconds
from slipway_lease_broker.domain.fairness import Head, Shares
from slipway_lease_broker.domain.ledger import Group, LeasePool, Request, Tenant
from slipway_lease_broker.domain.limits import adaptive_terms, in_force, most_units, reserved_for_others
from slipway_lease_broker.domain.pacing import Pacing
from slipway_lease_broker.domain.terms import Mode

Queue: TypeAlias = tuple[str, str, int, str]

OVER_THE_LIMIT: Final = "waited for as long as its operation may: proceeds over the limit"


class Holds(Enum):
    """Whom a request that may not start holds back."""

    NOBODY = "nobody"  # it asks for more than there will be
    QUEUE = "queue"  # its own tenant, group or operation, which may not start by itself
    LATER = "later"  # all that come later, but for what is kept for their own operation
    ALL = "all"  # everything that is paced
    UNITS = "units"  # its own units only: they are kept until its gang can start everywhere


class Verdict(msgspec.Struct, frozen=True):
    """How many units of a request may start now; with none, why, whom that holds back, and when time alone may change
    it."""

    units: int = 0
    reason: str = ""
    holds: Holds = Holds.NOBODY
    until: datetime | None = None


WITH_ITS_GANG: Final = Verdict(0, "its gang starts once all its pools have room", Holds.UNITS)


class Grant(msgspec.Struct, frozen=True):
    """`units` of a request start now. `spared_seconds` is what a shadow or advisory pool spared it, `reason` why it
    would have waited."""

    request: Request
    units: int
    reason: str = ""
    spared_seconds: float | None = None


class Admission:
    """One round over the heads of the queues: what it grants, and the state after it.

    Of each queue at most `per_queue` requests were loaded, or as many as `deeper` says. When one runs out, who comes
    next there is not known. If some of it started, the round ends and is not `complete`. If all of it was passed over,
    the others go on, since they would never have a turn otherwise, and `hidden` names the queue: who stands behind is
    to be read.

    `held_up` names gangs that keep nothing, and why: see `gangs_held_up`.
    """

    def __init__(
        self,
        pool: LeasePool,
        limit_units: int,
        waiters: Iterable[Request],
        now: datetime,
        *,
        tenants: Iterable[Tenant],
        groups: Iterable[Group],
        per_queue: int,
        deeper: Mapping[Queue, int] = MappingProxyType({}),
        for_gang: bool = False,
        held_up: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.pool, self.limit, self.now, self.for_gang, self.held_up = pool, limit_units, now, for_gang, held_up
        self.pacing = pacing_of(pool, limit_units)
        self.paced_until = repaced(pool, self.pacing, now)
        self.most_ahead = pacing.most_ahead(self.pacing, limit_units, pool.hold_seconds)
        self.held = dict(pool.held)
        self.tenants = {tenant.tenant: tenant for tenant in tenants}
        self.groups = {group.name: group for group in groups}
        ahead = {t.tenant: t.virtual_finish for t in self.tenants.values() if t.virtual_finish > pool.virtual_time}
        self.shares = Shares(pool.virtual_time, ahead)
        self.grants: list[Grant] = []
        self.waiting: dict[str, str] = {}  # request id → why it was looked at and does not start
        self.wake: list[datetime] = []  # when time alone may let somebody start
        self.finish: dict[str, float] = {}  # tenant → virtual finish of its last grant
        self.gangs: list[str] = []  # that may start as far as this pool is concerned
        self.complete = True
        self.hidden: set[Queue] = set()

        waiters = list(waiters)
        self._late_at = self._when_late(waiters)  # request id → when its maximum wait is over, of those still waiting
        self._queues: dict[Queue, list[Request]] = {}  # the first one last
        # The age of an attempt before gives a place ahead of one that is past its maximum wait, and must not hide it.
        for request in sorted(waiters, key=lambda one: (not self._is_overdue(one), *_arrival(one)), reverse=True):
            self._queues.setdefault(request.queue, []).append(request)
        self._cut = {queue for queue, requests in self._queues.items() if len(requests) >= deeper.get(queue, per_queue)}
        self._started: set[Queue] = set()  # of which something starts
        # What goes before all others: it weighs nothing, or has a maximum wait.
        self._hurries = bool(self._late_at) or any(one.weight == 0 for one in pool.policy.operations.values())
        self._kept = 0  # units of gangs at their turn
        self._closed: set[str] = set()  # operations whose first lacks units
        self._stopped = False  # nothing paced may start

    def run(self) -> "Admission":
        while (request := self._next()) is not None:
            verdict = self.verdict(request)
            if verdict.units:
                self._grant(Grant(request, verdict.units, verdict.reason))
            elif self._lets_all_start() and not self._is_apart(request):
                spared = self._spared_seconds(request, verdict)
                self._grant(Grant(request, request.waiting_units, verdict.reason, spared))
            else:
                self._hold_back(request, verdict)
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

    # Whose turn it is

    def _next(self) -> Request | None:
        heads = [requests[-1] for requests in self._queues.values()]
        if not heads:
            return None
        if self._hurries:
            free = [head for head in heads if self._weight(head) == 0]
            if overdue := free or [head for head in heads if self._is_overdue(head)]:
                return min(overdue, key=_arrival)
        if self._stopped:
            return None
        of = {
            Head(tenant=head.tenant, priority=head.priority, asked_at=head.since, place=head.place): head
            for head in heads
            if head.operation not in self._closed
        }
        first = fairness.next_head(of, self.shares, self.now, self.pool.policy.ageing_seconds)
        return None if first is None else of[first]

    def _weight(self, request: Request) -> int:
        return self.pool.policy.operation(request.operation).weight

    def _when_late(self, waiters: Iterable[Request]) -> dict[str, datetime]:
        operations = self.pool.policy.operations.items()
        longest = {name: one.max_wait_seconds for name, one in operations if one.max_wait_seconds is not None}
        if not longest or self.pool.stopped:
            return {}
        from_then = self.pool.blocked_until or self.now  # a Retry-After comes first
        return {
            request.id: max(_waits_since(request) + timedelta(seconds=longest[request.operation]), from_then)
            for request in waiters
            if request.operation in longest
        }

    def _is_overdue(self, request: Request) -> bool:
        late_at = self._late_at.get(request.id)
        return late_at is not None and self.now >= late_at

    def _is_apart(self, request: Request) -> bool:
        """Whether it starts with its gang alone, whatever this pool says."""
        return request.gang_id is not None and not self.for_gang

    def _is_gated(self) -> bool:
        return self.pool.blocked_until is not None and self.now < self.pool.blocked_until

    # Whether it may start

    def verdict(self, request: Request) -> Verdict:
        if self.pool.stopped:  # by people: whatever its mode and whatever it weighs
            return Verdict(0, in_force(self.pool).reason, Holds.QUEUE)
        weight, is_apart = self._weight(request), self._is_apart(request)
        if is_apart and (why := self.held_up.get(request.gang_id or "")) is not None:
            return Verdict(0, why)
        if is_apart and self.pool.policy.mode is not Mode.ENFORCE:
            return WITH_ITS_GANG
        if weight == 0 and request.since <= self.now:
            return WITH_ITS_GANG if is_apart else Verdict(request.waiting_units)
        if self._is_overdue(request):
            if is_apart:
                return WITH_ITS_GANG
            fits = self.free_cost(request.operation) >= request.waiting_units * weight
            return Verdict(request.waiting_units, "" if fits else OVER_THE_LIMIT)
        if (not_yet := self._not_yet(request)) is not None:
            return not_yet
        if self._is_gated():
            return Verdict(0, "the cloud asked for a pause (Retry-After)", Holds.ALL, self.pool.blocked_until)
        return self._by_units(request, weight)

    def _not_yet(self, request: Request) -> Verdict | None:
        """What keeps its own queue from starting, whatever is free."""
        if request.since > self.now:
            return Verdict(0, "its group starts it later", Holds.QUEUE, request.since)
        if (group := self.groups.get(request.group_name)) is not None:
            step = spread.step(group.size, group.spread_seconds)
            until = spread.free_at(request.since, group.last_start_at, step)
            if until > self.now:
                return Verdict(0, "another of its group started just now", Holds.QUEUE, until)
        tenant = self.tenants.get(request.tenant)
        if tenant is not None and tenant.backoff_until is not None and tenant.backoff_until > self.now:
            why = f"tenant {request.tenant} backs off after {tenant.failures} failures"
            return Verdict(0, why, Holds.QUEUE, tenant.backoff_until)
        return None

    def _by_units(self, request: Request, weight: int) -> Verdict:
        is_whole = request.whole or request.gang_id is not None
        room = self.limit - reserved_for_others(self.pool, request.operation)
        if request.waiting_units * weight > room and (is_whole or weight > room):
            holds = Holds.QUEUE if weight > room else Holds.NOBODY  # those behind it are of the same operation
            return Verdict(0, f"asks for more than the limit of {self.limit} allows at any time", holds)
        units = min(request.waiting_units, max(0, self.free_cost(request.operation)) // weight)
        if units == 0 or (is_whole and units < request.waiting_units):
            return Verdict(0, self._lacking(request), Holds.LATER)
        if self.pacing is not None:
            if not is_whole:
                units = min(units, pacing.units_now(self.paced_until, self.now, self.pacing))
            until = pacing.free_at(self.paced_until, self.now, max(1, units), self.pacing)
            if until > self.now:
                return Verdict(0, "starts are paced", Holds.ALL, until)
        return WITH_ITS_GANG if self._is_apart(request) else Verdict(units)

    def free_cost(self, operation: str) -> int:
        """What an operation may still cost, below zero when more is held than the limit has."""
        unused = self.limit - sum(self.held.values()) - self._kept
        if self._closed:  # somebody before waits for units: what is left to others is what is kept for them
            reserved = self.pool.policy.operation(operation).reserved_units
            return min(unused, reserved - self.held.get(operation, 0))
        return unused - sum(
            max(0, terms.reserved_units - self.held.get(other, 0))
            for other, terms in self.pool.policy.operations.items()
            if other != operation
        )

    def _lacking(self, request: Request) -> str:
        held = sum(self.held.values())
        kept = f", {self._kept} kept for gangs" if self._kept else ""
        reserved = self.limit - held - self._kept - self.free_cost(request.operation)
        others = f", {reserved} kept for others" if reserved > 0 else ""
        return f"{held} of {self.limit} held{kept}{others}"

    # What becomes of it

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
            self._late_at.pop(request.id, None)
        if cost:
            self.held[request.operation] = self.held.get(request.operation, 0) + cost
            self.paced_until = pacing.spend(self.paced_until, self.now, grant.units, self.pacing, self.most_ahead)
            self.shares = fairness.charged(self.shares, request.tenant, cost, self.pool.policy.tenants)
            self.finish[request.tenant] = self.shares.finish[request.tenant]
        if (group := self.groups.get(request.group_name)) is not None:
            self.groups[group.name] = msgspec.structs.replace(group, last_start_at=self.now)

    def _hold_back(self, request: Request, verdict: Verdict) -> None:
        self.waiting[request.id] = verdict.reason
        if verdict.until is not None:
            self.wake.append(verdict.until)
        match verdict.holds:
            case Holds.NOBODY:
                self._queues[request.queue].pop()
            case Holds.QUEUE:
                del self._queues[request.queue]
            case Holds.LATER:
                self._closed.add(request.operation)
            case Holds.ALL:
                self._stopped = True
            case Holds.UNITS:
                assert request.gang_id is not None
                self._kept += request.waiting_units * self._weight(request)
                self.gangs.append(request.gang_id)
                self._queues[request.queue].pop()

    def _spared_seconds(self, request: Request, verdict: Verdict) -> float | None:
        """What it would have waited, as far as is known now; None when it would have waited for ever."""
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
        """When the first of those still waiting, whatever holds it back, will have waited for as long as its operation
        may."""
        return min((at for at in self._late_at.values() if at > self.now), default=None)


def gangs_held_up(members: Iterable[Request], pools: Mapping[str, LeasePool]) -> dict[str, str]:
    """Which gangs cannot start, by their members and the pools of these, and why. What only time, or units coming back,
    keeps from starting holds up nothing; nor does a cancelled member, whose gang is given up at its turn."""
    held_up: dict[str, str] = {}
    for member in members:
        if member.gang_id is None or not member.waiting_units:
            continue
        pool = pools[member.lease_pool_id]
        limit = in_force(pool)
        most = most_units(pool, member.operation, limit.units)
        if pool.stopped:
            held_up[member.gang_id] = f"its gang cannot start in {pool.id}: {limit.reason}"
        elif member.lapsed:
            held_up[member.gang_id] = f"nobody asks for its gang in {pool.id} any more"
        elif most is not None and member.waiting_units > most:
            held_up[member.gang_id] = f"its gang cannot start in {pool.id}: it asks for more than the limit allows"
    return held_up


def pacing_of(pool: LeasePool, limit_units: int) -> Pacing | None:
    """None: starts are not paced."""
    declared = pool.policy.pacing
    if isinstance(declared, str):
        return None
    if declared is not None:
        return declared
    bounds, state = pool.policy.adaptive, pool.adaptive
    if bounds is not None and state is not None and state.units == limit_units:  # it is the limit in force
        return even_pacing(state, adaptive_terms(pool, bounds))
    if limit_units == 0 and pool.paced_interval_seconds is not None:
        # Closed for a while: what lies ahead, told at the pace of a limit of 0 and back, would be next to nothing.
        return Pacing(pool.paced_interval_seconds)
    return pacing.default_pacing(limit_units, pool.hold_seconds)


def repaced(pool: LeasePool, terms: Pacing | None, now: datetime) -> datetime | None:
    """`paced_until` of the pool under `terms`, which may have another interval than it was reckoned with."""
    if terms is None or pool.paced_interval_seconds == terms.interval_seconds:
        return pool.paced_until if terms is not None else None
    before = None if pool.paced_interval_seconds is None else Pacing(pool.paced_interval_seconds)
    return pacing.repaced(pool.paced_until, now, before, terms)


def _waits_since(request: Request) -> datetime:
    """What its maximum wait counts from. The age of the attempt before gives a place in the queue, no way past it: most
    of it was spent holding."""
    return max(request.since, request.asked_at)


def _arrival(request: Request) -> tuple[datetime, int]:
    return request.since, request.place
