"""Trips, permits, backoff and the pool-wide probe."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise, permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_common.events.worker import (
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerDelayed,
    WorkerEvent,
    WorkerLaunched,
    WorkerLaunchFailed,
    WorkerLost,
    WorkerRegistered,
    WorkerStopped,
    WorkerStopping,
)
from slipway_weight_calculator.domain.gates import Gate, advance, fold, pull_forward
from slipway_weight_calculator.domain.health import Health
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.waiting import pass_time

T0 = datetime(2030, 1, 1, tzinfo=UTC)
POLICY = Policy()
IDS: dict[str, Any] = {
    "pool_id": "linux",
    "account_id": "sim-a",
    "image_revision": "linux-1",
    "launch_config_id": "zone-b",
}


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def ok(permit: int | None = None) -> WorkerEvent:
    outcome = Outcome(Stage.LAUNCH, Result.OK)
    return WorkerLaunched(worker_id="w", instance_id="i", batch_id="b", probe_permit=permit, outcome=outcome, **IDS)


def failed(scope: Scope = Scope.CAPACITY, permit: int | None = None, *, classified: bool = True) -> WorkerEvent:
    outcome = Outcome(Stage.LAUNCH, Result.FAILED, scope, code=scope.value, classified=classified)
    return WorkerLaunchFailed(worker_id="w", batch_id="b", probe_permit=permit, outcome=outcome, **IDS)


def delayed(permit: int | None = None) -> WorkerEvent:
    return WorkerDelayed(worker_id="w", reason="throttled", probe_permit=permit, **IDS)


def stopped(permit: int | None = None, *, cancelled: bool) -> WorkerEvent:
    return WorkerStopped(worker_id="w", reason="demand fell", cancelled=cancelled, probe_permit=permit, **IDS)


def after(*events: tuple[float, WorkerEvent], gate: Gate | None = None) -> Gate:
    gate = gate or Gate()
    for seconds, event in events:
        gate = fold(gate, event, at=at(seconds), policy=POLICY)
    return gate


def issued(gate: Gate) -> Gate:
    """The gate at the instant when its next permit is due."""
    assert gate.next_probe_at is not None
    return advance(gate, gate.next_probe_at)


CLOSED = after((0, failed()), (0, failed()))

C, Q, X, M, K = Scope.CAPACITY, Scope.QUOTA, Scope.CONFIG, Scope.IMAGE, Scope.CREDENTIAL
L, N, U = Scope.LIMITER, Scope.NOTHING, Scope.UNKNOWN
#        failures in a row, or None for a success   closed after the last, and not before
TRIPS: list[tuple[list[Scope | None], bool]] = [
    ([C], False),
    ([C, C], True),
    ([Q, C], True),
    ([Q, Q], True),
    ([C, None, C], False),
    ([C, None, C, C], True),
    ([X, X, X, X], False),
    ([X, X, X, X, X], True),
    ([X, C, X, C], True),  # the second definite one, wherever the others stand
    ([M, K, X, C, X], True),
    ([X, X, X, X, None, X], False),
    ([L, L, L, L, L, L, L], False),
    ([N, U, N, U, N, U], False),
    ([C, L, N, U, C], True),  # neither do they end a row
]


@pytest.mark.parametrize(("scopes", "closes"), TRIPS)
def test_trip(scopes: list[Scope | None], closes: bool) -> None:
    """Two definite capacity or quota failures in a row, or any five that say something about the config."""
    history = [(n, failed(scope) if scope else ok()) for n, scope in enumerate(scopes)]
    assert not after(*history[:-1]).closed
    assert after(*history).closed is closes


def test_unclassified_capacity_is_not_definite() -> None:
    """A failure that no table knows may be anything: five, not two."""
    events = [(n, failed(classified=False)) for n in range(5)]
    assert not after(*events[:4]).closed
    assert after(*events).closed


def test_row_is_counted_in_event_time() -> None:
    """A success between two failures counts as between, also when it arrives last but one, or first."""
    events = [(5.0, failed()), (6.0, ok()), (7.0, failed())]
    for first, second, third in permutations(events):
        if {first[0], second[0]} != {5.0, 7.0}:  # then it has closed before the success was known
            assert not after(first, second, third).closed


def test_failures_beside_a_success_of_the_same_instant_count() -> None:
    """One call, eight asked, five given, three refused: capacity has ended, in whatever order this is told."""
    for order in permutations([ok(), failed(), failed()]):
        assert after(*[(1.0, event) for event in order]).closed


def test_boot_outcomes_leave_the_gate_alone() -> None:
    outcome = Outcome(Stage.BOOT, Result.FAILED, Scope.CONFIG)
    timeout = WorkerStopping(worker_id="w", reason="boot", outcome=outcome, **IDS)
    assert after(*[(n, timeout) for n in range(9)]) == Gate()


def test_first_probe_comes_within_the_initial_delay() -> None:
    """Equal jitter: between half of 15 s and all of it, the same for the same config and permit."""
    assert CLOSED.next_probe_at is not None
    assert at(7.5) <= CLOSED.next_probe_at <= at(15)
    assert after((0, failed()), (0, failed())) == CLOSED
    assert advance(CLOSED, at(7)) == CLOSED
    gate = issued(CLOSED)
    assert (gate.permit, gate.ready, gate.next_probe_at) == (1, True, None)
    assert advance(gate, at(9999)) == gate, "a permit that nobody spends is not issued again"


def test_backoff_doubles_up_to_its_maximum() -> None:
    """15 → 600 s; a permit's number is never given twice."""
    gate, seconds, delays = CLOSED, 0.0, []
    for permit in range(1, 9):
        assert gate.next_probe_at is not None
        delays.append(((gate.next_probe_at - at(seconds)).total_seconds(), gate.backoff_seconds))
        seconds = (gate.next_probe_at - T0).total_seconds()
        gate = issued(gate)
        assert (gate.permit, gate.ready) == (permit, True)
        gate = after((seconds, failed(permit=permit)), gate=gate)
        assert gate.failed_probes == permit
    assert [backoff for _, backoff in delays] == [15, 30, 60, 120, 240, 480, 600, 600]
    assert all(backoff / 2 <= delay <= backoff for delay, backoff in delays)


