"""What askers and holders say, folded over the rows it names. Pure: grants nothing and ends nothing by time; that is
decided afterwards (decide.py). A fact that comes too late, or under a stranger's token, changes nothing."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import msgspec

from slipway_common.errors import BadEvent
from slipway_common.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmed,
    LeaseConfirmRequested,
    LeaseGroup,
    LeaseLost,
    LeaseReleased,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
    LeaseUnleasedReported,
    ReplacedLease,
)
from slipway_lease_broker.domain import backoff, spread, unleased
from slipway_lease_broker.domain.adaptive import Evidence
from slipway_lease_broker.domain.endings import HOLD, RELEASED, REPLACED, lost_event
from slipway_lease_broker.domain.ledger import (
    Entry,
    Group,
    Lease,
    LeasePool,
    Request,
    State,
    Tenant,
    advance,
    alive_until,
    counted,
    idled,
    queued,
)

Fact: TypeAlias = (
    LeaseRequested
    | LeaseConfirmRequested
    | LeaseRenewRequested
    | LeaseCancelRequested
    | LeaseReleaseRequested
    | LeaseUnleasedReported
)
Key: TypeAlias = tuple[str, str]  # lease pool id, id of a lease or request of that pool

# Ids are keys of indexes, which take some 2,700 bytes, and PostgreSQL's text takes no NUL; units are its integers. A
# record beyond that would fail for ever as if the database were at fault, so it is refused here.
TEXT_CHARACTERS_MAX: Final = 500
UNITS_MAX: Final = 1_000_000
PRIORITY_MAX: Final = 9
SECONDS_MAX: Final = 31_536_000
# A cloud that asks for more would close a pool for as long as it was mistaken.
RETRY_AFTER_SECONDS_MAX: Final = 3_600
EVIDENCE_MAX: Final = 1_000
QUOTA_MAX: Final = 2**31 - 1
# A group is of one event, and its members of one day.
SPREAD_SECONDS_MAX: Final = 86_400

# Results of a release that say something of its tenant. All others are about machines, images or clouds.
FAILED: Final = "failed"
DONE: Final = "done"


class Ledger:
    """The rows that a batch of facts names, as they are after each fact, and what to answer."""

    def __init__(
        self,
        pools: Iterable[LeasePool],
        leases: Iterable[Lease],
        requests: Iterable[Request],
        tenants: Iterable[Tenant] = (),
        groups: Iterable[Group] = (),
    ) -> None:
        self.pools = {pool.id: pool for pool in pools}
        self.leases = {(lease.lease_pool_id, lease.id): lease for lease in leases}
        self.requests = {(request.lease_pool_id, request.id): request for request in requests}
        self.tenants = {(tenant.lease_pool_id, tenant.tenant): tenant for tenant in tenants}
        self.groups = {(group.lease_pool_id, group.name): group for group in groups}
        self.known = frozenset(self.requests)
        self.changed_leases: set[Key] = set()
        self.charged: set[Key] = set()  # leases that are new: of starts without one
        self.changed_requests: dict[Key, None] = {}  # in order of arrival
        self.changed_tenants: set[Key] = set()
        self.changed_groups: set[Key] = set()
        self.dirty: set[str] = set()  # lease pools where units or waiters changed: somebody must decide
        self.deadlines: dict[str, datetime] = {}  # lease pool → earliest new deadline
        self.answers: list[Any] = []
        self.history: list[Entry] = []
        self.throttles: list[str] = []  # lease pools whose cloud throttled, once per release that says so
        self.refusals: list[str] = []

    def record(
        self,
        fact: Fact,
        now: datetime,
        traceparent: str = "",
        *,
        owner: str = "",
        admin: bool = False,
        gang_id: str | None = None,
    ) -> None:
        """`owner` is who says it; an `admin` speaks for every owner. With a `gang_id` a request starts together with
        the others of that gang. Raises BadEvent for a fact that can never be applied."""
        pool = self.pools.get(fact.lease_pool_id)
        if pool is None:
            raise BadEvent(f"no lease pool {fact.lease_pool_id!r} is declared")
        check(fact)
        if pool.counted_at != now:
            pool = self.pools[pool.id] = idled(pool, now)
        if not admin and self._is_foreign(fact, owner):
            self.refusals.append("wrong owner")
            return
        match fact:
            case LeaseRequested():
                self._ask(pool, fact, now, traceparent, owner, gang_id)
            case LeaseCancelRequested():
                self._cancel(pool, fact, now, owner)
            case LeaseReleaseRequested():
                self._release(pool, fact, now, owner)
            case LeaseUnleasedReported():
                self._charge(pool, fact, now, owner)
            case LeaseConfirmRequested() | LeaseRenewRequested():
                self._prolong(pool, fact, now, owner)

    def _is_foreign(self, fact: Fact, owner: str) -> bool:
        """Whether it is about what somebody else asked for. What was asked for before owners were kept is nobody's."""
        subject: Request | Lease | None
        if isinstance(fact, LeaseRequested | LeaseCancelRequested):
            subject = self.requests.get((fact.lease_pool_id, fact.request_id))
        else:
            subject = self.leases.get((fact.lease_pool_id, fact.lease_id))
        return subject is not None and subject.owner not in ("", owner)

    def _ask(
        self, pool: LeasePool, fact: LeaseRequested, now: datetime, traceparent: str, owner: str, gang_id: str | None
    ) -> None:
        key = pool.id, fact.request_id
        if (asked := self.requests.get(key)) is not None:  # it only says that the asker still waits
            self._keep_request(msgspec.structs.replace(asked, last_asked_at=now, lapsed=False))
            if asked.lapsed:
                self.pools[pool.id] = queued(pool, 0, asked.waiting_units)
                self.dirty.add(pool.id)
            return
        since = self._replace(pool, fact, fact.replaces, now, owner) if fact.replaces is not None else now
        if fact.group is not None:
            since = max(since, self._join(pool, fact.group, now))
        self._keep_request(
            Request(
                id=fact.request_id,
                lease_pool_id=pool.id,
                tenant=fact.tenant,
                operation=fact.operation,
                asked_units=fact.units,
                waiting_units=fact.units,
                asked_at=now,
                last_asked_at=now,
                since=since,
                traceparent=traceparent,
                priority=fact.priority,
                whole=fact.whole,
                hold_seconds=fact.hold_seconds,
                owner=owner,
                group_name="" if fact.group is None else spread.group_key(fact.group),
                gang_id=gang_id,
            )
        )
        self.pools[pool.id] = queued(self.pools[pool.id], 0, fact.units)
        self.dirty.add(pool.id)

    def _replace(
        self, pool: LeasePool, fact: LeaseRequested, replaced: ReplacedLease, now: datetime, owner: str
    ) -> datetime:
        """End the lease of the attempt before; returns since when the new request waits: as long as the old one, if it
        is its first successor and of the same kind. Else one old lease would make any number of requests old."""
        lease = self.leases.get((pool.id, replaced.lease_id))
        if lease is None or lease.fencing_token != replaced.fencing_token or lease.owner not in ("", owner):
            self.refusals.append(refusal(lease, replaced.fencing_token))
            return now
        if lease.live:
            self._give_back(pool, lease, lease.units, REPLACED, now, owner)
        if lease.replaced or (lease.tenant, lease.operation) != (fact.tenant, fact.operation):
            self.refusals.append("no attempt before")
            return now
        self._keep_lease(msgspec.structs.replace(self.leases[pool.id, lease.id], replaced=True))
        before = self.requests.get((pool.id, lease.request_id))
        return min(now, lease.granted_at if before is None else before.since)

    def _join(self, pool: LeasePool, wanted: LeaseGroup, now: datetime) -> datetime:
        """Count a member in; returns when it may start. A group whose spread is over begins anew."""
        key = pool.id, spread.group_key(wanted)
        group = self.groups.get(key)
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
        self.groups[key] = msgspec.structs.replace(group, members=group.members + 1)
        self.changed_groups.add(key)
        return spread.due_at(group.first_at, member, spread.step(group.size, group.spread_seconds))

    def _cancel(self, pool: LeasePool, fact: LeaseCancelRequested, now: datetime, owner: str) -> None:
        request = self.requests.get((pool.id, fact.request_id))
        if request is None or request.waiting_units == 0:
            self.refusals.append("nothing waits")
            return
        after = msgspec.structs.replace(request, waiting_units=max(0, request.waiting_units - fact.units))
        self._keep_request(after)
        self.pools[pool.id] = queued(pool, request.counted_units, after.counted_units)
        self.dirty.add(pool.id)
        units = request.waiting_units - after.waiting_units
        self._note(pool, "cancelled", fact.reason, now, owner, request_id=request.id, units=units)

    def _release(self, pool: LeasePool, fact: LeaseReleaseRequested, now: datetime, owner: str) -> None:
        lease = self.leases.get((pool.id, fact.lease_id))
        if lease is not None and lease.fencing_token == fact.fencing_token and tells_late(pool, lease, fact):
            self._hear(pool, lease, fact, now, owner)
            return
        # A lost lease is not shortened by its release: what its holder knows may be older than what it did.
        if lease is None or not lease.live or lease.fencing_token != fact.fencing_token:
            self.refusals.append(refusal(lease, fact.fencing_token))
            return
        self._give_back(pool, lease, min(fact.units, lease.units), fact.result, now, owner)
        self._heed(lease, fact, now)
        self._judge(lease, fact.result, now)

    def _give_back(self, pool: LeasePool, lease: Lease, units: int, result: str, now: datetime, owner: str) -> None:
        left = lease.units - units
        after = msgspec.structs.replace(lease, units=left)
        if left == 0:
            after = msgspec.structs.replace(
                after,
                state=advance(lease.state, "released"),
                ended_at=now,
                reason=REPLACED if result == REPLACED else RELEASED,
            )
        self._keep_lease(after)
        self.pools[pool.id] = counted(pool, lease, -units)
        self.dirty.add(pool.id)
        self.answers.append(
            LeaseReleased(
                lease_pool_id=pool.id,
                lease_id=lease.id,
                request_id=lease.request_id,
                units=units,
                remaining=left,
                reason=result,
            )
        )
        self._note(
            pool,
            "released",
            f"{units} units given back: {result}",
            now,
            owner,
            lease_id=lease.id,
            request_id=lease.request_id,
            units=units,
        )

    def _hear(self, pool: LeasePool, lease: Lease, fact: LeaseReleaseRequested, now: datetime, owner: str) -> None:
        """What a holder says of the cloud is true after its hold as well; nothing is given back by it."""
        self._keep_lease(msgspec.structs.replace(lease, heard=True))
        self.dirty.add(pool.id)
        self._note(
            pool,
            "heard",
            f"given back after its hold: {fact.result}",
            now,
            owner,
            lease_id=lease.id,
            request_id=lease.request_id,
        )
        self._heed(lease, fact, now)

    def _heed(self, lease: Lease, fact: LeaseReleaseRequested, now: datetime) -> None:
        """Keep what a release says of the cloud: a Retry-After closes any pool, the rest moves adaptive limits."""
        pool = self.pools[lease.lease_pool_id]
        if fact.throttled:
            self.throttles.append(pool.id)
            self._note(
                pool,
                "throttled",
                "its holder met the provider's limit",
                now,
                lease.owner,
                lease_id=lease.id,
                request_id=lease.request_id,
            )
        if fact.retry_after_seconds is not None and fact.retry_after_seconds > 0:
            until = now + timedelta(seconds=min(fact.retry_after_seconds, RETRY_AFTER_SECONDS_MAX))
            pool = msgspec.structs.replace(pool, blocked_until=max(until, pool.blocked_until or until))
        if pool.policy.adaptive is not None and len(pool.evidence) < EVIDENCE_MAX:
            evidence = Evidence(
                granted_at=lease.granted_at,
                throttled=fact.throttled,
                quota_remaining=fact.quota_remaining,
                late=not lease.live,
            )
            pool = msgspec.structs.replace(pool, evidence=(*pool.evidence, evidence))
        self.pools[pool.id] = pool

    def _judge(self, lease: Lease, result: str, now: datetime) -> None:
        """A tenant whose lease failed backs off; one whose lease is done no longer does."""
        key = lease.lease_pool_id, lease.tenant
        terms = self.pools[lease.lease_pool_id].policy.backoff
        tenant = self.tenants.get(key)
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
        self.tenants[key] = msgspec.structs.replace(tenant, failures=failures, backoff_until=until)
        self.changed_tenants.add(key)

    def _prolong(
        self, pool: LeasePool, fact: LeaseConfirmRequested | LeaseRenewRequested, now: datetime, owner: str
    ) -> None:
        """The state alone decides: until its expiry has committed, a lease lives, however late it is."""
        lease = self.leases.get((pool.id, fact.lease_id))
        if lease is None or not lease.live or lease.fencing_token != fact.fencing_token:
            self.refusals.append(refusal(lease, fact.fencing_token))
            self.answers.extend(too_late(pool, lease, fact, now))
            return
        state = advance(lease.state, "confirmed" if isinstance(fact, LeaseConfirmRequested) else "renewed")
        expires_at = alive_until(pool, state, now, lease.hold_until)
        if isinstance(fact, LeaseRenewRequested):  # it may have been let live for longer, and nothing said ends it
            expires_at = max(expires_at, min(lease.expires_at, lease.hold_until))
        after = msgspec.structs.replace(lease, state=state, expires_at=expires_at)
        progress = fact.progress if isinstance(fact, LeaseRenewRequested) else None
        if progress is not None and progress != lease.progress:
            terms = pool.policy.no_progress_seconds
            until = None if terms is None else now + timedelta(seconds=terms)
            after = msgspec.structs.replace(after, progress=progress, progress_until=until)
        self._keep_lease(after)
        self.deadlines[pool.id] = min(after.deadline, self.deadlines.get(pool.id, after.deadline))
        self.answers.append(
            LeaseConfirmed(
                lease_pool_id=pool.id, lease_id=lease.id, fencing_token=lease.fencing_token, expires_at=expires_at
            )
        )
        if state is not lease.state:
            self._note(
                pool, "confirmed", "its holder uses it", now, owner, lease_id=lease.id, request_id=lease.request_id
            )

    def _charge(self, pool: LeasePool, fact: LeaseUnleasedReported, now: datetime, owner: str) -> None:
        """Its answer tells the token: from then on it is a lease like any other. One whose hold is over has ended."""
        lease = self.leases.get((pool.id, fact.lease_id))
        if lease is None:
            if (pool.id, fact.request_id) in self.requests:
                self.refusals.append("known request")
                return
            if any(lease_id == fact.lease_id for _, lease_id in self.leases):  # of another pool
                self.refusals.append("known lease")
                return
            start = unleased.Start(
                request_id=fact.request_id,
                operation=fact.operation,
                units=fact.units,
                started_at=fact.started_at,
                tenant=fact.tenant,
            )
            charge = unleased.charge(pool, start, now, lease_id=fact.lease_id, owner=owner)
            lease = charge.lease
            self._keep_lease(lease)
            self.charged.add((pool.id, lease.id))
            self._keep_request(charge.request)
            self.pools[pool.id] = charge.pool
            self.dirty.add(pool.id)
            self.history.append(charge.entry)
        if lease.live:
            self.deadlines[pool.id] = min(lease.deadline, self.deadlines.get(pool.id, lease.deadline))
            self.answers.append(
                LeaseConfirmed(
                    lease_pool_id=pool.id,
                    lease_id=lease.id,
                    fencing_token=lease.fencing_token,
                    expires_at=lease.expires_at,
                )
            )
        else:
            self.answers.append(
                LeaseReleased(
                    lease_pool_id=pool.id,
                    lease_id=lease.id,
                    request_id=lease.request_id,
                    units=lease.granted_units,
                    remaining=0,
                    reason=lease.reason,
                )
            )

    def _note(self, pool: LeasePool, kind: str, reason: str, now: datetime, owner: str, **about: Any) -> None:
        self.history.append(Entry(lease_pool_id=pool.id, at=now, kind=kind, reason=reason, actor=owner, **about))

    def _keep_lease(self, lease: Lease) -> None:
        key = lease.lease_pool_id, lease.id
        self.leases[key] = lease
        self.changed_leases.add(key)

    def _keep_request(self, request: Request) -> None:
        key = request.lease_pool_id, request.id
        self.requests[key] = request
        self.changed_requests[key] = None

    def pools_to_save(self) -> list[LeasePool]:
        """Those whose counters or deadlines changed, in ascending order of ids."""
        return [self.pools[name] for name in sorted({*self.dirty, *self.deadlines})]

    def leases_to_add(self) -> list[Lease]:
        """Of starts without one that are charged."""
        return [self.leases[key] for key in sorted(self.charged)]

    def leases_to_save(self) -> list[Lease]:
        return [self.leases[key] for key in sorted(self.changed_leases - self.charged)]

    def tenants_to_save(self) -> list[Tenant]:
        return [self.tenants[key] for key in sorted(self.changed_tenants)]

    def groups_to_save(self) -> list[Group]:
        return [self.groups[key] for key in sorted(self.changed_groups)]

    def requests_to_add(self) -> list[Request]:
        """New ones, in order of arrival: that order is their place in the queue."""
        return [self.requests[key] for key in self.changed_requests if key not in self.known]

    def requests_to_save(self) -> list[Request]:
        return [self.requests[key] for key in sorted(self.changed_requests) if key in self.known]


