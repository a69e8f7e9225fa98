"""Initial scenario of a simulator: used only for an empty ledger; a bad file is reported at the start."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from slipway_simulator.facts import ScenarioLoaded
from slipway_simulator.ledger import read
from slipway_simulator.main import BadScenario, build
from slipway_simulator.settings import Settings


def loaded(ledger: Path) -> list[int]:
    return [fact.scenario.seed for fact in read(ledger) if isinstance(fact, ScenarioLoaded)]


def begin(folder: Path, text: str) -> Path:
    """Start and stop a simulator whose scenario file has `text`; returns its ledger."""
    (folder / "scenario.json").write_text(text)
    settings = Settings(ledger=folder / "ledger.jsonl", scenario=folder / "scenario.json", kafka="")
    with TestClient(build(settings)) as client:
        assert client.get("/readyz").status_code == 200
    return folder / "ledger.jsonl"


def test_only_an_empty_ledger_takes_it(tmp_path: Path) -> None:
    assert loaded(begin(tmp_path, '{"seed": 3}')) == [3]
    assert loaded(begin(tmp_path, '{"seed": 4}')) == [3], "a continued run keeps its scenario"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("{", "truncated"),
        ('{"sped": 2}', "sped"),
        ('{"faults": "zone-b:never"}', "zone-b"),
        ('{"pools": {"linux": {"kind": "trace", "path": "/nowhere"}}}', "/nowhere: No such file"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "scenario.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadScenario, match=message) as failed:
        build(Settings(ledger=tmp_path / "ledger.jsonl", scenario=path, kafka=""))
    assert str(failed.value).startswith(f"SLIPWAY_SCENARIO={path}: ")
    assert not (tmp_path / "ledger.jsonl").exists()
