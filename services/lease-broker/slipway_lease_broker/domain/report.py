"""Report on a lease pool's past, to choose its limit, hold and pacing. Pure.

Meant for a pool in shadow mode, where all requests start at once: how many ran together, at which concurrency the
provider began to throttle, and how long each phase took. The same past is also replayed under a given limit, hold and
pacing, each operation in order of arrival: how many requests would have waited, for how long, and how fast starts would
have followed each other.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import msgspec

from slipway_lease_broker.domain.pacing import Pacing, free_at, most_ahead, spend

BANDS: Final = 10
TOLERATED: Final = 0.05  # share of throttled starts that still counts as quiet
MINUTE: Final = timedelta(minutes=1)
PacingOf: TypeAlias = Callable[[str], Pacing | None]  # of an operation; None: not paced
FAR: Final = timedelta(days=36_525)  # nothing starts later than a hundred years after the first request


class PastLease(msgspec.Struct, frozen=True, kw_only=True):
    """One lease, or one request without a lease yet, from request to end; None for times not reached."""

    requested_at: datetime
    operation: str = ""
    units: int  # granted, or waiting
    granted_at: datetime | None = None
    confirmed_at: datetime | None = None
    ended_at: datetime | None = None
    throttled: bool = False  # as reported by its release
    returned: tuple[tuple[datetime, int], ...] = ()  # (time, units) of partial releases before its end


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of seconds or units; 0 without values."""

    count: int
    p50: float
    p95: float
    most: float


class Band(msgspec.Struct, frozen=True):
    """Starts at a concurrency of `least` to `most` units, including the starting ones."""

    least: int
    most: int
    starts: int
    throttled: int


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The same requests under other terms, first come first served. `never` counts requests for more than the limit, or
    that would start after FAR."""

    limit_units: int
    hold_seconds: float
    interval_seconds: float | None  # between starts of one operation, at most; None: none is paced
    waited: int
    never: int
    waiting: Spread  # of the requests that would have waited
    concurrency_most: int
    starts_per_minute_most: int
    cut_short: int  # leases that the hold would have ended


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a lease pool's past. `concurrency` is weighted by time. `quiet_units` is the concurrency up to which
    at most one start in twenty was throttled; None without any throttling, since the provider's limit is then
    unknown."""

    since: datetime
    until: datetime
    requests: int
    concurrency: Spread
    starts_per_minute_most: int
    waiting: Spread
    reserved: Spread  # from grant to confirm
    held: Spread  # from grant to end
    throttled: int
    bands: tuple[Band, ...]
    quiet_units: int | None
    what_if: WhatIf


def report(
    past_leases: Sequence[PastLease],
    since: datetime,
    until: datetime,
    *,
    limit_units: int,
    hold_seconds: float,
    pacing: PacingOf,
) -> Report:
    """The report on `past_leases`, which are all that overlap the time from `since` to `until`, in any order; units
    held before it count. The report begins no earlier than the first of them, since an unused pool gives no
    evidence."""
    since = max(since, min((lease.requested_at for lease in past_leases), default=since))
    granted = [lease for lease in past_leases if lease.granted_at is not None]
    started = [lease for lease in granted if _granted(lease) >= since]
    bands = tuple(_bands(granted, since))
    return Report(
        since=since,
        until=until,
        requests=len(past_leases),
        concurrency=_concurrency(granted, since, until),
        starts_per_minute_most=most_per_minute((_granted(lease), lease.units) for lease in started),
        waiting=spread([(_granted(lease) - lease.requested_at).total_seconds() for lease in started]),
        reserved=spread([(s.confirmed_at - _granted(s)).total_seconds() for s in started if s.confirmed_at]),
        held=spread([(s.ended_at - _granted(s)).total_seconds() for s in started if s.ended_at]),
        throttled=sum(lease.throttled for lease in started),
        bands=bands,
        quiet_units=_quiet(bands),
        what_if=what_if(past_leases, limit_units=limit_units, hold_seconds=hold_seconds, pacing=pacing),
    )


