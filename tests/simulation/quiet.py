"""Histories without faults but for one: an older database, a second deployment in the account, or clocks that are set.

The seed decides which, or none. All work completes, and there are as many machines as tasks, by the cloud's facts.
"""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import pytest

from slipway_api.events.topics import POOL_DEMAND
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.loops import expire
from slipway_provisioner.store import usage
from slipway_simulator.facts import Call, Fact, InstanceCreated, Terminated
from tests.simulation.deployment import COUNTS, Deployment, deployment_on
from tests.simulation.history import Report, accepting, arrivals, broken_by, digest, run, scenario, settle
from tests.simulation.invariants import LIMIT, MAX_CAPACITY, OVERDUE_LEASES, judge, judge_losses
from tests.simulation.restores import Backup, confirm, is_in_log, report

OLDER_DATABASE: Final = "older database"
SECOND_DEPLOYMENT: Final = "second deployment"
SET_CLOCKS: Final = "set clocks"
KINDS: Final = (OLDER_DATABASE, SET_CLOCKS, SECOND_DEPLOYMENT, "")  # by the seed
TASKS: Final = 16
ARRIVE_SECONDS: Final = 200.0
STEPS: Final = 100
TASKS_BESIDE: Final = 8  # of each of two deployments
REACHED_WITHIN: Final = 40  # rounds
ROUND_SECONDS: Final = 10.0
TURNED_ROUND_SECONDS: Final = 20.0
HOUR_SECONDS: Final = 3600.0
OTHER_ID: Final = "slipway-other"
DISCARD_EARLY_REPORTS: Final = f"""
DELETE FROM dead_letter WHERE topic = '{POOL_DEMAND.name}' AND reason LIKE '%in the future'"""


