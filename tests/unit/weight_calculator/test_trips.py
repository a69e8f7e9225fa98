"""Trips, recoveries, probe permits and their backoff."""

from itertools import permutations
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.worker import Scope, Stage, WorkerEvent
from slipway_weight_calculator.domain import trips
from slipway_weight_calculator.domain.trips import HEALTHY, Failure
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
