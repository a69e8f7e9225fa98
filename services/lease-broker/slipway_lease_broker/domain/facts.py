"""What askers and holders say, folded over the rows it names. Pure: grants nothing and ends nothing by time; that is
decided afterwards (decide.py). A fact that comes too late, or under a stranger's token, changes nothing."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec

from slipway_common.errors import BadEvent
from slipway_common.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmed,
    LeaseConfirmRequested,
    LeaseLost,
    LeaseReleased,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
)
from slipway_lease_broker.domain.decide import lost_event
from slipway_lease_broker.domain.ledger import Lease, LeasePool, Request, State, advance, alive_until, counted, queued

Fact: TypeAlias = (
    LeaseRequested | LeaseConfirmRequested | LeaseRenewRequested | LeaseCancelRequested | LeaseReleaseRequested
)
Key: TypeAlias = tuple[str, str]  # lease pool id, id of a lease or request of that pool

# Ids are keys of indexes, which take some 2,700 bytes, and PostgreSQL's text takes no NUL; units are its integers. A
# record beyond that would fail for ever as if the database were at fault, so it is refused here.
TEXT_CHARACTERS_MAX: Final = 500
UNITS_MAX: Final = 1_000_000


class Ledger:
    """The rows that a batch of facts names, as they are after each fact, and what to answer."""

    def __init__(self, pools: Iterable[LeasePool], leases: Iterable[Lease], requests: Iterable[Request]) -> None:
        self.pools = {pool.id: pool for pool in pools}
        self.leases = {(lease.lease_pool_id, lease.id): lease for lease in leases}
        self.requests = {(request.lease_pool_id, request.id): request for request in requests}
        self.known = frozenset(self.requests)
        self.changed_leases: set[Key] = set()
        self.changed_requests: dict[Key, None] = {}  # in order of arrival
        self.dirty: set[str] = set()  # lease pools where units or waiters changed: somebody must decide
        self.deadlines: dict[str, datetime] = {}  # lease pool → earliest new deadline
        self.answers: list[Any] = []
        self.refusals: list[str] = []

    def record(self, fact: Fact, now: datetime, traceparent: str = "", *, owner: str = "") -> None:
        """`owner` is who says it. Raises BadEvent for a fact that can never be applied."""
        pool = self.pools.get(fact.lease_pool_id)
        if pool is None:
            raise BadEvent(f"no lease pool {fact.lease_pool_id!r} is declared")
        check(fact)
        match fact:
            case LeaseRequested():
                self._ask(pool, fact, now, traceparent, owner)
            case LeaseCancelRequested():
                self._cancel(pool, fact)
            case LeaseReleaseRequested():
                self._release(pool, fact, now)
            case LeaseConfirmRequested() | LeaseRenewRequested():
                self._prolong(pool, fact, now)

    def _ask(self, pool: LeasePool, fact: LeaseRequested, now: datetime, traceparent: str, owner: str) -> None:
        key = pool.id, fact.request_id
        if (asked := self.requests.get(key)) is not None:  # it only says that the asker still waits
            self._keep_request(msgspec.structs.replace(asked, last_asked_at=now, lapsed=False))
            return
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
                since=now,
                traceparent=traceparent,
                priority=fact.priority,
                whole=fact.whole,
                hold_seconds=fact.hold_seconds,
                owner=owner,
            )
        )
        self.pools[pool.id] = queued(pool, 0, fact.units)
        self.dirty.add(pool.id)

    def _cancel(self, pool: LeasePool, fact: LeaseCancelRequested) -> None:
        request = self.requests.get((pool.id, fact.request_id))
        if request is None or request.waiting_units == 0:
            self.refusals.append("nothing waits")
            return
        left = max(0, request.waiting_units - fact.units)
        self._keep_request(msgspec.structs.replace(request, waiting_units=left))
        self.pools[pool.id] = queued(pool, request.waiting_units, left)
        self.dirty.add(pool.id)

    def _release(self, pool: LeasePool, fact: LeaseReleaseRequested, now: datetime) -> None:
        lease = self.leases.get((pool.id, fact.lease_id))
        # A lost lease is not shortened by its release: what its holder knows may be older than what it did.
        if lease is None or not lease.live or lease.fencing_token != fact.fencing_token:
            self.refusals.append(refusal(lease, fact.fencing_token))
            return
        units = min(fact.units, lease.units)
        left = lease.units - units
        after = msgspec.structs.replace(lease, units=left)
        if left == 0:
            after = msgspec.structs.replace(after, state=advance(lease.state, "released"), ended_at=now)
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
                reason=fact.result,
            )
        )

    def _prolong(self, pool: LeasePool, fact: LeaseConfirmRequested | LeaseRenewRequested, now: datetime) -> None:
        """The state alone decides: until its expiry has committed, a lease lives, however late it is."""
        lease = self.leases.get((pool.id, fact.lease_id))
        if lease is None or not lease.live or lease.fencing_token != fact.fencing_token:
            self.refusals.append(refusal(lease, fact.fencing_token))
            self.answers.extend(too_late(pool, lease, fact, now))
            return
        state = advance(lease.state, "confirmed" if isinstance(fact, LeaseConfirmRequested) else "renewed")
        expires_at = alive_until(pool, state, now, lease.hold_until)
        self._keep_lease(msgspec.structs.replace(lease, state=state, expires_at=expires_at))
        self.deadlines[pool.id] = min(expires_at, self.deadlines.get(pool.id, expires_at))
        self.answers.append(
            LeaseConfirmed(
                lease_pool_id=pool.id, lease_id=lease.id, fencing_token=lease.fencing_token, expires_at=expires_at
            )
        )

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

    def leases_to_save(self) -> list[Lease]:
        return [self.leases[key] for key in sorted(self.changed_leases)]

    def requests_to_add(self) -> list[Request]:
        """New ones, in order of arrival: that order is their place in the queue."""
        return [self.requests[key] for key in self.changed_requests if key not in self.known]

    def requests_to_save(self) -> list[Request]:
        return [self.requests[key] for key in sorted(self.changed_requests) if key in self.known]


def check(fact: Fact) -> None:
    """Raises BadEvent for values that no ledger could hold."""
    for name in fact.__struct_fields__:
        value = getattr(fact, name)
        if isinstance(value, str) and (len(value) > TEXT_CHARACTERS_MAX or "\0" in value):
            raise BadEvent(f"{name}: at most {TEXT_CHARACTERS_MAX} characters and no NUL, not {value[:50]!r}…")
        if name.endswith("_id") and not value:
            raise BadEvent(f"{name} is empty")
        if name == "units" and not 1 <= value <= UNITS_MAX:
            raise BadEvent(f"{value} units: 1 to {UNITS_MAX} can be asked for or given back")


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
        return [
            LeaseLost(lease_pool_id=pool.id, lease_id=fact.lease_id, request_id="", units=0, counted_until=now)
        ]
    return [lost_event(lease)] if lease.state in (State.EXPIRED, State.LOST) else []
