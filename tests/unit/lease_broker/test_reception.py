"""Laws of deadlines, and of the time in which lease commands could be received."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slipway_lease_broker.domain.endings import apply_deadline
from slipway_lease_broker.domain.ledger import Lease, State
from slipway_lease_broker.domain.reception import (
    DOWNTIME_SECONDS,
    DOWNTIMES_MAX,
    ENDS_MAX,
    Downtime,
    Reading,
    Receiving,
    Reception,
    continued,
    downtime_since,
    set_back,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LINGER = timedelta(seconds=70)
KAFKA_AWAY = Receiving(kafka=None)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def lease(**changes: Any) -> Lease:
    """A lease over Kafka, extended at NOW for 300 s, with a hold of 1,200 s."""
    given: dict[str, Any] = {
        "id": "l",
        "lease_pool_id": "p",
        "request_id": "r",
        "fencing_token": 1,
        "granted_units": 1,
        "units": 1,
        "state": State.CONFIRMED,
        "granted_at": NOW,
        "expires_at": at(300),
        "hold_until": at(1200),
        "extended_at": NOW,
        "over_kafka": True,
    }
    return Lease(**given | changes)


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "read", "answer", "observe", "silence"]), st.integers(0, 5)), max_size=80
)


@given(STEPS)
@example([("append", 1), ("observe", 0), ("answer", 0), ("observe", 0)])  # not read yet
def test_what_was_sent_by_then_is_read(steps: list[tuple[str, int]]) -> None:
    """Every record appended by `received_until` is read, in every order of answers, reads and observations."""
    now, log, position = 0.0, list[float](), 0
    polled, end = 0, 0
    reading = Reading(now, polled)
    for step, number in steps:
        now += 1
        if step == "append":
            log += [now] * number
        elif step == "read":
            position = min(end, position + number)  # only what an answer had
        elif step == "answer":
            polled, end = polled + 1, len(log)
        elif step == "observe":
            reading.observe(now, polled, end, position)
        if reading.received_until is not None:
            assert all(place < position for place, sent_at in enumerate(log) if sent_at <= reading.received_until)


def test_a_reader_that_keeps_up_receives() -> None:
    """Also one that never is at the end of the log when it is looked at."""
    reading, position = Reading(0.0, 0), 0
    for tick in range(1, 20):
        reading.observe(float(tick), tick, 100 * tick, position)
        position = 100 * tick - 1  # one record was appended since
        if tick > 2:
            assert reading.received_until is not None
            assert tick - reading.received_until <= 3


def test_a_reader_without_answers_receives_nothing() -> None:
    reading = Reading(0.0, 7)
    for tick in range(1, 5):
        reading.observe(float(tick), 7, 10, 10)
    assert reading.received_until is None
    reading.observe(5.0, 8, 10, 10)
    assert reading.received_until == 4.0


def test_a_reader_that_never_keeps_up_remembers_so_many_ends() -> None:
    """Of the log, the newest: what it reads of those before is received once it has read one of them."""
    reading = Reading(0.0, 0)
    for tick in range(1, ENDS_MAX + 2):
        reading.observe(float(tick), tick, tick, 0)
    reading.observe(99.0, 0, 99, 1)
    assert reading.received_until is None
    reading.observe(99.5, 0, 99, 3)
    assert reading.received_until == 2.0


TIMES = st.lists(st.integers(1, 400), min_size=1, max_size=200)


@given(TIMES)
def test_a_deadline_counts_only_time_without_downtimes(gaps: list[int]) -> None:
    """A lease ends after 300 s in which its commands could be received; interruptions of up to 5 s count."""
    reception, held, now, counted = continued(None, NOW), lease(hold_until=at(1e6)), 0, 0
    for gap in gaps:
        now += gap
        counted += gap if gap <= DOWNTIME_SECONDS else 0
        reception = continued(reception, at(now))
        then = apply_deadline(held, at(now), LINGER, Receiving(kafka=reception.downtimes))
        if not then.live:
            assert counted >= 300
            return
        held = then
    assert counted < 300


@given(st.floats(0, 2000), st.booleans())
def test_nothing_that_a_command_could_move_passes_in_a_downtime(seconds: float, over_kafka: bool) -> None:
    held = lease(over_kafka=over_kafka, hold_until=at(1e6))
    receiving = Receiving(kafka=None if over_kafka else (), http=() if over_kafka else None)
    assert apply_deadline(held, at(seconds), LINGER, receiving) is held


def test_what_no_command_moves_passes_in_a_downtime() -> None:
    """The end of the hold, and of a lost lease."""
    held = lease(expires_at=at(1200))
    assert apply_deadline(held, at(1200), LINGER, KAFKA_AWAY).state is State.RELEASED
    lost = lease(state=State.LOST, counted_until=at(370))
    assert apply_deadline(lost, at(370), LINGER, KAFKA_AWAY).ended_at == at(370)


def test_a_lease_held_over_http_ends_while_kafka_is_away() -> None:
    assert apply_deadline(lease(over_kafka=False), at(300), LINGER, KAFKA_AWAY).state is State.LOST


def test_a_postponed_lease_ends_with_its_hold() -> None:
    receiving = Receiving(kafka=[Downtime(at(10), at(5000))])
    then = apply_deadline(lease(), at(5000), LINGER, receiving)
    assert (then.state, then.reason) == (State.RELEASED, "hold")


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(5.1, 100)), max_size=2 * DOWNTIMES_MAX), st.floats(0, 1e4))
@example([(0.0, 10.0)] * (DOWNTIMES_MAX + 5), 0.0)
def test_merged_downtimes_give_more_time(times: list[tuple[float, float]], since: float) -> None:
    """Downtimes are bounded in number, and those that are merged count as longer, never as shorter."""
    reception, now, true = Reception(NOW), 0.0, list[Downtime]()
    for seconds, gap in times:
        for _ in range(int(seconds / DOWNTIME_SECONDS) + 1):
            now += min(seconds, DOWNTIME_SECONDS)
            reception = continued(reception, at(now))
        true.append(Downtime(reception.received_until, at(now + gap)))
        now += gap
        reception = continued(reception, at(now))
    assert len(reception.downtimes) <= DOWNTIMES_MAX
    assert downtime_since(reception.downtimes, at(since)) >= downtime_since(true, at(since))


@pytest.mark.parametrize("seconds", [-3600.0, 0.0])
def test_a_clock_that_goes_back_moves_nothing(seconds: float) -> None:
    reception = Reception(NOW, (Downtime(at(-20), at(-10)),))
    assert continued(reception, at(seconds)) is reception


@pytest.mark.parametrize(
    ("received", "kept"),
    [
        (0, [(-20, -10)]),  # not of the future
        (0.001, [(-20, -12)]),
        (600, [(-20, -12)]),
    ],
)
def test_a_clock_that_was_set_back(received: float, kept: list[tuple[float, float]]) -> None:
    """Nothing was received in the future: downtimes end with what was received, and those of the future are gone."""
    before = Reception(at(received), (Downtime(at(-20), at(-10)),))
    if received > 0:
        before = Reception(before.received_until, (*before.downtimes, Downtime(at(-12), at(5)), Downtime(at(1), at(9))))
    after = set_back(before, at(-12), NOW)
    assert after.downtimes == tuple(Downtime(at(began), at(ended)) for began, ended in kept)
    assert after is before if received == 0 else after.received_until == at(-12)


def test_commands_of_both_ways_in() -> None:
    ways = {(kafka, http): Receiving(kafka=kafka, http=http) for kafka in (None, ()) for http in (None, ())}
    assert {way: (each.both, each.either) for way, each in ways.items()} == {
        (None, None): (False, False),
        (None, ()): (False, True),
        ((), None): (False, True),
        ((), ()): (True, True),
    }
