"""Trips, recoveries, probe permits and their backoff."""

from itertools import permutations
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.worker import Scope, Stage, WorkerEvent
from slipway_weight_calculator.domain import trips
from slipway_weight_calculator.domain.trips import HEALTHY, Failure, Probe, Trip
from tests.support.worlds import (
    CAPACITY,
    IMAGE,
    POLICY,
    T0,
    A,
    Story,
    config,
    fails,
    known_boots,
    launched,
    refused,
    stopping,
)

C_, Q, X, M, K = Scope.CAPACITY, Scope.QUOTA, Scope.CONFIG, Scope.IMAGE, Scope.CREDENTIAL
L, N, U = Scope.LIMITER, Scope.NOTHING, Scope.UNKNOWN
#        failures in a row, or None for a success   trips after the last, and not before
TRIPS: Final[list[tuple[list[Scope | None], bool]]] = [
    ([C_], False),
    ([C_, C_], True),
    ([Q, Q], True),
    ([K, K], True),
    ([Q, C_], False),  # one of the quota, one of the capacity
    ([C_, None, C_], False),
    ([C_, None, C_, C_], True),
    ([X, X, X, X], False),
    ([X, X, X, X, X], True),
    ([X, C_, X, C_], True),  # the second definite one, whatever the config has
    ([X, X, C_, X, X], False),  # the capacity has one, the config four
    ([M, M, M, M, M], True),
    ([M, M, X, M, M], False),  # the image has four, the config one
    ([X, X, X, X, None, X], False),
    ([L, L, L, L, L, L, L], False),
    ([N, U, N, U, N, U], False),
    ([C_, L, N, U, C_], True),  # these do not end a row either
]


@pytest.mark.parametrize(("scopes", "is_tripped"), TRIPS)
def test_trip(scopes: list[Scope | None], is_tripped: bool) -> None:
    """Two definite refusals in a row, or any five that are charged to the same row."""
    story = Story(A)
    for n, scope in enumerate(scopes):
        assert story.record("a", n).state == "healthy"
        story.fold(n, refused(A, scope, f"w-{n}") if scope else launched(A, f"w-{n}"))
    assert (story.record("a", 99).state != "healthy") is is_tripped


def test_unclassified_capacity_is_not_definite() -> None:
    """An unclassified failure may have any cause, so five are needed instead of two."""
    story = Story(A)
    for n in range(5):
        assert story.record("a", n).state == "healthy"
        story.fold(n, refused(A, Scope.CAPACITY, f"w-{n}", classified=False))
    assert story.trip(CAPACITY).tripped


@pytest.mark.parametrize("stage", [Stage.BOOT, Stage.CLAIM])
def test_five_boots_or_claims_trip_the_config_and_the_image(stage: Stage) -> None:
    story = Story(A, config("o", pool="other", account="sim-b"))
    for n in range(5):
        assert story.record("o", n).state == "healthy"
        story.fold(n, stopping(A, fails(Scope.IMAGE, stage), f"w-{n}"))
    assert story.trip("a", stage.value).tripped
    assert story.record("o", 9).tripped_by == IMAGE.kind
    assert story.record("o", 9).tripped_stage == stage.value


def test_late_boots_trip_too() -> None:
    """Late boots count before their registration timeout, however long it is."""
    story = Story(A)
    story.fold(-1000, *known_boots(A))
    story.fold(0, *(launched(A, f"w-{n}") for n in range(5)))
    story.advance_to(149)
    assert story.record("a", 149).state == "healthy"
    story.advance_to(150)
    assert (story.record("a", 150).state, story.record("a", 150).tripped_stage) == ("tripped", "boot")


def test_row_is_counted_in_event_time() -> None:
    """A success between two failures ends the row, even if it arrives first or last but one."""
    events: list[tuple[float, WorkerEvent]] = [(5, refused(A)), (6, launched(A, "v")), (7, refused(A))]
    for order in permutations(events):
        if order[2][0] != 6:  # otherwise it trips before the success is known
            story = Story(A)
            for at, event in order:
                story.fold(at, event)
            assert not story.trip(CAPACITY).tripped


def test_failures_beside_a_success_of_the_same_instant_count() -> None:
    """One call for eight, five launched, three refused: capacity is exhausted, in whatever order the events arrive."""
    for order in permutations([launched(A, "v"), refused(A, worker_id="x"), refused(A, worker_id="y")]):
        story = Story(A)
        story.fold(1, *order)
        assert story.trip(CAPACITY).tripped


