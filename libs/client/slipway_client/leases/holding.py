"""State of a held lease, and when to renew it. Pure: `now` (monotonic seconds) is an argument.

The broker's clock decides. The remaining time that it reports is counted from before the request was sent, so that a
slow answer never makes a lease longer than it is. The TTL never reaches past the hold: a lease with as much TTL left as
hold lives to the end of its hold, whether it is renewed again or not.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from slipway_api.http.lease_broker import Lease
from slipway_client.leases.admission import Wait
from slipway_client.transport.backoff import Backoff, next_backoff

RENEWALS_PER_TTL: Final = 3
# Clocks of two machines drift; a holder stops before the broker may grant its units to another one.
SKEW_SECONDS: Final = 5.0
SKEW_SHARE: Final = 0.1  # of a TTL below 10 * SKEW_SECONDS
# By how much less TTL than hold may be left of a lease that lives to the end of its hold: the broker rounds instants.
ROUNDING_SECONDS: Final = 0.1
# Ends that are no loss: the lease was released in the holder's name, or its hold is over.
USUAL_ENDS: Final = frozenset({"hold", "released"})
# Losses after which the work goes on without counting. After the others its units belong to another attempt or process
# of the same work, or the broker has given the work up.
UNCOUNTED_ENDS: Final = frozenset({"expired", "lost", "unknown-lease"})


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """A held lease. All times are on this process's clock. `trusted_until`: until then no other holder may have its
    units. `renewable_until`: no renewal after that could prolong it. `doubted`: the holder knows that trust has ended.
    """

    lease: Lease
    trusted_until: float
    hold_until: float
    renew_at: float
    renewable_until: float
    backoff: Backoff = Backoff()
    doubted: bool = False


class Renew(msgspec.Struct, frozen=True):
    """Renew now."""


class Doubt(msgspec.Struct, frozen=True):
    """The lease could not be renewed in time: from now on another holder may have its units. Renewing goes on, since
    the broker may not have ended it."""


class LeaseEnd(msgspec.Struct, frozen=True):
    """The lease has ended. `lost`: before its time; another holder may have its units. `uncounted`: the broker counts
    the work no longer, although it may go on."""

    reason: str
    lost: bool
    uncounted: bool = False


def granted(lease: Lease, asked_at: float) -> Holding:
    """Apply a grant or renewal that was requested at `asked_at`."""
    ttl_seconds, hold_until = lease.ttl_seconds_left, asked_at + lease.hold_seconds_left
    is_promised = ttl_seconds >= lease.hold_seconds_left - ROUNDING_SECONDS
    trusted_until = asked_at + ttl_seconds - min(SKEW_SECONDS, SKEW_SHARE * ttl_seconds)
    interval_seconds = lease.ttl_seconds / RENEWALS_PER_TTL
    return Holding(
        lease=lease,
        trusted_until=hold_until if is_promised else trusted_until,
        hold_until=hold_until,
        renew_at=asked_at + interval_seconds,
        renewable_until=hold_until - interval_seconds if is_promised else hold_until,
    )


def next_step(holding: Holding, now: float, *, fenced: bool) -> Renew | Wait | Doubt | LeaseEnd:
    """Next step. A lease whose time has passed is not trusted, although the broker has not ended it: this process may
    have been suspended meanwhile. For a `fenced` holder it is lost then; any other goes on renewing until its hold
    ends."""
    if holding.hold_until <= now:
        return LeaseEnd("hold", lost=False)
    if holding.trusted_until <= now and not holding.doubted:
        return LeaseEnd("not renewed in time", lost=True) if fenced else Doubt()
    due = max(holding.renew_at, holding.backoff.retry_at)
    if max(due, now) > holding.renewable_until:
        due = holding.hold_until
    if due <= now:
        return Renew()
    return Wait(min(due, holding.hold_until if holding.doubted else holding.trusted_until))


def doubted(holding: Holding) -> Holding:
    """Apply the end of trust."""
    return replace(holding, doubted=True)


def unanswered(holding: Holding, now: float, chance: float, retry_after_seconds: float = 0.0) -> Holding:
    """Apply a renewal that was not answered, or by a request to try again after some time. `chance` in [0, 1) spreads
    the retries of many holders."""
    return replace(holding, backoff=next_backoff(holding.backoff, now, chance, retry_after_seconds))


def ended(reason: str) -> LeaseEnd:
    """Apply the broker's answer that the lease has ended."""
    return LeaseEnd(reason, lost=reason not in USUAL_ENDS, uncounted=reason in UNCOUNTED_ENDS)
