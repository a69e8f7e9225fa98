"""Every locking statement of every service has a test in this folder, and no statement reads another clock."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

import slipway_common
import slipway_lease_broker
import slipway_provisioner
import slipway_weight_calculator
from tests.support.statements import locking_statements

PACKAGES: Final = (slipway_common, slipway_lease_broker, slipway_provisioner, slipway_weight_calculator)
FILES: Final = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__))
OTHER_CLOCK: Final = re.compile(
    r"\bnow\(\)|(clock|statement|transaction)_timestamp|timeofday|localtime|current_(time|date)", re.IGNORECASE
)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_locking_statement_has_an_interleaving(package: ModuleType) -> None:
    """None is missing, and none is named that does not exist."""
    tried = [getattr(import_module(f"tests.interleaving.{name}"), "locking", None) for name in FILES]
    covered = {name for each in tried if each is not None and each.package is package for name in each}
    assert locking_statements(package) == covered


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_only_one_clock(package: ModuleType) -> None:
    """Deadlines use no clock but slipway_clock(), except in its own body: now() is the start of the transaction."""
    for path in Path(inspect.getfile(package)).parent.rglob("*.py"):
        texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        found = [match.group() for text in texts if isinstance(text, str) for match in OTHER_CLOCK.finditer(text)]
        own = package is slipway_common and path.name == "tables.py"
        assert found == (["clock_timestamp"] if own else []), path


def test_all_sql_of_the_lease_broker_is_in_its_store() -> None:
    """As constants, so that the list above is complete."""
    package = Path(inspect.getfile(slipway_lease_broker)).parent
    runs = re.compile(r"\.(?:execute|executemany|fetch|fetchrow|fetchval|cursor|copy_\w+)\((\S+)")
    for path in package.rglob("*.py"):
        found = runs.findall(path.read_text())
        if path.parent.name == "store":
            assert all(re.match(r"[A-Z_]+\b", argument) for argument in found), path
        else:
            assert not found or path.parent.name == "versions", path
