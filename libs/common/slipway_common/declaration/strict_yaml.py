"""Strict YAML: YAML 1.2 scalars (`no` and 2026-01-05 are strings), no duplicate keys, bounded size.

Values are built from the events of a parser, so that a large document is read part by part and never held as a whole.
Knows nothing about their meaning.
"""

import re
from collections.abc import Callable, Collection, Container, Iterator
from typing import Any, Final, NoReturn

import msgspec
import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.scanner import Scanner

CHARACTERS_MAX: Final = 1_000_000
"""Size of a document that is read as a whole."""
TEXT_CHARACTERS_MAX: Final = 50_000_000
"""Size of a document that is read part by part."""
# Counted after alias expansion. Aliases may repeat this many values, and one more for every ten characters of text, so
# that ten lines of aliases cannot become a billion values.
VALUES_MAX: Final = 10_000_000
ALIASED_MAX: Final = 200_000
DEPTH_MAX: Final = 32

TAG: Final = "tag:yaml.org,2002:"

Path = tuple[str | int, ...]


class DocumentProblem(msgspec.Struct, frozen=True):
    """An error in a document: its path, the reason, and the line if known. `document` is the owner of the document,
    where a request may have several."""

    path: str
    reason: str
    line: int | None = None
    document: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.document, self.path, self.reason) if part)


class Invalid(Exception):
    """The document was refused as a whole. `more` counts the problems beyond those listed."""

    def __init__(self, problems: list[DocumentProblem], more: int = 0) -> None:
        super().__init__("; ".join(f"{problem.path or 'file'}: {problem.reason}" for problem in problems))
        self.problems = problems
        self.more = more


class Document(msgspec.Struct, frozen=True):
    """A parsed document. `problems` are errors that leave a usable value, for example a duplicate key."""

    value: Any
    lines: dict[Path, int]
    problems: list[DocumentProblem]

    def line(self, path: Path) -> int | None:
        """Line of the value, or of the nearest enclosing one."""
        return nearest(self.lines, path)


class Part(msgspec.Struct, frozen=True):
    """The value at a path of a document."""

    path: Path
    value: Any


def read(text: str) -> Document:
    """Parse the single document in `text`; raises Invalid if there is no usable value."""
    reader = YamlReader(text, wanted=_EveryPath(), characters_max=CHARACTERS_MAX)
    (part,) = reader.parts(())
    return Document(part.value, reader.lines, reader.problems)


def is_empty(text: str) -> bool:
    """True for a text that has nothing but comments."""
    return all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines())


def write(value: Any) -> str:
    """YAML of a JSON value; `read` returns the same."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def lines_of(text: str, paths: Collection[Path]) -> dict[Path, int | None]:
    """Lines of some values of a document, or of the nearest enclosing ones; none of a document that is not YAML."""
    wanted = {path[:length] for path in paths for length in range(len(path) + 1)}
    reader = YamlReader(text, wanted=wanted)
    try:
        for _ in reader.parts(()):
            pass
    except Invalid:
        return {}
    return {path: nearest(reader.lines, path) for path in paths}


def nearest(lines: dict[Path, int], path: Path) -> int | None:
    """Line of the value at `path`, or of the nearest enclosing one."""
    while path not in lines and path:
        path = path[:-1]
    return lines.get(path)


def path_text(path: Path) -> str:
    """Format a path, for example worker_pools[0].launch_configs[2].zone."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


