"""What a lease pool's past says about its limit, its hold and its pacing. Pure.

Made for a pool in shadow mode, where everybody starts at once: how many ran together, at which concurrency the cloud
began to throttle, how long each phase took; and the same past once more under a given limit, hold and pacing, in order
of arrival: who would have waited, for how long, and how fast starts would have followed each other.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from slipway_lease_broker.domain.pacing import Pacing, free_at, most_ahead, spend

BANDS: Final = 10
TOLERATED: Final = 0.05  # share of throttled starts that is still called quiet
MINUTE: Final = timedelta(minutes=1)
FAR: Final = timedelta(days=36_525)  # later nobody starts: a hundred years from the first who asked


class Stay(msgspec.Struct, frozen=True, kw_only=True):
    """One lease, or one request that has none yet, from asking to ending; None for what has not come."""

    asked_at: datetime
    units: int  # all that were granted, or that wait
    granted_at: datetime | None = None
    confirmed_at: datetime | None = None
    ended_at: datetime | None = None
    throttled: bool = False  # as told at its release
    returned: tuple[tuple[datetime, int], ...] = ()  # when, how many units: what its holder gave back before its end


class Spread(msgspec.Struct, frozen=True):
    """Percentiles, of seconds or of units; of nothing at all, 0."""

    count: int
    p50: float
    p95: float
    most: float


class Band(msgspec.Struct, frozen=True):
    """What started while from `least` to `most` units were held, the starting ones among them."""

    least: int
    most: int
    starts: int
    throttled: int


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The same requests under given terms, first come first served. `never` asked for more than the limit, or would
    start when nobody waits any more."""

    limit_units: int
    hold_seconds: float
    interval_seconds: float | None  # between starts; None: not paced
    waited: int
    never: int
    waiting: Spread  # of those that would have waited
    concurrency_most: int
    starts_per_minute_most: int
    cut_short: int  # leases that their hold would have ended


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`concurrency` is weighted by time. `quiet_units` is the concurrency up to which at most one start in twenty was
    throttled: None when nothing was throttled at all, since then nobody knows what the cloud bears."""

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
    stays: Sequence[Stay],
    since: datetime,
    until: datetime,
    *,
    limit_units: int,
    hold_seconds: float,
    pacing: Pacing | None,
) -> Report:
    """`stays` are all that touched the time from `since` to `until`, in any order; units held before it count. The
    report begins no earlier than the first of them: that nobody knew the pool yet says nothing about its limit."""
    since = max(since, min((stay.asked_at for stay in stays), default=since))
    granted = [stay for stay in stays if stay.granted_at is not None]
    started = [stay for stay in granted if _granted(stay) >= since]
    bands = tuple(_bands(granted, since))
    return Report(
        since=since,
        until=until,
        requests=len(stays),
        concurrency=_concurrency(granted, since, until),
        starts_per_minute_most=most_per_minute((_granted(stay), stay.units) for stay in started),
        waiting=spread([(_granted(stay) - stay.asked_at).total_seconds() for stay in started]),
        reserved=spread([(s.confirmed_at - _granted(s)).total_seconds() for s in started if s.confirmed_at]),
        held=spread([(s.ended_at - _granted(s)).total_seconds() for s in started if s.ended_at]),
        throttled=sum(stay.throttled for stay in started),
        bands=bands,
        quiet_units=_quiet(bands),
        what_if=what_if(stays, limit_units=limit_units, hold_seconds=hold_seconds, pacing=pacing),
    )


def what_if(stays: Sequence[Stay], *, limit_units: int, hold_seconds: float, pacing: Pacing | None) -> WhatIf:
    """Play the arrivals again. Who never ended, or never got a lease, is taken to hold for the whole hold."""
    ends: list[tuple[datetime, int]] = []
    starts: list[tuple[datetime, int]] = []
    waits: list[float] = []
    held = most = never = cut_short = 0
    paced_until: datetime | None = None
    last: datetime | None = None  # nobody passes who came before
    ahead_most = most_ahead(pacing, limit_units, hold_seconds)
    arrivals = sorted(stays, key=lambda stay: stay.asked_at)
    for stay in arrivals:
        now = max(stay.asked_at, last or stay.asked_at)
        if stay.units > limit_units or now - arrivals[0].asked_at > FAR:
            never += 1
            continue
        now = free_at(paced_until, now, stay.units, pacing)
        while ends and (ends[0][0] <= now or held + stay.units > limit_units):
            end, units = heapq.heappop(ends)
            held -= units
            now = max(now, end)
        seconds = _held_seconds(stay)
        cut_short += seconds is not None and seconds > hold_seconds
        for units, ended_at in _parts(stay):
            lasted = hold_seconds if ended_at is None else (ended_at - _granted(stay)).total_seconds()
            heapq.heappush(ends, (now + timedelta(seconds=min(lasted, hold_seconds)), units))
        held += stay.units
        most = max(most, held)
        paced_until = spend(paced_until, now, stay.units, pacing, ahead_most)
        last = now
        starts.append((now, stay.units))
        if now > stay.asked_at:
            waits.append((now - stay.asked_at).total_seconds())
    return WhatIf(
        limit_units=limit_units,
        hold_seconds=hold_seconds,
        interval_seconds=pacing.interval_seconds if pacing is not None else None,
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
    """Of (value, weight): the least value that half of the weight, or 95 % of it, does not exceed."""
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
    """Units that started within any 60 s, the end not included."""
    ordered = sorted(starts)
    most = inside = first = 0
    for at, units in ordered:
        inside += units
        while ordered[first][0] <= at - MINUTE:
            inside -= ordered[first][1]
            first += 1
        most = max(most, inside)
    return most


def _granted(stay: Stay) -> datetime:
    assert stay.granted_at is not None
    return stay.granted_at


def _held_seconds(stay: Stay) -> float | None:
    if stay.granted_at is None or stay.ended_at is None:
        return None
    return (stay.ended_at - stay.granted_at).total_seconds()


def _parts(stay: Stay) -> Iterator[tuple[int, datetime | None]]:
    """Units that went at once, and when: what was given back on the way, then the rest."""
    left = stay.units
    for at, units in stay.returned:
        yield units, at
        left -= units
    yield left, stay.ended_at


def _steps(granted: Sequence[Stay]) -> list[tuple[datetime, int, Stay]]:
    """Units that came and went, in order of time; at the same instant those that went first."""
    steps = [(_granted(stay), stay.units, stay) for stay in granted]
    steps += [(ended_at, -units, stay) for stay in granted for units, ended_at in _parts(stay) if ended_at is not None]
    return sorted(steps, key=lambda step: step[:2])


def _concurrency(granted: Sequence[Stay], since: datetime, until: datetime) -> Spread:
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


def _bands(granted: Sequence[Stay], since: datetime) -> Iterator[Band]:
    """Starts by the concurrency that they met, in at most ten bands of equal width."""
    held, met = 0, []
    for when, units, stay in _steps(granted):
        held += units
        if units > 0 and when >= since:
            met.append((held, stay.throttled))
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