def test_success_of_the_permit_opens() -> None:
    """Open again, with nothing left in a row: one more failure does not close."""
    gate = after((20, ok(permit=1)), gate=issued(CLOSED))
    assert not gate.closed
    assert not after((21, failed()), gate=gate).closed
    again = after((21, failed()), (22, failed()), gate=gate)
    assert again.closed
    assert issued(again).permit == 2, "numbers go on over the config's life"
    assert again.backoff_seconds == 15


@pytest.mark.parametrize("permit", [None, 0, 2])
def test_success_without_the_permit_does_not_open(permit: int | None) -> None:
    """A launch begun before the outage may still succeed; only a probe proves that launching works again."""
    assert after((20, ok(permit)), gate=issued(CLOSED)).closed


def test_failures_while_closed_do_not_compound() -> None:
    """What was in flight when it closed tells nothing new."""
    assert after(*[(n, failed()) for n in range(1, 9)], gate=CLOSED) == CLOSED


GIVEN_BACK: list[Any] = [
    delayed(1),
    stopped(1, cancelled=True),
    failed(Scope.LIMITER, permit=1),
    failed(Scope.NOTHING, permit=1),
    failed(Scope.UNKNOWN, permit=1),
    WorkerLost(worker_id="w", reason="gone", probe_permit=1, **IDS),
]


@pytest.mark.parametrize("event", GIVEN_BACK, ids=lambda event: f"{type(event).__name__}")
def test_permit_is_given_again_when_nothing_was_learned(event: WorkerEvent) -> None:
    """Under a new number, soon, and the backoff stays."""
    gate = after((60, failed(permit=1)), gate=issued(CLOSED))
    gate = issued(gate)
    again = after((100, msgspec.structs.replace(event, probe_permit=2)), gate=gate)
    assert again.closed
    assert (again.permit, again.ready, again.backoff_seconds) == (2, False, 30)
    assert again.next_probe_at is not None
    assert at(107.5) <= again.next_probe_at <= at(115)
    assert issued(again).permit == 3


def test_delayed_probe_that_launches_after_all_opens() -> None:
    """Until the next number is issued, the delayed worker still holds the newest one."""
    gate = after((20, delayed(1)), gate=issued(CLOSED))
    assert not after((25, ok(permit=1)), gate=gate).closed
    assert after((99, ok(permit=1)), gate=issued(gate)).closed


