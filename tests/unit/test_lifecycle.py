"""Worker lifecycle: listed transitions happen, all others raise and change nothing."""

import inspect
import re
from itertools import product
from pathlib import Path

import pytest

import slipway_provisioner
from slipway_api.events.lifecycle import (
    ASKED_TO_STOP,
    ENDED,
    IN_FLIGHT,
    LEAVING,
    LIVE,
    REGISTERED,
    SERVING,
    TRANSITIONS,
    WAITING,
    IllegalTransition,
    State,
    advance,
    diagram,
)

EVENTS = sorted({event for _, event in TRANSITIONS})


@pytest.mark.parametrize(("state", "event"), list(product(State, EVENTS)))
def test_every_pair(state: State, event: str) -> None:
    """A listed pair leads to the state in the table; an unlisted one raises and names both."""
    if (state, event) in TRANSITIONS:
        assert advance(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransition, match=f"a {state} worker cannot be {event}"):
            advance(state, event)


def test_every_state_counts_once() -> None:
    """A worker is serving, leaving or ended, and a start is in flight in at most one stage."""
    assert sorted([*SERVING, *LEAVING, *ENDED]) == sorted(State)
    assert LIVE == SERVING | LEAVING
    assert LIVE >= ASKED_TO_STOP
    in_flight = [state for states in IN_FLIGHT.values() for state in states]
    assert len(in_flight) == len(set(in_flight))
    assert SERVING.issuperset({*in_flight, *WAITING, *REGISTERED})


def test_statements_name_sets_of_states() -> None:
    """No statement of the provisioner contains the literal of a worker's state, which a new state would bypass."""
    literal = re.compile("|".join(f"'{state}'" for state in State))
    check = re.compile(r"CheckConstraint\(.*\)")  # states of other things, which may have equal names
    package = Path(inspect.getfile(slipway_provisioner)).parent
    sources = [path for path in package.rglob("*.py") if "migrations" not in path.parts]
    assert len(sources) > 50
    assert not [path for path in sources if literal.search(check.sub("", path.read_text()))]


def test_every_worker_ends() -> None:
    """Every state has a path to stopped, which is final."""
    ends = {State.STOPPED}
    for _ in State:
        ends |= {before for (before, _), after in TRANSITIONS.items() if after in ends}
    assert ends == set(State)
    assert not [event for state, event in TRANSITIONS if state is State.STOPPED]


def reached(event: str) -> set[State]:
    """Live states that follow `event`, at once or later."""
    states = {after for (_, name), after in TRANSITIONS.items() if name == event}
    for _ in State:
        states |= {after for (before, _), after in TRANSITIONS.items() if before in states}
    return states - ENDED


def test_every_live_state_accepts_what_may_happen() -> None:
    """It is cancelled, or accepts a request to stop once, and its instance may vanish. Once registered, it may exit,
    and the reply to its call may come second."""
    needed = [
        *((state, event) for state in reached("registered") for event in ("launched", "stopped")),
        *((state, "stopped") for state in WAITING),
        *((state, "stopping") for state in LIVE - WAITING - ASKED_TO_STOP),
        *((state, "lost") for state in LIVE - WAITING),
    ]
    assert not [pair for pair in needed if pair not in TRANSITIONS]


def test_stopping_is_final() -> None:
    """A worker that was asked to stop stays so, and a leaving one never serves again, whatever events follow."""
    assert reached("stopping") <= ASKED_TO_STOP
    stays = ASKED_TO_STOP | ENDED
    assert not [pair for pair, after in TRANSITIONS.items() if pair[0] in ASKED_TO_STOP and after not in stays]
    assert not [pair for pair, after in TRANSITIONS.items() if pair[0] in LEAVING and after in SERVING]


def test_late_outcomes_of_a_call_are_accepted() -> None:
    """A reply, a refusal or a registration may arrive after a stop was ordered, and is accepted."""
    for event in ("launched", "launch_failed", "registered"):
        assert (State.LAUNCHING, event) in TRANSITIONS
        assert (State.STOPPING, event) in TRANSITIONS


def test_diagram_is_the_table() -> None:
    drawn = re.findall(r'^  (\w+) -> (\w+) \[label="(\w+)"\];$', diagram(), re.M)
    assert {(State(a), event): State(b) for a, b, event in drawn} == TRANSITIONS
    assert len(drawn) == len(TRANSITIONS)
