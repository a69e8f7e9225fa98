"""Timeout of calls to a service that is slow."""

from hypothesis import given
from hypothesis import strategies as st

from slipway_client.transport.patience import LEAST_SECONDS, MOST_SECONDS, Patience, answered, timed_out


def test_a_service_that_was_never_slow_has_five_seconds() -> None:
    assert Patience().seconds == LEAST_SECONDS
    assert answered(Patience(), 0.02).seconds == LEAST_SECONDS


def test_a_service_that_answers_after_eight_seconds_is_slow() -> None:
    """The second call waits for the answer; all later ones have room to spare, until it has recovered."""
    patience = timed_out(Patience(), Patience().seconds)
    assert patience.seconds == 10.0
    patience = answered(patience, 8.0)
    assert patience.seconds == 24.0
    for _ in range(10):
        patience = answered(patience, 0.02)
    assert patience.seconds == LEAST_SECONDS


@given(st.floats(0.0, MOST_SECONDS), st.floats(0.01, 10.0))
def test_a_slow_service_is_found_within_twice_its_time(takes_seconds: float, least_seconds: float) -> None:
    """Timeouts before the first answer double, so that they add up to less than twice the last one."""
    patience, waited_seconds = Patience(least_seconds=least_seconds), 0.0
    while (seconds := patience.seconds) < takes_seconds:
        waited_seconds += seconds
        patience = timed_out(patience, seconds)
    assert waited_seconds <= 2 * takes_seconds
    assert answered(patience, takes_seconds).seconds >= min(3 * takes_seconds, MOST_SECONDS)


@given(st.lists(st.tuples(st.floats(0.0, 1_000.0), st.booleans())))
def test_no_timeout_is_without_bounds(calls: list[tuple[float, bool]]) -> None:
    """Nor does a call that was cut short make the next timeout shorter."""
    patience = Patience()
    for seconds, in_time in calls:
        before = patience
        patience = answered(patience, seconds) if in_time else timed_out(patience, seconds)
        assert LEAST_SECONDS <= patience.seconds <= MOST_SECONDS
        assert in_time or patience.seconds >= before.seconds
