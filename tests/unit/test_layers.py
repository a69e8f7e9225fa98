"""Layers: their tables are complete, and the runner chooses and judges by them."""

import re
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.layers import AREAS, CORE, EXEMPT, LONG, MAKE, Layer, asked_for
from tests.tools.layers import LAYERS, End, chosen, judged, startable

ROOT = Path(__file__).parents[2]
# Layers that share their files, of which names choose.
BY_NAME = {"contract": "terraform-contract"}


def is_in(path: str, layer: Layer) -> bool:
    def below(folders: object) -> bool:
        return any(path == one or path.startswith(f"{one}/") for one in list(folders))  # type: ignore[call-overload]

    return below(layer.paths) and not below(layer.without)


def test_every_file_of_tests_is_in_one_layer() -> None:
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    by_targets = ("tests/requirements/",)
    homes = {
        file: [name for name, layer in LAYERS.items() if is_in(file, layer) and name not in BY_NAME.values()]
        for file in files
        if not file.startswith(by_targets)
    }
    assert {file: names for file, names in homes.items() if len(names) != 1} == {}
    named = {path for layer in LAYERS.values() for path in (*layer.paths, *layer.without)}
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_every_target_is_a_layer_or_exempt() -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    run = {layer.command[len(MAKE)] for layer in LONG.values() if layer.command[: len(MAKE)] == MAKE}
    assert run | set(EXEMPT) == targets
    assert run & set(EXEMPT) == set()


def test_every_file_asks_for_layers() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    used = {next(pattern for pattern, _ in AREAS if fnmatchcase(path, pattern)) for path in listed}
    assert {pattern for pattern, _ in AREAS} - used == set()
    named = {name for _, layers in AREAS for name in layers}
    assert named - set(LONG) == set()


def test_a_change_asks_for_its_layers() -> None:
    assert asked_for([]) == list(CORE)
    asked = asked_for(["libs/terraform/slipway_terraform/main.py", "docs/guides/aws.md"])
    assert {"terraform-fair", "readme", "unit"} <= set(asked)
    assert "lease-harm" not in asked


@pytest.mark.parametrize(
    ("running", "next_"),
    [([], "many"), (["many"], "one"), (["one"], "many"), (["alone"], None)],
)
def test_what_measures_shares_no_processor(running: list[str], next_: str | None) -> None:
    layers = {
        "alone": Layer((), 1, many=True, alone=True),
        "many": Layer((), 1, many=True),
        "one": Layer((), 1),
    }
    waiting = [name for name in ("one", "many", "alone") if name not in running]
    assert startable(waiting, running, layers) == next_
    assert startable(["alone"], [], layers) == "alone"
    assert startable(["alone"], ["one"], layers) is None


def test_a_slow_layer_fails_on_quiet_processors() -> None:
    budget = CORE["unit"].budget_seconds
    ends = [End("unit", "ok", 1.3 * budget, b""), End("check", "ok", 1.0, b""), End("e2e", "FAILED", 999.0, b"")]
    assert [end.verdict for end in judged(ends, 0.05)] == ["SLOW", "ok", "FAILED"]
    assert judged(ends, 0.2) == ends
    assert judged([ends[0]._replace(slowness=1.2)], 0.05)[0].verdict == "ok"
    assert judged([ends[0]._replace(slowness=0.5)], 0.05)[0].verdict == "SLOW"


def test_the_choice_of_layers() -> None:
    assert chosen([], {}) == list(CORE)
    assert chosen([], {"FAST": "1"}) == ["unit", "calculator", "check"]
    assert chosen([], {"ALL": "1"}) == [*CORE, *LONG]
    assert chosen(["readme", "unit"], {}) == ["unit", "readme"]
    with pytest.raises(SystemExit, match="no such layer: nothing; there are e2e"):
        chosen(["nothing"], {})
    with pytest.raises(SystemExit, match="no fast layer: readme"):
        chosen(["readme"], {"FAST": "1"})
