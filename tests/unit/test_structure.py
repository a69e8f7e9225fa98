"""Structure check: finds each kind of violation, and counts the files of each layer."""

from pathlib import Path

import pytest

from tests.tools.structure import LINES_MAX, METHODS_MAX, PARAMETERS_MAX, TABLES, findings, layers, modules

DOMAIN = "services/x/slipway_x/domain/plan.py"
METHODS = "".join(f"    def m{n}(self): ...\n" for n in range(METHODS_MAX))
NAMES = ", ".join(f"p{n}" for n in range(PARAMETERS_MAX))


def found(root: Path, files: dict[str, str]) -> list[str]:
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return findings(list(modules(root)), root)


OFFENCES = {
    "lines": ({"generate/a.py": "a = 1\n" * (LINES_MAX + 1)}, "generate/a.py: 601 lines, above 600"),
    "lines of a test": ({"tests/unit/a.py": "a = 1\n" * (LINES_MAX + 1)}, "tests/unit/a.py: 601 lines, above 600"),
    "methods": (
        {"libs/x/slipway_x/a.py": f"class A:\n{METHODS}    @property\n    async def one_more(self): ...\n"},
        "libs/x/slipway_x/a.py:1 A: 26 methods, above 25",
    ),
    "parameters": ({DOMAIN: f"def f({NAMES}, *, more): ..."}, f"{DOMAIN}:1 f: 9 parameters, above 8"),
    "parameters of a method": (
        {DOMAIN: f"class A:\n    def f(self, {NAMES}, **more): ..."},
        f"{DOMAIN}:2 f: 9 parameters, above 8",
    ),
    "parameters of a static method": (
        {DOMAIN: f"class A:\n    @staticmethod\n    def f({NAMES}, *more): ..."},
        f"{DOMAIN}:3 f: 9 parameters, above 8",
    ),
    "cycle inside a function": (
        {
            "libs/x/slipway_x/__init__.py": "",
            "libs/x/slipway_x/a.py": "from slipway_x import b",
            "libs/x/slipway_x/b.py": "from slipway_x.c import name",
            "services/x/slipway_x/c.py": "def f():\n    import slipway_x.a",
        },
        "import cycle: slipway_x.a → slipway_x.b → slipway_x.c → slipway_x.a",
    ),
    "cycle of relative imports": (
        {
            "libs/x/slipway_x/a/__init__.py": "from .b import name",
            "libs/x/slipway_x/a/b.py": "from ..c import name",
            "libs/x/slipway_x/c.py": "from . import a",
        },
        "import cycle: slipway_x.a → slipway_x.a.b → slipway_x.c → slipway_x.a",
    ),
    "second class of one name": (
        {"libs/x/slipway_x/a.py": "class A: ...", "libs/x/slipway_x/b.py": "class _B: ...\nclass A: ..."},
        "libs/x/slipway_x/b.py:2: second public class A of slipway_x; the first is libs/x/slipway_x/a.py:1",
    ),
    "last line without an end": (
        {"generate/a.py": "a = 1\n" * LINES_MAX + "b = 2"},
        "generate/a.py: 601 lines, above 600",
    ),
}


@pytest.mark.parametrize(("files", "finding"), OFFENCES.values(), ids=OFFENCES)
def test_offence(tmp_path: Path, files: dict[str, str], finding: str) -> None:
    assert found(tmp_path, files) == [finding]


@pytest.mark.parametrize(
    "files",
    [
        {"generate/a.py": "a = 1\n" * LINES_MAX},
        {next(iter(TABLES)): "a = 1\n" * (LINES_MAX + 1)},
        {"libs/x/slipway_x/a.py": f"class A:\n{METHODS}"},
        {DOMAIN: f"class A:\n    def f(self, {NAMES}): ..."},
        {"services/x/slipway_x/store/a.py": f"def f({NAMES}, more): ..."},
        {"libs/x/slipway_x/a.py": "import slipway_x.b", "libs/x/slipway_x/b.py": "import slipway_x.c.d"},
    ],
)
def test_no_offence(tmp_path: Path, files: dict[str, str]) -> None:
    assert found(tmp_path, files) == []


def test_two_cycles_are_two_findings(tmp_path: Path) -> None:
    a = {f"generate/a{n}.py": f"import generate.a{1 - n}" for n in (0, 1)}
    b = {f"generate/b{n}.py": f"import generate.b{1 - n}" for n in (0, 1)}
    assert len(found(tmp_path, a | b)) == 2


def test_files_per_layer(tmp_path: Path) -> None:
    """Layers in the order of the contract; empty files and empty layers do not count."""
    found(tmp_path, {f"libs/x/slipway_x/{path}": "a = 1" for path in ("main.py", "store/a.py", "store/b/c.py", "d.py")})
    found(tmp_path, {"libs/x/slipway_x/store/__init__.py": ""})
    counted = layers(list(modules(tmp_path)), {"slipway_x": ["main", "http", "store"]})
    assert list(counted["slipway_x"].items()) == [("main", 1), ("store", 2), ("other", 1)]
