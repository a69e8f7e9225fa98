"""contracts/ and docs/generated/ match the code and change only by additions."""

import json
import re
import subprocess
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from generate import baseline
from generate.__main__ import GENERATED, committed, comparable, files, generate, main, series
from generate.asyncapi import VERSION
from generate.compatibility import breaking
from generate.examples import EXAMPLES, example
from generate.openapi import documents
from generate.schemas import schemas
from slipway_api.events.topics import EVENT_OF
from slipway_common.messaging.envelope import decode, decode_data

ROOT = Path(__file__).parents[2]
PROBLEM = "application/problem+json"


def test_generated_files_are_in_step() -> None:
    """`make generated` would change nothing: all files exist with this content, and no others."""
    here = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for folder in GENERATED
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }
    made = files()
    beside = {name for name in made if not name.startswith(GENERATED)}
    assert sorted(here) == sorted(made.keys() - beside)
    here |= {name: (ROOT / name).read_text() for name in beside}
    assert [name for name, text in made.items() if here[name] != text] == []


def test_baselines_are_in_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A baseline that differs from its tables is named, and written anew by `make baseline`."""
    assert baseline.main(["check"]) == 0
    monkeypatch.setattr(baseline, "ROOT", tmp_path)
    paths = [path for path, _ in baseline.files()]
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True)
    baseline.main([])
    (tmp_path / paths[0]).write_text("CREATE TABLE forgotten ();\n")
    assert baseline.main(["check"]) == 1
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == [paths[0]]
    assert baseline.main([]) == baseline.main(["check"]) == 0


def test_generating_removes_obsolete_files(tmp_path: Path) -> None:
    stale = tmp_path / "contracts/schemas/io.slipway.worker.levitated.v1.json"
    stale.parent.mkdir(parents=True)
    stale.write_text("{}")
    generate(tmp_path)
    assert not stale.exists()
    assert (tmp_path / "contracts/asyncapi.yaml").read_text() == files()["contracts/asyncapi.yaml"]


def test_every_event_type_has_one_example() -> None:
    assert sorted(event.type for event in EXAMPLES) == sorted(EVENT_OF)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.type)
def test_example_fits_its_schema_and_decodes_to_itself(event: Any) -> None:
    record = example(event)
    schema = schemas()[event.type]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(record["data"], schema, jsonschema.Draft202012Validator)
    jsonschema.validate(record["data"] | {"added_later": 1}, schema, jsonschema.Draft202012Validator)
    headers = [(name, text.encode()) for name, text in record["headers"].items()]
    envelope = decode(headers, received_at=datetime(2026, 1, 1, tzinfo=UTC))
    assert decode_data(envelope.type, json.dumps(record["data"]).encode()) == event


def test_asyncapi_references_lead_somewhere() -> None:
    document = yaml.safe_load((ROOT / "contracts/asyncapi.yaml").read_text())
    references = list(_references(document))
    assert len(references) > 3 * len(EVENT_OF)
    for reference in references:
        if reference.startswith("#/"):
            place = document
            for step in reference.removeprefix("#/").split("/"):
                place = place[step]
        else:
            assert (ROOT / "contracts" / reference).is_file()


OLD = {
    "x-topic": "t",
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "count": {"type": "integer", "default": 0},
        "until": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "words": {"type": "array", "items": {"$ref": "#/$defs/Word"}},
        "stages": {"type": "object", "additionalProperties": {"$ref": "#/$defs/Stage"}},
        "last": {"anyOf": [{"$ref": "#/$defs/Stage"}, {"type": "null"}], "default": None},
    },
    "required": ["id", "words", "stages"],
    "$defs": {
        "Word": {"enum": ["good", "bad"]},
        "Stage": {"type": "object", "properties": {"window": {"type": "integer"}}, "required": ["window"]},
    },
}
CHANGES: list[tuple[str, str, Any, list[str]]] = [
    # path, field and value to set (None: remove), and the reported problems
    ("title", "a description", "New words", []),
    ("properties", "added", {"type": "string"}, []),
    ("$defs.Word", "enum", ["good", "bad", "ugly"], []),
    ("$defs.Stage.properties", "health", {"type": "number"}, []),
    ("", "x-topic", "u", ["e: moved from topic t to u"]),
    ("properties", "count", None, ["e.count: property removed"]),
    ("properties", "count", {"type": "string"}, ["e.count: type changed from integer to string"]),
    ("properties", "until", {"type": "string"}, ["e.until: type changed from null or string to string"]),
    ("properties", "id", {"enum": ["a", "b"]}, ["e.id: now only a or b"]),
    ("", "required", ["id", "words", "stages", "count"], ["e.count: now required; older records lack it"]),
    ("", "required", ["id", "words"], ["e.stages: no longer required; older readers need it"]),
    ("$defs.Word", "enum", ["good"], ["e.words[]: value 'bad' removed"]),
    ("properties.words", "items", {"type": "integer"}, ["e.words[]: type changed from string to integer"]),
    ("$defs.Stage.properties", "window", None, [f"e.{at}.window: property removed" for at in ("stages.*", "last")]),
]


@pytest.mark.parametrize(("path", "name", "value", "problems"), CHANGES)
def test_only_additions_pass(path: str, name: str, value: Any, problems: list[str]) -> None:
    new: dict[str, Any] = deepcopy(OLD)
    place = new
    for step in path.split(".") if path else []:
        place = place.setdefault(step, {})
    if value is None:
        del place[name]
    else:
        place[name] = value
    assert breaking({"e": OLD}, {"e": new}) == problems


def test_event_types_come_and_do_not_go() -> None:
    assert breaking({"e": OLD}, {"e": OLD, "f": OLD}) == []
    assert breaking({"e": OLD, "f": OLD}, {"e": OLD}) == ["f: event type removed"]


def test_the_code_only_adds_to_the_last_commits() -> None:
    assert main(["check"]) == 0


def test_check_reads_a_revision_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A field that only the older contract has was removed by the code, however the old one is read."""
    folder = tmp_path / "contracts"
    (folder / "schemas").mkdir(parents=True)
    older = deepcopy(schemas()["io.slipway.worker.idle.v1"])
    older["properties"]["mood"] = {"type": "string"}
    (folder / "schemas/io.slipway.worker.idle.v1.json").write_text(json.dumps(older))
    assert main(["check", str(folder)]) == 1
    assert "io.slipway.worker.idle.v1.mood: property removed" in capsys.readouterr().err
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "old"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)
    assert committed(tmp_path, "HEAD") == {"io.slipway.worker.idle.v1": older}
    assert committed(tmp_path, "HEAD~1") == {}