def what_if(past_leases: Sequence[PastLease], *, limit_units: int, hold_seconds: float, pacing: PacingOf) -> WhatIf:
    """Replay the arrivals. A lease without an end, and a request without a lease, count for the whole hold."""
    ends: list[tuple[datetime, int]] = []
    starts: list[tuple[datetime, int]] = []
    waits: list[float] = []
    held = most = never = cut_short = 0
    last: datetime | None = None  # of the operations, the one that may start first is next
    arrivals = sorted(past_leases, key=lambda lease: lease.requested_at)
    queues: dict[str, deque[PastLease]] = {}  # by operation
    for lease in arrivals:
        queues.setdefault(lease.operation, deque()).append(lease)
    paces = {operation: pacing(operation) for operation in queues}
    paced_until: dict[str, datetime | None] = {}
    heads = [(queue[0].requested_at, operation) for operation, queue in queues.items()]  # start by its pace, operation
    heapq.heapify(heads)
    while heads:
        now, operation = heapq.heappop(heads)
        lease, terms = queues[operation].popleft(), paces[operation]
        now = now if last is None else max(now, last)
        if lease.units > limit_units or now - arrivals[0].requested_at > FAR:
            never += 1
        else:
            while ends and (ends[0][0] <= now or held + lease.units > limit_units):
                end, units = heapq.heappop(ends)
                held -= units
                now = max(now, end)
            seconds = _held_seconds(lease)
            cut_short += seconds is not None and seconds > hold_seconds
            for units, ended_at in _parts(lease):
                lasted = hold_seconds if ended_at is None else (ended_at - _granted(lease)).total_seconds()
                heapq.heappush(ends, (now + timedelta(seconds=min(lasted, hold_seconds)), units))
            held += lease.units
            most = max(most, held)
            ahead_most = most_ahead(terms, limit_units, hold_seconds)
            paced_until[operation] = spend(paced_until.get(operation), now, lease.units, terms, ahead_most)
            last = now
            starts.append((now, lease.units))
            if now > lease.requested_at:
                waits.append((now - lease.requested_at).total_seconds())
        if queues[operation]:
            following = queues[operation][0]
            free = free_at(paced_until.get(operation), following.requested_at, following.units, terms)
            heapq.heappush(heads, (free, operation))
    return WhatIf(
        limit_units=limit_units,
        hold_seconds=hold_seconds,
        interval_seconds=max((terms.interval_seconds for terms in paces.values() if terms is not None), default=None),
        waited=len(waits),
        never=never,
        waiting=spread(waits),
        concurrency_most=most,
        starts_per_minute_most=most_per_minute(starts),
        cut_short=cut_short,
    )


def spread(values: Iterable[float]) -> Spread:
    return weighted_spread([(value, 1.0) for value in values])


def weighted_spread(values: Sequence[tuple[float, float]]) -> Spread:
    """Percentiles of (value, weight): the least value that half of the weight, or 95 % of it, does not exceed."""
    ordered = sorted(values)
    total = sum(weight for _, weight in ordered)
    if not ordered:
        return Spread(0, 0.0, 0.0, 0.0)
    found, passed = [], 0.0
    wanted = [0.5 * total, 0.95 * total]
    for value, weight in ordered:
        passed += weight
        while wanted and passed >= wanted[0] - 1e-9 * total:
            found.append(value)
            wanted.pop(0)
    return Spread(len(ordered), found[0], found[1], ordered[-1][0])


def most_per_minute(starts: Iterable[tuple[datetime, int]]) -> int:
    """The most units that started within any 60 s, the end not included."""
    ordered = sorted(starts)
    most = inside = first = 0
    for at, units in ordered:
        inside += units
        while ordered[first][0] <= at - MINUTE:
            inside -= ordered[first][1]
            first += 1
        most = max(most, inside)
    return most


def _granted(lease: PastLease) -> datetime:
    assert lease.granted_at is not None
    return lease.granted_at


def _held_seconds(lease: PastLease) -> float | None:
    if lease.granted_at is None or lease.ended_at is None:
        return None
    return (lease.ended_at - lease.granted_at).total_seconds()


def _parts(lease: PastLease) -> Iterator[tuple[int, datetime | None]]:
    """(units, end) of the parts of a lease that ended together: partial releases, then the rest."""
    left = lease.units
    for at, units in lease.returned:
        yield units, at
        left -= units
    yield left, lease.ended_at


def _steps(granted: Sequence[PastLease]) -> list[tuple[datetime, int, PastLease]]:
    """Changes of the units held, in order of time; at the same instant decreases first."""
    steps = [(_granted(lease), lease.units, lease) for lease in granted]
    steps += [
        (ended_at, -units, lease) for lease in granted for units, ended_at in _parts(lease) if ended_at is not None
    ]
    return sorted(steps, key=lambda step: step[:2])


def _concurrency(granted: Sequence[PastLease], since: datetime, until: datetime) -> Spread:
    held, at, weighted = 0, since, []
    for when, units, _ in _steps(granted):
        to = min(max(when, since), until)
        if to > at:
            weighted.append((float(held), (to - at).total_seconds()))
            at = to
        held += units
    if until > at:
        weighted.append((float(held), (until - at).total_seconds()))
    return weighted_spread(weighted)


def _bands(granted: Sequence[PastLease], since: datetime) -> Iterator[Band]:
    """Starts grouped by the concurrency at their time, in at most ten bands of equal width."""
    held, met = 0, []
    for when, units, lease in _steps(granted):
        held += units
        if units > 0 and when >= since:
            met.append((held, lease.throttled))
    width = -(-max((units for units, _ in met), default=0) // BANDS)
    for least in range(1, max((units for units, _ in met), default=0) + 1, width or 1):
        inside = [throttled for units, throttled in met if least <= units < least + width]
        yield Band(least, least + width - 1, len(inside), sum(inside))


def _quiet(bands: Sequence[Band]) -> int | None:
    """The upper end of the last band before throttling began."""
    if not any(band.throttled for band in bands):
        return None
    quiet = 0
    for band in bands:
        if band.throttled > TOLERATED * band.starts:
            break
        quiet = band.most
    return quiet
