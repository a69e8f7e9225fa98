"""Whose turn it is when more wait than may start. Pure.

Tenants share by start-time fair queueing (Goyal, Vin and Cheng, 1996). A grant of cost c to a tenant of weight w is a
span of virtual time:

    start  = max(virtual time, finish of the tenant's last grant)
    finish = start + c / w

The tenant whose next grant would start first is next, and virtual time is the start of the last grant. A tenant that
was idle begins at virtual time: it has gathered no credit, and owes nothing either.

Priority is a level from 0 to 9, and waiting raises it by one every `ageing_seconds`. Ageing is there so that nobody
starves below others of a higher priority; it is no claim against those who came later at the same priority, or one
tenant's long queue would come before everybody else's first request.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Final

import msgspec

LEVEL_MAX: Final = 9


class Shares(msgspec.Struct, frozen=True):
    """What is remembered between decisions: virtual time, and how far each tenant was served beyond it."""

    virtual_time: float = 0.0
    finish: dict[str, float] = {}

    def start(self, tenant: str) -> float:
        """Virtual time at which the tenant's next grant would start."""
        return max(self.virtual_time, self.finish.get(tenant, 0.0))


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first waiter of one tenant at one priority. `place` orders those that asked at the same time."""

    tenant: str
    priority: int
    asked_at: datetime  # less its age credit
    place: int


_arrival: Callable[[Head], tuple[datetime, int]] = attrgetter("asked_at", "place")


def level(priority: int, waited_seconds: float, ageing_seconds: float) -> int:
    """0 … 9. The highest is reached after (9 − priority) × ageing_seconds at the latest."""
    return min(LEVEL_MAX, priority + int(max(0.0, waited_seconds) // ageing_seconds))


def next_head(heads: Iterable[Head], shares: Shares, now: datetime, ageing_seconds: float) -> Head | None:
    """Who is served next. None when nobody waits.

    Those at the highest level contend, and with them whoever asked with at least the priority of one of them: it
    would be at that level too, had it waited as long. Among them the tenant that is served first by its share;
    of one tenant the highest level, then who asked first.

    Called for each grant, with all heads: of one priority the level follows from the age, so that it is reckoned for
    the oldest of each alone.
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
    """Who asked first, of each priority."""
    priorities = {head.priority for head in heads}
    if len(priorities) == 1:
        return [min(heads, key=_arrival)]
    return [min((head for head in heads if head.priority == one), key=_arrival) for one in priorities]


def _level(head: Head, now: datetime, ageing_seconds: float) -> int:
    return level(head.priority, (now - head.asked_at).total_seconds(), ageing_seconds)


def charged(shares: Shares, tenant: str, cost: float, weights: Mapping[str, float]) -> Shares:
    """The shares after a grant of `cost` to a tenant; who is not named weighs 1. A cost of 0 changes nothing."""
    if cost <= 0:
        return shares
    start = shares.start(tenant)
    ahead = {name: finish for name, finish in shares.finish.items() if finish > start}
    return Shares(start, ahead | {tenant: start + cost / weights.get(tenant, 1.0)})
