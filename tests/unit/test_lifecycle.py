"""Worker states: what is listed happens, anything else raises and changes nothing."""

import re
from itertools import product

import pytest

from slipway_common.lifecycle import SERVING, TRANSITIONS, IllegalTransition, State, advance, diagram

EVENTS = sorted({event for _, event in TRANSITIONS})


@pytest.mark.parametrize(("state", "event"), list(product(State, EVENTS)))
def test_every_pair(state: State, event: str) -> None:
    """A listed pair leads where the table says; an unlisted one raises and names both."""
    if (state, event) in TRANSITIONS:
        assert advance(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransition, match=f"a {state} worker cannot be {event}"):
            advance(state, event)


def test_every_worker_ends() -> None:
    """From every state a way leads to stopped, and nothing leads out of it."""
    ends = {State.STOPPED}
    for _ in State:
        ends |= {before for (before, _), after in TRANSITIONS.items() if after in ends}
    assert ends == set(State)
    assert not [event for state, event in TRANSITIONS if state is State.STOPPED]


def test_leaving_is_for_good() -> None:
    """A worker that was told to leave never serves again, whatever is heard of it."""
    assert not [pair for pair, after in TRANSITIONS.items() if pair[0] is State.STOPPING and after in SERVING]


def test_facts_about_a_running_call_are_taken_in_every_state_it_can_be_in() -> None:
    """A reply, a refusal or a registration may come late: after a stop was ordered it still has a place."""
    for event in ("launched", "launch_failed", "registered"):
        assert (State.LAUNCHING, event) in TRANSITIONS
        assert (State.STOPPING, event) in TRANSITIONS


def test_diagram_is_the_table() -> None:
    drawn = re.findall(r'^  (\w+) -> (\w+) \[label="(\w+)"\];$', diagram(), re.M)
    assert {(State(a), event): State(b) for a, b, event in drawn} == TRANSITIONS
    assert len(drawn) == len(TRANSITIONS)
