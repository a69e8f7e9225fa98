"""What the broker knows of one lease pool: its terms, who holds units and who waits. Values and the table of lease
states. Decides nothing about grants (decide.py) and nothing about what holders say (facts.py)."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec


class State(StrEnum):
    RESERVED = "reserved"  # granted; the holder has yet to commit to using it
    CONFIRMED = "confirmed"  # in use; lives as long as it is renewed, at most until its hold passes
    RELEASED = "released"  # given back by the holder, or ended by the broker when its hold passed
    EXPIRED = "expired"  # never confirmed in time
    LOST = "lost"  # confirmed, then not renewed in time: its last call may still be under way


R, C, G, E, L = State  # in the order above
TRANSITIONS: Final[dict[tuple[State, str], State]] = {
    (R, "confirmed"): C,
    (R, "renewed"): R,  # a holder that needs more time before its call
    (C, "confirmed"): C,  # a confirm that is sent again renews
    (C, "renewed"): C,
    (R, "released"): G,
    (C, "released"): G,
    (R, "deadline passed"): E,
    (C, "deadline passed"): L,
}


class IllegalTransition(Exception):
    """An unlisted pair. The caller's transaction changes nothing."""


def advance(state: State, fact: str) -> State:
    """The state after `fact`; raises IllegalTransition for an unlisted pair."""
    try:
        return TRANSITIONS[state, fact]
    except KeyError:
        raise IllegalTransition(f"a {state} lease cannot be {fact}") from None


class LeasePool(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of admission. Terms of a lease are fixed at its grant; new terms count for new grants and renewals."""

    id: str
    limit_units: int
    hold_seconds: float
    ttl_seconds: float
    reserve_seconds: float
    last_token: int = 0  # the fencing token given out last


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """One grant. Its units count against the limit until `ended_at` is set, whatever its state."""

    id: str
    lease_pool_id: str
    request_id: str
    fencing_token: int
    granted_units: int
    units: int  # not given back yet
    state: State
    granted_at: datetime
    expires_at: datetime
    hold_until: datetime
    counted_until: datetime | None = None  # of a lost lease
    ended_at: datetime | None = None
    traceparent: str = ""  # of its request: what happens to it goes on in that trace

    @property
    def live(self) -> bool:
        """Whether its holder may still act under it."""
        return self.state in (State.RESERVED, State.CONFIRMED)

    @property
    def deadline(self) -> datetime:
        """When time alone changes it next, if nobody says anything."""
        return self.counted_until or min(self.expires_at, self.hold_until)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asked for. It waits while `waiting_units` is above zero; its place is its order of arrival."""

    id: str
    lease_pool_id: str
    tenant: str
    operation: str
    asked_units: int
    waiting_units: int
    asked_at: datetime
    last_asked_at: datetime
    queued_at: datetime | None = None  # when it was first told to wait
    traceparent: str = ""


def held_units(leases: Iterable[Lease]) -> int:
    return sum(lease.units for lease in leases if lease.ended_at is None)


def earliest_deadline(leases: Iterable[Lease]) -> datetime | None:
    return min((lease.deadline for lease in leases if lease.ended_at is None), default=None)


def alive_until(pool: LeasePool, state: State, now: datetime, hold_until: datetime) -> datetime:
    """The deadline that a grant, confirm or renew at `now` gives: never past the hold, which ends it anyway."""
    seconds = pool.reserve_seconds if state is State.RESERVED else pool.ttl_seconds
    return min(now + timedelta(seconds=seconds), hold_until)
