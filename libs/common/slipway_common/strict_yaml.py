"""YAML as people mean it: plain scalars by YAML 1.2 (`no` is a word, 2026-01-05 too), no key twice, bounded in size.

Gives plain values and the line of each. Knows nothing of what the text is about.
"""

import re
from typing import Any, Final

import msgspec
import yaml

# Far above any real file (3,000 launch configs take half of it), far below what hurts: the parser needs 3 s for it.
TEXT_CHARACTERS_MAX: Final = 1_000_000
# Counted after aliases are followed, so that ten lines of aliases cannot become a billion values.
VALUES_MAX: Final = 200_000
DEPTH_MAX: Final = 32

TAG: Final = "tag:yaml.org,2002:"
SCALARS: Final = frozenset({f"{TAG}{name}" for name in ("str", "int", "float", "bool", "null")})

Path = tuple[str | int, ...]


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong: where in the structure, why, and on which line of the text if there is one."""

    path: str
    reason: str
    line: int | None = None


class Invalid(Exception):
    """The text or structure was refused; nothing of it counts."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{problem.path or 'file'}: {problem.reason}" for problem in problems))
        self.problems = problems


class Document(msgspec.Struct, frozen=True):
    """What a text says. `problems` are those that leave a value to go on with, for example a key given twice."""

    value: Any
    lines: dict[Path, int]
    problems: list[Problem]

    def line(self, path: Path) -> int | None:
        """The line of the value, or of the nearest thing around it."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path)


def read(text: str) -> Document:
    """The one document in `text`; raises Invalid when there is no value to go on with."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise Invalid([Problem("", f"has {len(text):,} characters; at most {TEXT_CHARACTERS_MAX:,} are read")])
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        mark = error.problem_mark or error.context_mark
        raise Invalid([Problem("", f"is not YAML: {reason}", mark.line + 1 if mark else None)]) from error
    except yaml.YAMLError as error:
        raise Invalid([Problem("", f"is not YAML: {error}".splitlines()[0])]) from error
    if node is None:
        raise Invalid([Problem("", "is empty")])
    reader = _Reader(loader)
    value = reader.value(node, ())
    return Document(value, reader.lines, reader.problems)


def path_text(path: Path) -> str:
    """A path as people write it: worker_pools[0].launch_configs[2].zone"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


class _Loader(yaml.SafeLoader):
    """Resolves plain scalars by the core schema of YAML 1.2; refuses deep nesting before it becomes recursion."""

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
    """Nodes → plain values, with the line of each."""

    def __init__(self, loader: _Loader) -> None:
        self.loader = loader
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []
        self.left = VALUES_MAX

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.left -= 1
        # The depth grows again here when an alias contains itself.
        if self.left < 0 or len(path) > DEPTH_MAX:
            reason = f"holds more than {VALUES_MAX:,} values or {DEPTH_MAX} levels once aliases are followed"
            raise Invalid([Problem("", reason)])
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
        self.problems.append(Problem(path_text(path), reason, node.start_mark.line + 1))
