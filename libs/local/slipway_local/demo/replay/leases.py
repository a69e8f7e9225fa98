"""Lease pools on the virtual clock: the decisions of the lease-broker, without its log, database and callers. Pure.

Leases are confirmed and renewed in time here, so each of them ends by its release.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import count
from typing import Final

from msgspec.structs import replace

from slipway_common.declaration import models
from slipway_common.events.lease import LeaseCancelRequested, LeaseReleaseRequested, LeaseRequested
from slipway_lease_broker.domain.commands import apply_command
from slipway_lease_broker.domain.decide import decide
from slipway_lease_broker.domain.ledger import Lease, LeasePool, Ledger, Request, Tenant
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.situation import Situation
from slipway_lease_broker.domain.terms import BrokerTerms
from slipway_lease_broker.http.declared import terms

OWNER: Final = "provisioner"
# Of these terms only the first one matters to a decision, for leases that were lost.
TERMS: Final = BrokerTerms(
    lost_linger_seconds=0.0,
    waiter_ttl_seconds=0.0,
    slot_expired_state="",
    slot_request_ttl_seconds=0.0,
    proxy_wait_seconds=0.0,
    open_to_all=False,
)


class _Rows:
    """Rows of one lease pool: its waiting requests, its live leases, and its tenants."""

    def __init__(self, declared: models.LeasePool) -> None:
        given = terms(declared)
        self.pool = LeasePool(
            id=given.id,
            limit_units=given.limit_units,
            hold_seconds=given.hold_seconds,
            ttl_seconds=given.ttl_seconds,
            reserve_seconds=given.reserve_seconds,
            policy=given.policy,
        )
        self.requests: dict[str, Request] = {}
        self.leases: dict[str, Lease] = {}
        self.tenants: dict[str, Tenant] = {}

    def put(self, requests: Iterable[Request], leases: Iterable[Lease], tenants: Iterable[Tenant]) -> None:
        """Store changed rows; requests that wait no longer and leases that have ended are dropped."""
        self.requests |= {request.id: request for request in requests}
        self.leases |= {lease.id: lease for lease in leases}
        self.tenants |= {tenant.tenant: tenant for tenant in tenants}
        for waiting in [request for request in self.requests.values() if not request.waiting_units]:
            del self.requests[waiting.id]
        for ended in [lease for lease in self.leases.values() if lease.ended_at is not None]:
            del self.leases[ended.id]


class LeasePools:
    """All lease pools. Every change returns the leases that it lets be granted; `wake_at` has, by lease pool, when time
    alone will change something."""

    def __init__(self, declared: Iterable[models.LeasePool]) -> None:
        self._rows = {pool.id: _Rows(pool) for pool in declared}
        self._numbers = count(1)
        self.wake_at: dict[str, datetime | None] = {}

    def request(
        self, lease_pool_id: str, request_id: str, units: int, now: datetime, *, tenant: str
    ) -> Sequence[Lease]:
        return self._apply(
            LeaseRequested(lease_pool_id=lease_pool_id, request_id=request_id, units=units, tenant=tenant), now
        )

    def cancel(self, lease_pool_id: str, request_id: str, now: datetime) -> Sequence[Lease]:
        """Cancel one waiting unit of a request."""
        return self._apply(
            LeaseCancelRequested(lease_pool_id=lease_pool_id, request_id=request_id, units=1, reason="unwanted"), now
        )

    def release(
        self, lease: Lease, result: str, now: datetime, *, units: int = 1, retry_after_seconds: float | None = None
    ) -> Sequence[Lease]:
        """Release units of a lease. With a time to retry after, its call was throttled."""
        release = LeaseReleaseRequested(
            lease_pool_id=lease.lease_pool_id,
            lease_id=lease.id,
            fencing_token=lease.fencing_token,
            units=units,
            result=result,
            throttled=retry_after_seconds is not None,
            retry_after_seconds=retry_after_seconds,
        )
        return self._apply(release, now)

    def decide(self, lease_pool_id: str, now: datetime) -> Sequence[Lease]:
        """Grant what may start by now."""
        rows = self._rows[lease_pool_id]
        waiters = list(rows.requests.values())
        situation = Situation(
            waiters=waiters,
            per_queue=len(waiters) + 1,
            tenants=list(rows.tenants.values()),
            unannounced=[request for request in waiters if request.queued_at is None],
        )
        decision = decide(rows.pool, situation, now, new_id=lambda: f"lease-{next(self._numbers)}", terms=TERMS)
        rows.pool = decision.pool
        rows.put(decision.requests, decision.granted, decision.tenants)
        self.wake_at[lease_pool_id] = decision.wake_at
        return decision.granted

    def _apply(
        self, command: LeaseRequested | LeaseCancelRequested | LeaseReleaseRequested, now: datetime
    ) -> Sequence[Lease]:
        rows = self._rows[command.lease_pool_id]
        ledger = Ledger([rows.pool], rows.leases.values(), rows.requests.values(), rows.tenants.values())
        apply_command(ledger, command, now, Sender(name=OWNER))
        rows.pool = ledger.pools[rows.pool.id]
        placed = [replace(request, place=next(self._numbers)) for request in ledger.requests_to_add()]
        rows.put([*ledger.requests_to_save(), *placed], ledger.leases_to_save(), ledger.tenants_to_save())
        return self.decide(rows.pool.id, now)
