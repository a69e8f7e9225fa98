"""A few seeds of `make simulate ONLY=weights`, which runs a hundred."""

from collections import Counter

import pytest
from msgspec.structs import replace

from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_weight_calculator.domain.evidence import Stage
from slipway_weight_calculator.domain.rows import Row
from tests.simulation.weights import Report, main, missing, play_all, print_summary
from tests.simulation.weights_images import Commit, unexplained
from tests.simulation.weights_life import WHERE

SEEDS = [8, 9, 13]


async def test_killed_at_commits(postgres: EmbeddedPostgres) -> None:
    """After any crashes, the rows equal a replay of the journal, which contains each record once."""
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
        ({"SEEDS": "0"}, "SEEDS=0: must be a positive integer"),
        ({"SEEDS": "abc"}, "SEEDS=abc: must be a positive integer"),
        ({"SEEDS": "-3"}, "SEEDS=-3: must be a positive integer"),
        ({"SEED": "x"}, "SEED=x: must be a positive integer"),
        ({"FULL": "yes"}, "FULL=yes: must be 1 or unset"),
    ],
)
def test_bad_arguments(
    given: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SEED", "SEEDS", "FULL"):
        monkeypatch.setenv(name, given.get(name, ""))
    assert main() == 2
    assert capsys.readouterr().err == f"{reason}\n"


def test_many_seeds_without_a_kind_of_crash_or_a_count_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    everything = Report(1, dict.fromkeys(WHERE, 1), {"records": 5, "turns": 2}, [])
    assert print_summary([everything] * 25) == 0
    for less, words in (
        (replace(everything, crashes=dict.fromkeys(WHERE[1:], 1)), f"nothing crashed {WHERE[0]}"),
        (replace(everything, counts={"records": 5, "turns": 0}), "no turns"),
    ):
        assert print_summary([less] * 24) == 0, "fewer seeds may lack some"
        assert "PROBLEM" not in capsys.readouterr().out
        assert print_summary([less] * 25) == 1
        assert f"PROBLEM {words}: " in capsys.readouterr().out


def test_moves_of_an_image_that_no_event_explains() -> None:
    """A commit explains the successes, failures and boots of the images that its events name, and no others."""
    idle, fresh = Row(Stage(), Stage(), Stage()), Stage(window=8.0)
    commit = Commit({"w": "booting"})
    commit.outcomes["named", "boot", "ok"] = 1
    once, twice = (replace(idle, boot=Stage(successes=n, succeeded=n), boots=(9.0,) * n) for n in (1, 2))
    late, charged = (replace(idle, boot=Stage(failures=1.0, failed=1, late=late)) for late in (1, 0))
    assert [*unexplained(("named", idle, once), commit)] == []
    assert [*unexplained(("named", None, once), commit)] == []
    assert [*unexplained(("booting", idle, late), commit)] == [], "time alone makes a boot late"
    assert [*unexplained(("other", idle, replace(idle, version=2)), commit)] == []
    for image, before, after, words in (
        ("named", idle, twice, "2 successes of boot were credited to it, and 1 events name it"),
        ("named", once, None, "deleted without a change of launch configs"),
        ("named", twice, once, "lost successes"),
        ("booting", idle, charged, "1 failures of boot were charged to it, and 0 events name it"),
        ("booting", idle, replace(idle, boots=(9.0,)), "its known boots changed"),
        ("other", idle, once, "1 successes of boot were credited to it, and 0 events name it"),
        ("other", idle, late, "boot moved from"),
        ("other", idle, replace(idle, claim=fresh), "claim moved from"),
        ("other", None, idle, "its row appeared"),
    ):
        found = [*unexplained((image, before, after), commit)]
        assert any(words in sentence for sentence in found), (words, found)
