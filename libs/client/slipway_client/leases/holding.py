"""Whether a lease is still held, and when to say so to the broker. Pure: `now` (monotonic seconds) is an argument.

The broker's clock decides. What it says is left of a lease is counted from the moment before it was asked, so that no
answer, however slow, makes a lease longer than it is.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from slipway_client.leases.terms import Lease
from slipway_client.worker.core import Silence, longer

RENEWALS_PER_TTL: Final = 3
# Clocks of two machines run apart; a holder stops before the broker may give its units to somebody else.
SKEW_SECONDS: Final = 5.0
SKEW_SHARE: Final = 0.1  # of a ttl that is shorter than ten times that
# Ends that are no loss: the lease was given back in the holder's name, or has covered all that it was asked for.
USUAL_ENDS: Final = frozenset({"hold", "released"})


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """A lease in its holder's hand. All times are this process's."""

    lease: Lease
    trusted_until: float
    hold_until: float
    renew_at: float
    silence: Silence = Silence()


class Renew(msgspec.Struct, frozen=True):
    """Renew now."""


class Rest(msgspec.Struct, frozen=True):
    """Nothing before `until`."""

    until: float


class Over(msgspec.Struct, frozen=True):
    """Nothing more to renew or release. `lost`: it was not to end yet, and what it covers has to stop."""

    reason: str
    lost: bool
    told: bool = True  # by the broker; otherwise by our own clock


def granted(lease: Lease, asked_at: float) -> Holding:
    """The answer to a question of `asked_at`."""
    ttl_seconds = lease.ttl_seconds_left
    return Holding(
        lease=lease,
        trusted_until=asked_at + ttl_seconds - min(SKEW_SECONDS, SKEW_SHARE * ttl_seconds),
        hold_until=asked_at + lease.hold_seconds_left,
        renew_at=asked_at + ttl_seconds / RENEWALS_PER_TTL,
    )


def next_step(holding: Holding, now: float) -> Renew | Rest | Over:
    """The one thing to do now. A lease whose time has passed is not trusted, even if nobody has said so: this process
    may have been stopped meanwhile."""
    if holding.hold_until <= now:
        return Over("hold", lost=False, told=False)
    if holding.trusted_until <= now:
        return Over("it was not renewed in time", lost=True, told=False)
    due = max(holding.renew_at, holding.silence.retry_at)
    return Renew() if due <= now else Rest(min(due, holding.trusted_until, holding.hold_until))


def unheard(holding: Holding, now: float, chance: float) -> Holding:
    """Nobody has answered. `chance` in [0, 1) spreads the repetitions of many holders."""
    return replace(holding, silence=longer(holding.silence, now, chance))


def ended(reason: str) -> Over:
    """The broker says that the lease has ended, and why."""
    return Over(reason, lost=reason not in USUAL_ENDS)
