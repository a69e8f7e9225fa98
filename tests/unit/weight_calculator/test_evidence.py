"""Decay, cap, late events and blame: what one outcome moves."""

from datetime import UTC, datetime, timedelta
from itertools import permutations
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_common.events.worker import Outcome, Result, Scope, Stage
from slipway_weight_calculator.domain.evidence import Evidence, decayed, fold, probability
from slipway_weight_calculator.domain.policy import Policy

T0 = datetime(2030, 1, 1, tzinfo=UTC)
POLICY = Policy()
OK = Outcome(Stage.LAUNCH, Result.OK)
FAILED = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, code="InsufficientCapacity")

outcomes = st.sampled_from([OK, FAILED])
instants = st.integers(0, 3600).map(lambda seconds: T0 + timedelta(seconds=seconds))
histories = st.lists(st.tuples(outcomes, instants), max_size=40)


def folded(history: list[tuple[Outcome, datetime]], start: Evidence | None = None) -> Evidence:
    evidence = start or Evidence()
    for outcome, at in history:
        evidence = fold(evidence, outcome, at=at, policy=POLICY)
    return evidence


def test_one_half_life_halves() -> None:
    """Ten minutes later a failure weighs half of a new one."""
    evidence = folded([(FAILED, T0), (OK, T0 + timedelta(seconds=600))])
    assert evidence == Evidence(1.0, 0.5, T0 + timedelta(seconds=600), failures_folded=1)


def test_late_event_weighs_what_it_would_by_now() -> None:
    """An event of ten minutes ago adds half, and what is newer keeps its mass and time."""
    evidence = folded([(OK, T0 + timedelta(seconds=600)), (FAILED, T0)])
    assert evidence == Evidence(1.0, 0.5, T0 + timedelta(seconds=600), failures_folded=1)


def test_about_eight_outcomes_outweigh_any_past() -> None:
    """The cap forgets by count: N·ln 2 failures halve the successes of a config however many there were."""
    start = folded([(OK, T0)] * 1000)
    assert start.successes == pytest.approx(12)
    assert folded([(FAILED, T0)] * 8, start).successes == pytest.approx(12 / 2, rel=0.01)


#        scope              moves the masses
BLAME = [
    (Scope.CONFIG, True),
    (Scope.CAPACITY, True),
    (Scope.QUOTA, True),
    (Scope.IMAGE, True),
    (Scope.CREDENTIAL, True),
    (Scope.LIMITER, False),
    (Scope.NOTHING, False),
    (Scope.UNKNOWN, False),
]


@pytest.mark.parametrize(("scope", "moves"), BLAME)
def test_every_failure_is_counted_and_only_the_config_s_own_are_held_against_it(scope: Scope, moves: bool) -> None:
    """A throttle or a failure without a scope moves no mass, yet its number frees its place in the window."""
    evidence = folded([(Outcome(Stage.LAUNCH, Result.FAILED, scope), T0)])
    assert evidence.failures_folded == 1
    assert (evidence.failures > 0) is moves


def test_blame_table_is_complete() -> None:
    assert {scope for scope, _ in BLAME} == set(Scope)


def test_unknown_result_moves_nothing() -> None:
    """A word of a newer sender is neither a success nor a failure."""
    assert folded([(Outcome(Stage.LAUNCH, Result.UNKNOWN, Scope.CONFIG), T0)]) == Evidence()


@given(histories)
def test_mass_stays_within_the_cap(history: list[tuple[Outcome, datetime]]) -> None:
    evidence = folded(history)
    assert 0 <= evidence.successes + evidence.failures <= POLICY.mass_cap + 1e-9
    assert 0 < probability(evidence, POLICY) < 1


@given(histories, instants)
def test_a_success_never_lowers_and_a_failure_never_lifts(
    history: list[tuple[Outcome, datetime]], at: datetime
) -> None:
    """Compared at one instant, so that the passing of time itself is left out."""
    evidence = folded(history)
    before = probability(decayed(evidence, at, POLICY), POLICY)
    assert probability(folded([(OK, at)], evidence), POLICY) >= before - 1e-12
    assert probability(folded([(FAILED, at)], evidence), POLICY) <= before + 1e-12


@given(histories, st.data())
def test_monotone_in_every_past_outcome(history: list[tuple[Outcome, datetime]], data: st.DataObject) -> None:
    """Had one of the past failures been a success, the probability would be no lower."""
    failures = [index for index, (outcome, _) in enumerate(history) if outcome is FAILED]
    if not failures:
        return
    turned = data.draw(st.sampled_from(failures))
    better = [(OK if index == turned else outcome, at) for index, (outcome, at) in enumerate(history)]
    assert probability(folded(better), POLICY) >= probability(folded(history), POLICY) - 1e-12


@given(st.lists(st.tuples(outcomes, instants), max_size=11), st.randoms(use_true_random=False))
def test_order_of_arrival_is_irrelevant_below_the_cap(history: list[tuple[Outcome, datetime]], chance: Random) -> None:
    """Workers' events reach us over different partitions, in any order."""
    shuffled = chance.sample(history, len(history))
    one, other = folded(history), folded(shuffled)
    assert (one.at, one.failures_folded) == (other.at, other.failures_folded)
    assert one.successes == pytest.approx(other.successes, abs=1e-7)
    assert one.failures == pytest.approx(other.failures, abs=1e-7)


def test_order_of_equal_outcomes_is_irrelevant_at_the_cap() -> None:
    """At the cap the newest outcomes count most, so only equal ones commute; the mass is the same in every order."""
    start = folded([(OK, T0)] * 50)
    masses = {
        round(evidence.successes + evidence.failures, 9)
        for order in permutations([OK, FAILED, FAILED])
        if (evidence := folded([(outcome, T0) for outcome in order], start))
    }
    assert masses == {12.0}


@given(histories, st.integers(0, 10**9))
def test_time_forgets_and_never_adds(history: list[tuple[Outcome, datetime]], seconds: int) -> None:
    evidence = folded(history)
    later = decayed(evidence, T0 + timedelta(seconds=seconds), POLICY)
    assert later.successes <= evidence.successes
    assert later.failures <= evidence.failures
    assert later.failures_folded == evidence.failures_folded


def test_state_survives_its_storage() -> None:
    """Masses come back bit for bit, or a replay would differ."""
    evidence = folded([(OK, T0 + timedelta(seconds=n * 7.3)) for n in range(30)] + [(FAILED, T0)])
    assert msgspec.json.decode(msgspec.json.encode(evidence), type=Evidence) == evidence