class PythonParser(Reader, Scanner, Parser):
    """Events by PyYAML's own parser, for platforms without libyaml."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)


if yaml.__with_libyaml__:
    from yaml.cyaml import CParser  # type: ignore[attr-defined]

# libyaml's parser is ten times as fast.
PARSER: Callable[[str], Any] = CParser if yaml.__with_libyaml__ else PythonParser


class _EveryPath(Container[Path]):
    """Container of every path."""

    def __contains__(self, _: object) -> bool:
        return True


class _Anchored(msgspec.Struct, frozen=True):
    """A value that aliases repeat, the number of values in it, and how deep it is."""

    value: Any
    values: int
    height: int


class _Unreadable(Exception):
    """A scalar that is not what its tag says."""


class YamlReader:
    """Reader for the single document in a text, which records the lines of the `wanted` paths. `problems` and `lines`
    are complete once `parts` has ended."""

    def __init__(
        self, text: str, *, wanted: Container[Path] | None = None, characters_max: int = TEXT_CHARACTERS_MAX
    ) -> None:
        if len(text) > characters_max:
            reason = f"has {len(text):,} characters; the maximum is {characters_max:,}: divide it into several files"
            raise Invalid([DocumentProblem("", reason)])
        self.text = text
        self.wanted = wanted
        self.lines: dict[Path, int] = {}
        self.problems: list[DocumentProblem] = []
        self._values = 0
        self._aliased_left = ALIASED_MAX + len(text) // 10
        self._deepest = 0
        self._anchors: dict[str, _Anchored | None] = {}  # None while the value is being read

    def parts(self, lists: Container[str]) -> Iterator[Part]:
        """Yield the document: as a whole if no key is in `lists`, else the values of its keys one by one, and a list
        at one of these keys as an empty list and then item by item. Raises Invalid if there is no usable value."""
        try:
            self._get = PARSER(self.text).get_event
            self._get()
            if not isinstance(self._get(), DocumentStartEvent):
                raise Invalid([DocumentProblem("", "is empty")])
            root = self._get()
            if lists and isinstance(root, MappingStartEvent) and _is_plain(root, "map"):
                self._record((), root)
                yield from self._entries(lists)
            else:
                yield Part((), self._value(root, ()))
            self._get()
            if not isinstance(other := self._get(), StreamEndEvent):
                self._refuse("has several documents, and may have one: put each into a file of its own", other)
        except yaml.MarkedYAMLError as error:
            reason = ", ".join(part for part in (error.context, error.problem) if part)
            mark = error.problem_mark or error.context_mark
            if mark and self._is_indented_by_tab(mark.line):
                reason = "indent with spaces, not with tabs"
            raise Invalid([DocumentProblem("", f"is not YAML: {reason}", mark.line + 1 if mark else None)]) from error
        except (yaml.YAMLError, UnicodeEncodeError) as error:
            reason = f"is not YAML: {error}".splitlines()[0]
            wrong = Reader.NON_PRINTABLE.search(self.text)
            line = self.text.count("\n", 0, wrong.start()) + 1 if wrong else None
            raise Invalid([DocumentProblem("", reason, line)]) from error

    def _entries(self, lists: Container[str]) -> Iterator[Part]:
        for key in self._keys(()):
            event = self._get()
            if key in lists and isinstance(event, SequenceStartEvent) and event.anchor is None:
                yield Part((key,), [])
                place = 0
                while not isinstance(item := self._get(), SequenceEndEvent):
                    yield Part((key, place), self._value(item, (key, place)))
                    place += 1
            else:
                yield from split(Part((key,), self._value(event, (key,))), lists)

    def _value(self, event: Any, path: Path) -> Any:
        self._values += 1
        if self._values > VALUES_MAX:
            self._refuse(f"holds more than {VALUES_MAX:,} values", event)
        self._record(path, event)
        if isinstance(event, ScalarEvent):
            value = self._scalar(event, path)
            if event.anchor is not None:
                self._anchors[event.anchor] = _Anchored(value, 1, 0)
            return value
        if isinstance(event, AliasEvent):
            return self._aliased(event, path)
        self._reach(len(path), event)
        if event.anchor is None:
            return self._collection(event, path)
        before, deepest, self._deepest = self._values, self._deepest, len(path)
        self._anchors[event.anchor] = None
        value = self._collection(event, path)
        self._anchors[event.anchor] = _Anchored(value, self._values - before + 1, self._deepest - len(path))
        self._deepest = max(deepest, self._deepest)
        return value

    def _collection(self, event: Any, path: Path) -> Any:
        value: Any
        if isinstance(event, MappingStartEvent):
            value = {key: self._value(self._get(), (*path, key)) for key in self._keys(path)}
        else:
            value = []
            while not isinstance(item := self._get(), SequenceEndEvent):
                value.append(self._value(item, (*path, len(value))))
        if _is_plain(event, "map" if isinstance(event, MappingStartEvent) else "seq"):
            return value
        return self._wrong(path, f"the tag {event.tag.replace(TAG, '!!')} is not supported", event)

    def _keys(self, path: Path) -> Iterator[str]:
        """Yield the keys of a mapping; the value of each is read before the next one."""
        first: dict[str, int] = {}
        while not isinstance(event := self._get(), MappingEndEvent):
            key, line = self._value(event, path), event.start_mark.line + 1
            here = (*path, key)
            if not isinstance(key, str):
                self._wrong(path, "a key must be text; put it in quotes", event)
            elif key == "<<" and event.implicit[0]:
                self._wrong(here, "merge keys are not YAML 1.2: write the fields out", event)
            elif key in first:
                self._wrong(here, f"is given twice, first on line {first[key]}", event)
            else:
                first[key] = line
                self._record(here, event)
                yield key
                continue
            self._value(self._get(), path)

    def _scalar(self, event: Any, path: Path) -> Any:
        try:
            if event.implicit[0]:
                return _plain(event.value)
            if event.tag is None or event.tag == "!" or event.tag == TAG + "str":
                return event.value
            if event.tag not in _TAGGED:
                raise _Unreadable(f"the tag {event.tag.replace(TAG, '!!')} is not supported")
            return _TAGGED[event.tag](event.value)
        except (_Unreadable, ValueError) as error:
            return self._wrong(path, str(error), event)

    def _aliased(self, event: Any, path: Path) -> Any:
        if event.anchor not in self._anchors:
            self._refuse(f"is not YAML: found undefined alias {event.anchor!r}", event)
        if (found := self._anchors[event.anchor]) is None:
            self._refuse(f"the alias {event.anchor!r} contains itself", event)
        self._values += found.values
        self._aliased_left -= found.values
        if self._aliased_left < 0:
            self._refuse("holds too many values after alias expansion", event)
        self._reach(len(path) + found.height, event)
        return found.value

    def _reach(self, depth: int, event: Any) -> None:
        if depth > DEPTH_MAX:
            self._refuse(f"is nested deeper than {DEPTH_MAX}", event)
        self._deepest = max(self._deepest, depth)

    def _record(self, path: Path, event: Any) -> None:
        if self.wanted is not None and path in self.wanted:
            self.lines.setdefault(path, event.start_mark.line + 1)

    def _is_indented_by_tab(self, line: int) -> bool:
        return bool(re.match(r" *\t", (*self.text.split("\n", line + 1), "")[line]))

    def _wrong(self, path: Path, reason: str, event: Any) -> None:
        self.problems.append(DocumentProblem(path_text(path), reason, event.start_mark.line + 1))

    def _refuse(self, reason: str, event: Any) -> NoReturn:
        raise Invalid([DocumentProblem("", reason, event.start_mark.line + 1)])


def split(part: Part, lists: Container[str]) -> Iterator[Part]:
    """Yield the value of a key: if it is a list and the key is in `lists`, as an empty list and then item by item."""
    if part.path[-1] in lists and isinstance(part.value, list):
        yield Part(part.path, [])
        yield from (Part((*part.path, place), item) for place, item in enumerate(part.value))
    else:
        yield part


def _is_plain(event: Any, name: str) -> bool:
    return event.tag is None or event.tag == "!" or event.tag == TAG + name


def _null(_: str) -> None:
    return None


def _bool(text: str) -> bool:
    return text[0] in "tT"


def _int(text: str) -> int:
    try:
        return int(text, 16 if text.startswith("0x") else 10)
    except ValueError as error:  # too many digits
        raise _Unreadable(f"cannot be read: {error}") from error


def _float(text: str) -> float:
    return float(text.replace(".inf", "inf").replace(".nan", "nan") if "n" in (text := text.lower()) else text)


_INT: Final = r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+"
_CORE: Final = tuple(
    (name, re.compile(pattern), first, convert)
    for name, pattern, first, convert in (
        ("null", r"~|null|Null|NULL|", "~nN", _null),
        ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF", _bool),
        ("int", _INT, "-+0123456789", _int),
        ("float", r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", "-+.0123456789", _float),
        ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.", _float),
    )
)
_BY_FIRST: Final[dict[str, list[tuple[re.Pattern[str], Callable[[str], Any]]]]] = {
    first: [(pattern, convert) for _, pattern, firsts, convert in _CORE if first in firsts]
    for first in "~nNtTfF-+.0123456789"
}


def _plain(text: str) -> Any:
    """Value of a plain scalar in the core schema of YAML 1.2."""
    if not text:
        return None
    for pattern, convert in _BY_FIRST.get(text[0], ()):
        if pattern.fullmatch(text):
            return convert(text)
    return text


def _as_tagged(name: str) -> Callable[[str], Any]:
    forms: list[tuple[re.Pattern[str], Callable[[str], Any]]]
    forms = [(pattern, convert) for other, pattern, _, convert in _CORE if other == name]
    if name == "float":
        forms.append((re.compile(r"[-+]?[0-9]+"), float))

    def value(text: str) -> Any:
        for pattern, convert in forms:
            if pattern.fullmatch(text):
                return convert(text)
        raise _Unreadable(f"cannot be read as {name}")

    return value


_TAGGED: Final = {TAG + name: _as_tagged(name) for name in ("null", "bool", "int", "float")}


class _Dumper(yaml.SafeDumper):
    """Dumper that repeats nothing by aliases and quotes texts that YAML 1.2 reads as another type, such as 1e3."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(TAG + "str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _represent_text)
for _name, _pattern, _firsts, _ in _CORE:
    _Dumper.add_implicit_resolver(TAG + _name, re.compile(f"(?:{_pattern.pattern})$"), [*_firsts])
