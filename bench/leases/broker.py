"""A lease pool on a virtual clock: the lease-broker's own rules on dicts in place of its tables.

Commands and decisions are those of the service (domain/commands.py, domain/decide.py); rows that the service would
load for them are selected here as by its statements.
"""

import heapq
from bisect import insort
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Final

import msgspec

from slipway_api.events.lease import LeaseGroup, LeaseReleaseRequested, LeaseRequested
from slipway_lease_broker.domain.commands import LeaseCommand, apply_command
from slipway_lease_broker.domain.decide import Decision, decide
from slipway_lease_broker.domain.endings import HOLD
from slipway_lease_broker.domain.ledger import Group, Lease, LeasePool, Ledger, Request, Tenant
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.situation import Situation
from slipway_lease_broker.domain.terms import BrokerTerms, Policy

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
PER_QUEUE: Final = 16
POOL: Final = "pool"
TERMS: Final = BrokerTerms(
    lost_linger_seconds=0,
    waiter_ttl_seconds=0,  # nothing lapses here
    waiting_requests_max=1,
    slot_expired_state="",
    slot_request_ttl_seconds=0,
    proxy_wait_seconds=0,
    open_to_all=False,
)


def at(seconds: float) -> datetime:
    """Time of a second of the run."""
    return START + timedelta(seconds=seconds)


def seconds(time: datetime) -> float:
    """Second of the run of a time."""
    return (time - START).total_seconds()


class Broker:
    """One lease pool in memory. Times are seconds since START; leases last until hold or release, TTLs never expire."""

    def __init__(self, limit_units: int, hold_seconds: float, policy: Policy) -> None:
        self.pool = LeasePool(
            id=POOL,
            limit_units=limit_units,
            hold_seconds=hold_seconds,
            ttl_seconds=hold_seconds,
            reserve_seconds=hold_seconds,
            policy=policy,
        )
        self.leases: dict[str, Lease] = {}  # counted against the limit
        self.over: dict[str, Lease] = {}  # ended by their hold and not yet released by the holder
        self.requests: dict[str, Request] = {}  # waiting
        self.tenants: dict[str, Tenant] = {}
        self.groups: dict[str, Group] = {}
        self.wake_at: float | None = None
        self._queues: dict[tuple[str, str, int, str], list[tuple[datetime, int, str]]] = {}
        self._deadlines: list[tuple[datetime, str]] = []
        self._ids = map("l{}".format, count(1))
        self._places = count(1)

    def request(
        self,
        name: str,
        now: float,
        *,
        tenant: str = "t",
        units: int = 1,
        priority: int = 0,
        group: LeaseGroup | None = None,
        operation: str = "install",
    ) -> None:
        self._record(
            LeaseRequested(
                lease_pool_id=POOL,
                request_id=name,
                units=units,
                tenant=tenant,
                priority=priority,
                group=group,
                operation=operation,
                whole=True,
            ),
            now,
        )

    def release(
        self,
        lease: Lease,
        now: float,
        *,
        result: str = "done",
        throttled: bool = False,
        retry_after_seconds: float | None = None,
        quota_remaining: int | None = None,
    ) -> None:
        """Release a lease. If its hold has ended it, no unit is freed, but its report of the cloud is recorded."""
        self._record(
            LeaseReleaseRequested(
                lease_pool_id=POOL,
                lease_id=lease.id,
                fencing_token=lease.fencing_token,
                units=lease.units,
                result=result,
                throttled=throttled,
                retry_after_seconds=retry_after_seconds,
                quota_remaining=quota_remaining,
            ),
            now,
        )

    def decide(self, now: float) -> Iterator[Lease]:
        """Leases granted now. Must be called after every command and at `wake_at`."""
        is_complete = False
        while not is_complete:
            decision = self._decide(at(now))
            is_complete = not decision.again
            yield from decision.granted

    def _record(self, command: LeaseCommand, now: float) -> None:
        named = []
        if isinstance(command, LeaseReleaseRequested):
            lease = self.leases.get(command.lease_id) or self.over.get(command.lease_id)
            named = [] if lease is None else [lease]
        ledger = Ledger([self.pool], named, [], self.tenants.values(), self.groups.values())
        apply_command(ledger, command, at(now), Sender())
        self.pool = ledger.pools[POOL]
        for lease in ledger.leases_to_save():
            self._store(lease)
        for request in ledger.requests_to_add():
            placed = msgspec.structs.replace(request, place=next(self._places))
            self.requests[placed.id] = placed
            insort(self._queues.setdefault(placed.queue, []), (placed.since, placed.place, placed.id))
        self.tenants |= {tenant.tenant: tenant for tenant in ledger.tenants_to_save()}
        self.groups |= {group.name: group for group in ledger.groups_to_save()}

    def _decide(self, now: datetime) -> Decision:
        due = []
        while self._deadlines and self._deadlines[0][0] <= now:
            if (lease := self.leases.get(heapq.heappop(self._deadlines)[1])) is not None:
                due.append(lease)
        while self._deadlines and self._deadlines[0][1] not in self.leases:
            heapq.heappop(self._deadlines)
        heads = [self.requests[name] for queue in self._queues.values() for _, _, name in queue[:PER_QUEUE]]
        situation = Situation(
            due=due,
            waiters=heads,
            per_queue=PER_QUEUE,
            tenants=tuple(self.tenants.values()),
            groups=tuple(self.groups.values()),
            next_deadline=self._deadlines[0][0] if self._deadlines else None,
        )
        decision = decide(self.pool, situation, now, new_id=lambda: next(self._ids), terms=TERMS)
        self.pool = decision.pool
        for lease in (*decision.ended, *decision.granted):
            self._store(lease)
        for request in decision.requests:
            self.requests[request.id] = request
            if not request.waiting_units:
                del self.requests[request.id]
                self._queues[request.queue].remove((request.since, request.place, request.id))
                if not self._queues[request.queue]:
                    del self._queues[request.queue]
        self.tenants |= {tenant.tenant: tenant for tenant in decision.tenants}
        self.groups |= {group.name: group for group in decision.groups}
        self.wake_at = None if decision.wake_at is None else seconds(decision.wake_at)
        return decision

    def _store(self, lease: Lease) -> None:
        if lease.ended_at is not None:
            self.leases.pop(lease.id, None)
            self.over.pop(lease.id, None)
            if lease.reason == HOLD and not lease.reported_late:
                self.over[lease.id] = lease
        else:
            self.leases[lease.id] = lease
            heapq.heappush(self._deadlines, (lease.deadline, lease.id))
