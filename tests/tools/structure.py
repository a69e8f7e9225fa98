"""`make structure`: checks sizes, layers and import cycles of the product and its benchmarks, and sizes of tests.

Prints the longest files, the classes with most methods, the functions of the domains with most parameters, the files
per layer, the lines of product, benchmarks and tests; then a line per finding, import cycles and second classes of one
name included, and their number last. Exits with 1 if there is any. Imports inside functions and for type checking count
as well, since they hide a cycle and do not remove it. With `--findings`, as in `make check`, only findings and their
number are printed.
"""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[2]
LINES_MAX: Final = 600
METHODS_MAX: Final = 25
PARAMETERS_MAX: Final = 8
SHOWN: Final = 8

# Files that are one table of data, which is read row by row and would be no simpler in two files.
TABLES: Final = {"libs/common/slipway_common/observability/metrics.py": "the table of metrics"}
DATA: Final = frozenset({".py", ".toml", ".tsv", ".jsonl", ".json", ".yaml", ".yml", ".txt"})
DOMAIN: Final = re.compile(r"services/[^/]+/slipway_\w+/domain/")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Class = ast.ClassDef


class Module(msgspec.Struct, frozen=True):
    """One module of the product. `path` is relative to the root, `name` the one by which it is imported, `statements`
    are those of all levels: what is counted is among them."""

    path: str
    name: str
    text: str
    tree: ast.Module
    statements: Sequence[ast.stmt]


class Size(msgspec.Struct, frozen=True):
    """Lines of a file, methods of a class or parameters of a function."""

    number: int
    place: str

    def __str__(self) -> str:
        return f"{self.number:6}  {self.place}"


def modules(root: Path) -> Iterator[Module]:
    """Modules of libraries, services, benchmarks and the generator, in the order of their paths."""
    sources = (
        ("bench/**/*.py", 0),
        ("generate/**/*.py", 0),
        ("libs/*/slipway_*/**/*.py", 2),
        ("services/*/slipway_*/**/*.py", 2),
    )
    for pattern, folders in sources:
        for file in sorted(root.glob(pattern)):
            path, text = file.relative_to(root), file.read_text(encoding="utf-8")
            name = ".".join(path.with_suffix("").parts[folders:]).removesuffix(".__init__")
            tree = ast.parse(text)
            yield Module(path.as_posix(), name, text, tree, list(_statements(tree)))


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.stmt):
                yield node
            if not isinstance(node, ast.expr):  # in which there are no statements
                waiting.append(node)


def files(found: Sequence[Module]) -> list[Size]:
    """Lines of each file, without the tables of data."""
    return _descending(
        Size(len(module.text.splitlines()), module.path) for module in found if module.path not in TABLES
    )


def tests(root: Path) -> list[Size]:
    """Lines of each file of tests."""
    paths = sorted(root.glob("tests/**/*.py"))
    return _descending(Size(len(path.read_text().splitlines()), path.relative_to(root).as_posix()) for path in paths)


def classes(found: Sequence[Module]) -> list[Size]:
    """Methods of each class, properties included."""
    return _descending(
        Size(sum(isinstance(part, Function) for part in node.body), f"{module.path}:{node.lineno} {node.name}")
        for module in found
        for node in module.statements
        if isinstance(node, Class)
    )


def functions(found: Sequence[Module]) -> list[Size]:
    """Parameters of each function and method of the domains, without `self`."""
    sizes = []
    for module in found:
        if DOMAIN.match(module.path):
            bound = {id(part) for node in module.statements if isinstance(node, Class) for part in node.body}
            for node in module.statements:
                if isinstance(node, Function):
                    number = parameters(node, method=id(node) in bound)
                    sizes.append(Size(number, f"{module.path}:{node.lineno} {node.name}"))
    return _descending(sizes)


def parameters(function: Function, *, method: bool) -> int:
    """Number of parameters that a caller passes."""
    given = function.args
    number = len([*given.posonlyargs, *given.args, *given.kwonlyargs]) + bool(given.vararg) + bool(given.kwarg)
    static = any(isinstance(node, ast.Name) and node.id == "staticmethod" for node in function.decorator_list)
    return number - (method and not static)


def layers(found: Sequence[Module], orders: Mapping[str, Sequence[str]]) -> dict[str, Counter[str]]:
    """Files of each layer by package, in the order of its import contract; then those of folders without a layer.

    A module beside the folders is a layer if the contract names it; the others are counted together.
    """
    counted = {}
    for package in sorted({module.name.partition(".")[0] for module in found}):
        order = orders.get(package, ())
        numbers = Counter(dict.fromkeys(order, 0))
        for module in found:
            first, *rest = module.name.removeprefix(f"{package}.").split(".")
            if module.name.startswith(f"{package}.") and module.text:
                is_layer = rest or first in order or module.path.endswith("/__init__.py")
                numbers[first if is_layer else "other"] += 1
        counted[package] = +numbers
    return counted


