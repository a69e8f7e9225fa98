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

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Final

import msgspec

LEVEL_MAX: Final = 9


class Shares(msgspec.Struct, frozen=True):
    """State of fair queueing between decisions: virtual time, and how far each tenant was served beyond it."""

    virtual_time: float = 0.0
    finish: dict[str, float] = {}

    def start(self, tenant: str) -> float:
        """Virtual time at which the tenant's next grant would start."""
        return max(self.virtual_time, self.finish.get(tenant, 0.0))


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first waiting request of one tenant at one priority. `place` orders requests made at the same time."""

    tenant: str
    priority: int
    requested_at: datetime  # less its age credit
    place: int


_arrival: Callable[[Head], tuple[datetime, int]] = attrgetter("requested_at", "place")


def level(priority: int, waited_seconds: float, ageing_seconds: float) -> int:
    """The level after ageing, 0 to 9. The highest is reached after (9 − priority) × ageing_seconds at the latest."""
    return min(LEVEL_MAX, priority + int(max(0.0, waited_seconds) // ageing_seconds))


def next_head(heads: Iterable[Head], shares: Shares, now: datetime, ageing_seconds: float) -> Head | None:
    """The request that is served next; None when none waits.

    Requests at the highest level contend, and with them all requests whose priority is at least that of one of these:
    they would be at the same level had they waited as long. Among them the tenant with the earliest virtual start is
    served; of one tenant the highest level, then the oldest request.

    Called for each grant, with all heads. Within one priority the level depends on the age only, so that it is computed
    for the oldest request of each priority.
    """
    contending = list(heads)
    if len(eldest := _eldest(contending)) > 1:
        levels = {head.priority: _level(head, now, ageing_seconds) for head in eldest}
        top = max(levels.values())
        least = min(priority for priority, reached in levels.items() if reached == top)
        contending = [head for head in contending if head.priority >= least]
    ahead = {tenant for tenant, finish in shares.finish.items() if finish > shares.virtual_time}
    if first := [head for head in contending if head.tenant not in ahead]:
        contending = first
    elif contending:
        start = min(shares.start(head.tenant) for head in contending)
        contending = [head for head in contending if shares.start(head.tenant) == start]
    return min(
        _eldest(contending), key=lambda head: (-_level(head, now, ageing_seconds), *_arrival(head)), default=None
    )


def _eldest(heads: Sequence[Head]) -> list[Head]:
    """The oldest head of each priority."""
    priorities = {head.priority for head in heads}
    if len(priorities) == 1:
        return [min(heads, key=_arrival)]
    return [min((head for head in heads if head.priority == one), key=_arrival) for one in priorities]


def _level(head: Head, now: datetime, ageing_seconds: float) -> int:
    return level(head.priority, (now - head.requested_at).total_seconds(), ageing_seconds)


def charged(shares: Shares, tenant: str, cost: float, weights: Mapping[str, float]) -> Shares:
    """The shares after a grant of `cost` to a tenant; the default weight is 1. A cost of 0 changes nothing."""
    if cost <= 0:
        return shares
    start = shares.start(tenant)
    ahead = {name: finish for name, finish in shares.finish.items() if finish > start}
    return Shares(start, ahead | {tenant: start + cost / weights.get(tenant, 1.0)})
