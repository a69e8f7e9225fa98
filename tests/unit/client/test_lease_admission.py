"""Client side of admission: requests to the broker, the end of the wait, unleased starts."""

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_client.leases import admission
from slipway_client.leases.admission import (
    Admission,
    FailOpen,
    GiveUp,
    Request,
    StartUnleased,
    TakePlace,
    Wait,
    next_step,
)
from slipway_client.leases.terms import Waiting

QUEUED = Waiting(position=3, eta_seconds=60.0, retry_after_seconds=12.0)


def begun(**changes: Any) -> Admission:
    given: dict[str, Any] = {"begun_at": 100.0, "max_wait_seconds": 60.0}
    return Admission(**(given | changes))


def queued(state: Admission, *, asked_at: float, wait_seconds: float, now: float) -> Admission:
    return admission.waits(state, QUEUED, asked_at=asked_at, wait_seconds=wait_seconds, now=now)


def unavailable(state: Admission, *, since: float, now: float) -> Admission:
    """Admission after one unanswered request, during its backoff."""
    return admission.unanswered(state, asked_at=since, now=now, chance=0.0)


def test_the_first_request_is_short_and_the_next_waits() -> None:
    """The first answer shows position and ETA at once."""
    state = begun()
    assert next_step(state, 100.0) == Request(0.0)
    state = queued(state, asked_at=100.0, wait_seconds=0.0, now=100.1)
    assert next_step(state, 100.1) == Request(admission.POLL_SECONDS)
    assert next_step(state, 150.0) == Request(10.0)


def test_a_wait_of_zero_makes_one_request() -> None:
    state = begun(max_wait_seconds=0.0)
    assert next_step(state, 100.0) == Request(0.0)
    assert next_step(queued(state, asked_at=100.0, wait_seconds=0.0, now=100.1), 100.1) == GiveUp(unavailable=False)


def test_the_wait_is_a_budget_of_all_requests() -> None:
    state = queued(begun(), asked_at=130.0, wait_seconds=25.0, now=155.0)
    assert next_step(state, 159.0) == Request(1.0)
    assert next_step(state, 160.0) == GiveUp(unavailable=False)


def test_a_broker_that_answers_early_is_not_called_in_a_loop() -> None:
    """Nor so late that the request counts as abandoned: retry_after is for clients that do not wait."""
    state = queued(begun(), asked_at=110.0, wait_seconds=25.0, now=110.1)
    assert next_step(state, 110.2) == Wait(110.1 + admission.EARLY_SECONDS)
    assert next_step(state, 122.1) == Request(25.0)


@pytest.mark.parametrize(
    ("mode", "at_once", "after_its_patience"),
    [
        (FailOpen.PESSIMISTIC, Wait, Request(0.0)),
        (FailOpen.OPTIMISTIC, StartUnleased, StartUnleased()),
        (FailOpen.SAFE, Wait, TakePlace()),
    ],
)
def test_fail_open_modes_while_the_broker_is_unavailable(
    mode: FailOpen, at_once: type, after_its_patience: Any
) -> None:
    """Pessimistic waits for the broker, optimistic starts at once, safe after a while at the known pace."""
    state = unavailable(begun(fail_open=mode), since=100.0, now=100.1)
    assert isinstance(next_step(state, 100.1), at_once)
    assert next_step(state, 110.0) == after_its_patience


def test_pessimistic_gives_up_at_the_end_of_the_wait() -> None:
    state = unavailable(begun(fail_open=FailOpen.PESSIMISTIC), since=100.0, now=159.9)
    assert next_step(state, 160.0) == GiveUp(unavailable=True)


def test_safe_starts_at_its_place_in_the_pace_unless_the_broker_is_back() -> None:
    state = admission.paced(unavailable(begun(), since=100.0, now=110.0), 130.0)
    assert next_step(state, 112.0) == Request(0.0)
    assert next_step(unavailable(state, since=129.9, now=129.9), 130.0) == StartUnleased()
    back = queued(state, asked_at=112.0, wait_seconds=0.0, now=112.1)
    assert next_step(back, 131.0) == Request(admission.POLL_SECONDS)


def test_a_place_beyond_the_wait_is_none() -> None:
    """The same holds for a drained pool, where the pace has no place at all."""
    for start_at in (161.0, inf):
        state = admission.paced(unavailable(begun(), since=100.0, now=110.0), start_at)
        assert next_step(state, 160.0) == GiveUp(unavailable=True)
        assert next_step(state, 170.0) == GiveUp(unavailable=True)


def test_one_answer_ends_the_outage() -> None:
    """The outage is the time since the last answer."""
    state = unavailable(begun(), since=100.0, now=100.1)
    state = queued(state, asked_at=105.0, wait_seconds=0.0, now=105.1)
    state = unavailable(state, since=105.1, now=109.0)
    assert not isinstance(next_step(state, 110.5), TakePlace)
    assert next_step(state, 115.1) == TakePlace()


def test_an_outage_begins_with_the_first_unanswered_request() -> None:
    state = admission.unanswered(begun(), asked_at=100.0, now=130.0, chance=0.5)
    assert state.backoff.since == 100.0
    assert next_step(state, 130.0) == TakePlace()


@given(
    mode=st.sampled_from(FailOpen),
    backoff=st.floats(0.0, 30.0),
    wait=st.floats(0.0, 120.0),
    start_in=st.one_of(st.none(), st.floats(0.0, 300.0), st.just(inf)),
    at=st.floats(0.0, 300.0),
)
def test_no_rest_is_empty_and_none_outlasts_the_wait(
    mode: FailOpen, backoff: float, wait: float, start_in: float | None, at: float
) -> None:
    """The steps neither spin nor sleep past the wait."""
    state = unavailable(
        begun(fail_open=mode, unavailable_seconds=backoff, max_wait_seconds=wait), since=100.0, now=100.0 + at
    )
    if start_in is not None:
        state = admission.paced(state, 100.0 + start_in)
    now = 100.0 + at
    match next_step(state, now):
        case Wait(until):
            assert now < until <= 100.0 + wait
        case Request(wait_seconds):
            assert now + wait_seconds <= 100.0 + wait
        case StartUnleased():
            assert mode is not FailOpen.PESSIMISTIC
