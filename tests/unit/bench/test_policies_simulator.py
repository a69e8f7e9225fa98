"""The simulator: conserves tasks, gives all policies the same conditions, and is deterministic by seed."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from bench.policies import baselines
from bench.policies.cells import POLICIES
from bench.policies.claims import BAD_LAUNCHES_MAX
from bench.policies.conditions import Conditions, arrivals, conditions
from bench.policies.figures import figures
from bench.policies.policy import Policy
from bench.policies.scenario import BUILT_IN, Fault, Scenario, Span, checked
from bench.policies.simulator import Run, simulate
from bench.policies.slipway import Counts, Slipway, View

ROUGH = Scenario(
    name="rough",
    hours=0.75,
    configs=3,
    background=0.05,
    launches_per_minute=30,
    bursts=(Span(begin_minute=20, end_minute=22, launches_per_minute=200),),
    faults=(
        Fault(kind="refused", configs=(0,), begin_minute=5, end_minute=30, probability=0.9, ramp_minutes=10),
        Fault(kind="unregistered", configs=(1,), begin_minute=10, end_minute=20, scope="image"),
        Fault(kind="capped", configs=(2,), begin_minute=15, workers=30, scope="quota"),
    ),
)


def play(scenario: Scenario, policy: str, seed: int = 1) -> Run:
    faced = conditions(scenario)
    return simulate(faced, POLICIES[policy](faced, Random(f"policy/{seed}")), seed)


class Fixed(Policy):
    """Policy that always chooses one config and records all outcomes."""

    def __init__(self, config: int) -> None:
        self.config = config
        self.outcomes: list[tuple[str, float, int]] = []

    def choose(self, now: float, tries: int) -> Sequence[int]:
        return [self.config] * tries

    def accepted(self, now: float, config: int, worker: int) -> None:
        self.outcomes.append(("accepted", now, worker))

    def refused(self, now: float, config: int, worker: int, scope: str) -> None:
        self.outcomes.append((scope, now, worker))

    def registered(self, now: float, config: int, worker: int, boot_seconds: float) -> None:
        self.outcomes.append(("registered", now, worker))

    def unregistered(self, now: float, config: int, worker: int) -> None:
        self.outcomes.append(("unregistered", now, worker))

    def ended(self, now: float, config: int, worker: int) -> None:
        self.outcomes.append(("ended", now, worker))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_task_waits_or_is_served_and_every_try_has_one_outcome(policy: str) -> None:
    run = play(ROUGH, policy)
    assert run.arrived == sum(arrivals(run.conditions, 1)) > 700
    assert run.arrived == run.registered + run.waiting
    accepted, refused = sum(map(sum, run.accepted)), sum(map(sum, run.refused))
    assert accepted == run.registered + run.unregistered + run.booting
    assert sum(run.failing) == refused + run.unregistered
    assert len(run.waits) == run.registered
    assert min(run.waits) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_digits_and_another_one_does_not(policy: str) -> None:
    assert figures(play(ROUGH, policy, 3)) == figures(play(ROUGH, policy, 3)) != figures(play(ROUGH, policy, 4))


def test_policies_face_the_same_arrivals_and_outages() -> None:
    runs = [play(ROUGH, policy, 5) for policy in ("uniform", "thompson", "slipway")]
    assert len({run.arrived for run in runs}) == 1
    assert len({tuple(map(tuple, run.conditions.refusal)) for run in runs}) == 1


def test_outcomes_arrive_once_each_in_the_order_of_their_times() -> None:
    faced = conditions(ROUGH)
    policy = Fixed(1)
    run = simulate(faced, policy, 1)
    times = [at for _, at, _ in policy.outcomes]
    assert times == sorted(times)
    for kind, count in (
        ("accepted", sum(run.accepted[1])),
        ("registered", run.registered),
        ("unregistered", run.unregistered),
    ):
        workers = [worker for outcome, _, worker in policy.outcomes if outcome == kind]
        assert len(workers) == len(set(workers)) == count > 0


def test_an_answer_takes_two_seconds_and_a_failed_boot_the_time_out() -> None:
    scenario = Scenario(
        name="dead",
        hours=1.0,
        configs=1,
        background=0.0,
        registration_timeout_seconds=600.0,
        faults=(Fault(kind="unregistered", configs=(0,), end_minute=30, scope="image"),),
    )
    policy = Fixed(0)
    simulate(conditions(scenario), policy, 1)
    began = {worker: at for outcome, at, worker in policy.outcomes if outcome == "accepted"}
    assert {at % 10 for at in began.values()} == {2.0}
    failed = [(at, worker) for outcome, at, worker in policy.outcomes if outcome == "unregistered"]
    assert failed
    assert all(at - began[worker] == 598.0 for at, worker in failed)


def test_a_cap_counts_workers_until_they_end() -> None:
    scenario = Scenario(
        name="capped",
        hours=2.0,
        configs=1,
        background=0.0,
        launches_per_minute=60,
        faults=(Fault(kind="capped", configs=(0,), workers=25, scope="quota"),),
    )
    policy = Fixed(0)
    simulate(conditions(scenario), policy, 1)
    held = most = 0
    for outcome, _, _ in policy.outcomes:
        held += {"accepted": 1, "ended": -1}.get(outcome, 0)
        most = max(most, held)
    assert most == 25
    assert {outcome for outcome, _, _ in policy.outcomes} == {"accepted", "quota", "registered", "ended"}


def test_a_cap_lasts_from_its_begin_to_its_end_and_one_of_two_configs_may_have_another() -> None:
    first = Fault(kind="capped", configs=(0,), begin_minute=5, end_minute=9.5, workers=3)
    second = Fault(kind="capped", configs=(1,), begin_minute=59.8, workers=4)
    faced = conditions(checked(Scenario(name="x", hours=1.0, configs=2, faults=(first, second))))
    assert faced.caps == {0: (30, 57, 3), 1: (359, 360, 4)}


@pytest.mark.parametrize("policy", POLICIES)
def test_extreme_scenarios_can_be_run(policy: str) -> None:
    rough = Scenario(
        name="extreme",
        hours=0.2,
        configs=3,
        price_factors=(1000.0, 1.0, 0.001),
        replicas=10,
        duplicates=1.0,
        record_lag_seconds=3600.0,
        replica_lag_seconds=3600.0,
        reordered_seconds=3600.0,
        registration_timeout_seconds=10.0,
        bursts=(Span(begin_minute=1, end_minute=2, launches_per_minute=10_000),),
        faults=(Fault(kind="unregistered", configs=(0,), scope="image"),),
    )
    shortest, idle = Scenario(name="shortest", hours=0.01), Scenario(name="idle", hours=0.1, launches_per_minute=0)
    for scenario in (rough, shortest, idle):
        run = play(checked(scenario), policy)
        assert run.arrived == run.registered + run.waiting
        assert figures(run).registered == run.registered


def test_tries_per_tick_are_limited() -> None:
    run = play(Scenario(name="flood", hours=0.2, configs=2, launches_per_minute=9000), "uniform")
    assert max(sum(column) for column in zip(*run.accepted, *run.refused, strict=True)) == 200
    assert run.waiting > 1000


def faced(refusal: float, shares: tuple[float, ...] = ()) -> Conditions:
    fault = Fault(kind="refused", configs=(0,), probability=refusal)
    return conditions(Scenario(name="x", configs=2, faults=(fault,), price_factors=shares))


def test_error_rate_weighs_by_the_share_of_non_failures_of_the_last_hour() -> None:
    policy = baselines.ErrorRate(faced(0.5), Random(1))
    for place in range(3):
        policy.accepted(10.0 * place, 0, 0)
        policy.accepted(10.0 * place, 1, 0)
    policy.refused(30.0, 0, 0, "capacity")
    assert policy.weights(100.0) == [0.5 * 0.75, 0.5]
    assert policy.weights(3600.0 + 25.0) == [0.0, 0.5]  # only the failure at 30 s is left; config 1 has no events
    policy.refused(3626.0, 1, 0, "capacity")
    assert policy.weights(3627.0) == [0.5, 0.5]  # all zero: all one


def test_taskcluster_weighs_errors_by_all_errors_and_use_by_a_thousand() -> None:
    policy = baselines.Taskcluster(faced(0.5), Random(1))
    policy.accepted(0.0, 0, 0)
    for _ in range(3):
        policy.refused(0.0, 0, 0, "capacity")
    policy.refused(0.0, 1, 0, "capacity")
    assert policy.weights(10.0) == pytest.approx([0.5 * (1 - 0.001 - 0.75), 0.5 * 0.75])
    policy.ended(20.0, 0, 0)
    assert policy.weights(3601.0) == [0.5, 0.5]


def test_the_cache_leaves_a_config_out_for_three_minutes_after_each_failure() -> None:
    policy = baselines.Cache(faced(0.5), Random(1))
    policy.refused(100.0, 0, 0, "capacity")
    assert policy.weights(279.9) == [0.0, 0.5]
    assert policy.weights(280.0) == [0.5, 0.5]
    policy.unregistered(280.0, 1, 0)
    policy.refused(290.0, 0, 0, "capacity")
    assert policy.choose(300.0, 10) == ()


def test_backoff_doubles_by_failures_behind_it_and_forgets_after_three_hours() -> None:
    policy = baselines.Backoff(faced(0.5), Random(1))
    ends = []
    for at in (0.0, 10.0, 300.0, 900.0, 2100.0, 3900.0, 3900.0 + 1800.0 + 10_800.0, 30_000.0):
        policy.refused(at, 0, 0, "capacity")
        ends.append(policy.until[0] - at)
    assert ends == [300.0, 290.0, 600.0, 1200.0, 1800.0, 1800.0, 1800.0, 300.0]


def test_thompson_prefers_what_succeeds_and_forgets_by_half_in_ten_minutes() -> None:
    policy = baselines.Thompson(faced(0.5), Random(1))
    for _ in range(40):
        policy.accepted(0.0, 0, 0)
        policy.refused(0.0, 1, 0, "capacity")
    assert policy.choose(0.0, 50).count(0) == 50
    policy.choose(600.0, 1)
    assert policy.well[0] == policy.bad[1] == 20.0


def test_the_oracle_fails_by_chance_alone() -> None:
    run = play(msgspec.structs.replace(ROUGH, faults=ROUGH.faults[:1]), "oracle")
    refused, accepted = sum(map(sum, run.refused)), sum(map(sum, run.accepted))
    assert refused / (refused + accepted) == pytest.approx(ROUGH.background, abs=0.02)
    assert sum(run.accepted[0][60:180]) == 0  # nothing is launched there during the outage


@pytest.mark.parametrize("policy", ["uniform", "ttl", "autoscaler", "rfc191", "oracle", "slipway"])
def test_prices_set_the_shares_of_configs_that_are_well(policy: str) -> None:
    run = play(Scenario(name="prices", hours=2.0, configs=2, background=0.0, price_factors=(3.0, 1.0)), policy)
    first, second = map(sum, run.accepted)
    assert first / (first + second) == pytest.approx(0.75, abs=0.02)


class Alone(Slipway):
    """Replicas that count only their own launches."""

    def __init__(self, conditions: Conditions, rng: Random) -> None:
        super().__init__(conditions, rng)
        self.own = {id(view): [Counts() for _ in self.configs] for view in self.views}
        self.by: dict[int, int] = {}

    def _plan(self, view: View, now: float, tries: int) -> list[int]:
        first, self.counts = self.workers, self.own[id(view)]
        found = super()._plan(view, now, tries)
        self.by |= dict.fromkeys(range(first + 1, self.workers + 1), id(view))
        return found

    def accepted(self, now: float, config: int, worker: int) -> None:
        self.counts = self.own[self.by[worker]]
        super().accepted(now, config, worker)

    def unregistered(self, now: float, config: int, worker: int) -> None:
        self.counts = self.own[self.by[worker]]
        super().unregistered(now, config, worker)


@pytest.mark.parametrize("name", ["always-bad-3r", "always-bad-nine-4d-3r"])
def test_three_replicas_share_one_window(name: str) -> None:
    """All replicas launch by their own views; the bound would be exceeded if each counted only its own launches."""
    shares = Counter[int]()

    class Counted(Slipway):
        def _plan(self, view: View, now: float, tries: int) -> list[int]:
            found = super()._plan(view, now, tries)
            shares[self.views.index(view)] += len(found)
            return found

    faced = conditions(BUILT_IN[name])
    assert simulate(faced, Counted(faced, Random("policy/1")), 1).on_bad_image <= BAD_LAUNCHES_MAX
    assert sorted(shares) == [0, 1, 2]
    assert min(shares.values()) > 0
    assert simulate(faced, Alone(faced, Random("policy/1")), 1).on_bad_image > BAD_LAUNCHES_MAX
