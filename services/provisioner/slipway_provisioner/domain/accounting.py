"""Workers that a pool needs or can spare. Pure: no clock, no randomness, no I/O.

A report is a sample while the fleet is current: without `gone`, a worker that ends just after the sample would be
replaced needlessly. A sample is the queue's word; what is gone is that of workers, each about itself and within bounds.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Final

import msgspec

from slipway_provisioner.domain.pool import Demand, Fleet, Pool

SHORTEST_TASK_SECONDS: Final = 5.0
"""Shortest task whose end counts by itself. It bounds the ends that one task slot can report."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Newest report of one source, and its age."""

    source: str
    pending: int
    claimed: int
    age_seconds: float


class Departures(msgspec.Struct, frozen=True, kw_only=True):
    """Claims of one worker that one sample has and the fleet has not: they ended since, or are open on a worker that
    leaves. They began `before` the sample, `at_sample`, that is at its time or while it was read, or `after` it."""

    source: str
    worker_id: str
    task_slots: int
    before: int = 0
    at_sample: int = 0
    after: int = 0

    @property
    def total(self) -> int:
        return self.before + self.at_sample + self.after

    def within(self, bound: int) -> "Departures":
        """At most `bound` of them."""
        before = min(self.before, bound)
        at_sample = min(self.at_sample, bound - before)
        after = min(self.after, bound - before - at_sample)
        return msgspec.structs.replace(self, before=before, at_sample=at_sample, after=after)


def gone(samples: Sequence[Sample], departures: Iterable[Departures]) -> Mapping[str, int]:
    """Tasks of each sample that have ended since, or run on leaving workers, by source.

    Of one worker, over all sources, they are at most those that its task slots can have ended since the sample. Claims
    that began before the sample are among its claimed tasks, and later ones among its pending ones.
    """
    by_source: dict[str, list[Departures]] = {sample.source: [] for sample in samples}
    for each in departures:
        by_source[each.source].append(each)
    of_worker: Counter[str] = Counter()
    gone: dict[str, int] = {}
    for sample in sorted(samples, key=lambda sample: sample.age_seconds):
        counted: list[Departures] = []
        for each in by_source[sample.source]:
            bound = ends_max(each.task_slots, sample.age_seconds) - of_worker[each.worker_id]
            counted.append(each.within(max(0, bound)))
            of_worker[each.worker_id] += counted[-1].total
        gone[sample.source] = _within_sample(sample, counted)
    return gone


def ends_max(task_slots: int, seconds: float) -> int:
    """Most tasks that end on a worker in `seconds`: each slot ends one at once, and one more every five seconds."""
    return task_slots * (1 + int(max(0.0, seconds) / SHORTEST_TASK_SECONDS))


def _within_sample(sample: Sample, departures: Sequence[Departures]) -> int:
    """Departures that a sample can have. One that began as it was taken was either claimed or pending in it."""
    claimed = min(sample.claimed, sum(each.before for each in departures))
    pending = min(sample.pending, sum(each.after for each in departures))
    either = sum(each.at_sample for each in departures)
    return claimed + pending + min(either, sample.claimed - claimed + sample.pending - pending)


def tasks(demands: Iterable[Demand], *, trust_stale: bool) -> int:
    """Tasks that need a worker: pending + claimed − gone, over all sources. A stale source causes no launches, but its
    last report keeps workers that have not started yet (`trust_stale`)."""
    return sum(max(0, d.pending + d.claimed - d.gone) for d in demands if trust_stale or not d.stale)


def protected(demands: Iterable[Demand]) -> int:
    """Tasks that protect idle workers: those of every sample, also of a stale one.

    Without `gone`: claims that are made up may hold back launches, within their bounds, but they may not stop a worker
    that waits for the tasks of others.
    """
    return sum(d.pending + d.claimed for d in demands)


def task_slots(scaling_ratio: Fraction) -> int:
    """Tasks that a worker runs at once if its launch config does not say: as many as the ratio gives it."""
    return max(1, ceil(1 / scaling_ratio)) if scaling_ratio else 1


def wanted(pool: Pool, count: int) -> int:
    """Serving workers for `count` tasks: count × ratio, exact, rounded up, within the pool's limits."""
    return max(pool.min_capacity, min(ceil(count * pool.scaling_ratio), pool.max_capacity))


def places_freed_max(pool: Pool) -> int:
    """Stuck workers that may be replaced at most: a tenth of the maximum, but one. Each is a machine that is billed and
    does nothing, so the others go on holding their places."""
    return max(1, pool.max_capacity // 10)


def freed(pool: Pool, fleet: Fleet) -> int:
    """Places of stuck workers that others may take."""
    return min(fleet.stuck, places_freed_max(pool))


def missing(pool: Pool, count: int, fleet: Fleet) -> int:
    """Serving workers that `count` tasks want beyond those that serve, whether or not there is room for them."""
    return max(0, wanted(pool, count) - fleet.serving)


def shortfall(pool: Pool, count: int, fleet: Fleet) -> int:
    """Workers to launch now for `count` tasks; never negative.

    Keeps serving <= max and serving + leaving <= max + min + freed places. Leaving workers count towards the maximum,
    so that a slow delete does not pay for a second machine; only the minimum may be refilled beside them, and only
    once.
    """
    room = pool.max_capacity - fleet.serving - fleet.leaving + freed(pool, fleet)
    refill = min(pool.min_capacity - fleet.serving, room + pool.min_capacity)
    return max(0, min(missing(pool, count, fleet), max(room, refill)))


def surplus(pool: Pool, count: int, fleet: Fleet) -> int:
    """Serving workers beyond those wanted for `count` tasks."""
    return max(0, fleet.serving - wanted(pool, count))