def test_failures_while_tripped_do_not_compound() -> None:
    """Failures of starts in flight at the trip are only counted, for the decision to freeze a pool."""
    story = Story(A)
    story.trip_config(A)
    before = story.trip(CAPACITY)
    story.fold(1, *(refused(A, worker_id=f"w-{n}") for n in range(8)))
    assert story.trip(CAPACITY) == msgspec.structs.replace(before, unconfirmed=10)


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from([C_, X, M]), st.booleans()), max_size=9))
def test_order_of_failures_is_irrelevant_until_the_trip(outcomes: list[tuple[int, Scope, bool]]) -> None:
    failures = [Failure(T0 + at, scope, "", sure, f"w-{n}") for n, (at, scope, sure) in enumerate(outcomes)]
    seen = []
    for order in (failures, sorted(failures), failures[::-1]):
        trip = HEALTHY
        for failure in order:
            trip = trips.failed(trip, failure, 99, "a", msgspec.structs.replace(POLICY, trip_capacity=99))
        seen.append(trip)
    assert seen[0] == seen[1] == seen[2]


DOWN: Final = Trip(tripped_at=T0, next_probe_at=T0 + 600, backoff_seconds=POLICY.probe_max_seconds)
#        the last probe, the time from which on another may come, the next one
FORWARD: Final = [
    (None, 5, 5),
    (90, 95, 105),
    (90, 105, 105),
    (90, 200, 200),
    (90, 600, 600),
    (590, 591, 600),
]


@pytest.mark.parametrize(("last", "at", "due"), FORWARD)
def test_a_probe_comes_sooner_but_not_within_the_initial_delay_of_the_last(
    last: float | None, at: float, due: float
) -> None:
    trip = msgspec.structs.replace(DOWN, probe_at=0.0 if last is None else T0 + last)
    sooner = trips.brought_forward(trip, T0 + at, POLICY)
    assert sooner == msgspec.structs.replace(trip, next_probe_at=T0 + due)
    assert (sooner is trip) is (due == 600), "nothing is stored that has not changed"


def test_a_trip_has_a_probe_or_the_time_of_the_next_one() -> None:
    probed = trips.issued(DOWN, Probe("a", 1), T0 + 5)
    assert probed == msgspec.structs.replace(DOWN, probe=Probe("a", 1), probe_at=T0 + 5, next_probe_at=0.0)
    assert trips.released(probed, T0 + 9) == msgspec.structs.replace(probed, probe=None, next_probe_at=T0 + 9)


def test_what_is_healthy_or_probed_is_not_probed_sooner() -> None:
    for trip in (HEALTHY, trips.issued(DOWN, Probe("a", 1), T0 + 1)):
        assert trips.brought_forward(trip, T0 + 5, POLICY) == trip
        assert trips.brought_forward_by_signal(trip, T0 + 5, POLICY) == trip


def test_a_repeated_signal_saves_at_most_half_the_delay() -> None:
    """The first one causes a probe at once; without signals a failed probe says nothing about them."""
    first = trips.brought_forward_by_signal(DOWN, T0 + 5, POLICY)
    assert (first.next_probe_at, first.signal_probe_at) == (T0 + 5, T0 + 5)
    failed = trips.probe_failed(trips.issued(first, Probe("a", 1), T0 + 5), "capacity", T0 + 6, POLICY)
    again = trips.brought_forward_by_signal(failed, T0 + 7, POLICY)
    assert (again.next_probe_at, again.signal_probe_at) == (T0 + 306, T0 + 306)
    later = trips.brought_forward_by_signal(failed, T0 + 320, POLICY)
    assert (later.next_probe_at, later.signal_probe_at) == (T0 + 320, T0 + 320)
    unasked = trips.probe_failed(trips.issued(DOWN, Probe("a", 1), T0 + 5), "capacity", T0 + 6, POLICY)
    assert (unasked.signal_probe_at, unasked.failed_probes, unasked.probe_code) == (0.0, 1, "capacity")
    assert trips.brought_forward_by_signal(DOWN, T0 + 600, POLICY) is DOWN, "it saved nothing"


def test_configs_that_got_no_answer_do_not_probe_again_at_once() -> None:
    """The delays of different probes differ, answered or not."""
    for ended in (trips.unanswered, lambda trip, at, policy: trips.probe_failed(trip, "capacity", at, policy)):
        probes = [Probe("a", 1), Probe("a", 2), Probe("b", 1)]
        after = [ended(trips.issued(DOWN, probe, T0 + 5), T0 + 6, POLICY) for probe in probes]
        assert len({trip.next_probe_at for trip in after}) == len(probes)