@pytest.mark.parametrize(
    ("version", "expected"), [("0.2.7", "0.2"), ("0.10.0", "0.10"), ("1.4.0", "1"), ("2.0.0", "2")]
)
def test_series_of_a_version(version: str, expected: str) -> None:
    assert series(version) == expected


@pytest.mark.parametrize(("version", "expected"), [(VERSION, True), ("99.0.0", False), ("0.0.1", False)])
def test_only_contracts_of_the_same_series_are_compared(tmp_path: Path, version: str, expected: bool) -> None:
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts/asyncapi.yaml").write_text(f"info:\n  version: {version}\n")
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "old"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)
    assert comparable(tmp_path, "HEAD") == expected
    assert comparable(tmp_path, "HEAD~1")


def _references(node: Any) -> Any:
    if isinstance(node, dict):
        for name, inner in node.items():
            if name == "$ref":
                yield inner
            else:
                yield from _references(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _references(inner)


def operations() -> list[Any]:
    """Each operation of each service's OpenAPI document, with its document."""
    return [
        pytest.param(document, operation, refusal(service, path), id=f"{service} {method} {path}")
        for service, document in documents().items()
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def refusal(service: str, path: str) -> str:
    """Content type of refusals: clients of Boskos and of clouds expect others than problems."""
    if service == "lease-broker-boskos":
        return "text/plain"
    return "application/json" if path.startswith("/accounts/{account}/") and service == "simulator" else PROBLEM


@pytest.mark.parametrize(("document", "operation", "refused"), operations())
def test_operations_are_documented(document: dict[str, Any], operation: dict[str, Any], refused: str) -> None:
    """Each has a summary of one line, answers, and refusals of one type; its references lead somewhere."""
    assert re.fullmatch(r"[A-Z][^\n]{3,100}[^.\s]", operation["summary"])
    for status, answer in operation["responses"].items():
        assert status < "4" or list(answer["content"]) == [refused]
    assert min(operation["responses"]) < "3" < max(operation["responses"])
    for reference in re.findall(r'"\$ref": "([^"]+)"', json.dumps(operation)):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


def test_references_between_schemas_of_the_apis_lead_somewhere() -> None:
    found = set()
    for document in documents().values():
        schemas = document["components"]["schemas"]
        names = set(re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(schemas)))
        assert names <= set(schemas)
        found |= names
    assert found
