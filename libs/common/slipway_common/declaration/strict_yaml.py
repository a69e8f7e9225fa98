"""Strict YAML: YAML 1.2 scalars (`no` and 2026-01-05 are strings), no duplicate keys, bounded size.

Returns plain values and the line of each. Knows nothing about their meaning.
"""

import re
from typing import Any, Final

import msgspec
import yaml

# Far above any real file (3,000 launch configs take half of it); the parser needs 3 s for this much.
TEXT_CHARACTERS_MAX: Final = 1_000_000
# Counted after alias expansion, so that ten lines of aliases cannot become a billion values.
VALUES_MAX: Final = 200_000
DEPTH_MAX: Final = 32

TAG: Final = "tag:yaml.org,2002:"
SCALARS: Final = frozenset({f"{TAG}{name}" for name in ("str", "int", "float", "bool", "null")})

Path = tuple[str | int, ...]


class DocumentProblem(msgspec.Struct, frozen=True):
    """An error in a document: its path, the reason, and the line if known."""

    path: str
    reason: str
    line: int | None = None


class Invalid(Exception):
    """The document was refused as a whole."""

    def __init__(self, problems: list[DocumentProblem]) -> None:
        super().__init__("; ".join(f"{problem.path or 'file'}: {problem.reason}" for problem in problems))
        self.problems = problems


class Document(msgspec.Struct, frozen=True):
    """A parsed document. `problems` are errors that leave a usable value, for example a duplicate key."""

    value: Any
    lines: dict[Path, int]
    problems: list[DocumentProblem]

    def line(self, path: Path) -> int | None:
        """Line of the value, or of the nearest enclosing one."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path)


def read(text: str) -> Document:
    """Parse the single document in `text`; raises Invalid if there is no usable value."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise Invalid([DocumentProblem("", f"has {len(text):,} characters; the maximum is {TEXT_CHARACTERS_MAX:,}")])
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        mark = error.problem_mark or error.context_mark
        raise Invalid([DocumentProblem("", f"is not YAML: {reason}", mark.line + 1 if mark else None)]) from error
    except yaml.YAMLError as error:
        raise Invalid([DocumentProblem("", f"is not YAML: {error}".splitlines()[0])]) from error
    if node is None:
        raise Invalid([DocumentProblem("", "is empty")])
    reader = _Reader(loader)
    value = reader.value(node, ())
    return Document(value, reader.lines, reader.problems)


def path_text(path: Path) -> str:
    """Format a path, for example worker_pools[0].launch_configs[2].zone."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


class _Loader(yaml.SafeLoader):
    """Loader with the core schema of YAML 1.2 that refuses deep nesting before it recurses."""

    yaml_implicit_resolvers: Any = {}  # noqa: RUF012 - the stubs declare it without ClassVar
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.depth > DEPTH_MAX:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {DEPTH_MAX}", problem_mark=mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+", [*"-+0123456789"]),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", [*"-+.0123456789"]),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", [*"-+."]),
):
    _Loader.add_implicit_resolver(TAG + _name, re.compile(f"^(?:{_pattern})$"), _first)


class _Reader:
    """Converts nodes to plain values and records the line of each."""

    def __init__(self, loader: _Loader) -> None:
        self.loader = loader
        self.lines: dict[Path, int] = {}
        self.problems: list[DocumentProblem] = []
        self.left = VALUES_MAX

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.left -= 1
        # An alias that contains itself reaches the depth limit here.
        if self.left < 0 or len(path) > DEPTH_MAX:
            reason = f"holds more than {VALUES_MAX:,} values or {DEPTH_MAX} levels after alias expansion"
            raise Invalid([DocumentProblem("", reason)])
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{TAG}map":
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{TAG}seq":
            return [self.value(item, (*path, place)) for place, item in enumerate(node.value)]
        if node.tag not in SCALARS:
            return self.wrong(node, path, f"the tag {node.tag.replace(TAG, '!!')} is not supported")
        try:
            return self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError, KeyError) as error:
            return self.wrong(node, path, f"cannot be read: {error}".splitlines()[0])

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag != f"{TAG}str" or not isinstance(key, yaml.ScalarNode):
                self.wrong(key, path, "a key must be text; put it in quotes")
                continue
            here = (*path, key.value)
            if key.value in found:
                self.wrong(key, here, f"is given twice, first on line {self.lines[here]}")
                continue
            self.lines[here] = key.start_mark.line + 1
            found[key.value] = self.value(value, here)
        return found

    def wrong(self, node: yaml.Node, path: Path, reason: str) -> None:
        self.problems.append(DocumentProblem(path_text(path), reason, node.start_mark.line + 1))
