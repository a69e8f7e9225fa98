"""Tables on the terminal."""

import json
import re
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from slipway_client.cli.tables import Output, pairs, show
from slipway_client.transport.http import Decoded

NOW = datetime(2026, 8, 1, 14, 30, tzinfo=UTC)


def received(fields: dict[str, Any]) -> Decoded[object]:
    """A row as a service has sent it."""
    return Decoded(None, msgspec.json.encode(fields))


ODD = "a\x1b[2Jb\r\nc\u202ed\x9be"


def test_untrusted_text_in_tables_is_sanitized(capsys: pytest.CaptureFixture[str]) -> None:
    """Cells, values, nested values and names are sanitized."""
    show([received({"id": ODD, "nested": {"x": ODD}})], ("id", "nested"), Output.TABLE, nothing="")
    pairs({"reason": ODD, "settings." + ODD: [ODD]})
    lines = capsys.readouterr().out.removesuffix("\n").split("\n")
    assert len(lines) == 4
    assert [line for line in lines if not line.isprintable()] == []
    assert "a�[2Jb��c�d�e" in lines[1]


def test_programs_get_texts_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show([received({"id": ODD})], ("id",), Output.JSON, nothing="")
    assert json.loads(capsys.readouterr().out) == [{"id": ODD}]


def test_no_line_ends_in_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [received({"id": "a", "reason": ""}), received({"id": "b", "reason": "a long one"})]
    show(rows, ("id", "reason"), Output.TABLE, nothing="")
    lines = capsys.readouterr().out.split("\n")
    assert lines == ["id  reason", "a", "b   a long one", ""]


ID = "01981c6e-8f7a-7d53-9c55-2b7f3f9a12cd"
ROW = {"id": ID, "state": "running", "instance": "i-0123456789abcdef0", "reason": "the boot window is full " * 3}


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (200, ["id", "state", "instance", "reason"]),
        (100, ["id", "state", "instance", "reason"]),
        (80, ["id", "state", "reason"]),
        (60, ["id", "reason"]),
        (50, ["id"]),
        (10, ["id"]),
    ],
)
def test_narrow_terminals_lose_columns_and_no_id_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, shown: list[str]
) -> None:
    """Whole columns are dropped, those of `drop` first; sentences wrap at words."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")  # of a dumb terminal rich assumes 80 columns
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show([received(ROW)], tuple(ROW), Output.TABLE, nothing="", drop=("instance",))
    heading, *lines = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert heading.split() == shown
    assert "".join(line[: len(ID)].rstrip() for line in lines) == ID
    assert ROW["instance"] in lines[0] or "instance" not in shown


def test_a_misspelt_heading_to_drop_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """However wide the output is: any test that draws the table finds it."""
    with pytest.raises(KeyError, match="instnace"):
        show([received(ROW)], tuple(ROW), Output.TABLE, nothing="", drop=("instnace",))
    assert capsys.readouterr().out == ""
