"""What may hold installations back: nothing, a fixed limit, limits that follow the cloud."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import msgspec

from bench.leases.broker import Broker
from bench.leases.clouds import CloudTerms
from slipway_lease_broker.domain.ledger import Lease
from slipway_lease_broker.domain.pacing import default_pacing
from slipway_lease_broker.domain.terms import Bounds, Policy

FLOOR, CEILING = 2, 100
STATIC: Final = (20, 30, 36, 38, 40, 42, 44, 46, 48, 50, 60, 80)


class Told(msgspec.Struct, frozen=True):
    """What a job says when it gives its unit back."""

    done: bool
    throttled: bool
    retry_after_seconds: float | None = None
    quota_remaining: int | None = None


class Limiter(Protocol):
    """Jobs are numbers. Times are seconds."""

    def ask(self, job: int, now: float) -> None: ...

    def release(self, job: int, now: float, told: Told) -> None:
        """Of a job whose hold has passed, its unit is free already."""

    def start(self, now: float) -> Iterator[int]:
        """Who starts now; called after everything that is said, and at `wake_at`."""

    @property
    def wake_at(self) -> float | None: ...

    @property
    def limit(self) -> float: ...


class Static:
    """First come, first served under a limit; a hold ends what is held for too long."""

    def __init__(self, terms: CloudTerms, limit: float) -> None:
        self.terms = terms
        self._limit = limit
        self._waiting: deque[int] = deque()
        self._held: dict[int, float] = {}  # job → end of its hold, in order of starts
        self._free_at = 0.0

    def ask(self, job: int, now: float) -> None:
        self._waiting.append(job)

    def release(self, job: int, now: float, told: Told) -> None:
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
    """As concurrency-limits' AIMD: × 0.9 at every drop, + 1 at every success while half of the limit is in use."""

    def __init__(self, terms: CloudTerms) -> None:
        super().__init__(terms, terms.declared)

    def release(self, job: int, now: float, told: Told) -> None:
        in_flight = len(self._held)
        super().release(job, now, told)
        if told.throttled:
            self._limit = max(FLOOR, self._limit * 0.9)
        elif in_flight * 2 >= self._limit:
            self._limit = min(CEILING, self._limit + 1)


class PlainAimd(Static):
    """The first design of the adaptive limit: × 0.8 at the first throttled lease of a hold, + 1 per hold while somebody
    waits, starts paced by default."""

    def __init__(self, terms: CloudTerms) -> None:
        super().__init__(terms, terms.declared)
        self._changed_at = 0.0
        self._cut_at = float("-inf")

    def release(self, job: int, now: float, told: Told) -> None:
        super().release(job, now, told)
        if told.throttled and now >= self._cut_at + self.terms.hold_seconds:
            self._limit = max(FLOOR, int(self._limit * 0.8))
            self._cut_at = self._changed_at = now

    def start(self, now: float) -> Iterator[int]:
        if self._waiting and now >= self._changed_at + self.terms.hold_seconds:
            self._limit, self._changed_at = min(CEILING, self._limit + 1), now
        yield from super().start(now)

    def interval_seconds(self) -> float:
        return default_pacing(int(self._limit), self.terms.hold_seconds).interval_seconds


class Slipway:
    """The lease-broker's own decisions, of a pool with `adaptive`."""

    def __init__(self, terms: CloudTerms) -> None:
        self._terms = terms
        policy = Policy(adaptive=Bounds(floor=FLOOR, ceiling=CEILING), backoff=None)
        self._broker = Broker(terms.declared, terms.hold_seconds, policy)
        self._leases: dict[int, Lease] = {}

    def ask(self, job: int, now: float) -> None:
        self._broker.ask(str(job), now)

    def release(self, job: int, now: float, told: Told) -> None:
        self._broker.release(
            self._leases.pop(job),
            now,
            result="done" if told.done else "failed",
            throttled=told.throttled,
            retry_after_seconds=told.retry_after_seconds,
            quota_remaining=told.quota_remaining,
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
    """By name: no limit, the static ones, and those that follow."""
    found: dict[str, Callable[[CloudTerms], Limiter]] = {"none": lambda terms: Static(terms, float(10**9))}
    for limit in STATIC:
        found[f"static-{limit}"] = lambda terms, limit=limit: Static(terms, limit)  # type: ignore[misc]
    return found | {"netflix": Netflix, "plain-aimd": PlainAimd, "slipway": Slipway}
