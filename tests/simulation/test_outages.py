"""Simulation of outages without other faults: nothing is terminated or launched for them, and all tasks run.

One seed, or as many as SEEDS says."""

import os
from collections.abc import Callable
from typing import Any, Final

import pytest

from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_simulator.facts import Call, InstanceCreated, Terminated
from tests.simulation.commands import SECOND_ACCOUNT
from tests.simulation.deployment import Deployment, deployment_on
from tests.simulation.history import arrivals, run, scenario, settle
from tests.simulation.invariants import LIMIT, MAX_CAPACITY, judge
from tests.simulation.outages import DARK_SECONDS, command, darkness
from tests.simulation.seeds import seeds_of

SEEDS: Final = seeds_of(os.environ, default=1)
TASKS: Final = 24
ELSEWHERE_WITHIN_SECONDS: Final = 480.0  # 180 to 420 s in 24 seeds: boots, after calls in vain that differ in number
LOST_ROUNDS: Final = 30  # a lease that nobody confirms ends after 180 s


def pool_of(seed: int) -> dict[str, Any]:
    return {"max_capacity": MAX_CAPACITY, "honours_tokens": bool(seed % 2)}


def created(deployment: Deployment) -> int:
    return sum(isinstance(fact, InstanceCreated) for fact in deployment.cloud.facts)


async def until(deployment: Deployment, is_reached: Callable[[], bool], within_seconds: float) -> None:
    """Execute all steps again and again until something is reached."""
    end = deployment.elapsed + within_seconds
    while not is_reached():
        assert deployment.elapsed < end, f"not within {within_seconds} s"
        await deployment.everything()
        await deployment.pass_time(10)


@pytest.mark.parametrize("seed", SEEDS)
async def test_lost_lease_events(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """At first no lease event arrives, not even the ends of grants; then a third never does. No intent waits for ever:
    one machine per task."""
    async with deployment_on(postgres, monkeypatch, seed, scenario(seed, ""), **pool_of(seed)) as deployment:
        deployment.tasks_at = arrivals(deployment.chance, TASKS, 300)
        deployment.lost_leases = 1.0
        await run(deployment, 100)
        for _ in range(LOST_ROUNDS):
            await deployment.everything()
            await deployment.pass_time(10)
        assert await deployment.databases["lease-broker"].fetchval(
            "SELECT count(*) FROM leases WHERE ended_at IS NOT NULL"
        )
        assert created(deployment) == 0
        deployment.lost_leases = 0.3
        await run(deployment, 300)
        deployment.lost_leases = 0.0
        await settle(deployment, TASKS)
        assert created(deployment) == TASKS
        await judge(deployment)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_quarter_of_an_hour_without_postgresql(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Tasks run on meanwhile. No machine is terminated for it, and none is created beside those of the tasks."""
    async with deployment_on(postgres, monkeypatch, seed, scenario(seed, ""), **pool_of(seed)) as deployment:
        deployment.tasks_at = arrivals(deployment.chance, TASKS, 300)
        await run(deployment, 100)
        await until(deployment, lambda: deployment.cloud.claimed > 0, 300)
        await darkness(deployment, DARK_SECONDS)
        await run(deployment, 150)
        await settle(deployment, TASKS)
        assert {fact.by for fact in deployment.cloud.facts if isinstance(fact, Terminated)} == {"self"}
        assert created(deployment) == TASKS
        await judge(deployment)


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_account_that_does_not_answer(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """All tasks run elsewhere in time, and the account is called only until it is known not to answer. It is retired
    with the machines that may still run in it, which are terminated after it was reinstated."""
    async with deployment_on(postgres, monkeypatch, seed, scenario(seed, ""), **pool_of(seed)) as deployment:
        cloud = deployment.cloud
        await deployment.declare(LIMIT)
        await until(deployment, lambda: deployment.viewed != {}, 30)
        cloud.dead = {SECOND_ACCOUNT}
        cloud.pending.extend(f"task-{number}" for number in range(8))
        await until(deployment, lambda: len(cloud.done) == 8, ELSEWHERE_WITHIN_SECONDS)
        calls = sum(isinstance(fact, Call) and fact.account == SECOND_ACCOUNT for fact in cloud.facts)
        assert calls > 0
        cloud.pending.extend(f"later-{number}" for number in range(8))
        await until(deployment, lambda: len(cloud.done) == 16, ELSEWHERE_WITHIN_SECONDS)
        assert sum(isinstance(fact, Call) and fact.account == SECOND_ACCOUNT for fact in cloud.facts) == calls
        assert await command(deployment, "retire")
        assert cloud.interrupted == []
        cloud.dead = set()
        assert await command(deployment, "reinstate")
        await settle(deployment, 16)
        await judge(deployment)
