"""The file of sources: strict YAML, checked as a whole, each problem with its line."""

import traceback
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path as FilePath
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from slipway_common.declaration import strict_yaml
from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid, Path, path_text
from slipway_monitor.domain.counts import Unreadable
from slipway_monitor.sources.port import Source, SourceSettings

GROUP: Final = "slipway.sources"
OURS: Final = "slipway-monitor"
SOURCES: Final = "sources"


class Entry(msgspec.Struct, frozen=True):
    """A source of the file: its settings, and the class of its kind."""

    settings: SourceSettings
    kind: type[Source]

    def open(self) -> Source:
        """Construct the source; it makes no call. Raises Unreadable."""
        try:
            return self.kind(self.settings)
        except Exception as error:  # a source from elsewhere
            raise mistake_of(error, "the constructor of its source") from error


class UnknownKind(Exception):
    """A kind of source, or the extra that it needs, is not installed, or cannot be used. The text says what to do."""


def mistake_of(error: BaseException, culprit: str) -> Unreadable:
    """Unreadable because of a mistake in a source, with its place but without its text, which may be a secret."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{FilePath(at.filename).name}:{at.lineno}"
    return Unreadable(f"{type(error).__name__} in {culprit}, which is a mistake of it: {place}")


@cache
def kind_named(name: str) -> type[Source]:
    """The class of a kind. Raises UnknownKind."""
    points = entry_points(group=GROUP)
    packages = [point.dist.name if point.dist else "" for point in points if point.name == name]
    if not packages:
        raise UnknownKind(f"unknown kind {name!r}; installed: {', '.join(sorted(points.names))}")
    if len(packages) > 1:
        raise UnknownKind(f"kind {name} is in several packages: {', '.join(sorted(packages))}; uninstall all but one")
    try:
        found: type[Source] = points[name].load()
    except ModuleNotFoundError as error:
        package = f"{packages[0]}[{name}]" if packages[0] == OURS else error.name
        raise UnknownKind(f"kind {name} needs {error.name}, which is not installed: install {package}") from None
    except (Exception, SystemExit) as error:  # a source from elsewhere
        raise UnknownKind(f"kind {name} cannot be used: {mistake_of(error, 'the module of its source')}") from None
    if not (isinstance(found, type) and _is_settings(getattr(found, "Settings", None))):
        raise UnknownKind(f"kind {name} cannot be used: {points[name].value} is no class with Settings of sources")
    return found


def _is_settings(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, SourceSettings)


def read(text: str) -> list[Entry]:
    """Read a file of sources; raises Invalid with its problems."""
    document = strict_yaml.read(text)
    found: list[tuple[Path, str]] = []
    entries = list(_entries(document.value, found))
    found += _doubled(entries)
    problems = [*document.problems, *(DocumentProblem(path_text(p), reason, document.line(p)) for p, reason in found)]
    if problems:
        raise Invalid(problems)
    return [entry for _, entry in entries]


def _entries(value: Any, found: list[tuple[Path, str]]) -> Iterator[tuple[Path, Entry]]:
    """Yield the valid entries with their paths; adds problems to `found`."""
    if not isinstance(value, Mapping) or not isinstance(value.get(SOURCES), list) or not value[SOURCES]:
        found.append(((), f"has no list under {SOURCES}"))
        return
    found += [((key,), f"unknown field; known: {SOURCES}") for key in value if key != SOURCES]
    for place, body in enumerate(value[SOURCES]):
        path: Path = (SOURCES, place)
        if not isinstance(body, Mapping) or not isinstance(body.get("kind"), str):
            found.append((path, "needs a name, a kind, counts, and a pool"))
            continue
        try:
            kind = kind_named(body["kind"])
            yield path, Entry(kind.Settings.model_validate(body), kind)
        except UnknownKind as error:
            found.append(((*path, "kind"), str(error)))
        except ValidationError as error:
            found += [_problem(path, each, kind.Settings) for each in error.errors(include_url=False)]
        except Exception as error:  # a source from elsewhere
            found.append((path, str(mistake_of(error, "the settings of its kind"))))


def _problem(path: Path, error: Any, settings: type[SourceSettings]) -> tuple[Path, str]:
    """Path and reason of a problem. Values are not quoted: a URL may contain a password."""
    where = (*path, *error["loc"])
    match error["type"]:
        case "missing":
            return where, "is missing"
        case "extra_forbidden":
            return where, f"unknown field; known: {', '.join(sorted(settings.model_fields))}"
        case _:
            return where, error["msg"].removeprefix("Value error, ")


def _doubled(entries: list[tuple[Path, Entry]]) -> Iterator[tuple[Path, str]]:
    """Yield names and labels that two entries share, whose tasks would replace each other or count twice."""
    names: dict[str, Path] = {}
    labels: dict[str, str] = {}
    for path, entry in entries:
        settings = entry.settings
        if settings.name in names:
            yield (*path, "name"), f"{settings.name} is the name of two sources, whose reports would replace each other"
        names[settings.name] = path
        for label in settings.pools or ():
            if label in labels:
                reason = f"label {label} is also one of source {labels[label]}, so that its tasks would count twice"
                yield (*path, "pools"), reason
            labels.setdefault(label, settings.name)
