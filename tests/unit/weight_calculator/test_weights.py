"""Shares, the published record, and when it is worth publishing."""

from datetime import UTC, datetime, timedelta
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
    WorkerIdle,
    WorkerLaunched,
    WorkerLaunchFailed,
    WorkerStopped,
)
from slipway_weight_calculator.domain.evidence import Evidence
from slipway_weight_calculator.domain.health import Health, advance, concerns, fold
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.record import Config, record, worth_publishing
from slipway_weight_calculator.domain.weights import success, weight

T0 = datetime(2030, 1, 1, tzinfo=UTC)
POLICY = Policy()
CONFIG = Config(id="linux-zone-b", pool_id="linux", zone="zone-b", revision=1)
IDS: dict[str, Any] = {
    "pool_id": "linux",
    "account_id": "sim-a",
    "image_revision": "linux-1",
    "launch_config_id": "linux-zone-b",
}
FAILED = WorkerLaunchFailed(
    worker_id="w",
    batch_id="b",
    outcome=Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, code="InsufficientCapacity"),
    **IDS,
)
THROTTLED = WorkerLaunchFailed(
    worker_id="w", batch_id="b", outcome=Outcome(Stage.LAUNCH, Result.FAILED, Scope.LIMITER), **IDS
)


def launched(permit: int | None = None) -> WorkerLaunched:
    outcome = Outcome(Stage.LAUNCH, Result.OK)
    return WorkerLaunched(worker_id="w", batch_id="b", instance_id="i", outcome=outcome, probe_permit=permit, **IDS)


masses = st.floats(0, 6)
evidences = st.builds(lambda s, f: Evidence(s, f, T0), masses, masses)
healths = st.builds(lambda a, b, c: Health(launch=a, boot=b, claim=c), evidences, evidences, evidences)
factors = st.floats(0.01, 100)
later = st.integers(0, 10**7).map(lambda seconds: T0 + timedelta(seconds=seconds))


@given(healths, factors, factors, later)
def test_weight_is_always_positive(health: Health, base: float, price: float, now: datetime) -> None:
    """At least the floor, at most base × price."""
    share = weight(base, price, success(health, now=now, policy=POLICY), POLICY) / (base * price)
    assert POLICY.floor <= share <= 1


@given(healths, st.lists(st.tuples(factors, factors), min_size=2, max_size=9), later)
def test_equal_health_gives_shares_of_base_times_price(
    health: Health, configs: list[tuple[float, float]], now: datetime
) -> None:
    """When all fail alike, no share changes."""
    weights = [weight(base, price, success(health, now=now, policy=POLICY), POLICY) for base, price in configs]
    plain = [base * price for base, price in configs]
    for got, expected in zip(weights, plain, strict=True):
        assert got / sum(weights) == pytest.approx(expected / sum(plain), abs=1e-9)


@given(healths, st.sampled_from(Stage), st.sampled_from([Result.OK, Result.FAILED]))
def test_weight_is_monotone_in_every_stage(health: Health, stage: Stage, result: Result) -> None:
    """A success of any stage never lowers a weight, a failure never lifts it; an unknown stage moves nothing."""
    event = msgspec.structs.replace(launched(), outcome=Outcome(stage, result, Scope.CONFIG))
    after = fold(health, event, at=T0, policy=POLICY)
    before, now = (success(h, now=T0, policy=POLICY) for h in (health, after))
    if stage is Stage.UNKNOWN:
        assert after == health
    elif result is Result.OK:
        assert now >= before - 1e-12
    else:
        assert now < before


def test_fold_is_deterministic_and_leaves_its_input_alone() -> None:
    start = Health()
    assert fold(start, FAILED, at=T0, policy=POLICY) == fold(start, FAILED, at=T0, policy=POLICY)
    assert start == Health()


