"""Rows of the ledger (lease pools, leases, requests, tenants, groups, gangs), the table of lease states, and the rows
loaded for a batch of commands. Values only: grants are decided in decide.py, commands are applied in commands.py."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from slipway_api.events.lease import LeaseRequested
from slipway_lease_broker.domain import spread
from slipway_lease_broker.domain.adaptive import Adaptive, Evidence
from slipway_lease_broker.domain.pacing import Pace
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.terms import Mode, Policy
from slipway_lease_broker.domain.throttling import ThrottleReport

Key: TypeAlias = tuple[str, str]  # lease pool id, id of a lease or request of that pool


class State(StrEnum):
    RESERVED = "reserved"  # granted; not yet confirmed by its holder
    CONFIRMED = "confirmed"  # in use; lives as long as it is renewed, at most until its hold ends
    RELEASED = "released"  # released by its holder, or ended by the broker at the end of its hold
    EXPIRED = "expired"  # not confirmed in time
    LOST = "lost"  # confirmed, then not renewed in time: its last call may still be in flight


R, C, G, E, L = State  # in the order above
LIVE: Final = (R, C)  # its holder may act under it
TRANSITIONS: Final[dict[tuple[State, str], State]] = {
    (R, "confirmed"): C,
    (R, "renewed"): R,  # a holder that needs more time before its call
    (C, "confirmed"): C,  # a confirm that is sent again renews
    (C, "renewed"): C,
    (R, "released"): G,
    (C, "released"): G,
    (R, "deadline passed"): E,
    (C, "deadline passed"): L,
}


class IllegalTransition(Exception):
    """A pair of state and event that TRANSITIONS does not list. The caller's transaction changes nothing."""


