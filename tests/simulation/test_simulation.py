"""Simulation of three services in one seeded history.

The invariants hold after every step, and all work completes once the faults end. Invariant 10 (one configuration per
provider plugin process) is not covered, since there is no plugin process.
"""

from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_simulator.facts import Call, InstanceCreated, Terminated
from tests.simulation.deployment import SERVICES, SKEW_SECONDS, deployment_on
from tests.simulation.history import (
    ALL_COMMANDS,
    ALL_FAULTS,
    FAULTS,
    QUIET_STEPS,
    QUIET_TASKS,
    Report,
    arrivals,
    calls,
    instances,
    play,
    quiet_deployment_on,
    run,
    scenario,
    settle,
)
from tests.simulation.invariants import LIMIT, MAX_CAPACITY, judge, judge_losses
from tests.simulation.restores import Backup, confirm
from tests.simulation.run import missing, seeds_of, summarise

# Selected seeds, to which one that failed is added. Together their histories have all faults and commands.
SELECTED: Final = [int(line) for line in Path(__file__).with_name("seeds.txt").read_text().split()]
FOUND: Final[dict[int, frozenset[str]]] = {}  # seed → faults and commands of its history


@pytest.mark.parametrize("seed", SELECTED)
async def test_history(postgres: EmbeddedPostgres, seed: int) -> None:
    """Histories of the seeds in seeds.txt."""
    report = await play(postgres, seed)
    assert report.broken == ""
    FOUND[seed] = report.found


def test_histories_have_all_faults_and_commands() -> None:
    """Some history has each kind of fault and of command: a run without them proves nothing."""
    found = frozenset[str]().union(*FOUND.values())
    assert len(FOUND) < len(SELECTED) or (ALL_FAULTS | ALL_COMMANDS) - found == set()


async def test_a_seed_is_one_history(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed gives the same calls to the cloud, at the same times and with the same replies."""
    histories = []
    for _ in range(2):
        with monkeypatch.context() as patch:
            pool: dict[str, Any] = {"max_capacity": MAX_CAPACITY, "honours_tokens": False}
            async with deployment_on(postgres, patch, 11, scenario(11, FAULTS), **pool) as deployment:
                deployment.crashing, deployment.log.lost_acknowledgements = 0.1, 0.1
                deployment.tasks_at = arrivals(deployment.chance, 10, 30)
                await run(deployment, 400)
                histories.append(calls(deployment))
    assert histories[0] == histories[1] != []


@pytest.mark.parametrize("ahead_seconds", [-SKEW_SECONDS, 0.0, SKEW_SECONDS])
async def test_one_task_one_machine(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, ahead_seconds: float
) -> None:
    """Without faults there are as many machines as tasks, however late reports, boots and events are, and whichever
    clock is ahead (invariant 2)."""
    async with quiet_deployment_on(postgres, monkeypatch, 7) as deployment:
        for service in SERVICES:
            await deployment.set_clock(service, ahead_seconds)
        await run(deployment, QUIET_STEPS)
        await settle(deployment, QUIET_TASKS)
        assert instances(deployment) == QUIET_TASKS
        await judge(deployment)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_an_older_database(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A restore loses launches, claims and events. Nothing is launched or terminated before a person confirms; then all
    tasks run, each on one machine, and no consumer has dropped an event or found a gap."""
    pool: dict[str, Any] = {"max_capacity": MAX_CAPACITY, "honours_tokens": bool(seed % 2)}
    async with deployment_on(postgres, monkeypatch, seed, scenario(seed, ""), **pool) as deployment:
        deployment.tasks_at = arrivals(deployment.chance, 24, 500)
        backup, facts = Backup(postgres, deployment), deployment.cloud.facts
        await run(deployment, 250)
        await backup.make()
        await run(deployment, 250)
        await backup.restore()
        known = len(facts)
        for _ in range(150):
            await deployment.step()
            await deployment.pass_time(deployment.chance.uniform(0, 4))
        found = await confirm(deployment)
        assert found["orphans"], "the backup has all machines"
        assert [fact for fact in facts[known:] if isinstance(fact, Call)] == []
        assert {fact.by for fact in facts[known:] if isinstance(fact, Terminated)} <= {"self"}
        await settle(deployment, 24)
        assert instances(deployment) == 24
        await judge_losses(deployment)


async def test_a_second_deployment_in_the_account(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two deployments launch, list and reap in one account: each runs its tasks on as many machines of its own."""
    pool: dict[str, Any] = {"max_capacity": MAX_CAPACITY, "honours_tokens": False}
    async with (
        deployment_on(postgres, monkeypatch, 1, scenario(1, ""), **pool) as one,
        deployment_on(postgres, monkeypatch, 2, scenario(2, ""), **pool) as other,
    ):
        other.cloud.world, other.cloud.facts = one.cloud.world, one.cloud.facts
        await other.databases["provisioner"].execute("UPDATE deployment SET id = 'slipway-other'")
        for each in (one, other):
            await each.declare(LIMIT)
            each.tasks_at = arrivals(each.chance, 10, 300)
        for _ in range(60):
            for each in (one, other):
                await each.everything()
                await each.pass_time(15)
        created = Counter(fact.deployment for fact in one.cloud.facts if isinstance(fact, InstanceCreated))
        assert sorted(created.values()) == [10, 10]
        assert [len(each.cloud.done) for each in (one, other)] == [10, 10]


@pytest.mark.parametrize("given", [{"SEEDS": "0"}, {"SEED": "x"}, {"FULL": "yes"}])
def test_wrong_arguments_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"expected a positive integer|must be 1"):
        seeds_of(given)


def test_arguments() -> None:
    assert seeds_of({"SEEDS": "3"}) == [1, 2, 3]
    assert seeds_of({"SEED": "7", "SEEDS": "3"}) == [7]
    assert len(seeds_of({"FULL": "1"})) == 500


def test_a_broken_history_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    good = [Report(seed, ALL_FAULTS | ALL_COMMANDS, "") for seed in range(1, 11)]
    assert summarise(good) == 0
    assert capsys.readouterr().out.endswith("\n10 histories, 0 broken\n")
    assert summarise([*good, Report(11, frozenset(), "seed 11 at 3.0 s: 4: events and rows differ")]) == 1
    assert "PROBLEM seed 11 at 3.0 s" in (out := capsys.readouterr().out)
    assert out.endswith("\n11 histories, 1 broken\n")


def test_many_histories_without_a_command_are_rejected() -> None:
    lacking = [Report(seed, ALL_FAULTS | ALL_COMMANDS - {"rollback"}, "") for seed in range(1, 11)]
    assert missing(lacking) == ["rollback"]
    assert missing(lacking[:9]) == [], "few seeds may lack some"
