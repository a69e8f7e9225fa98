"""Holders of one lease: the rules for a request id that several processes use. Pure.

Each process names itself. The one that asked holds the lease; another one that asks is refused while the lease was
renewed lately, and later takes it over under a new fencing token, so that the first can neither renew nor release it.
Processes that join hold it together, and the last release counts. A process without a name counts as the holder.
"""

import hmac
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

import msgspec

from slipway_lease_broker.domain.ledger import Holding, Lease, LeasePool
from slipway_lease_broker.domain.sender import Sender

TAKEOVER_PART: Final = 0.75
"""Part of the pool's TTL within which a lease counts as renewed lately: a holder that renews it three times per TTL has
missed two renewals by then, and the next one is not lost yet."""
HOLDERS_MAX: Final = 100
"""Processes that hold one lease together; so many are remembered, those that released it first are forgotten first."""
LATE: Final = timedelta(days=1)
"""Time after the end of a lease in which its token may still report how the operation ended."""


class Left(Enum):
    """Effect of a release by one of several holders."""

    LAST = "last"  # nobody else holds it: its units return
    OTHERS = "others"  # others still hold it
    AGAIN = "again"  # it has released it before
    UNNAMED = "unnamed"  # it does not say which holder it is


def active(lease: Lease) -> list[str]:
    """Names of the holders that have not released the lease; "" is one without a name."""
    return [name for name, holding in lease.holders.items() if not holding.left] if lease.holders else [""]


def is_holder(lease: Lease, name: str) -> bool:
    """True unless the lease is held by others. A holder without a name may be any process."""
    return not name or not {name, ""}.isdisjoint(active(lease))


def is_in_use(lease: Lease, pool: LeasePool, sender: Sender, now: datetime) -> bool:
    """True if the sender can get a live lease neither as its holder, nor by joining its holders or taking it over."""
    if is_holder(lease, sender.holder):
        return False
    if sender.join:
        return len(active(lease)) >= HOLDERS_MAX
    return now <= takeover_at(lease, pool)


def takeover_at(lease: Lease, pool: LeasePool) -> datetime:
    """Time after which another process takes the lease over, unless it is renewed."""
    return lease.extended_at + TAKEOVER_PART * timedelta(seconds=pool.ttl_seconds)


def claim(lease: Lease, sender: Sender, now: datetime, *, new_token: int) -> Lease:
    """The live lease that the sender gets: its own, one that it joins, or one that it takes over under `new_token`.
    See is_in_use."""
    name, holding = sender.holder, active(lease)
    if not name or name in holding:
        return lease
    holders = lease.holders or {"": Holding(since=lease.granted_at)}
    if sender.join:
        gone = [one for one, known in holders.items() if known.left]
        forgotten = gone[: max(0, len(holders) + 1 - HOLDERS_MAX)]
        kept = {one: known for one, known in holders.items() if one not in forgotten}
        return msgspec.structs.replace(lease, holders=kept | {name: Holding(since=now)})
    if "" in holding:  # the holder without a name, which has one now
        return msgspec.structs.replace(
            lease, holders={name if one == "" else one: known for one, known in holders.items()}
        )
    return msgspec.structs.replace(lease, fencing_token=new_token, holders={name: Holding(since=now)}, extended_at=now)


def left(lease: Lease, sender: Sender) -> Left:
    """Effect of a release by the sender. An admin without a name releases a lease for all of its holders."""
    if len(lease.holders) <= 1 or (sender.admin and not sender.holder):
        return Left.LAST
    if (holding := lease.holders.get(sender.holder)) is None:
        return Left.UNNAMED
    if holding.left:
        return Left.AGAIN
    return Left.OTHERS if len(active(lease)) > 1 else Left.LAST


def without(lease: Lease, name: str) -> Lease:
    """The lease after one of its holders has released it."""
    gone = msgspec.structs.replace(lease.holders[name], left=True)
    return msgspec.structs.replace(lease, holders=lease.holders | {name: gone})


def token_holder(lease: Lease, name: str | None) -> str | None:
    """Holder of a lease that a token is for: of several the one of this name; None if it is none of them."""
    names = active(lease)
    if name is None:
        return names[0] if len(names) == 1 else None
    return name if name in names else "" if "" in names else None


def with_token(lease: Lease, name: str, digest: str) -> Lease:
    """The lease with the hash of a token for one of its holders, in place of an earlier one."""
    holders = lease.holders or {"": Holding(since=lease.granted_at)}
    return msgspec.structs.replace(
        lease, holders=holders | {name: msgspec.structs.replace(holders[name], token_sha256=digest)}
    )


def holder_of(lease: Lease, digest: str, now: datetime) -> str | None:
    """Name of the holder whose token has this hash; None for an unknown one, or if the lease ended too long ago."""
    found = None
    for name, holding in lease.holders.items():  # no early exit, so the time does not reveal a match
        if holding.token_sha256 is not None and hmac.compare_digest(holding.token_sha256, digest):
            found = name
    return None if lease.ended_at is not None and now > lease.ended_at + LATE else found
