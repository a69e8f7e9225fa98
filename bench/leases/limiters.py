"""Concurrency limiters for installations: none, fixed limits, and limits that adapt to the cloud."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import msgspec

from bench.leases.broker import Broker
from bench.leases.clouds import CloudTerms
from slipway_lease_broker.domain.ledger import Lease
from slipway_lease_broker.domain.pacing import MAX_INTERVAL_SECONDS, default_pacing
from slipway_lease_broker.domain.terms import Bounds, Policy

FLOOR, CEILING = 2, 100
STATIC: Final = (20, 30, 36, 38, 40, 42, 44, 46, 48, 50, 60, 80)


class Result(msgspec.Struct, frozen=True):
    """Report of a job when it releases its unit."""

    done: bool
    throttled: bool
    retry_after_seconds: float | None = None
    quota_remaining: int | None = None


class Limiter(Protocol):
    """A limiter of jobs, which are numbers. Times are seconds."""

    def request(self, job: int, now: float) -> None: ...

    def release(self, job: int, now: float, result: Result) -> None:
        """Release a job's unit; if its hold has passed, the unit is free already."""

    def start(self, now: float) -> Iterator[int]:
        """Jobs that start now; called after each request and release, and at `wake_at`."""

    @property
    def wake_at(self) -> float | None: ...

    @property
    def limit(self) -> float: ...


class Static:
    """Fixed limit, first come, first served; a unit is freed when its hold ends."""

    def __init__(self, terms: CloudTerms, limit: float) -> None:
        self.terms = terms
        self._limit = limit
        self._waiting: deque[int] = deque()
        self._held: dict[int, float] = {}  # job → end of its hold, in order of starts
        self._free_at = 0.0

    def request(self, job: int, now: float) -> None:
        self._waiting.append(job)

    def release(self, job: int, now: float, result: Result) -> None:
        self._held.pop(job, None)

    def start(self, now: float) -> Iterator[int]:
        while self._held and (first := next(iter(self._held.items())))[1] <= now:
            del self._held[first[0]]
        while self._waiting and len(self._held) < int(self._limit) and self._free_at <= now:
            job = self._waiting.popleft()
            self._held[job] = now + self.terms.hold_seconds
            self._free_at = now + self.interval_seconds()
            yield job

    def interval_seconds(self) -> float:
        return 0.0

    @property
    def wake_at(self) -> float | None:
        if not self._waiting:
            return None
        end = next(iter(self._held.values()), float("inf"))
        return self._free_at if len(self._held) < int(self._limit) else end

    @property
    def limit(self) -> float:
        return self._limit


class Netflix(Static):
    """AIMD of Netflix concurrency-limits: × 0.9 at every drop, + 1 at every success while half the limit is in use."""

    def __init__(self, terms: CloudTerms) -> None:
        super().__init__(terms, terms.declared)

    def release(self, job: int, now: float, result: Result) -> None:
        in_flight = len(self._held)
        super().release(job, now, result)
        if result.throttled:
            self._limit = max(FLOOR, self._limit * 0.9)
        elif in_flight * 2 >= self._limit:
            self._limit = min(CEILING, self._limit + 1)


class PlainAimd(Static):
    """Plain AIMD: × 0.8 at the first throttled lease of a hold, + 1 per hold while jobs wait, default pacing."""

    def __init__(self, terms: CloudTerms) -> None:
        super().__init__(terms, terms.declared)
        self._changed_at = 0.0
        self._cut_at = float("-inf")

    def release(self, job: int, now: float, result: Result) -> None:
        super().release(job, now, result)
        if result.throttled and now >= self._cut_at + self.terms.hold_seconds:
            self._limit = max(FLOOR, int(self._limit * 0.8))
            self._cut_at = self._changed_at = now

    def start(self, now: float) -> Iterator[int]:
        if self._waiting and now >= self._changed_at + self.terms.hold_seconds:
            self._limit, self._changed_at = min(CEILING, self._limit + 1), now
        yield from super().start(now)

    def interval_seconds(self) -> float:
        return default_pacing(int(self._limit), self.terms.hold_seconds, MAX_INTERVAL_SECONDS).interval_seconds


class Slipway:
    """Decisions of the lease-broker for a lease pool with an adaptive limit."""

    def __init__(self, terms: CloudTerms) -> None:
        self._terms = terms
        policy = Policy(adaptive=Bounds(floor=FLOOR, ceiling=CEILING), backoff=None)
        self._broker = Broker(terms.declared, terms.hold_seconds, policy)
        self._leases: dict[int, Lease] = {}

    def request(self, job: int, now: float) -> None:
        self._broker.request(str(job), now)

    def release(self, job: int, now: float, result: Result) -> None:
        self._broker.release(
            self._leases.pop(job),
            now,
            result="done" if result.done else "failed",
            throttled=result.throttled,
            retry_after_seconds=result.retry_after_seconds,
            quota_remaining=result.quota_remaining,
        )

    def start(self, now: float) -> Iterator[int]:
        for lease in self._broker.decide(now):
            job = int(lease.request_id)
            self._leases[job] = lease
            yield job

    @property
    def wake_at(self) -> float | None:
        return self._broker.wake_at

    @property
    def limit(self) -> float:
        in_force = self._broker.pool.limit_in_force
        return float(self._terms.declared if in_force is None else in_force)


def limiters() -> dict[str, Callable[[CloudTerms], Limiter]]:
    """All limiters by name: none, static ones, adaptive ones."""
    found: dict[str, Callable[[CloudTerms], Limiter]] = {"none": lambda terms: Static(terms, float(10**9))}
    for limit in STATIC:
        found[f"static-{limit}"] = lambda terms, limit=limit: Static(terms, limit)  # type: ignore[misc]
    return found | {"netflix": Netflix, "plain-aimd": PlainAimd, "slipway": Slipway}
