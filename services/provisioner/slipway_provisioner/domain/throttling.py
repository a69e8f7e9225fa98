"""Accounts whose API throttles calls: a notice while that lasts. Pure.

A single throttled call is made again and says nothing. Calls that have been throttled for a while delay launches, which
nothing else shows: no launch fails, and no launch config trips.
"""

from datetime import datetime
from typing import Final

import msgspec

from slipway_api.events.alert import AlertIdentity, AlertRaised, AlertResolved, alert_identity

ALERT: Final = "account-throttled"


class Throttling(msgspec.Struct, frozen=True, kw_only=True):
    """Throttled calls of an account: `calls` since a time at most one period before which none was throttled. The first
    was `lasted_seconds` ago, the last `quiet_seconds`. `throttled`: a notice says so."""

    account_id: str
    lease_pool_id: str
    throttled: bool
    calls: int
    since: datetime
    lasted_seconds: float
    quiet_seconds: float

    def lasts(self, after_seconds: float) -> bool:
        """True if calls have been throttled for so long, up to now; once a notice says so, until none has been."""
        return self.quiet_seconds <= after_seconds and (self.throttled or self.lasted_seconds >= after_seconds)


def raised(found: Throttling) -> AlertRaised:
    """Notice on an account that throttles calls, with what the limiter does."""
    calls = f"{found.calls} {'call' if found.calls == 1 else 'calls'}"
    return AlertRaised(
        **_identity(found.account_id),
        summary=f"account {found.account_id} has throttled {calls} within {found.lasted_seconds:.0f} s",
        effect=f"launches in {found.account_id} take longer; none of them fails",
        doing=f"makes each throttled call again under a new lease; lease pool {found.lease_pool_id} grants none before "
        "the provider's Retry-After has passed, and an adaptive limit falls",
        command=f"slipway lease report {found.lease_pool_id} --since 1h",
        since=found.since,
        cause="more calls than the provider admits, by Slipway or by others in this account",
        severity="notice",
    )


def resolved(account_id: str, after_seconds: float) -> AlertResolved:
    """Resolution of the notice."""
    summary = f"no call in account {account_id} was throttled for {after_seconds:g} s"
    return AlertResolved(**_identity(account_id), summary=summary)


def _identity(account_id: str) -> AlertIdentity:
    return alert_identity("provisioner", ALERT, "account", account_id)
