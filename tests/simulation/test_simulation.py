"""Simulation of three services in one seeded history.

The invariants hold after every step, and all work completes once the faults end. Invariant 10 (one configuration per
provider plugin process) is not covered, since there is no plugin process.
"""

import os
from pathlib import Path
from typing import Final

import pytest

from slipway_local.servers.postgres import EmbeddedPostgres
from tests.simulation.databases import SERVICES
from tests.simulation.deployment import SKEW_SECONDS
from tests.simulation.history import ALL_COMMANDS, ALL_FAULTS, Report, play
from tests.simulation.quiet import (
    HOUR_SECONDS,
    beside,
    deployment_beside,
    quiet_deployment_on,
    restored,
    set_clocks,
    undisturbed,
)
from tests.simulation.run import missing, play_both, summarise
from tests.simulation.seeds import seeds_of

# Selected seeds, to which one that failed is added. Together their histories have all faults and commands.
SELECTED: Final = [int(line) for line in Path(__file__).with_name("seeds.txt").read_text().split()]
PLAYED: Final[dict[int, Report]] = {}  # by seed


@pytest.mark.parametrize("seed", SELECTED)
async def test_history(postgres: EmbeddedPostgres, seed: int) -> None:
    """Histories of the seeds in seeds.txt."""
    report = await play_both(postgres, seed)
    assert (report.broken, report.drift) == ("", 0)
    PLAYED[seed] = report


def test_histories_have_all_faults_and_commands() -> None:
    """Some history has each kind of fault and of command: a run without them proves nothing."""
    found = frozenset[str]().union(*(report.found for report in PLAYED.values()))
    assert len(PLAYED) < len(SELECTED) or (ALL_FAULTS | ALL_COMMANDS) - found == set()


async def test_a_seed_is_one_history(postgres: EmbeddedPostgres) -> None:
    """The same seed gives the same facts of the cloud: calls, replies, machines and their ends, at the same times."""
    first, again = (
        PLAYED.get(SELECTED[-1]) or await play_both(postgres, SELECTED[-1]),
        await play(postgres, SELECTED[-1]),
    )
    assert first.digest.startswith(f"{again.digest} ")


@pytest.mark.parametrize("ahead_seconds", [-SKEW_SECONDS, 0.0, SKEW_SECONDS])
async def test_one_task_one_machine(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, ahead_seconds: float
) -> None:
    """Without faults there are as many machines as tasks, however late reports, boots and events are, and whichever
    clock is ahead (invariant 2)."""
    async with quiet_deployment_on(postgres, monkeypatch, 7) as deployment:
        for service in SERVICES:
            await deployment.set_clock(service, ahead_seconds)
        await undisturbed(deployment)


@pytest.mark.parametrize("seconds", [HOUR_SECONDS, -HOUR_SECONDS])
async def test_a_clock_that_is_set_ends_nothing(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """The databases' clock is ahead or behind by an hour for a minute: no machine, lease or boot ends by it."""
    async with quiet_deployment_on(postgres, monkeypatch, 5) as deployment:
        await set_clocks(deployment, seconds)


@pytest.mark.parametrize("seed", seeds_of(os.environ, default=1))
async def test_an_older_database(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    async with quiet_deployment_on(postgres, monkeypatch, seed) as deployment:
        await restored(postgres, deployment)


async def test_a_second_deployment_in_the_account(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        quiet_deployment_on(postgres, monkeypatch, 1) as one,
        deployment_beside(postgres, monkeypatch, one, 1) as other,
    ):
        await beside(one, other)


def test_arguments() -> None:
    """Those of each simulation; the errors are tested with the other one's command."""
    assert seeds_of({"SEEDS": "3"}, default=24) == [1, 2, 3]
    assert seeds_of({"SEED": "7", "SEEDS": "3"}, default=24) == [7, 8, 9]
    assert seeds_of({"SEED": "7"}, default=24) == [7]
    assert len(seeds_of({}, default=24)) == 24
    assert len(seeds_of({"FULL": "1"}, default=24)) == 1000


def test_a_broken_history_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    good = [Report(seed, ALL_FAULTS | ALL_COMMANDS, "") for seed in range(1, 25)]
    assert summarise(good) == 0
    assert capsys.readouterr().out.endswith("\n24 seeds, 0 broken, counter drift 0\n")
    assert summarise([*good, Report(25, frozenset(), "seed 25 at 3.0 s: 4: events and rows differ")]) == 1
    assert "PROBLEM seed 25 at 3.0 s" in (out := capsys.readouterr().out)
    assert out.endswith("\n25 seeds, 1 broken, counter drift 0\n")
    assert summarise([*good, Report(25, frozenset(), "", drift=2)]) == 1
    assert capsys.readouterr().out.endswith("\n25 seeds, 0 broken, counter drift 2\n")


def test_many_histories_without_a_command_are_rejected() -> None:
    lacking = [Report(seed, ALL_FAULTS | ALL_COMMANDS - {"rollback"}, "") for seed in range(1, 25)]
    assert missing(lacking) == ["rollback"]
    assert missing(lacking[:23]) == [], "few seeds may lack some"