def orders(root: Path) -> dict[str, list[str]]:
    """Layers of each package, highest first, as the import contracts name them."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return {
        package: [name for line in contract["layers"] for name in re.findall(r"\w+", line)]
        for contract in contracts
        for package in contract.get("containers", ())
    }


def imports(found: Sequence[Module]) -> dict[str, set[str]]:
    """Modules of the product that each one imports."""
    known = {module.name for module in found}
    graph: dict[str, set[str]] = {}
    for module in found:
        reached = graph[module.name] = set()
        for node in module.statements:
            if isinstance(node, ast.Import):
                reached.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                source = _source(module, node)
                names = [f"{source}.{alias.name}" for alias in node.names]
                reached.update(name if name in known else source for name in names)
        reached &= known
    return graph


def _source(module: Module, node: ast.ImportFrom) -> str:
    """Full name of the module or package that a statement imports from."""
    if not node.level:
        return node.module or ""
    up = node.level - module.path.endswith("/__init__.py")
    package = module.name.split(".")[: -up or None]
    return ".".join([*package, *([node.module] if node.module else [])])


def cycles(graph: Mapping[str, set[str]]) -> list[str]:
    """Import cycles, each as its path; one import of each is left out to find the next."""
    left = {name: set(reached) for name, reached in graph.items()}
    found = []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            path = error.args[1]  # each is imported by the next
            left[path[1]].discard(path[0])
            found.append(" → ".join(reversed(path)))
        else:
            return found


def report(found: Sequence[Module]) -> Iterator[str]:
    """The largest of each kind, and the tables."""
    for title, sizes in (
        ("longest files", files(found)),
        ("longest files of tests", tests(ROOT)),
        ("classes with most methods", classes(found)),
        ("functions of the domains with most parameters", functions(found)),
    ):
        yield from (title, *map(str, sizes[:SHOWN]), "")
    yield from ("tables of data, of any length", *(f"{'':8}{path}: {reason}" for path, reason in TABLES.items()), "")
    yield "files per layer"
    for package, numbers in layers(found, orders(ROOT)).items():
        yield f"{'':8}{package}: " + ", ".join(f"{layer} {number}" for layer, number in numbers.items())
    yield from ("", f"import cycles: {len(cycles(imports(found)))}", *lines(ROOT, found))


def lines(root: Path, found: Sequence[Module]) -> Iterator[str]:
    """Lines of the product and its benchmarks, and of the tests with their data."""
    for what, folders in (("product", ("libs/", "services/", "generate/")), ("benchmarks", ("bench/",))):
        sizes = [len(module.text.splitlines()) for module in found if module.path.startswith(folders)]
        yield f"{what}: {sum(sizes):,} lines in {len(sizes)} modules"
    tests = [file for file in sorted((root / "tests").rglob("*")) if file.suffix in DATA]
    number = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in tests)
    yield f"tests: {number:,} lines in {len(tests)} files, data included"


def findings(found: Sequence[Module], root: Path) -> list[str]:
    """A line per violated limit, of modules and of the tests below the root."""
    lengths = [*files(found), *tests(root)]
    return [
        *(f"{size.place}: {size.number} lines, above {LINES_MAX}" for size in lengths if size.number > LINES_MAX),
        *(
            f"{size.place}: {size.number} methods, above {METHODS_MAX}"
            for size in classes(found)
            if size.number > METHODS_MAX
        ),
        *(
            f"{size.place}: {size.number} parameters, above {PARAMETERS_MAX}"
            for size in functions(found)
            if size.number > PARAMETERS_MAX
        ),
        *twins(found),
        *(f"import cycle: {path}" for path in cycles(imports(found))),
    ]


def twins(found: Sequence[Module]) -> Iterator[str]:
    """A line per public class with the name of another one in its service, library, or program of the client."""
    places: dict[tuple[str, ...], list[str]] = {}
    for module in found:
        package = tuple(module.name.split(".")[: 1 + module.name.startswith("slipway_client.")])
        if package[0].startswith("slipway_"):
            for node in module.tree.body:
                if isinstance(node, Class) and not node.name.startswith("_"):
                    places.setdefault((*package, node.name), []).append(f"{module.path}:{node.lineno}")
    for key, (first, *others) in places.items():
        for other in others:
            yield f"{other}: second public class {key[-1]} of {'.'.join(key[:-1])}; the first is {first}"


def _descending(sizes: Iterable[Size]) -> list[Size]:
    return sorted(sizes, key=lambda size: (-size.number, size.place))


def main(argv: Sequence[str]) -> int:
    found = list(modules(ROOT))
    false = findings(found, ROOT)
    figures = [] if "--findings" in argv else [*report(found), ""]
    findings_ = "1 finding" if len(false) == 1 else f"{len(false)} findings"
    print(*figures, *false, f"{len(found)} modules, {findings_}", sep="\n")
    return 1 if false else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