def check(fact: Fact) -> None:
    """Raises BadEvent for values that no ledger could hold."""
    for name in fact.__struct_fields__:
        value = getattr(fact, name)
        if isinstance(value, str):
            _check_text(name, value)
            if name.endswith("_id") and not value:
                raise BadEvent(f"{name} is empty")
        elif name == "units" and not 1 <= value <= UNITS_MAX:
            raise BadEvent(f"{value} units: 1 to {UNITS_MAX} can be asked for or given back")
        elif name.endswith("_seconds") and value is not None and not 0 <= value <= SECONDS_MAX:
            raise BadEvent(f"{name} {value:g}: 0 to {SECONDS_MAX}")
        elif name == "quota_remaining" and value is not None and not 0 <= value <= QUOTA_MAX:
            raise BadEvent(f"quota_remaining: 0 to {QUOTA_MAX}")
    if isinstance(fact, LeaseRequested):
        _check_request(fact)


def _check_request(fact: LeaseRequested) -> None:
    if fact.replaces is not None:
        _check_text("replaces.lease_id", fact.replaces.lease_id)
    if not 0 <= fact.priority <= PRIORITY_MAX:
        raise BadEvent(f"priority {fact.priority}: 0 to {PRIORITY_MAX}, {PRIORITY_MAX} first")
    if fact.hold_seconds is not None and fact.hold_seconds <= 0:
        raise BadEvent(f"hold_seconds {fact.hold_seconds:g}: must be above 0")
    if (group := fact.group) is not None:
        _check_text("group.name", group.name)
        if not group.name:
            raise BadEvent("group.name is empty")
        if not (1 <= group.size <= UNITS_MAX and 0 < group.spread_seconds <= SPREAD_SECONDS_MAX):
            raise BadEvent(
                f"group {group.name}: a size from 1 to {UNITS_MAX} and a spread from 0 to {SPREAD_SECONDS_MAX} s"
            )
        if group.member is not None and not 0 <= group.member < group.size:
            raise BadEvent(f"group {group.name}: member {group.member} of {group.size}; they count from 0")


