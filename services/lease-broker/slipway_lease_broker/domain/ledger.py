"""What the broker knows of one lease pool: its terms, who holds units and who waits. Values and the table of lease
states. Decides nothing about grants (decide.py) and nothing about what holders say (facts.py)."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from slipway_lease_broker.domain.adaptive import Adaptive, Evidence
from slipway_lease_broker.domain.terms import Mode, Policy


class State(StrEnum):
    RESERVED = "reserved"  # granted; the holder has yet to commit to using it
    CONFIRMED = "confirmed"  # in use; lives as long as it is renewed, at most until its hold passes
    RELEASED = "released"  # given back by the holder, or ended by the broker when its hold passed
    EXPIRED = "expired"  # never confirmed in time
    LOST = "lost"  # confirmed, then not renewed in time: its last call may still be under way


R, C, G, E, L = State  # in the order above
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
    """An unlisted pair. The caller's transaction changes nothing."""


def advance(state: State, fact: str) -> State:
    """The state after `fact`; raises IllegalTransition for an unlisted pair."""
    try:
        return TRANSITIONS[state, fact]
    except KeyError:
        raise IllegalTransition(f"a {state} lease cannot be {fact}") from None


class LeasePool(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of admission and the state that goes on from decision to decision. Terms of a lease are fixed at its
    grant; new terms count for new grants and renewals. The counters are true whenever the pool is unlocked."""

    id: str
    limit_units: int  # as declared
    hold_seconds: float
    ttl_seconds: float
    reserve_seconds: float
    policy: Policy = Policy()
    retired: bool = False
    last_token: int = 0  # the fencing token given out last
    limit_in_force: int | None = None  # of the last decision; None before the first
    limit_reason: str = ""
    held: dict[str, int] = {}  # operation → cost of its counted leases
    held_units: int = 0
    waiting_units: int = 0
    waiting_requests: int = 0
    counted_at: datetime | None = None  # up to which idle units are reckoned
    idle_unit_seconds: float = 0.0  # since the last decision, while somebody waited
    last_granted_at: datetime | None = None
    paced_until: datetime | None = None  # theoretical arrival time of the next start
    paced_interval_seconds: float | None = None  # that it was reckoned with
    blocked_until: datetime | None = None  # told by a Retry-After: nothing paced starts before
    virtual_time: float = 0.0
    adaptive: Adaptive | None = None
    evidence: tuple[Evidence, ...] = ()  # of throttling, told since the last decision
    pinned_reason: str | None = None  # None: not pinned
    drained_reason: str | None = None  # None: not drained
    derived_units: int | None = None
    derived_until: datetime | None = None  # the report's ttl
    derived_alerted: bool = False  # its end was told

    @property
    def stopped(self) -> bool:
        """Whether people closed it: then nothing proceeds, not even what waited for longest."""
        return self.retired or self.drained_reason is not None

    @property
    def held_cost(self) -> int:
        return sum(self.held.values())


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """One grant. Its units count against the limit until `ended_at` is set, whatever its state."""

    id: str
    lease_pool_id: str
    request_id: str
    fencing_token: int
    granted_units: int
    units: int  # not given back yet
    state: State
    granted_at: datetime
    expires_at: datetime
    hold_until: datetime
    counted_until: datetime | None = None  # of a lost lease
    ended_at: datetime | None = None
    traceparent: str = ""  # of its request: what happens to it goes on in that trace
    tenant: str = ""
    operation: str = "launch"
    weight: int = 1  # cost of a unit, as at the grant
    owner: str = ""  # name of the token, or of the service, that asked
    progress: str | None = None  # as told last
    progress_until: datetime | None = None  # it ends here if its progress does not change
    waited_seconds: float = 0.0
    mode: Mode = Mode.ENFORCE
    advised_wait_seconds: float | None = None  # what it would have waited if the pool enforced
    reason: str = ""  # of the grant, then of the end
    gang_id: str | None = None
    replaced: bool = False  # a request replaced it: no other may
    heard: bool = False  # its hold ended it, and its holder told afterwards how it went

    @property
    def live(self) -> bool:
        """Whether its holder may still act under it."""
        return self.state in (State.RESERVED, State.CONFIRMED)

    @property
    def cost(self) -> int:
        return self.units * self.weight

    @property
    def deadline(self) -> datetime:
        """When time alone changes it next, if nobody says anything. The schema computes the same for its index."""
        if self.counted_until is not None:
            return self.counted_until
        ends = min(self.expires_at, self.hold_until)
        return ends if self.progress_until is None else min(ends, self.progress_until)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asked for. It waits while `waiting_units` is above zero. Those of one operation, tenant, priority
    and group are a queue, in order of `since`, then of arrival."""

    id: str
    lease_pool_id: str
    tenant: str
    operation: str
    asked_units: int
    waiting_units: int
    asked_at: datetime
    last_asked_at: datetime
    since: datetime  # when its wait began: less age credit, or when its group lets it start
    queued_at: datetime | None = None  # when it was first told to wait
    traceparent: str = ""
    priority: int = 0  # 0…9
    whole: bool = False  # never granted in part
    hold_seconds: float | None = None  # None: the pool's
    owner: str = ""
    group_name: str = ""
    gang_id: str | None = None
    lapsed: bool = False  # its asker fell silent: passed over until it asks again
    place: int = 0  # order of arrival; the store gives it

    @property
    def counted_units(self) -> int:
        """What the pool's counters have of it: nothing while its asker is silent."""
        return 0 if self.lapsed else self.waiting_units

    @property
    def queue(self) -> tuple[str, str, int, str]:
        return self.operation, self.tenant, self.priority, self.group_name


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """What fairness and backoff remember of a tenant of one pool."""

    lease_pool_id: str
    tenant: str
    virtual_finish: float = 0.0
    failures: int = 0  # failing results in a row
    backoff_until: datetime | None = None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that are to start spread over a time."""

    lease_pool_id: str
    name: str
    size: int
    spread_seconds: float
    members: int = 0  # that have asked
    first_at: datetime  # arrival of the first
    last_start_at: datetime | None = None


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of several pools that start together or not at all; its members are the requests that name it."""

    id: str
    owner: str
    size: int
    asked_at: datetime
    last_asked_at: datetime
    turn_at: datetime | None = None  # when it first might have started in one pool
    done_at: datetime | None = None  # started, or given up


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of history: what was decided, and why."""

    lease_pool_id: str
    at: datetime
    kind: str
    reason: str
    lease_id: str | None = None
    request_id: str | None = None
    units: int | None = None
    actor: str = ""  # who asked for it; empty: time, or the broker's own decision


def idled(pool: LeasePool, now: datetime) -> LeasePool:
    """The pool with what lay idle up to `now` although somebody waited for it: limit less cost held, for as long."""
    free = 0 if pool.limit_in_force is None else min(pool.limit_in_force - pool.held_cost, pool.waiting_units)
    seconds = 0.0 if pool.counted_at is None else (now - pool.counted_at).total_seconds()
    idle = pool.idle_unit_seconds + max(0, free) * max(0.0, seconds)
    return msgspec.structs.replace(pool, counted_at=now, idle_unit_seconds=idle)


def counted(pool: LeasePool, lease: Lease, units: int) -> LeasePool:
    """The pool after `units` of a lease came to count (negative: ceased to)."""
    cost = pool.held.get(lease.operation, 0) + units * lease.weight
    held = {**pool.held, lease.operation: cost}
    if cost == 0:
        del held[lease.operation]
    return msgspec.structs.replace(pool, held=held, held_units=pool.held_units + units)


def queued(pool: LeasePool, before: int, after: int) -> LeasePool:
    """The pool after the counted units of a request went from `before` to `after`."""
    return msgspec.structs.replace(
        pool,
        waiting_units=pool.waiting_units + after - before,
        waiting_requests=pool.waiting_requests + (after > 0) - (before > 0),
    )


def alive_until(pool: LeasePool, state: State, now: datetime, hold_until: datetime) -> datetime:
    """The deadline that a grant, confirm or renew at `now` gives: never past the hold, which ends it anyway."""
    seconds = pool.reserve_seconds if state is State.RESERVED else pool.ttl_seconds
    return min(now + timedelta(seconds=seconds), hold_until)
