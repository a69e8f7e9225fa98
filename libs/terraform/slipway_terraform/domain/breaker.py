"""Circuit breaker of a handle: failed starts are repeated with backoff, and refused while tripped. Pure."""

import random

import msgspec

from slipway_terraform.domain.errors import TerraformError
from slipway_terraform.domain.policy import Policy


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """Failed starts of a handle in a row. No start before `retry_at`, seconds of the scheduler's clock."""

    failures: int
    retry_at: float
    tripped: bool
    error: TerraformError


def failed(before: Breaker | None, error: TerraformError, policy: Policy, *, now: float, rng: random.Random) -> Breaker:
    """Breaker after another failed start. An error that is not retryable trips at once.

    Backoff doubles up to its maximum, less a random part of up to a half, so that handles that failed together are not
    tried together.
    """
    failures = 1 + (before.failures if before else 0)
    seconds = min(policy.backoff_seconds * 2.0 ** min(failures - 1, 30), policy.max_backoff_seconds)
    return Breaker(
        failures=failures,
        retry_at=now + seconds * (1 - rng.random() / 2),
        tripped=failures >= policy.trip_failures or not error.retryable,
        error=error,
    )


def expired(breaker: Breaker, policy: Policy, *, now: float) -> bool:
    """True if the handle was not tried for so long that its failures no longer matter."""
    return now >= breaker.retry_at + 10 * policy.max_backoff_seconds
