"""Client side of admission: requests to the broker, the end of the wait, unleased starts."""

from math import inf
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slipway_api.http.lease_broker import QueuedRequest
from slipway_client.leases import admission
from slipway_client.leases.admission import (
    FIRST_ANSWER_SECONDS,
    SPREAD_SECONDS,
    Admission,
    Cause,
    FailOpen,
    GiveUp,
    Request,
    StartUnleased,
    TakePlace,
    Wait,
    next_step,
)


def waiting(**fields: Any) -> QueuedRequest:
    usual = {"eta_seconds": None, "retry_after_seconds": 1.0, "reason": "", "cause": "full", "held_until": None}
    return QueuedRequest(request_id="r", **usual | fields)


QUEUED = waiting(position=3, eta_seconds=60.0, retry_after_seconds=12.0)


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


@pytest.mark.parametrize("mode", FailOpen)
def test_a_busy_broker_is_available(mode: FailOpen) -> None:
    """The answer 429 is no outage, in which a caller would start without a lease: it asks again after the time that it
    names and up to half as long again, until its wait is over."""
    state = begun(fail_open=mode, unavailable_seconds=5.0, chance=0.5)
    state = unavailable(state, since=100.0, now=101.0)
    for now in range(102, 122, 4):
        state = admission.limited(state, 3.0, now=float(now), chance=0.5)
        assert next_step(state, float(now)) == Wait(now + 3.75)
        assert isinstance(next_step(state, now + 3.75), Request)
    if mode is not FailOpen.ALWAYS:
        assert next_step(state, 160.0) == GiveUp(unavailable=False)


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
    """The steps neither spin nor sleep past the wait, or the start."""
    state = unavailable(
        begun(fail_open=mode, unavailable_seconds=backoff, max_wait_seconds=wait), since=100.0, now=100.0 + at
    )
    if start_in is not None:
        state = admission.paced(state, 100.0 + start_in)
    now = 100.0 + at
    until = admission.decided_at(state)
    assert until <= 100.0 + wait or (mode is FailOpen.ALWAYS and wait <= 2 * FIRST_ANSWER_SECONDS)
    match next_step(state, now):
        case Wait(wake_at):
            assert now < wake_at <= until
        case Request(wait_seconds):
            assert now + wait_seconds <= until
        case StartUnleased():
            assert mode is not FailOpen.PESSIMISTIC
        case GiveUp():
            assert mode is not FailOpen.ALWAYS


# Mode `always`: the instant of a start by its cause

SEEN = {
    Cause.UNAVAILABLE: lambda state, at: admission.unanswered(state, asked_at=at, now=at, chance=0.5),
    Cause.FULL: lambda state, at: waits(state, "full", at),
    Cause.PAUSED: lambda state, at: waits(state, "drained", at),
    Cause.REFUSED: lambda state, at: admission.refused(state, at),
}


def waits(state: Admission, code: str, at: float) -> Admission:
    return admission.waits(state, waiting(position=1, cause=code), asked_at=at, wait_seconds=0.0, now=at)


def always(wait: float, chance: float) -> Admission:
    return begun(fail_open=FailOpen.ALWAYS, max_wait_seconds=wait, chance=chance, unavailable_seconds=1e9)


def instants(wait: float, seen: list[tuple[float, Cause]], callers: int) -> list[tuple[Cause, float]]:
    """Cause and instant of the start of callers that are all told the same, at these times after they began."""
    found = []
    for number in range(callers):
        state = always(wait, number / callers)
        for at, cause in sorted(seen, key=lambda one: one[0]):
            if admission.starts_at(state) > 100.0 + at and state.cause is not Cause.REFUSED:
                state = SEEN[cause](state, 100.0 + at)
        found.append((state.cause, admission.starts_at(state) - 100.0))
    return found


