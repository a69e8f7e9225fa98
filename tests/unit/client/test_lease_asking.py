"""What a client does to be admitted: whom it asks how often, when it gives up, when it starts unleased."""

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_client.leases import asking
from slipway_client.leases.asking import Ask, Asking, FailOpen, GiveUp, Pace, Rest, StartUnleased, next_step
from slipway_client.leases.terms import Waiting

QUEUED = Waiting(position=3, eta_seconds=60.0, retry_after_seconds=12.0)


def begun(**changes: Any) -> Asking:
    given: dict[str, Any] = {"begun_at": 100.0, "max_wait_seconds": 60.0}
    return Asking(**(given | changes))


def queued(state: Asking, *, asked_at: float, wait_seconds: float, now: float) -> Asking:
    return asking.waits(state, QUEUED, asked_at=asked_at, wait_seconds=wait_seconds, now=now)


def silent(state: Asking, *, since: float, now: float) -> Asking:
    """After one question that nobody answered, in the middle of its pause."""
    return asking.unheard(state, asked_at=since, now=now, chance=0.0)


def test_the_first_question_is_short_and_the_next_waits() -> None:
    """The first tells place and outlook at once."""
    state = begun()
    assert next_step(state, 100.0) == Ask(0.0)
    state = queued(state, asked_at=100.0, wait_seconds=0.0, now=100.1)
    assert next_step(state, 100.1) == Ask(asking.POLL_SECONDS)
    assert next_step(state, 150.0) == Ask(10.0)


def test_a_wait_of_nothing_asks_once() -> None:
    state = begun(max_wait_seconds=0.0)
    assert next_step(state, 100.0) == Ask(0.0)
    assert next_step(queued(state, asked_at=100.0, wait_seconds=0.0, now=100.1), 100.1) == GiveUp(silent=False)


def test_the_wait_is_a_budget_of_all_questions() -> None:
    state = queued(begun(), asked_at=130.0, wait_seconds=25.0, now=155.0)
    assert next_step(state, 159.0) == Ask(1.0)
    assert next_step(state, 160.0) == GiveUp(silent=False)


def test_a_broker_that_answers_too_soon_is_not_asked_without_end() -> None:
    """Nor so late that it takes us for gone: what it says of coming back is for those who do not wait."""
    state = queued(begun(), asked_at=110.0, wait_seconds=25.0, now=110.1)
    assert next_step(state, 110.2) == Rest(110.1 + asking.EARLY_SECONDS)
    assert next_step(state, 122.1) == Ask(25.0)


@pytest.mark.parametrize(
    ("mode", "at_once", "after_its_patience"),
    [
        (FailOpen.PESSIMISTIC, Rest, Ask(0.0)),
        (FailOpen.OPTIMISTIC, StartUnleased, StartUnleased()),
        (FailOpen.SAFE, Rest, Pace()),
    ],
)
def test_modes_differ_in_what_a_silent_broker_means(mode: FailOpen, at_once: type, after_its_patience: Any) -> None:
    """Pessimistic waits for it, optimistic does without it at once, safe after a while and at the known pace."""
    state = silent(begun(fail_open=mode), since=100.0, now=100.1)
    assert isinstance(next_step(state, 100.1), at_once)
    assert next_step(state, 110.0) == after_its_patience


def test_pessimistic_gives_up_at_the_end_and_says_why() -> None:
    state = silent(begun(fail_open=FailOpen.PESSIMISTIC), since=100.0, now=159.9)
    assert next_step(state, 160.0) == GiveUp(silent=True)


def test_safe_starts_at_its_place_in_the_pace_unless_the_broker_is_back() -> None:
    state = asking.paced(silent(begun(), since=100.0, now=110.0), 130.0)
    assert next_step(state, 112.0) == Ask(0.0)
    assert next_step(silent(state, since=129.9, now=129.9), 130.0) == StartUnleased()
    back = queued(state, asked_at=112.0, wait_seconds=0.0, now=112.1)
    assert next_step(back, 131.0) == Ask(asking.POLL_SECONDS)


def test_a_place_beyond_the_wait_is_none() -> None:
    """Also in a drained pool, where the pace has no place at all."""
    for start_at in (161.0, inf):
        state = asking.paced(silent(begun(), since=100.0, now=110.0), start_at)
        assert next_step(state, 160.0) == GiveUp(silent=True)
        assert next_step(state, 170.0) == GiveUp(silent=True)


def test_one_answer_ends_the_silence() -> None:
    """What counts is how long nobody answers without a break."""
    state = silent(begun(), since=100.0, now=100.1)
    state = queued(state, asked_at=105.0, wait_seconds=0.0, now=105.1)
    state = silent(state, since=105.1, now=109.0)
    assert not isinstance(next_step(state, 110.5), Pace)
    assert next_step(state, 115.1) == Pace()


def test_a_silence_begins_with_the_question_that_was_not_answered() -> None:
    state = asking.unheard(begun(), asked_at=100.0, now=130.0, chance=0.5)
    assert state.silence.since == 100.0
    assert next_step(state, 130.0) == Pace()


@given(
    mode=st.sampled_from(FailOpen),
    silence=st.floats(0.0, 30.0),
    wait=st.floats(0.0, 120.0),
    start_in=st.one_of(st.none(), st.floats(0.0, 300.0), st.just(inf)),
    at=st.floats(0.0, 300.0),
)
def test_no_rest_is_empty_and_none_outlasts_the_wait(
    mode: FailOpen, silence: float, wait: float, start_in: float | None, at: float
) -> None:
    """Whoever performs the steps neither spins nor sleeps past its budget."""
    state = silent(begun(fail_open=mode, silent_seconds=silence, max_wait_seconds=wait), since=100.0, now=100.0 + at)
    if start_in is not None:
        state = asking.paced(state, 100.0 + start_in)
    now = 100.0 + at
    match next_step(state, now):
        case Rest(until):
            assert now < until <= 100.0 + wait
        case Ask(wait_seconds):
            assert now + wait_seconds <= 100.0 + wait
        case StartUnleased():
            assert mode is not FailOpen.PESSIMISTIC