async def play_quietly(server: EmbeddedPostgres, seed: int) -> Report:
    """Play the history of a seed without faults but for one."""
    kind = KINDS[seed % len(KINDS)]
    with pytest.MonkeyPatch.context() as patch:
        async with quiet_deployment_on(server, patch, seed) as deployment:

            async def history() -> None:
                if kind == SECOND_DEPLOYMENT:
                    async with deployment_beside(server, patch, deployment, seed) as other:
                        await beside(deployment, other)
                elif kind == OLDER_DATABASE:
                    await restored(server, deployment)
                elif kind == SET_CLOCKS:
                    await set_clocks(deployment, -HOUR_SECONDS if seed // len(KINDS) % 2 else HOUR_SECONDS)
                else:
                    await undisturbed(deployment)

            broken = await broken_by(deployment, seed, history())
            drift = await usage.drift(deployment.databases["provisioner"])
            return Report(seed, frozenset({kind} - {""}), broken, digest(deployment), drift)


@contextlib.asynccontextmanager
async def quiet_deployment_on(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, seed: int
) -> AsyncIterator[Deployment]:
    """Deployment without faults, with some tasks in the first minutes."""
    pool: dict[str, Any] = {"max_capacity": MAX_CAPACITY, "honours_tokens": bool(seed % 2)}
    async with deployment_on(server, monkeypatch, seed, scenario(seed, ""), **pool) as deployment:
        deployment.tasks_at = arrivals(deployment.chance, TASKS, ARRIVE_SECONDS)
        deployment.cloud.accepting = accepting(seed)
        deployment.counts = COUNTS[sorted(COUNTS)[seed % len(COUNTS)]]
        yield deployment


@contextlib.asynccontextmanager
async def deployment_beside(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, one: Deployment, seed: int
) -> AsyncIterator[Deployment]:
    """A second deployment in the accounts of the first. Both have few tasks."""
    pool: dict[str, Any] = {"max_capacity": MAX_CAPACITY, "honours_tokens": bool(seed % 2)}
    async with deployment_on(server, monkeypatch, seed + 10**6, scenario(seed, ""), **pool) as other:
        other.cloud.world, other.cloud.facts = one.cloud.world, one.cloud.facts
        other.id = OTHER_ID
        await other.databases["provisioner"].execute("UPDATE deployment SET id = $1", other.id)
        for each in (one, other):
            each.tasks_at = arrivals(each.chance, TASKS_BESIDE, ARRIVE_SECONDS)
        yield other


async def until(deployment: Deployment, is_reached: Callable[[], bool]) -> None:
    """Run rounds until something is reached."""
    for _ in range(REACHED_WITHIN):
        if is_reached():
            return
        await deployment.round()
        await deployment.pass_time(ROUND_SECONDS)
    raise AssertionError("not reached")


async def undisturbed(deployment: Deployment, steps: int = STEPS) -> None:
    """Run all tasks without a fault."""
    await run(deployment, steps)
    await settle(deployment, TASKS)
    await judge(deployment)
    check_machines(deployment, TASKS)


async def set_clocks(deployment: Deployment, seconds: float) -> None:
    """Set the clocks of all databases by some seconds while tasks run, and back after a minute.

    Nothing is terminated or charged for it, and the leases of holders that renew them live. Demand reports from the
    future of a clock are refused.
    """
    deployment.hold_seconds = 2 * HOUR_SECONDS  # no renewal moves the end of a hold
    await run(deployment, STEPS)
    await until(deployment, lambda: deployment.cloud.claimed > 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expire, "REGULAR_PASS_SECONDS", TURNED_ROUND_SECONDS)  # a jump counts as no more of uptime
        for turn in (seconds, -seconds):
            await deployment.turn_clocks(turn)
            for _ in range(3):
                await deployment.everything()
                await deployment.pass_time(TURNED_ROUND_SECONDS)
    await deployment.databases["provisioner"].execute(DISCARD_EARLY_REPORTS)
    await settle(deployment, TASKS)
    await judge(deployment)
    check_machines(deployment, TASKS)
    overdue = await deployment.databases["lease-broker"].fetch(OVERDUE_LEASES)
    assert not overdue, f"1: lease {overdue[0]['id']} of a holder that renews it has ended"
    failures = "SELECT count(*) FROM worker WHERE state IN ('launch_failed', 'lost')"
    assert await deployment.databases["provisioner"].fetchval(failures) == 0, "2: a launch was charged"


async def restored(server: EmbeddedPostgres, deployment: Deployment) -> None:
    """Restore the database from a backup that lacks machines.

    Launches, claims and events are lost; a person reports it if the log has none of them. Nothing is launched or
    terminated before a person confirms; then all tasks run, each on one machine, and no consumer has dropped an event
    or found a gap.
    """
    deployment.cloud.accepting = set()  # what a job launches after the confirmation waits for a person
    backup, facts = Backup(server, deployment), deployment.cloud.facts
    await run(deployment, STEPS // 2)
    await backup.make()
    known = len(facts)
    await run(deployment, STEPS // 4)
    await until(deployment, lambda: _launched(facts[known:]))
    await backup.restore()
    if not await is_in_log(deployment):
        await report(deployment)
    known = len(facts)
    for _ in range(STEPS // 3):
        await deployment.step()
        await deployment.pass_time(deployment.chance.uniform(0, 4))
    found = await confirm(deployment)
    assert found["orphans"], "the backup has all machines"
    assert not [fact for fact in facts[known:] if isinstance(fact, Call)], "3: a call before the confirmation"
    terminated = {fact.by for fact in facts[known:] if isinstance(fact, Terminated)}
    assert terminated <= {"self"}, "3: a machine was terminated before the confirmation"
    await settle(deployment, TASKS)
    await judge_losses(deployment)
    check_machines(deployment, TASKS)


def _launched(facts: Sequence[Fact]) -> bool:
    """True if one of these calls has created a machine."""
    calls = {fact.call_id for fact in facts if isinstance(fact, Call)}
    return any(isinstance(fact, InstanceCreated) and fact.call_id in calls for fact in facts)


async def beside(one: Deployment, other: Deployment) -> None:
    """Launch, list and reap in the same accounts: each runs its tasks on machines of its own."""
    for each in (one, other):
        await each.declare(LIMIT)
    for _ in range(STEPS // 2):
        seconds = one.chance.uniform(0, 6)
        for each in (one, other):
            await each.step()
            await each.pass_time(seconds)
    await settle(one, TASKS_BESIDE, other)
    for each in (one, other):
        await judge_losses(each)
        listed = await each.databases["provisioner"].fetchval("SELECT count(*) FROM orphan_instance")
        assert listed == 0, f"3: {listed} machines of another deployment were found"
    check_machines(one, TASKS_BESIDE, deployments=2)


def check_machines(deployment: Deployment, tasks: int, *, deployments: int = 1) -> None:
    """Compare the machines of each deployment with its tasks, by the cloud's facts."""
    facts = deployment.cloud.facts
    created = Counter(fact.deployment for fact in facts if isinstance(fact, InstanceCreated))
    assert sorted(created.values()) == [tasks] * deployments, f"2: machines {dict(created)} for {tasks} tasks"
    terminated = Counter(fact.by for fact in facts if isinstance(fact, Terminated))
    assert terminated == {"self": tasks * deployments}, f"2: machines terminated: {dict(terminated)}"
