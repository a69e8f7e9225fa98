"""A few seeds of what `make simulate ONLY=weights` plays a hundred of."""

from collections import Counter

import pytest
from msgspec.structs import replace

from slipway_local.postgres import EmbeddedPostgres
from tests.simulation.weights import Report, asked, main, missing, play_all, tell
from tests.simulation.weights_life import WHERE

SEEDS = [3, 7, 9]


async def test_killed_at_commits(postgres: EmbeddedPostgres) -> None:
    """Whatever dies where, the rows are what their journal makes of the log, and each record is in it once."""
    reports = await play_all(postgres, SEEDS)
    assert [difference for report in reports for difference in report.differences] == []
    crashes, counts = Counter[str](), Counter[str]()
    for report in reports:
        crashes.update(report.crashes)
        counts.update(report.counts)
    assert missing(crashes, counts) == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"SEEDS": "0"}, "SEEDS=0: a whole number, 1 or more"),
        ({"SEEDS": "abc"}, "SEEDS=abc: a whole number, 1 or more"),
        ({"SEEDS": "-3"}, "SEEDS=-3: a whole number, 1 or more"),
        ({"SEED": "x"}, "SEED=x: a whole number, 0 or more"),
        ({"FULL": "yes"}, "FULL=yes: 1, or nothing"),
    ],
)
def test_arguments_that_are_none(
    given: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SEED", "SEEDS", "FULL"):
        monkeypatch.setenv(name, given.get(name, ""))
    assert main() == 2
    assert capsys.readouterr().err == f"{reason}\n"


def test_arguments() -> None:
    assert len(asked({})) == 100
    assert len(asked({"FULL": "1"})) == 1000
    assert asked({"SEEDS": "3"}) == [1, 2, 3]
    assert asked({"SEED": "7", "SEEDS": "3"}) == [7]


def test_many_seeds_without_a_kind_of_death_or_a_count_show_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    everything = Report(1, dict.fromkeys(WHERE, 1), {"records": 5, "turns": 2}, [])
    assert tell([everything] * 25) == 0
    for less, words in (
        (replace(everything, crashes=dict.fromkeys(WHERE[1:], 1)), f"nothing died {WHERE[0]}"),
        (replace(everything, counts={"records": 5, "turns": 0}), "no turns"),
    ):
        assert tell([less] * 24) == 0, "so few may show less"
        assert "PROBLEM" not in capsys.readouterr().out
        assert tell([less] * 25) == 1
        assert f"PROBLEM {words}: " in capsys.readouterr().out
