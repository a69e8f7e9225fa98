"""The demo as a scenario: its arguments, its tasks, and the verdicts about both rules."""

import pytest

from bench.policies.__main__ import main
from bench.policies.demo import BEGIN, Pair, compute, outside, verdicts
from slipway_local.demo.program import parse_arguments
from slipway_local.demo.replay.waste import Waste
from slipway_simulator.facts import ScenarioLoaded, TaskArrived


def result(failed: int, waited_seconds: float) -> Waste:
    return Waste(launches=100, failed=failed, unused=0, waited_seconds=waited_seconds)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"SEEDS": "0"}, "SEEDS=0: must be a whole number from 1 to 1000"),
        ({"SEED": "x"}, "SEED=x: must be a whole number"),
        ({"FAULTS": "fire"}, "unknown fault 'fire'"),
        ({"DURATION": "0"}, "DURATION=0: a run without end"),
        ({"BOOTS": "20", "RATE": "9"}, "BOOTS, RATE: not with SCENARIO=demo, which takes SEEDS, SEED, DURATION,"),
    ],
)
def test_arguments_are_checked(given: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main({"SCENARIO": "demo", **given}) == 2
    assert words in capsys.readouterr().err


def test_the_demo_prints_both_rules_what_they_obey_and_the_claims(capsys: pytest.CaptureFixture[str]) -> None:
    code = main({"SCENARIO": "demo", "SEEDS": "1", "SEED": "7", "DURATION": "10s"})
    out = capsys.readouterr().out
    assert "in sim-a and in sim-b 45 launches at a time, 20 at once and then one per 1 s; 100 workers in linux" in out
    assert [line.split()[3] for line in out.splitlines() if line.startswith("| 7 ")] == ["slipway", "rfc191"]
    assert ("2 of 2 claims hold" in out) is (code == 0)
    assert "of 2 claims hold" in out


def test_verdicts_compare_the_means_of_the_seeds() -> None:
    """One seed may exceed a bound that the mean keeps."""
    good = [Pair(1, result(4, 130.0), result(10, 100.0)), Pair(2, result(7, 90.0), result(10, 100.0))]
    assert [verdict.holds for verdict in verdicts(good)] == [True, True]
    slow = [Pair(1, result(0, 90.0), result(10, 100.0)), Pair(2, result(0, 132.0), result(10, 100.0))]
    assert [verdict.holds for verdict in verdicts(slow)] == [False, True]
    wasteful = [Pair(1, result(0, 100.0), result(10, 100.0)), Pair(2, result(13, 100.0), result(10, 100.0))]
    assert [verdict.holds for verdict in verdicts(wasteful)] == [True, False]


def test_tasks_are_those_of_the_demo_and_follow_from_the_seed() -> None:
    arguments = parse_arguments({"SEED": "3", "DURATION": "45s"})
    loaded, *tasks = outside(arguments)
    assert isinstance(loaded, ScenarioLoaded)
    assert [fault.name for fault in loaded.scenario.faults] == ["zone-b"]
    arrivals = [task.at - BEGIN for task in tasks if isinstance(task, TaskArrived)]
    assert len(arrivals) == len(tasks) > 300
    assert arrivals.count(0.0) == 110
    assert max(arrivals) < 45
    assert tasks == list(outside(arguments))[1:] != list(outside(parse_arguments({"SEED": "4", "DURATION": "45s"})))[1:]


def test_the_rule_without_windows_fails_more_in_an_outage() -> None:
    arguments = parse_arguments({"DURATION": "45s"})
    ours, theirs = compute(arguments, "slipway"), compute(arguments, "rfc191")
    assert 0 < ours.failed < theirs.failed
