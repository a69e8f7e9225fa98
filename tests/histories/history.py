"""Observations of clients of a lease-broker, and of a resource guarded by fencing tokens. Values only.

Every time is in seconds of the machine's monotonic clock, which all processes of a run share and the checker uses. A
client may go by another clock, or be stopped while its own time passes; that is part of the test.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

Does: TypeAlias = Literal["acquire", "confirm", "renew", "release", "cancel", "limit", "drain", "undrain"]
# "unknown": no answer came, or one that leaves the effect unknown.
Answer: TypeAlias = Literal["ok", "waiting", "refused", "unknown"]

EVER: Final = float("inf")


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease as an answer shows it; `seconds_left` until the broker may end it, by its ttl or its hold."""

    lease_id: str
    fencing_token: int
    units: int
    seconds_left: float


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):  # JSON has no infinity
    """One operation: the call invoked at `invoked`, and its answer at `returned`.

    `units` are those requested or released, or the new limit. An acquire has a request id and is repeated under it; a
    confirm, renew or release names a lease and the token that its caller holds. `replaces` is the lease that an acquire
    ends. `owner` is the caller's name.
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
    """A published event that a lease has ended."""

    at: float
    pool: str
    lease_id: str
    reason: str


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """One write that reached the guarded resource of a pool, which remembers the highest token it has seen."""

    at: float
    pool: str
    lease_id: str
    fencing_token: int
    accepted: bool


class History(msgspec.Struct, frozen=True, kw_only=True):
    """`limits` are those at the beginning. From `quiet_at` on there are no faults, holds or renewals: all requests must
    then be granted. `skew_seconds` is the margin by which holders stop before their deadline."""

    limits: Mapping[str, int]
    calls: Sequence[Call]
    ended: Sequence[Ended] = ()
    writes: Sequence[Write] = ()
    skew_seconds: float = 0.0
    quiet_at: float = EVER