def test_end_of_a_settled_probe_s_worker_changes_nothing() -> None:
    """Its later events carry the number too."""
    gate = after((20, failed(permit=1)), gate=issued(CLOSED))
    assert after((30, stopped(1, cancelled=False)), gate=gate) == gate
    opened = after((20, ok(permit=1)), gate=issued(CLOSED))
    boot = WorkerRegistered(
        worker_id="w", instance_id="i", boot_seconds=9, probe_permit=1, outcome=Outcome(Stage.BOOT, Result.OK), **IDS
    )
    closed = after((30, failed()), (31, failed()), gate=opened)
    assert after((40, boot), (50, stopped(1, cancelled=False)), gate=closed) == closed


def test_pool_gets_a_permit_per_half_minute_when_all_are_closed() -> None:
    """Each config has backed off far, yet together they are tried every 30 s, in turn."""
    gates = dict.fromkeys(("a", "b", "c"), CLOSED)
    issues: list[float] = []
    now = 0.0
    while now < 1200:
        for name, gate in gates.items():
            if gate.next_probe_at is not None and gate.next_probe_at <= at(now):
                gates[name] = advance(gate, at(now))
                issues.append(now)
                gates[name] = after((now, failed(permit=gates[name].permit)), gate=gates[name])
        if pulled := pull_forward(gates, POLICY):
            name, due = pulled
            gates[name] = probed_at(gates[name], due)
        now += 1
    assert max(b - a for a, b in pairwise(issues)) <= 31
    assert len([n for n in issues if n > 600]) <= 600 / 30 + 3


def probed_at(gate: Gate, due: datetime) -> Gate:
    return msgspec.structs.replace(gate, next_probe_at=due)


def test_pool_probe_waits_for_the_last_open_config() -> None:
    """One open config is enough to launch on; and nothing is pulled when a probe comes soon anyway."""
    late = probed_at(CLOSED, at(600))
    assert pull_forward({"a": late, "b": Gate()}, POLICY) is None
    assert pull_forward({"a": late, "b": CLOSED}, POLICY) is None
    assert pull_forward({}, POLICY) is None
    assert pull_forward({"a": late, "b": probed_at(CLOSED, at(500))}, POLICY) == ("b", at(30))


def test_pool_probe_passes_by_a_permit_that_waits_for_demand() -> None:
    ready = issued(CLOSED)
    assert ready.permit_at is not None
    gates = {"a": ready, "b": probed_at(CLOSED, at(600))}
    assert pull_forward(gates, POLICY) == ("b", ready.permit_at + timedelta(seconds=30))
    assert pull_forward({"a": ready}, POLICY) is None


def test_time_issues_what_is_due_and_what_a_closed_pool_is_owed() -> None:
    """Only configs that differ are returned; a paused one is issued its permit but does not hold up the pool."""
    late = Health(gate=probed_at(CLOSED, at(600)))
    pool = {"a": late, "b": Health(), "c": Health(gate=probed_at(CLOSED, at(500)))}
    assert pass_time(pool, ["a", "b", "c"], now=at(40), policy=POLICY) == {}
    owed = pass_time(pool, ["a", "c"], now=at(20), policy=POLICY)
    assert {name: health.gate.next_probe_at for name, health in owed.items()} == {"c": at(30)}
    due = pass_time(pool, ["a", "c"], now=at(40), policy=POLICY)
    assert {name: (health.gate.permit, health.gate.ready) for name, health in due.items()} == {"c": (1, True)}
    assert set(pass_time(pool, ["b"], now=at(550), policy=POLICY)) == {"c"}
    assert pass_time({}, [], now=at(0), policy=POLICY) == {}


permits = st.one_of(st.none(), st.integers(0, 5))
EVENTS: st.SearchStrategy[WorkerEvent] = st.one_of(
    st.builds(ok, permits), st.builds(delayed, permits), st.builds(failed, st.sampled_from(Scope), permits)
)


@given(st.lists(st.tuples(st.integers(0, 2000), EVENTS), max_size=60), st.booleans())
def test_laws_of_any_history(history: list[tuple[int, WorkerEvent]], punctual: bool) -> None:
    """Closed means: a permit is out or the next is scheduled, never both. Numbers only grow. Open means neither."""
    gate = Gate()
    for seconds, event in sorted(history, key=lambda pair: pair[0]) if punctual else history:
        before = gate
        gate = advance(fold(gate, event, at=at(seconds), policy=POLICY), at(seconds))
        assert before.permit <= gate.permit <= before.permit + 1
        assert gate.closed is (gate.ready or gate.next_probe_at is not None)
        assert not (gate.ready and gate.next_probe_at is not None)
        assert len(gate.run) <= POLICY.trip_any
        assert gate.backoff_seconds <= POLICY.probe_max_seconds
