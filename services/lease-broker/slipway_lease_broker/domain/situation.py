"""Input of a decision: rows of one lease pool, as loaded under its lock. Values only."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

import msgspec

from slipway_lease_broker.domain.ledger import Group, Lease, Request, Tenant
from slipway_lease_broker.domain.reception import Receiving

Queue: TypeAlias = tuple[str, str, int, str]  # operation, tenant, priority, group


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that a decision is based on. Of each queue the first `per_queue` requests are loaded, or the number in
    `deeper`."""

    waiters: Sequence[Request] = ()
    per_queue: int
    deeper: Mapping[Queue, int] = {}
    tenants: Sequence[Tenant] = ()  # of the waiters
    groups: Sequence[Group] = ()  # of the waiters
    blocked_gangs: Mapping[str, str] = {}  # gang that reserves nothing → reason
    for_gang: bool = False  # the waiter may start: the other pools of its gang are decided for in the same transaction
    due: Sequence[Lease] = ()  # counted leases whose deadline has passed
    unannounced: Sequence[Request] = ()  # without a published LeaseQueued, waiters or behind them; in order of arrival
    lapsed: Sequence[Request] = ()  # skipped from now on
    next_deadline: datetime | None = None  # the earliest one of the counted leases that are not due
    receiving: Receiving = Receiving()  # for the deadlines of the leases
    more: bool = False  # there are more due leases, unannounced or lapsed requests than were loaded
