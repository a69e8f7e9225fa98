"""Worker states. Everything that may happen to a worker stands in TRANSITIONS, and the diagram in the docs is
printed from it. Knows nothing of pools, providers or time."""

from enum import StrEnum
from typing import Final


class State(StrEnum):
    REQUESTED = "requested"  # intent and lease request committed; nothing asked of the provider
    LAUNCHING = "launching"  # a provider call is, or may be, in flight
    STARTING = "starting"  # the provider said yes; not yet heard from
    RUNNING = "running"  # registered
    STOPPING = "stopping"  # told to leave; the instance may still exist
    STOPPED = "stopped"  # proven gone, or never was


SERVING: Final = frozenset({State.REQUESTED, State.LAUNCHING, State.STARTING, State.RUNNING})

Q, L, S, R, P, X = State  # in the order above
TRANSITIONS: Final[dict[tuple[State, str], State]] = {
    (Q, "delayed"): Q,
    (Q, "calling"): L,
    (Q, "stopped"): X,  # cancelled: nothing to delete
    (L, "delayed"): Q,  # throttled, or a look-up proved that the call had no effect
    (L, "launch_failed"): X,
    (L, "launched"): S,
    (L, "registered"): R,  # quicker than the provider's reply
    (S, "registered"): R,
    (R, "launched"): R,  # the reply came second: it binds the id
    (P, "launched"): P,  # facts about a call already made
    (P, "launch_failed"): X,
    (P, "registered"): P,
    (P, "claimed"): P,
    (P, "idle"): P,
    (R, "claimed"): R,
    (R, "idle"): R,
    (R, "error_reported"): R,
    (L, "stopping"): P,
    (S, "stopping"): P,
    (R, "stopping"): P,  # boot or claim timed out, drain, age
    (R, "stopped"): X,
    (P, "stopped"): X,  # a one-task worker ends by itself
    (L, "lost"): X,
    (S, "lost"): X,
    (R, "lost"): X,
    (P, "lost"): X,
}


class IllegalTransition(Exception):
    """An unlisted pair. The caller's transaction changes nothing."""


def advance(state: State, event: str) -> State:
    """The state after `event`; raises IllegalTransition for an unlisted pair."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"a {state} worker cannot be {event}") from None


def diagram() -> str:
    """The state machine in Graphviz's dot language."""
    rows = (f'  {a} -> {b} [label="{event}"];' for (a, event), b in TRANSITIONS.items())
    return "digraph worker {\n" + "\n".join(rows) + "\n}\n"
