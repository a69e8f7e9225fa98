"""Drills: their arguments, and the mutants with which they have to fail."""

from pathlib import Path

import pytest

from tests.drills.__main__ import DRILLS, parse_arguments
from tests.tools.mutants import ROOT, rows_of


def test_every_drill_has_a_mutant() -> None:
    assert {drill.mutant for drill in DRILLS.values()} <= set(rows_of())


def test_the_guide_lists_every_drill_with_its_mutant() -> None:
    guide = Path(ROOT, "docs", "guides", "drills.md").read_text()
    rows = [line.split(" | ") for line in guide.splitlines() if line.startswith("| `")]
    assert {row[0]: row[-1] for row in rows} == {f"| `{name}`": f"`{drill.mutant}` |" for name, drill in DRILLS.items()}


def test_arguments() -> None:
    """Without ONLY all drills are played, at a speed of their own."""
    assert parse_arguments({}).names == tuple(DRILLS)
    assert parse_arguments({"ONLY": "stop", "SEED": "3", "SPEED": "10"}) == parse_arguments(
        {"ONLY": "stop", "SEED": "3", "SPEED": "10.0"}
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [({"ONLY": "stops"}, "unknown stops"), ({"SEED": "x"}, "SEED has to be an integer"), ({"SPEED": "-1"}, "positive")],
)
def test_bad_arguments(given: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_arguments(given)