def _check_text(name: str, value: str) -> None:
    if len(value) > TEXT_CHARACTERS_MAX or "\0" in value:
        raise BadEvent(f"{name}: at most {TEXT_CHARACTERS_MAX} characters and no NUL, not {value[:50]!r}…")


def tells_late(pool: LeasePool, lease: Lease, fact: LeaseReleaseRequested) -> bool:
    """Whether a release of a lease that its hold ended is heard: once, and if it says something of the cloud. An
    adaptive limit also counts those that were not throttled, or it would hear of trouble alone."""
    if lease.state is not State.RELEASED or lease.reason != HOLD or lease.heard:
        return False
    says = fact.throttled or fact.retry_after_seconds is not None or fact.quota_remaining is not None
    return says or pool.policy.adaptive is not None


def refusal(lease: Lease | None, token: int) -> str:
    """Why a fact about a lease changed nothing, as a word to count by."""
    if lease is None:
        return "unknown lease"
    if lease.fencing_token != token:
        return "stale token"
    return f"already {lease.state}"


def too_late(
    pool: LeasePool, lease: Lease | None, fact: LeaseConfirmRequested | LeaseRenewRequested, now: datetime
) -> list[LeaseLost]:
    """Tell a holder again that it holds nothing. A released lease needs no answer: its holder gave it up, or was told.

    A stranger's token on a live lease gets none either, since the answer would reach the true holder. A lease that
    nobody here knows is lost: it is of a time before a restored backup.
    """
    if lease is None:
        return [LeaseLost(lease_pool_id=pool.id, lease_id=fact.lease_id, request_id="", units=0, counted_until=now)]
    return [lost_event(lease)] if lease.state in (State.EXPIRED, State.LOST) else []
