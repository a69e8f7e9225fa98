"""The SQL statements of a package, in text and compiled, so that a test can prove that each of them is tested."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from slipway_common.database.sql import Statement

LOCKS: Final = re.compile(
    r"\bFOR (NO KEY )?UPDATE\b|\bFOR (KEY )?SHARE\b|\bON CONFLICT\b|\bpg_(try_)?advisory|\bLOCK TABLE\b|\bTRUNCATE\b"
    r"|\bUPDATE\s+\S+\s+((AS\s+)?\w+\s+)?SET\b|\bDELETE\s+FROM\b|\bMERGE\s+INTO\b"
)


Test = TypeVar("Test")


class Covered(set[str]):
    """Names of the locking statements of a package whose interleavings the tests of a file try. Call it to mark a test
    with them."""

    def __init__(self, package: ModuleType) -> None:
        super().__init__()
        self.package = package

    def __call__(self, *names: str) -> Callable[[Test], Test]:
        self.update(names)
        return lambda test: test


def locking_statements(package: ModuleType) -> set[str]:
    """Names of the statements that take locks, as `folder.module.CONSTANT`."""
    return {name for name, sql in statements(package) if LOCKS.search(sql)}


def unbounded_claims(package: ModuleType) -> set[str]:
    """Names of the statements that may take more rows than their limit, as a subquery of IN is executed again."""
    return {name for name, sql in statements(package) if any(map(_is_claim, _subqueries_of_in(sql)))}


def _subqueries_of_in(sql: str) -> Iterator[str]:
    """Text of each subquery of IN, to the parenthesis that ends it."""
    for found in re.finditer(r"\bIN\s*\((?=\s*SELECT\b)", sql, re.IGNORECASE):
        depth, end = 1, found.end()
        while depth and end < len(sql):
            depth += {"(": 1, ")": -1}.get(sql[end], 0)
            end += 1
        yield sql[found.end() : end]


def _is_claim(subquery: str) -> bool:
    return "LIMIT" in subquery and "SKIP LOCKED" in subquery


def statements(package: ModuleType) -> Iterator[tuple[str, str]]:
    """Every string and statement of a package but its migrations, with the name of its constant, function or class."""
    root = Path(next(iter(package.__path__)))
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).with_suffix("").parts
        if "migrations" in place or place[-1] in ("__init__", "__main__"):
            continue
        module = import_module(".".join([package.__name__, *place]))
        for top in ast.parse(path.read_text()).body:
            for name, sql in _of(top, module):
                yield ".".join([*place, name]), sql


def _of(top: ast.stmt, module: ModuleType) -> Iterator[tuple[str, str]]:
    """Names and texts in one statement of a module."""
    targets = top.targets if isinstance(top, ast.Assign) else [top.target] if isinstance(top, ast.AnnAssign) else []
    for target in targets:
        if isinstance(target, ast.Name):
            yield from ((target.id, sql) for sql in _evaluated(getattr(module, target.id, None)))
    if not targets:
        yield from ((getattr(top, "name", f"line {top.lineno}"), sql) for sql in _written(top))


def _evaluated(value: Any) -> Iterator[str]:
    """The texts in a constant."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Statement):
        yield value.text
    elif isinstance(value, Mapping | tuple | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _evaluated(part)


def _written(code: ast.AST) -> Iterator[str]:
    """The strings in code except docstrings. A statement that is compiled there counts as a locking one, since it would
    be compiled at every call."""
    docs = {id(node.value) for node in ast.walk(code) if isinstance(node, ast.Expr)}
    for node in ast.walk(code):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Statement":
            yield "LOCK TABLE"
