"""The guide for operators explains every kind of alert that the services raise."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
GUIDE: Final = ROOT / "docs/guides/operators.md"
# Calls that name a kind, and the place of the kind among their arguments.
NAMED_BY: Final = {
    "alert_identity": 1,
    "_identity": 0,
    "alert_key": 1,
    "PartitionAlert": 0,
    "StartNotice": 0,
    "record_gap": 3,
}
# Of another module's constant, and those that one function raises, for the kind of their key.
ELSEWHERE: Final = {
    "foreign-position",
    "image-tripped",
    "quota-exhausted",
    "credential-failing",
    "capacity-unavailable",
}


def raised() -> Iterator[str]:
    """Kinds in the code of the services, each a text or a constant of its module."""
    for folder in ("libs/common", "services"):
        for file in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(file.read_text())
            constants = {
                node.target.id: node.value.value
                for node in tree.body
                if isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and isinstance(node.value, ast.Constant)
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMED_BY:
                    kind = node.args[NAMED_BY[node.func.id]]
                    if isinstance(kind, ast.Constant):
                        yield str(kind.value)
                    elif isinstance(kind, ast.Name) and kind.id in constants:
                        yield str(constants[kind.id])


def explained() -> set[str]:
    """Kinds in the guide's table."""
    (table,) = re.findall(
        r"^\| alert \| severity \| ends when \|\n\|.*\n((?:\|.*\n)+)", GUIDE.read_text(), re.MULTILINE
    )
    return {kind for row in table.splitlines() for kind in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_the_guide_explains_every_alert() -> None:
    assert {*raised()} | ELSEWHERE == explained()