def test_only_events_that_can_change_something_concern_us() -> None:
    assert concerns(FAILED)
    assert concerns(THROTTLED)
    assert concerns(launched())
    stopped = WorkerStopped(worker_id="w", reason="idle", **IDS)
    assert not concerns(stopped)
    assert concerns(msgspec.structs.replace(stopped, probe_permit=1))
    assert not concerns(WorkerIdle(worker_id="w", probe_permit=1, **IDS))


def test_unhealthy_config_keeps_about_its_floor() -> None:
    health = Health()
    for _ in range(60):
        health = fold(health, FAILED, at=T0, policy=POLICY)
    assert record(CONFIG, health, now=T0, policy=POLICY).weight == pytest.approx(0.0225, abs=0.001)


def test_first_record() -> None:
    """Without evidence the prior counts in all three stages."""
    first = record(CONFIG, Health(), now=T0, policy=POLICY)
    assert (first.state, first.closed_stage, first.probe_permit, first.probe_ready) == ("open", None, None, False)
    assert first.health == pytest.approx(0.95**3)
    assert {stage: (health.window, health.failures_folded) for stage, health in first.stages.items()} == {
        "launch": (64, 0), "boot": (64, 0), "claim": (64, 0),
    }  # fmt: skip
    assert first.reason == "zone-b: open"


def test_reasons_follow_an_outage() -> None:
    """In words, without a clock: the record says when the next probe is."""
    reasons = []
    health = Health()
    for _ in range(2):
        health = fold(health, FAILED, at=T0, policy=POLICY)
        reasons.append(record(CONFIG, health, now=T0, policy=POLICY).reason)
    due = health.gate.next_probe_at
    assert due is not None
    assert record(CONFIG, health, now=T0, policy=POLICY).next_probe_at == due
    health = advance(health, due)
    reasons.append(record(CONFIG, health, now=due, policy=POLICY).reason)
    health = fold(health, msgspec.structs.replace(FAILED, probe_permit=1), at=due, policy=POLICY)
    reasons.append(record(CONFIG, health, now=due, policy=POLICY).reason)
    due = health.gate.next_probe_at
    assert due is not None
    health = fold(advance(health, due), launched(permit=2), at=due, policy=POLICY)
    reasons.append(record(CONFIG, health, now=due, policy=POLICY).reason)
    assert reasons == [
        "zone-b: open, launch 63%",
        "zone-b: closed, 2 capacity errors (InsufficientCapacity)",
        "zone-b: closed, 2 capacity errors (InsufficientCapacity), probe 1 may launch",
        "zone-b: closed, 2 capacity errors (InsufficientCapacity), 1 failed probe (InsufficientCapacity)",
        "zone-b: open, launch 49%",
    ]


def test_what_is_worth_a_record() -> None:
    """Every folded failure is, even one that moves no weight; a success on top of many is not."""
    healthy = Health(launch=Evidence(12, 0, T0), boot=Evidence(12, 0, T0), claim=Evidence(12, 0, T0))
    last = record(CONFIG, healthy, now=T0, policy=POLICY)

    def after(*events: WorkerLaunched | WorkerLaunchFailed, config: Config = CONFIG) -> bool:
        health = healthy
        for event in events:
            health = fold(health, event, at=T0, policy=POLICY)
        return worth_publishing(last, record(config, health, now=T0, policy=POLICY), POLICY)

    assert worth_publishing(None, last, POLICY)
    assert not worth_publishing(last, last, POLICY)
    assert not after(launched())
    assert after(THROTTLED)
    assert after(FAILED)
    assert after(config=msgspec.structs.replace(CONFIG, revision=2))
    assert after(config=msgspec.structs.replace(CONFIG, base_weight=2.0))


def test_issued_permit_is_worth_a_record() -> None:
    health = fold(fold(Health(), FAILED, at=T0, policy=POLICY), FAILED, at=T0, policy=POLICY)
    closed = record(CONFIG, health, now=T0, policy=POLICY)
    ready = record(CONFIG, advance(health, T0 + timedelta(seconds=15)), now=T0, policy=POLICY)
    assert worth_publishing(closed, ready, POLICY)
