"""What clients of a lease-broker saw, and what a resource saw that is guarded by fencing tokens. Values only.

Every time is in seconds of the machine's monotonic clock, which all processes of a run share: it is the judge's clock.
A client may go by another one, or be stopped while its own time passes; that is part of what is judged.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

Does: TypeAlias = Literal["acquire", "confirm", "renew", "release", "cancel", "limit", "drain", "undrain"]
# "unknown": no answer came, or one that does not say whether it had an effect.
Answer: TypeAlias = Literal["ok", "waiting", "refused", "unknown"]

EVER: Final = float("inf")


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease as an answer shows it; `seconds_left` until the broker may end it, by its ttl or its hold."""

    lease_id: str
    fencing_token: int
    units: int
    seconds_left: float


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):  # JSON has no infinity
    """One operation: what was asked from `invoked` on, and what had been answered at `returned`.

    `units` are those asked for, given back, or the new limit. An acquire has a request id and is repeated under it;
    a confirm, renew or release names a lease and the token that its caller believes in. `replaces` is the lease that an
    acquire ends. `owner` is in whose name it was called.
    """

    client: str
    does: Does
    pool: str
    invoked: float
    returned: float = EVER
    answer: Answer = "unknown"
    owner: str = ""
    request_id: str = ""
    lease_id: str = ""
    fencing_token: int = 0
    units: int = 0
    replaces: str = ""
    lease: Lease | None = None
    reason: str = ""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The broker told, unasked, that a lease has ended."""

    at: float
    pool: str
    lease_id: str
    reason: str


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """One write that reached the guarded resource of a pool, which keeps the highest token it has seen."""

    at: float
    pool: str
    lease_id: str
    fencing_token: int
    accepted: bool


class History(msgspec.Struct, frozen=True, kw_only=True):
    """`limits` are those at the beginning. From `quiet_at` on no fault is played and nobody holds or renews anything:
    what is asked for then must be granted. `skew_seconds` is the margin by which holders stop before their deadline."""

    limits: Mapping[str, int]
    calls: Sequence[Call]
    ended: Sequence[Ended] = ()
    writes: Sequence[Write] = ()
    skew_seconds: float = 0.0
    quiet_at: float = EVER
