"""Closed loop of one cloud, one limiter and one seed: jobs arrive, start, call the cloud, are throttled and retry."""

import heapq
import math
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, Final

import msgspec

from bench.leases.clouds import Cloud, CloudTerms
from bench.leases.limiters import Limiter, Result

SPREAD: Final = 0.15  # standard deviation of the logarithm of a job's duration
BACKOFF_SECONDS_MAX: Final = 60.0
RETRY_TOKENS: Final = 10  # Retry-After is the time to refill this many tokens
CALL_SECONDS: Final = 0.5
SAMPLE_SECONDS: Final = 300.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one run.

    `done` jobs per hour are its goodput; `failed` counts abandoned attempts, `gave_up` jobs without attempts left.
    `converged_minutes`: until the limit was first within a tenth of the fair concurrency; `over_minutes`: time during
    which it was more than a tenth above.
    """

    throttles: int
    done: int
    failed: int
    gave_up: int
    limit_mean: float
    converged_minutes: float | None
    over_minutes: float


class Job:
    """One attempt of a job. `number` is new per attempt, like a request ID."""

    __slots__ = (
        "attempt",
        "began",
        "call",
        "number",
        "plan",
        "remaining",
        "retry_after",
        "seconds",
        "throttled",
        "tries",
    )

    def __init__(self, number: int, attempt: int) -> None:
        self.number, self.attempt = number, attempt
        self.began = self.seconds = 0.0
        self.plan: list[float] = []
        self.call = self.tries = 0
        self.throttled = False
        self.remaining: int | None = None
        self.retry_after: float | None = None


class Loop:
    """Event loop on a virtual clock. `samples` are (seconds, limit) over the run."""

    def __init__(self, terms: CloudTerms, limiter: Limiter, seed: int) -> None:
        self.terms, self.limiter, self.cloud = terms, limiter, Cloud(terms)
        self.until = terms.hours * 3600
        self.sample_seconds = min(SAMPLE_SECONDS, self.until / 200)
        self.samples: list[tuple[float, float]] = []
        self.done = self.failed = self.gave_up = 0
        # Separate streams, so that all limiters face the same arrivals whatever jobs they start.
        self._arrivals, self._chance = Random(f"arrivals/{seed}"), Random(f"jobs/{seed}")
        self._heap: list[tuple[float, int, Callable[..., Any], Any]] = []
        self._order, self._numbers = count(), count(1)
        self._jobs: dict[int, Job] = {}
        self._wake_at: float | None = None

    def run(self) -> "Loop":
        """Play the whole run."""
        self._push(self._gap(0.0), self._arrive, None)
        self._push(0.0, self._sample, None)
        while self._heap:
            now, _, what, about = heapq.heappop(self._heap)
            if now > self.until:
                break
            what(now, about)
        return self

    def figures(self) -> Figures:
        """Results so far."""
        fair_limits = [(at, limit, self.terms.fair(at / self.until)) for at, limit in self.samples]
        limits = [limit for _, limit in self.samples]
        over = sum(limit > 1.1 * fair for _, limit, fair in fair_limits) * self.sample_seconds / 60
        return Figures(
            throttles=self.cloud.throttled,
            done=self.done,
            failed=self.failed,
            gave_up=self.gave_up,
            limit_mean=float(f"{sum(limits) / len(limits):.4g}"),
            converged_minutes=next(
                (at / 60 for at, limit, fair in fair_limits if abs(limit - fair) <= 0.1 * fair), None
            ),
            over_minutes=float(f"{over:.4g}"),
        )

    def _push(self, when: float, what: Callable[..., Any], about: Any) -> None:
        heapq.heappush(self._heap, (when, next(self._order), what, about))

    def _gap(self, now: float) -> float:
        terms, part = self.terms, now / self.until
        return self._arrivals.expovariate(terms.load(part) * terms.refill / terms.calls)

    def _sample(self, now: float, _: None) -> None:
        self.samples.append((now, self.limiter.limit))
        self._push(now + self.sample_seconds, self._sample, None)

    def _arrive(self, now: float, _: None) -> None:
        self._push(now + self._gap(now), self._arrive, None)
        self._request(now, 1)

    def _request(self, now: float, attempt: int) -> None:
        job = Job(next(self._numbers), attempt)
        self._jobs[job.number] = job
        self.limiter.request(job.number, now)
        self._start_allowed(now)

    def _wake(self, now: float, due: float) -> None:
        if due == self._wake_at:
            self._wake_at = None
            self._start_allowed(now)

    def _start_allowed(self, now: float) -> None:
        for number in self.limiter.start(now):
            self._start(now, self._jobs.pop(number))
        wake_at = self.limiter.wake_at
        if wake_at is not None and wake_at < math.inf and wake_at != self._wake_at:
            self._wake_at = wake_at
            self._push(max(now, wake_at), self._wake, wake_at)

    def _start(self, now: float, job: Job) -> None:
        chance, terms = self._chance, self.terms
        job.began = now
        job.seconds = terms.job_seconds * math.exp(chance.gauss(0, SPREAD))
        early = terms.calls // 2
        job.plan = (
            sorted(
                now + job.seconds * chance.random() * (0.25 if number < early else 1.0) for number in range(terms.calls)
            )
            if terms.calls > 1
            else [now + CALL_SECONDS]
        )
        self._push(job.plan[0], self._call, job)

    def _call(self, now: float, job: Job) -> None:
        if self.cloud.call(now):
            job.tries = 0
            job.call += 1
            if self.terms.reports_quota:
                left = int(self.cloud.tokens)
                job.remaining = left if job.remaining is None else min(job.remaining, left)
            if job.call < len(job.plan):
                self._push(max(now, job.plan[job.call]), self._call, job)
            else:
                self._push(max(now, job.began + job.seconds), self._finish, job)
            return
        job.throttled = True
        job.tries += 1
        wait = min(BACKOFF_SECONDS_MAX, 2.0**job.tries) * self._chance.uniform(0.5, 1.5)
        if self.terms.reports_quota:
            job.remaining, job.retry_after = 0, math.ceil(RETRY_TOKENS / self.terms.refill)
            wait = max(wait, job.retry_after)
        if job.tries >= self.terms.patience:
            self._fail(now, job, wait)
            return
        # Later calls of the job are delayed as well.
        job.plan = [time + wait for time in job.plan]
        job.seconds += wait
        self._push(now + wait, self._call, job)

    def _finish(self, now: float, job: Job) -> None:
        self.done += 1
        self.limiter.release(job.number, now, Result(True, job.throttled, None, job.remaining))
        self._start_allowed(now)

    def _fail(self, now: float, job: Job, wait: float) -> None:
        self.failed += 1
        self.limiter.release(job.number, now, Result(False, True, job.retry_after, job.remaining))
        if job.attempt < self.terms.attempts:
            self._push(now + wait, self._request, job.attempt + 1)
        else:
            self.gave_up += 1
        self._start_allowed(now)
