"""Parsing of slipway.yaml: a declaration is valid as a whole or refused with its problems, entry by entry."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NoReturn, get_args

from pydantic import BaseModel, ValidationError

from slipway_common.declaration import fields
from slipway_common.declaration.identity import Identities, Known, inconsistencies
from slipway_common.declaration.models import (
    ALTERNATIVES,
    ENTRIES_MAX,
    Account,
    Declaration,
    LeasePool,
    Metadata,
    WorkerPool,
)
from slipway_common.declaration.strict_yaml import (
    DocumentProblem,
    Invalid,
    Part,
    Path,
    YamlReader,
    lines_of,
    path_text,
    split,
)

Entry = LeasePool | Account | WorkerPool
ENTRY: Final[dict[str, type[Entry]]] = {"lease_pools": LeasePool, "accounts": Account, "worker_pools": WorkerPool}
"""Sections of slipway.yaml and the entries of each."""
PROBLEMS_MAX: Final = 100
"""Problems that are listed; the others are counted."""

DURATION: Final = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|min|h|d)")
UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}

EMPTY_SECTION: Final = "is empty: write [] to remove what its owner declared, or leave the section out"


def load(text: str, known: Known | None = None) -> Declaration:
    """Load a declaration from YAML or JSON; raises Invalid with the problems found, each with its line.

    `known`: what other declarations have declared, to which this one may refer.
    """
    reading = Reading(text)
    entries: dict[str, list[Entry]] = {}
    for path, entry in reading.entries():
        entries.setdefault(str(path[0]), []).append(entry)
    reading.check()
    declared = reading.head.model_copy(update={section: tuple(found) for section, found in entries.items()})
    reading.refuse(inconsistencies(declared, known))
    reading.check()
    return declared


def parse(body: object, known: Known | None = None) -> Declaration:
    """Parse a declaration from a decoded JSON body; raises Invalid without lines."""
    try:
        declared = Declaration.model_validate(body)
    except ValidationError as error:
        raise Invalid([DocumentProblem(path_text(path), reason) for path, reason in problems(error)]) from error
    if found := [DocumentProblem(path_text(path), reason) for path, reason in inconsistencies(declared, known)]:
        raise Invalid(found)
    return declared


def parse_entry(section: str, place: int, body: object) -> Entry:
    """Parse one entry of a section; raises Invalid with its problems. References to other entries are not checked."""
    path = (section, place)
    try:
        entry = ENTRY[section].model_validate(body)
    except ValidationError as error:
        found = [((*path, *inner), reason) for inner, reason in problems(error, path)]
        raise Invalid([DocumentProblem(path_text(where), reason) for where, reason in found]) from error
    if found := list(Identities().add("", path, entry)):
        raise Invalid([DocumentProblem(path_text(where), reason) for where, reason in found])
    return entry


def parse_owner(metadata: object, path: Path = ("metadata",)) -> str:
    """Owner in the metadata at a path, empty if there is none; raises Invalid with its problems."""
    try:
        return Metadata.model_validate(metadata).owner or ""
    except ValidationError as error:
        found = [((*path, *inner), reason) for inner, reason in problems(error, path)]
        raise Invalid([DocumentProblem(path_text(where), reason) for where, reason in found]) from error


class Reading:
    """A declaration in YAML or JSON that is read entry by entry, so that a large one is never held as a whole.

    `head` is the declaration without its entries: sections that are present are empty. It is complete once `entries`
    has ended, and valid once `check` has passed.
    """

    head: Declaration

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: list[tuple[Path, str]] = []
        self._reader: YamlReader | None = None
        self._count = 0

    def entries(self) -> Iterator[tuple[Path, Entry]]:
        """Yield the valid entries of all sections with their paths. Raises Invalid if there is no usable value."""
        head: dict[str, Any] = {}
        value: Any = head
        for part in self._parts():
            section = str(part.path[0]) if part.path else ""
            match part.path:
                case ():
                    value = part.value
                case (_,):
                    head[section] = part.value
                    if section in ENTRY and part.value is None:
                        self.refuse([(part.path, EMPTY_SECTION)])
                case (_, place) if place == ENTRIES_MAX:
                    self.refuse([((section,), f"has more than {ENTRIES_MAX:,} entries")])
                case _:
                    try:
                        entry = ENTRY[section].model_validate(part.value)
                    except ValidationError as error:
                        self.refuse((part.path + path, reason) for path, reason in problems(error, part.path))
                    else:
                        yield part.path, entry
        try:
            self.head = Declaration.model_validate(value)
        except ValidationError as error:
            self.refuse(problems(error))

    def refuse(self, found: Iterable[tuple[Path, str]]) -> None:
        """Record problems at paths."""
        for path, reason in found:
            self._count += 1
            if len(self._found) < PROBLEMS_MAX:
                self._found.append((path, reason))

    def check(self) -> None:
        """Raise Invalid if a problem was found: with the first problems, each with its line."""
        read = self._reader.problems if self._reader is not None else []
        if not self._count and not read:
            return
        known = {problem.path for problem in read}
        lines = lines_of(self._text, [path for path, _ in self._found])
        found = [DocumentProblem(path_text(path), reason, lines.get(path)) for path, reason in self._found]
        shown = sorted(read + [one for one in found if one.path not in known], key=lambda problem: problem.line or 0)
        more = len(shown[PROBLEMS_MAX:]) + self._count - len(self._found)
        raise Invalid(shown[:PROBLEMS_MAX], more)

    def _parts(self) -> Iterator[Part]:
        if self._text.lstrip().startswith("{"):
            try:
                value = json.loads(self._text, object_pairs_hook=_mapping, parse_constant=_refused)
            except (ValueError, RecursionError):
                pass  # perhaps YAML, whose reader also says on which line a mistake is
            else:
                for key, inner in value.items():
                    yield from split(Part((key,), inner), ENTRY)
                return
        self._reader = YamlReader(self._text)
        yield from self._reader.parts(ENTRY)


def json_schema() -> dict[str, Any]:
    """JSON Schema of slipway.yaml, for editors. Constraints across entries, such as references, are not included."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:slipway:schema:slipway.yaml",
        **Declaration.model_json_schema(),
        "title": "slipway.yaml",
    }


