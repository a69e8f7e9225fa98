"""State of a held lease, and when to renew it. Pure: `now` (monotonic seconds) is an argument.

The broker's clock decides. The remaining time that it reports is counted from before the request was sent, so that a
slow answer never makes a lease longer than it is.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from slipway_client.leases.admission import Wait
from slipway_client.leases.terms import Lease
from slipway_client.transport.backoff import Backoff, next_backoff

RENEWALS_PER_TTL: Final = 3
# Clocks of two machines drift; a holder stops before the broker may grant its units to another one.
SKEW_SECONDS: Final = 5.0
SKEW_SHARE: Final = 0.1  # of a TTL below 10 * SKEW_SECONDS
# Ends that are no loss: the lease was released in the holder's name, or its hold is over.
USUAL_ENDS: Final = frozenset({"hold", "released"})


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """A held lease. All times are on this process's clock."""

    lease: Lease
    trusted_until: float
    hold_until: float
    renew_at: float
    backoff: Backoff = Backoff()


class Renew(msgspec.Struct, frozen=True):
    """Renew now."""


class LeaseEnd(msgspec.Struct, frozen=True):
    """The lease has ended. `lost`: before its time, so that the work it covers has to stop."""

    reason: str
    lost: bool
    by_broker: bool = True
    """True if the broker reported the end, False if our own clock did."""


def granted(lease: Lease, asked_at: float) -> Holding:
    """Apply a grant or renewal that was requested at `asked_at`."""
    ttl_seconds = lease.ttl_seconds_left
    return Holding(
        lease=lease,
        trusted_until=asked_at + ttl_seconds - min(SKEW_SECONDS, SKEW_SHARE * ttl_seconds),
        hold_until=asked_at + lease.hold_seconds_left,
        renew_at=asked_at + ttl_seconds / RENEWALS_PER_TTL,
    )


def next_step(holding: Holding, now: float) -> Renew | Wait | LeaseEnd:
    """Next step. A lease whose time has passed is not trusted, although the broker has not ended it: this process may
    have been suspended meanwhile."""
    if holding.hold_until <= now:
        return LeaseEnd("hold", lost=False, by_broker=False)
    if holding.trusted_until <= now:
        return LeaseEnd("not renewed in time", lost=True, by_broker=False)
    due = max(holding.renew_at, holding.backoff.retry_at)
    return Renew() if due <= now else Wait(min(due, holding.trusted_until, holding.hold_until))


def unanswered(holding: Holding, now: float, chance: float) -> Holding:
    """Apply a renewal that was not answered. `chance` in [0, 1) spreads the retries of many holders."""
    return replace(holding, backoff=next_backoff(holding.backoff, now, chance))


def ended(reason: str) -> LeaseEnd:
    """Apply the broker's answer that the lease has ended."""
    return LeaseEnd(reason, lost=reason not in USUAL_ENDS)
