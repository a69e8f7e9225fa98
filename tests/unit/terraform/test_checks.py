"""The last line of `make terraform-checks` and its exit code follow from the outcomes of the tests."""

from pathlib import Path

import pytest

from tests.terraform.__main__ import CHECKS, Results, files, main, verdict


@pytest.mark.parametrize(
    ("outcomes", "text", "code"),
    [
        ({1: ["passed"], 2: ["passed", "skipped"]}, "2 passed", 0),
        ({1: ["passed"], 2: ["passed", "failed"]}, "1 passed, 1 failed (2)", 1),
        ({1: ["passed"], 2: ["skipped"]}, "1 passed, 1 skipped (2)", 0),
        ({1: ["passed"]}, "1 passed, 1 failed (2)", 1),  # not there
    ],
)
def test_verdict(outcomes: dict[int, list[str]], text: str, code: int) -> None:
    results = Results()
    for number, kinds in outcomes.items():
        results.outcomes[number].update(kinds)
    assert verdict(results, [1, 2]) == (text, code)


def test_every_number_has_a_file(tmp_path: Path) -> None:
    assert sorted(files()) == list(range(1, CHECKS + 1))
    (tmp_path / "test_07_x.py").touch()
    (tmp_path / "test_other.py").touch()
    assert files(tmp_path) == {7: [tmp_path / "test_07_x.py"]}


@pytest.mark.parametrize("check", ["0", "35", "x", "1 2"])
def test_unknown_numbers(check: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(check) == 2
    assert capsys.readouterr().err == f"CHECK={check}: expected a number from 1 to 34\n"