def advance(state: State, event: str) -> State:
    """The state after `event`; raises IllegalTransition for an unlisted pair."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"no transition from lease state {state!r} on {event!r}") from None


class Excess(msgspec.Struct, frozen=True, kw_only=True):
    """The largest excess of unleased units, beyond what their reporter may count, that has not ended."""

    reporter: str
    tenant: str
    units: int
    units_max: int
    until: datetime
    alerted: bool = False


class LeasePool(msgspec.Struct, frozen=True, kw_only=True):
    """Terms of admission of a lease pool, and its state from decision to decision. The terms of a lease are fixed at
    its grant; new terms apply to new grants and renewals. The counters are exact whenever the pool is unlocked."""

    id: str
    limit_units: int  # as declared
    hold_seconds: float
    ttl_seconds: float
    reserve_seconds: float
    policy: Policy = Policy()
    archived: bool = False
    last_token: int = 0  # newest fencing token
    limit_in_force: int | None = None  # of the last decision; None before the first
    limit_reason: str = ""
    held: dict[str, int] = {}  # operation → cost of its counted leases
    held_units: int = 0
    waiting_units: int = 0
    waiting_requests: int = 0
    waiting_by: dict[str, int] = {}  # token → its requests that wait, without those over Kafka
    counted_at: datetime | None = None  # idle units are accrued up to this time
    idle_unit_seconds: float = 0.0  # since the last decision, while requests waited
    last_granted_at: datetime | None = None
    paces: dict[str, Pace] = {}  # by operation; those of paces.py, while starts lie ahead
    blocked_until: datetime | None = None  # from a Retry-After: no counted start before this time
    incomplete_until: datetime | None = None  # the database was restored: until then it may lack leases
    virtual_time: float = 0.0
    adaptive: Adaptive | None = None
    evidence: tuple[Evidence, ...] = ()  # of throttling, received since the last decision
    throttle_reports: tuple[ThrottleReport, ...] = ()  # of the last reporters
    excess: Excess | None = None
    pinned_reason: str | None = None  # None: not pinned
    drained_reason: str | None = None  # None: not drained
    derived_units: int | None = None
    derived_until: datetime | None = None  # the report's ttl
    derived_alerted: bool = False  # an alert was raised that the report is stale

    def incomplete(self, now: datetime) -> bool:
        """True while leases may exist that the database lacks: nothing is granted, and nothing expires."""
        return self.incomplete_until is not None and self.incomplete_until > now

    @property
    def stopped(self) -> bool:
        """True if an operator drained or archived it: nothing starts, not even overdue requests."""
        return self.archived or self.drained_reason is not None

    @property
    def held_cost(self) -> int:
        return sum(self.held.values())


class UnleasedBy(StrEnum):
    """Cause of an unleased start."""

    UNAVAILABLE = "unavailable"  # the broker
    MAX_WAIT = "max_wait"  # its request still waited when its caller's maximum wait was over
    LOST = "lost"  # its lease had expired, and its command went on


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """One process's part in a lease. `left`: it has released it. `token_sha256`: of the token bound to the lease that
    its command has."""

    since: datetime
    left: bool = False
    token_sha256: str | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """One grant. Its units count against the limit until `ended_at` is set, whatever its state."""

    id: str
    lease_pool_id: str
    request_id: str
    fencing_token: int
    granted_units: int
    units: int  # not yet released
    state: State
    granted_at: datetime
    expires_at: datetime
    hold_until: datetime
    counted_until: datetime | None = None  # of a lost lease
    ended_at: datetime | None = None
    traceparent: str = ""  # of its request: events about the lease continue that trace
    tenant: str = ""
    operation: str = "launch"
    weight: int = 1  # cost of a unit at the time of the grant
    owner: str = ""  # name of the token or service that requested it
    progress: str | None = None  # as last reported
    progress_until: datetime | None = None  # the lease ends here if its progress does not change
    waited_seconds: float = 0.0
    mode: Mode = Mode.ENFORCE
    advised_wait_seconds: float | None = None  # how long it would have waited if the pool enforced
    reason: str = ""  # of the grant, then of the end
    gang_id: str | None = None
    replaced: bool = False  # a request replaced it: no other may inherit its age
    reported_late: bool = False  # its holder reported a result after the hold had ended
    extended_at: datetime  # by its grant, or the last command that moved its deadlines
    over_kafka: bool = False  # whether its holder sends its commands over Kafka, or over HTTP
    unleased_by: UnleasedBy | None = None  # None: it was granted
    uncounted_units: int = 0  # of an unleased start, beyond what counts against the pool
    holders: dict[str, Holding] = {}  # by the name that each gave itself; empty: a holder without a name

    @property
    def holder(self) -> str:
        """Name of its holder, the last one of several; empty if it gave none."""
        holding = [name for name, one in self.holders.items() if not one.left]
        return (holding or [*self.holders, ""])[-1]

    @property
    def live(self) -> bool:
        """True while its holder may act under it."""
        return self.state in LIVE

    @property
    def counted_units(self) -> int:
        """Units that count against the limit until `ended_at` is set."""
        return max(0, self.units - self.uncounted_units)

    @property
    def cost(self) -> int:
        return self.counted_units * self.weight

    @property
    def deadline(self) -> datetime:
        """The time at which the lease changes unless a command arrives. The schema computes the same for its index."""
        if self.counted_until is not None:
            return self.counted_until
        ends = min(self.expires_at, self.hold_until)
        return ends if self.progress_until is None else min(ends, self.progress_until)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request for units. It waits while `waiting_units` is above zero. Requests of one operation, tenant, priority
    and group form a queue, ordered by `since`, then by arrival."""

    id: str
    lease_pool_id: str
    tenant: str
    operation: str
    requested_units: int
    waiting_units: int
    requested_at: datetime
    last_requested_at: datetime
    since: datetime  # start of its wait: less age credit, or when its group lets it start
    queued_at: datetime | None = None  # when LeaseQueued was published
    traceparent: str = ""
    priority: int = 0  # 0…9
    whole: bool = False  # never granted in part
    hold_seconds: float | None = None  # None: the pool's
    owner: str = ""
    group_name: str = ""
    gang_id: str | None = None
    lapsed: bool = False  # not repeated for too long: skipped until it is repeated
    over_kafka: bool = False  # how it came: over Kafka, or over HTTP
    holder: str = ""  # who asked for it last; empty if it gave no name
    place: int = 0  # order of arrival; assigned by the store

    @property
    def starts_whole(self) -> bool:
        """True if it is never granted in part: members of a gang start together."""
        return self.whole or self.gang_id is not None

    @property
    def counted_units(self) -> int:
        """Units in the pool's counters of waiting units: none while the request is lapsed."""
        return 0 if self.lapsed else self.waiting_units

    @property
    def queue(self) -> tuple[str, str, int, str]:
        return self.operation, self.tenant, self.priority, self.group_name


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """State of fairness and backoff of one tenant in one pool."""

    lease_pool_id: str
    tenant: str
    virtual_finish: float = 0.0
    failures: int = 0  # failing results in a row
    backoff_until: datetime | None = None
    held_back_until: datetime | None = None  # by what it reported itself
    held_back_reason: str = ""
    owner: str = ""  # token that named it, if it is not that token's own


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Requests whose starts are spread over a time."""

    lease_pool_id: str
    name: str
    size: int
    spread_seconds: float
    members: int = 0  # that have arrived
    first_at: datetime  # arrival of the first member
    last_start_at: datetime | None = None


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of several pools that start together or not at all; its members are the requests that name it."""

    id: str
    owner: str
    size: int
    requested_at: datetime
    last_requested_at: datetime
    turn_at: datetime | None = None  # when it could first have started in one of its pools
    done_at: datetime | None = None  # started or given up


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of history: a decision and its reason."""

    lease_pool_id: str
    at: datetime
    kind: str
    reason: str
    lease_id: str | None = None
    request_id: str | None = None
    units: int | None = None
    actor: str = ""  # caller or service; empty: time, or the broker's own decision


class Ledger:
    """The rows that a batch of commands names, with the changes of each command, and the events to publish."""

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
        self.new_leases: set[Key] = set()  # of unleased starts
        self.changed_requests: dict[Key, None] = {}  # in order of arrival
        self.changed_tenants: set[Key] = set()
        self.changed_groups: set[Key] = set()
        self.dirty: set[str] = set()  # lease pools where units or requests changed: a decision is due
        self.deadlines: dict[str, datetime] = {}  # lease pool → earliest new deadline
        self.events: list[Any] = []
        self.history: list[Entry] = []
        self.throttles: list[str] = []  # lease pool ids, one per release that reports throttling
        self.refusals: list[str] = []
        self.held_by: dict[str, dict[str, int]] = {}  # lease pool → owner → units held, where a command depends on it
        self.tenants_by: dict[Key, int] = {}  # lease pool and owner → number of tenants that it named

    def put_lease(self, lease: Lease) -> None:
        key = lease.lease_pool_id, lease.id
        self.leases[key] = lease
        self.changed_leases.add(key)

    def put_request(self, request: Request) -> None:
        key = request.lease_pool_id, request.id
        self.requests[key] = request
        self.changed_requests[key] = None

    def hold_back(self, lease: Lease, until: datetime, reason: str) -> None:
        """Let the tenant of a lease wait until then, because of what it reported."""
        key = lease.lease_pool_id, lease.tenant
        tenant = self.tenants.get(key) or Tenant(lease_pool_id=lease.lease_pool_id, tenant=lease.tenant)
        if tenant.held_back_until is None or tenant.held_back_until < until:
            self.put_tenant(msgspec.structs.replace(tenant, held_back_until=until, held_back_reason=reason))

    def put_tenant(self, tenant: Tenant) -> None:
        key = tenant.lease_pool_id, tenant.tenant
        self.tenants[key] = tenant
        self.changed_tenants.add(key)

    def add_history(self, pool: LeasePool, kind: str, reason: str, now: datetime, owner: str, **about: Any) -> None:
        self.history.append(Entry(lease_pool_id=pool.id, at=now, kind=kind, reason=reason, actor=owner, **about))

    def pools_to_save(self) -> list[LeasePool]:
        """Pools whose counters or deadlines changed, in ascending order of ids."""
        return [self.pools[name] for name in sorted({*self.dirty, *self.deadlines})]

    def leases_to_add(self) -> list[Lease]:
        """Leases of unleased starts."""
        return [self.leases[key] for key in sorted(self.new_leases)]

    def leases_to_save(self) -> list[Lease]:
        return [self.leases[key] for key in sorted(self.changed_leases - self.new_leases)]

    def tenants_to_save(self) -> list[Tenant]:
        return [self.tenants[key] for key in sorted(self.changed_tenants)]

    def groups_to_save(self) -> list[Group]:
        return [self.groups[key] for key in sorted(self.changed_groups)]

    def requests_to_add(self) -> list[Request]:
        """New requests in order of arrival, which is their order in the queue."""
        return [self.requests[key] for key in self.changed_requests if key not in self.known]

    def requests_to_save(self) -> list[Request]:
        return [self.requests[key] for key in sorted(self.changed_requests) if key in self.known]


def new_request(
    command: LeaseRequested,
    now: datetime,
    *,
    sender: Sender,
    since: datetime | None = None,
    traceparent: str = "",
    gang_id: str | None = None,
) -> Request:
    """Row of a new request."""
    return Request(
        id=command.request_id,
        lease_pool_id=command.lease_pool_id,
        tenant=command.tenant,
        operation=command.operation,
        requested_units=command.units,
        waiting_units=command.units,
        requested_at=now,
        last_requested_at=now,
        since=now if since is None else since,
        traceparent=traceparent,
        priority=command.priority,
        whole=command.whole,
        hold_seconds=command.hold_seconds,
        owner=sender.name,
        group_name="" if command.group is None else spread.group_key(command.group, sender),
        gang_id=gang_id,
        over_kafka=sender.over_kafka,
        holder=sender.holder,
    )


def accrue_idle(pool: LeasePool, now: datetime) -> LeasePool:
    """The pool with the idle unit seconds accrued up to `now`: free units times seconds, while requests waited."""
    free = 0 if pool.limit_in_force is None else min(pool.limit_in_force - pool.held_cost, pool.waiting_units)
    seconds = 0.0 if pool.counted_at is None else (now - pool.counted_at).total_seconds()
    idle = pool.idle_unit_seconds + max(0, free) * max(0.0, seconds)
    return msgspec.structs.replace(pool, counted_at=now, idle_unit_seconds=idle)


def counted(pool: LeasePool, lease: Lease, before: int, after: int) -> LeasePool:
    """The pool after the units of a lease that are held went from `before` to `after`."""
    units = max(0, after - lease.uncounted_units) - max(0, before - lease.uncounted_units)
    cost = pool.held.get(lease.operation, 0) + units * lease.weight
    held = {**pool.held, lease.operation: cost}
    if cost == 0:
        del held[lease.operation]
    return msgspec.structs.replace(pool, held=held, held_units=pool.held_units + units)


def queued(pool: LeasePool, request: Request, before: int, after: int) -> LeasePool:
    """The pool after the counted units of a request went from `before` to `after`."""
    more = (after > 0) - (before > 0)
    waiting_by = pool.waiting_by
    if more and not request.over_kafka:
        waiting_by = {**waiting_by, request.owner: waiting_by.get(request.owner, 0) + more}
        if waiting_by[request.owner] == 0:
            del waiting_by[request.owner]
    return msgspec.structs.replace(
        pool,
        waiting_units=pool.waiting_units + after - before,
        waiting_requests=pool.waiting_requests + more,
        waiting_by=waiting_by,
    )


def alive_until(pool: LeasePool, state: State, now: datetime, hold_until: datetime) -> datetime:
    """The deadline set by a grant, confirm or renewal at `now`: never past the end of the hold."""
    seconds = pool.reserve_seconds if state is State.RESERVED else pool.ttl_seconds
    return min(now + timedelta(seconds=seconds), hold_until)
