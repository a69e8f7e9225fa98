"""Committed results of benchmarks."""

from pathlib import Path

import pytest

from bench import committed


@pytest.mark.parametrize(
    ("environment", "written", "line"),
    [
        ({}, False, "not kept: KEEP=1 writes bench/results/a.json, bench/results/a.md\n"),
        ({"KEEP": "0"}, False, "not kept: KEEP=1 writes bench/results/a.json, bench/results/a.md\n"),
        ({"KEEP": "1"}, True, "kept in bench/results/a.json, bench/results/a.md\n"),
    ],
)
def test_results_are_kept_on_request_alone(
    environment: dict[str, str], written: bool, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    found = committed.folder_to_write(environment, "a.json", "a.md", folder=folder)
    assert (found, folder.exists()) == ((folder, True) if written else (None, False))
    assert capsys.readouterr().out == line


def test_json_is_written_on_request_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed, "FOLDER", tmp_path)
    for environment, files in (({}, []), ({"KEEP": "1"}, ["a.json"])):
        committed.write_json(environment, "a.json", {"figure": 1})
        assert [file.name for file in tmp_path.iterdir()] == files
    assert (tmp_path / "a.json").read_text() == '{\n  "figure": 1\n}\n'
