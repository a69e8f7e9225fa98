"""Fair sharing between tenants when more requests wait than may start. Pure.

Tenants share by start-time fair queueing (Goyal, Vin and Cheng, 1996). A grant of cost c to a tenant of weight w takes
a span of virtual time:

    start  = max(virtual time, finish of the tenant's last grant)
    finish = start + c / w

The tenant whose next grant would start first is next, and virtual time is the start of the last grant. A tenant that
was idle starts at virtual time, with neither credit nor debt.

Priority is a level from 0 to 9, and waiting raises it by one every `ageing_seconds`. Ageing prevents starvation below
higher priorities. It gives no precedence over later requests of the same priority; otherwise one tenant's long queue
would be served before the first request of all other tenants.
"""

import itertools
from collections.abc import Iterable, Mapping
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from slipway_lease_broker.domain.ledger import Request

LEVEL_MAX: Final = 9


class Shares(msgspec.Struct, frozen=True):
    """State of fair queueing between decisions: virtual time, and how far each tenant was served beyond it."""

    virtual_time: float = 0.0
    finish: dict[str, float] = {}

    def start(self, tenant: str) -> float:
        """Virtual time at which the tenant's next grant would start."""
        return max(self.virtual_time, self.finish.get(tenant, 0.0))


def level(priority: int, waited_seconds: float, ageing_seconds: float) -> int:
    """The level after ageing, 0 to 9. The highest is reached after (9 − priority) × ageing_seconds at the latest."""
    return min(LEVEL_MAX, priority + int(max(0.0, waited_seconds) // ageing_seconds))


class Contest:
    """Heads of queues, of which the one that is served next is found, as long as the shares stay as they are.

    Requests at the highest level contend, and with them all requests whose priority is at least that of one of these:
    they would be at the same level had they waited as long. Among them the tenant with the earliest virtual start is
    served; of one tenant the highest level, then the oldest request.

    Finding one takes hardly longer with more heads, so that a round over many heads that may not start stays short.
    Within one priority the level depends on the age only, so that it is computed for the oldest request of each.
    """

    def __init__(self, heads: Iterable[Request], shares: Shares, now: datetime, ageing_seconds: float) -> None:
        self._shares = shares
        self._now = now
        self._ageing_seconds = ageing_seconds
        self._heads: dict[int, Request] = {}  # by number, without those that were popped
        # Heaps of each priority: by age, from which popped heads are removed late, and by virtual start, then age.
        self._by_age: dict[int, list[tuple[datetime, int, int]]] = {}
        self._by_start: dict[int, list[tuple[float, datetime, int, int]]] = {}
        self._numbers = itertools.count()
        for head in heads:
            age, start = self._entered(head)
            self._by_age[head.priority].append(age)
            self._by_start[head.priority].append(start)
        for by_age in self._by_age.values():
            heapify(by_age)
        for by_start in self._by_start.values():
            heapify(by_start)

    def add(self, head: Request) -> None:
        age, start = self._entered(head)
        heappush(self._by_age[head.priority], age)
        heappush(self._by_start[head.priority], start)

    def _entered(self, head: Request) -> tuple[tuple[datetime, int, int], tuple[float, datetime, int, int]]:
        """Number a head; returns its places by age and by virtual start."""
        number, priority = next(self._numbers), head.priority
        self._heads[number] = head
        if priority not in self._by_age:
            self._by_age[priority], self._by_start[priority] = [], []
        since, place = head.since, head.place
        return (since, place, number), (self._shares.start(head.tenant), since, place, number)

    def pop(self) -> Request | None:
        """Remove the head that is served next, and return it; None if there is none."""
        levels: dict[int, int] = {}
        for priority, by_age in self._by_age.items():
            while by_age and by_age[0][-1] not in self._heads:
                heappop(by_age)
            if by_age:
                levels[priority] = self._level(priority, by_age[0][0])
        if not levels:
            return None
        top = max(levels.values())
        least = min(priority for priority, reached in levels.items() if reached == top)
        *_, first = min(
            (start, -self._level(priority, since), since, place, priority)
            for priority in levels
            if priority >= least
            for start, since, place, _ in self._by_start[priority][:1]
        )
        *_, number = heappop(self._by_start[first])
        return self._heads.pop(number)

    def _level(self, priority: int, since: datetime) -> int:
        return level(priority, (self._now - since).total_seconds(), self._ageing_seconds)


def charged(shares: Shares, tenant: str, cost: float, weights: Mapping[str, float]) -> Shares:
    """The shares after a grant of `cost` to a tenant; the default weight is 1. A cost of 0 changes nothing."""
    if cost <= 0:
        return shares
    start = shares.start(tenant)
    ahead = {name: finish for name, finish in shares.finish.items() if finish > start}
    return Shares(start, ahead | {tenant: start + cost / weights.get(tenant, 1.0)})
