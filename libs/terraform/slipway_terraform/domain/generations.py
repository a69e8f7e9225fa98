"""Generations: the successive processes of a handle, and the states of each. Pure."""

from collections import Counter
from enum import StrEnum
from typing import Final

import msgspec


class State(StrEnum):
    """State of a generation's process."""

    STARTING = "starting"
    READY = "ready"
    """Takes leases; at most one generation of a handle is ready."""
    DRAINING = "draining"
    """Takes no new leases, and stops when its last one ends."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    CRASHED = "crashed"


class Event(StrEnum):
    """Event in the life of a process."""

    HANDSHAKEN = "handshaken"
    START_FAILED = "start_failed"
    RETIRED = "retired"
    EMPTIED = "emptied"
    """Its last lease has ended, or is ended by force."""
    EXITED = "exited"


# An event not listed for a state raises IllegalTransition and changes nothing.
TRANSITIONS: Final = {
    (State.STARTING, Event.HANDSHAKEN): State.READY,
    (State.STARTING, Event.START_FAILED): State.FAILED,
    (State.READY, Event.RETIRED): State.DRAINING,
    (State.READY, Event.EXITED): State.CRASHED,
    (State.DRAINING, Event.EMPTIED): State.STOPPING,
    (State.DRAINING, Event.EXITED): State.CRASHED,
    (State.STOPPING, Event.EXITED): State.STOPPED,
}
LIVE: Final = frozenset({State.STARTING, State.READY, State.DRAINING, State.STOPPING})
"""States in which there is a process, or may be; they count towards the cap."""


class IllegalTransition(Exception):
    """An event that cannot happen in this state: a defect of the scheduler."""


class Reason(StrEnum):
    """Reason for which a process is replaced or stopped."""

    INVOCATIONS = "invocations"
    AGE = "age"
    IDLE = "idle"
    EVICTED = "evicted"
    """Stopped to make room under the cap for another handle."""
    MEMORY = "memory"
    MEMORY_HARD = "memory_hard"
    HEALTH = "health"
    TAINTED = "tainted"
    DIGEST = "digest"
    """The binary on disk was replaced."""
    ROTATED = "rotated"
    """All its owners have acquired another configuration: credentials were rotated."""
    CLOSED = "closed"


class Generation(msgspec.Struct, kw_only=True):
    """One process of a handle. Times are those of one monotonic clock, in seconds.

    `family` names tenant and source. `owners` have used it, and not acquired another configuration since; `holders`
    counts the current leases of each. `pending` counts leases that have run no invocation yet.
    """

    id: int
    handle: str
    family: str
    max_age_seconds: float
    state: State = State.STARTING
    reason: Reason | None = None
    ready_at: float = 0.0
    idle_since: float = 0.0
    in_use: int = 0
    pending: int = 0
    invocations: int = 0
    memory_bytes: int = 0
    owners: set[str] = msgspec.field(default_factory=set)
    holders: Counter[str] = msgspec.field(default_factory=Counter)

    def advance(self, event: Event) -> None:
        """Change the state; raises IllegalTransition if the table does not list the event for it."""
        if (state := TRANSITIONS.get((self.state, event))) is None:
            raise IllegalTransition(f"generation {self.id}: {event} while {self.state}")
        self.state = state

    @property
    def live(self) -> bool:
        return self.state in LIVE

    def reserve(self, owner: str) -> None:
        """Add a lease."""
        self.in_use += 1
        self.pending += 1
        self.holders[owner] += 1
        if owner:
            self.owners.add(owner)

    def release(self, owner: str, *, unused: bool, now: float) -> None:
        """End a lease; `unused` if it has run no invocation."""
        self.in_use -= 1
        self.pending -= unused
        self.holders[owner] -= 1
        if not self.holders[owner]:
            del self.holders[owner]
        self.idle_since = now

    def invoke(self, *, first: bool) -> None:
        """Count an invocation; `first` if it is the first one of its lease."""
        self.invocations += 1
        self.pending -= first


def left_behind(generations: list[Generation], served: Generation, owner: str) -> list[Generation]:
    """Ready generations of the same tenant and source, for another configuration, whose last owner has moved to
    `served`: credentials were rotated. Forgets the owner in all that it has left; an owner that still holds a lease of
    the former configuration uses both."""
    retired = []
    for other in generations:
        if owner in other.owners and other.family == served.family and other.handle != served.handle:
            if owner in other.holders:
                continue
            other.owners.discard(owner)
            if not other.owners and other.state is State.READY:
                retired.append(other)
    return retired
