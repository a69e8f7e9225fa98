"""Answers on the terminal, whoever wrote the texts in them."""

import json
from datetime import UTC, datetime

import pytest

from slipway_client.tables import Output, pairs, show

NOW = datetime(2026, 8, 1, 14, 30, tzinfo=UTC)
ODD = "a\x1b[2Jb\r\nc\u202ed\x9be"


def test_texts_of_others_do_not_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither in a cell nor in a value, nor nested, nor as a name."""
    show([{"id": ODD, "nested": {"x": ODD}}], ("id", "nested"), Output.TABLE, nothing="")
    pairs({"reason": ODD, "settings." + ODD: [ODD]}, NOW)
    told = capsys.readouterr().out.removesuffix("\n").split("\n")
    assert len(told) == 4
    assert [line for line in told if not line.isprintable()] == []
    assert "a�[2Jb��c�d�e" in told[1]


def test_programs_get_texts_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"id": ODD}], ("id",), Output.JSON, nothing="")
    assert json.loads(capsys.readouterr().out) == [{"id": ODD}]


def test_no_line_ends_in_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"id": "a", "reason": ""}, {"id": "b", "reason": "a long one"}], ("id", "reason"), Output.TABLE, nothing="")
    lines = capsys.readouterr().out.split("\n")
    assert lines == ["id  reason", "a", "b   a long one", ""]