@pytest.mark.parametrize(
    ("wait", "told", "between"),
    [
        (600.0, Cause.UNAVAILABLE, (300.0, 600.0)),
        (600.0, Cause.FULL, (300.0, 600.0)),
        (600.0, Cause.PAUSED, (600.0, 660.0)),
        (60.0, Cause.PAUSED, (60.0, 90.0)),
        (600.0, Cause.REFUSED, (0.5, 30.5)),
        (0.0, Cause.FULL, (0.5, 31.0)),
        (2.0, Cause.UNAVAILABLE, (1.0, 2.0)),
    ],
)
def test_each_cause_has_its_span(wait: float, told: Cause, between: tuple[float, float]) -> None:
    """A third of the callers starts in each third of it. After a wait of 0 they still spread over half a minute."""
    starts = [at for _, at in instants(wait, [(0.5, told)], 300)]
    begin, end = between
    assert all(begin <= at <= end for at in starts)
    thirds = [sum(number <= 3 * (at - begin) / (end - begin) < number + 1 for at in starts) for number in range(3)]
    assert all(90 <= count <= 110 for count in thirds)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        *((code, Cause.PAUSED) for code in ("drained", "limit-zero", "backoff", "blocked", "restored")),
        *((code, Cause.FULL) for code in ("full", "paced", "spread", "gang", "too-many-units", "of-the-future", None)),
    ],
)
def test_what_the_broker_says_of_a_waiting_request(code: str, cause: Cause) -> None:
    assert waits(always(60.0, 0.5), code, 101.0).cause is cause


def test_always_takes_the_safe_slot_if_it_fits() -> None:
    """Also before the second half of the wait; one that does not fit leaves the instant that was drawn."""
    state = unavailable(begun(fail_open=FailOpen.ALWAYS, chance=0.5), since=100.0, now=100.1)
    assert next_step(state, 110.0) == TakePlace()
    assert next_step(admission.paced(state, 115.0), 115.0) == StartUnleased()
    for slot in (161.0, inf):
        late = admission.paced(state, slot)
        assert (admission.starts_at(late), next_step(late, 145.0)) == (145.0, StartUnleased())


def test_always_takes_no_slot_of_a_drained_pool() -> None:
    """A pool that was paused when its broker was last heard still is."""
    state = unavailable(waits(begun(fail_open=FailOpen.ALWAYS), "drained", 100.1), since=101.0, now=101.0)
    assert not isinstance(next_step(state, 140.0), TakePlace)
    assert admission.starts_at(state) == 160.0


def test_a_refusal_ends_the_requests() -> None:
    state = admission.refused(always(600.0, 0.5), 101.0)
    assert next_step(state, 101.0) == Wait(116.0)
    assert next_step(state, 116.0) == StartUnleased()


def test_a_wrong_address_is_asked_until_the_start() -> None:
    """It may be mended; where a lease-broker has answered before, the address is right, and the outage another one."""
    lost: dict[str, Any] = {"asked_at": 101.0, "now": 101.0, "chance": 0.0, "misdirected": True}
    state = admission.unanswered(always(600.0, 0.5), **lost)
    assert (state.cause, admission.starts_at(state)) == (Cause.REFUSED, 116.0)
    assert next_step(state, 110.0) == Request(0.0)
    assert admission.unanswered(waits(always(600.0, 0.5), "full", 100.1), **lost).cause is Cause.FULL


def test_a_full_pool_is_asked_until_the_start() -> None:
    """The place in the queue is kept, and no long poll outlasts the instant."""
    state = waits(always(100.0, 0.5), "full", 100.1)
    assert admission.starts_at(state) == 175.0
    assert next_step(state, 100.1) == Request(admission.POLL_SECONDS)
    assert next_step(state, 170.0) == Request(5.0)


@given(
    wait=st.floats(0.0, 3600.0),
    seen=st.lists(st.tuples(st.floats(0.0, 4000.0), st.sampled_from(Cause)), max_size=6),
)
@example(wait=0.25, seen=[(0.0, Cause.FULL)])
@example(wait=100.0, seen=[(0.1, Cause.PAUSED), (99.0, Cause.FULL)])
@example(wait=100.0, seen=[(0.1, Cause.PAUSED), (70.0, Cause.FULL), (71.0, Cause.PAUSED), (72.0, Cause.FULL)])
def test_callers_that_are_told_the_same_never_start_together(wait: float, seen: list[tuple[float, Cause]]) -> None:
    """All start, by any history of causes, and never more at once than in the narrowest span of a cause."""
    callers = 100
    starts = sorted(at for _, at in instants(wait, seen, callers))
    narrowest = min(SPREAD_SECONDS, max(wait / 4, FIRST_ANSWER_SECONDS / 2))
    longest = max([wait, *(at for at, _ in seen)]) + 2 * max(SPREAD_SECONDS, wait / 10)
    assert starts[-1] <= longest
    per_window = callers / 10
    for first, at in enumerate(starts):
        together = sum(other <= at + narrowest / 10 for other in starts[first:])
        assert together <= 2 * per_window + 3
