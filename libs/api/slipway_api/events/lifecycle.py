"""Worker states, their sets and their transitions. Every change of a worker is listed in TRANSITIONS, from which the
diagram in the docs is generated. Knows nothing of pools, providers or time.

A new state is a member of State and of the sets that it belongs to: code and SQL name the sets, so that accounting,
windows and partial indexes follow.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """State of a worker."""

    REQUESTED = "requested"  # intent and lease request are committed; the provider was not called yet
    LAUNCHING = "launching"  # a provider call is, or may be, in flight
    STARTING = "starting"  # launched by the provider; the worker has not registered yet
    RUNNING = "running"  # registered
    STOPPING = "stopping"  # asked to stop; the instance may still exist
    STOPPED = "stopped"  # confirmed gone, or never launched


WAITING: Final = frozenset({State.REQUESTED})  # for a lease and the provider call
REGISTERED: Final = frozenset({State.RUNNING})
# Starts in flight, by stage. A registered worker is one of them only until its first claim is confirmed.
IN_FLIGHT: Final[Mapping[str, frozenset[State]]] = {
    "launch": WAITING | {State.LAUNCHING},
    "boot": frozenset({State.STARTING}),
    "claim": REGISTERED,
}
SERVING: Final = frozenset[State]().union(*IN_FLIGHT.values())  # counted towards the target
ASKED_TO_STOP: Final = frozenset({State.STOPPING})  # later reports end no stage; a missing instance is expected
ENDED: Final = frozenset({State.STOPPED})
LIVE: Final = frozenset(State) - ENDED
LEAVING: Final = LIVE - SERVING  # billed, but not serving

Q, L, S, R, P, X = State  # in the order above
TRANSITIONS: Final[dict[tuple[State, str], State]] = {
    (Q, "delayed"): Q,
    (Q, "calling"): L,
    (Q, "stopped"): X,  # cancelled; there is nothing to delete
    (L, "delayed"): Q,  # throttled, or a lookup showed that the call had no effect
    (L, "launch_failed"): X,
    (L, "launched"): S,
    (L, "registered"): R,  # arrived before the provider's reply
    (S, "registered"): R,
    (R, "launched"): R,  # the reply came second; it sets the instance id
    (P, "launched"): P,  # results of calls made before the stop
    (P, "launch_failed"): X,
    (P, "registered"): P,
    (P, "claimed"): P,
    (P, "idle"): P,
    (R, "claimed"): R,
    (R, "idle"): R,
    (R, "error_reported"): R,
    (L, "stopping"): P,
    (S, "stopping"): P,
    (R, "stopping"): P,  # boot or claim timeout, drain, maximum age
    (R, "stopped"): X,
    (P, "stopped"): X,  # a one-task worker exits by itself
    (L, "lost"): X,
    (S, "lost"): X,
    (R, "lost"): X,
    (P, "lost"): X,
}
STOPPABLE: Final = frozenset(state for state, event in TRANSITIONS if event == "stopping")


class IllegalTransition(Exception):
    """The event is not allowed in the worker's state; the caller must roll back."""


def advance(state: State, event: str) -> State:
    """Return the state after `event`; raises IllegalTransition if it is not allowed."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"a {state} worker cannot be {event}") from None


def diagram() -> str:
    """State machine in Graphviz's DOT language."""
    rows = (f'  {a} -> {b} [label="{event}"];' for (a, event), b in TRANSITIONS.items())
    return "digraph worker {\n" + "\n".join(rows) + "\n}\n"
