"""Reuse as upjet's shared scheduler decides it, with its texts, for users who compare or migrate. Pure.

Source: upjet v0, pkg/terraform/provider_scheduler.go. Differences that are its defects stay out: processes are bound to
leases, not counted by handle, and a start blocks no other handle.
"""

import copy
from typing import Final, Literal

from slipway_terraform.domain.errors import ReuseBudgetExceeded, TerraformError

MARGIN: Final = 0.1
START_TEXT: Final = "cannot start the shared provider runner for handle: %s"
BUDGET_TEXT: Final = "native provider reuse budget has been exceeded: invocationCount: %d, ttl: %d"


def verdict(*, invocations: int, in_use: int, ttl: int) -> Literal["reuse", "replace", "refuse"]:
    """Decision about a running process: an expired one in use is reused up to the margin, then callers are refused."""
    if invocations >= ttl and in_use == 0:
        return "replace"
    return "refuse" if invocations > int(ttl * (1 + MARGIN)) else "reuse"


def budget_exceeded(*, invocations: int, ttl: int) -> ReuseBudgetExceeded:
    """Error of a refused caller."""
    return ReuseBudgetExceeded(BUDGET_TEXT % (invocations, ttl))


def start_failed(error: TerraformError, handle: str) -> TerraformError:
    """Error of a start, with upjet's text before its own."""
    wrapped = copy.copy(error)
    wrapped.args = (f"{START_TEXT % handle}: {error.args[0]}",)
    return wrapped


def is_retry_error(error: BaseException) -> bool:
    """True for the error after which upjet retries."""
    return isinstance(error, ReuseBudgetExceeded)