def problems(error: ValidationError, place: Path = ()) -> Iterator[tuple[Path, str]]:
    """Problems of a value at a place of a declaration, each with its path in this value and its reason."""
    errors = error.errors(include_url=False)
    for found in errors:
        where = _outside_settings(found["loc"])
        # Pydantic also reports a list as too short if its entries are invalid; those are reported themselves.
        if found["type"] != "too_short" or not any(other["loc"][:-1][: len(where)] == where for other in errors):
            yield where, _reason(found, place)


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _refused(number: str) -> NoReturn:
    raise ValueError(f"{number} is not JSON")


def _reason(found: Any, place: Path) -> str:
    context, shown = found.get("ctx", {}), _shown(found["input"])
    match found["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return f"unknown field; known: {', '.join(_fields((*place, *found['loc'][:-1])))}"
        case "string_too_long":
            return f"{shown} has {len(found['input'])} characters; at most {context['max_length']} are allowed"
        case "too_short":
            return f"must have at least {context['min_length']} entry"
        case "tuple_type":
            return f"must be a list, not {shown}"
        case "dict_type":
            return f"must be a mapping, not {shown}"
        case "string_type":
            scalar = isinstance(found["input"], int | float)
            return f"{shown} must be text: put it in quotes" if scalar else f"must be text, not {shown}"
        case "model_type" | "model_attributes_type":
            return f"must be a mapping with fields, not {shown}"
        case "float_parsing" | "float_type" | "int_parsing" if str(found["loc"][-1]).endswith("_seconds"):
            return f"{shown} must be a number of seconds{_as_seconds(found['input'])}"
        case fields.MISMATCH:
            return f"{shown} {found['msg']}"
        case "value_error":
            return f"{shown} {context['error']}" if not isinstance(found["input"], dict) else str(context["error"])
        case _:
            return f"{shown}: {found['msg'].replace('Input should', 'must')}"


def _as_seconds(value: object) -> str:
    """Number to write instead of a duration with a unit; empty for anything else."""
    if (found := DURATION.fullmatch(str(value).strip())) is None:
        return ""
    seconds = float(found[1]) * UNIT_SECONDS[found[2]]
    return f": write {seconds:g}"


def _outside_settings(path: Path) -> Path:
    """Path without anything inside settings, which may be deeply nested, and without the tags of alternatives."""
    path = tuple(part for part in path if part not in ALTERNATIVES)
    if path[-1:] == ("[key]",):
        path = path[:-1]
    return path[: path.index("settings") + 1] if "settings" in path else path


def _shown(value: object) -> str:
    """Short text of a value; mappings and lists are only named."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"


def _fields(path: Path) -> list[str]:
    """Field names allowed at `path`."""
    model: type[BaseModel] = Declaration
    for part in path:  # list indexes and mapping keys do not change the model
        if isinstance(part, str) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Model contained in an annotation: directly, in a list, in a mapping or in a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := _model_in(inner)) is not None), None)
