"""Clouds that throttle calls by token buckets, as providers document them, with the load that runs on each.

The refill may change over a run. An installation spreads its calls over its time, half of them over the first quarter;
a launch is one call at its start.
"""

import math
from collections.abc import Callable
from typing import Final

import msgspec

INSTALLATION_SECONDS: Final = 900.0
HOURS: Final = 48.0


def steady(part: float) -> float:
    return 1.0


class CloudTerms(msgspec.Struct, frozen=True, kw_only=True):
    """One cloud and the load on it.

    `refill` is tokens per second, multiplied by `profile` of the elapsed fraction of the run; `load` is the demand as a
    multiple of the demand that uses up the refill. `reports_quota`: responses carry remaining calls and Retry-After. A
    job fails after `patience` consecutive throttles of one call and is requested again, at most `attempts` times.
    """

    name: str
    about: str
    tokens: float
    refill: float
    calls: int
    job_seconds: float = INSTALLATION_SECONDS
    hold_seconds: float = 1200.0
    hours: float = HOURS
    profile: Callable[[float], float] = steady
    load: Callable[[float], float] = lambda part: 1.25
    reports_quota: bool = False
    patience: int = 8
    attempts: int = 5
    declared: int = 30  # initial limit: a guess, a quarter below the concurrency that uses up the refill
    claimed: bool = True

    def fair(self, part: float) -> float:
        """Concurrency that uses up the refill exactly."""
        return self.refill * self.profile(part) * self.job_seconds / self.calls


CLOUDS: Final = {
    cloud.name: cloud
    for cloud in (
        CloudTerms(
            name="bucket-2ps",
            tokens=1000,
            refill=2,
            calls=45,
            about="EC2's resource bucket of RunInstances: 1,000 tokens, 2/s; installations of 45 calls",
        ),
        CloudTerms(
            name="bucket-5ps",
            tokens=200,
            refill=5,
            calls=110,
            about="EC2's mutating calls: 200 tokens, 5/s; installations of 110 calls",
        ),
        CloudTerms(
            name="azure-10ps",
            tokens=200,
            refill=10,
            calls=220,
            reports_quota=True,
            about="Azure's writes: 200 tokens, 10/s, remaining calls and Retry-After; installations of 220 calls",
        ),
        CloudTerms(
            name="launch-2ps",
            tokens=5,
            refill=2,
            calls=1,
            job_seconds=20,
            hold_seconds=30,
            hours=2,
            patience=1,
            attempts=8,
            about="EC2's request bucket of RunInstances: 5 tokens, 2/s; launches of one call",
        ),
        CloudTerms(
            name="step",
            tokens=200,
            refill=5,
            calls=110,
            profile=lambda part: 0.5 if 1 / 3 <= part < 2 / 3 else 1.0,
            about="bucket-5ps with its refill halved for the second third of the time",
        ),
        CloudTerms(
            name="drift",
            tokens=200,
            refill=5,
            calls=110,
            profile=lambda part: 1 + math.sin(2 * math.pi * part) / 3,
            about="bucket-5ps with a refill that rises and falls by a third",
        ),
        CloudTerms(
            name="surge",
            tokens=200,
            refill=5,
            calls=110,
            load=lambda part: 0.6 if part < 0.5 else 1.25,
            about="bucket-5ps at 60 % of its load for the first half, then at 125 %",
        ),
        CloudTerms(
            name="cold",
            tokens=200,
            refill=5,
            calls=110,
            declared=10,
            claimed=False,
            about="bucket-5ps, starting at a quarter of its fair concurrency: how long a limit takes to grow",
        ),
        CloudTerms(
            name="tight-2ps",
            tokens=5,
            refill=2,
            calls=45,
            claimed=False,
            about="a bucket of 5 tokens, 2/s, with installations of 45 calls: it throttles some at any limit",
        ),
    )
}


class Cloud:
    """Token bucket of one account on a virtual clock, in seconds since the start of the run."""

    def __init__(self, terms: CloudTerms) -> None:
        self.terms = terms
        self.tokens = terms.tokens
        self.at = 0.0
        self.accepted = 0
        self.throttled = 0

    def call(self, now: float) -> bool:
        """Make a call; True if it is accepted. A throttled call costs no token."""
        terms = self.terms
        rate = terms.refill * terms.profile(min(1.0, now / (terms.hours * 3600)))
        self.tokens = min(terms.tokens, self.tokens + (now - self.at) * rate)
        self.at = now
        if self.tokens < 1:
            self.throttled += 1
            return False
        self.tokens -= 1
        self.accepted += 1
        return True