LATE: Final = Failure(T0, M, "boot_timeout", True, "w-0", late=True)
SURE: Final = Failure(T0 + 1, C_, "capacity", True, "w-1")
VAGUE: Final = Failure(T0 + 2, X, "unknown", False, "w-2")


#        failures that caused a trip, late starts, threshold, unfounded
FOUNDED: Final = [
    ((LATE, VAGUE), 2, 3, True),
    ((LATE, VAGUE), 3, 3, False),  # as many starts are late
    ((LATE, VAGUE, VAGUE), 0, 3, False),
    ((VAGUE, SURE), 0, 5, False),  # one definite refusal may have been enough
]


@pytest.mark.parametrize(("run", "late", "threshold", "unfounded"), FOUNDED)
def test_a_trip_whose_failures_were_withdrawn_is_unfounded(
    run: tuple[Failure, ...], late: int, threshold: int, unfounded: bool
) -> None:
    trip = msgspec.structs.replace(DOWN, run=run)
    assert trips.unfounded(trip, late, threshold) is unfounded
    assert not trips.unfounded(msgspec.structs.replace(trip, tripped_at=0.0), late, threshold)
    assert trips.actual_failures(trip) == sum(not failure.late for failure in run)


def test_a_success_ends_the_failures_before_it() -> None:
    """The failures that caused a trip are kept, but count no more."""
    run = (LATE, SURE, VAGUE)
    assert trips.succeeded(Trip(run=run, unconfirmed=3), T0 + 1) == Trip(run=run[1:], unconfirmed=2)
    down = msgspec.structs.replace(DOWN, run=run, unconfirmed=3)
    assert trips.succeeded(down, T0 + 9) == msgspec.structs.replace(down, unconfirmed=0)


def test_a_trip_begins_with_the_delay_that_is_left_of_the_last_one() -> None:
    """Of a failure from before the last probe all of it; two rows that trip together are not probed together."""
    before = Trip(backoff_seconds=240.0, probe_at=T0 + 100)
    earlier = trips.started(before, T0, "a", POLICY)
    assert (earlier.tripped_at, earlier.backoff_seconds) == (T0, 240.0)
    later = trips.started(before, T0 + 100 + POLICY.relapse_seconds, "a", POLICY)
    assert later.backoff_seconds == 120.0


def test_rows_that_trip_together_are_probed_one_after_another() -> None:
    """Here at the first refusal after a recovery, unless successes have proven the row since."""
    before = Trip(recovered_at=T0 - 9)
    assert not trips.failed(before, SURE, 5, "a", POLICY).tripped
    first, other = (trips.failed(before, SURE, 5, seed, POLICY, proven=False) for seed in "ab")
    assert first.tripped_at == other.tripped_at == SURE.at
    assert first.next_probe_at != other.next_probe_at


def test_a_late_start_that_ends_well_takes_its_failure_with_it() -> None:
    """And nothing else: neither those of others, nor one that was no lateness."""
    run = (LATE, msgspec.structs.replace(LATE, worker_id="w-9"), SURE)
    counting = Trip(run=run, unconfirmed=3)
    assert trips.withdrawn(counting, "w-0") == Trip(run=run[1:], unconfirmed=2)
    assert trips.withdrawn(counting, "w-1") == counting
    down = msgspec.structs.replace(DOWN, run=run, unconfirmed=1)
    assert trips.withdrawn(down, "w-0") == msgspec.structs.replace(down, run=run[1:], unconfirmed=0)
    assert trips.withdrawn(trips.withdrawn(down, "w-0"), "w-9").unconfirmed == 0
    assert trips.withdrawn(msgspec.structs.replace(down, unconfirmed=3), "w-0").unconfirmed == 2


def test_a_late_start_that_fails_keeps_its_place() -> None:
    """The failure that is certain replaces the one that was assumed, at the time of that."""
    failure = Failure(T0 + 50, X, "crashed", True, "w-0")
    trip = trips.confirmed(Trip(run=(LATE, SURE), unconfirmed=2), failure)
    assert trip == Trip(run=(msgspec.structs.replace(failure, at=T0), SURE), unconfirmed=2)
    assert trips.confirmed(trip, msgspec.structs.replace(failure, code="again")) == trip
