"""The file of sources: strict YAML, checked as a whole, each problem with its line."""

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from slipway_common.declaration import strict_yaml
from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid, Path, path_text
from slipway_monitor.domain.counts import Unreadable
from slipway_monitor.sources.port import Source, SourceSettings

GROUP: Final = "slipway.sources"
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
            raise Unreadable(
                f"{type(error).__name__} in the constructor of its source, which is a mistake of it"
            ) from error


class NotInstalled(Exception):
    """A kind of source, or the extra that it needs, is not installed. The text says what to install."""


def kind_named(name: str) -> type[Source]:
    """The class of a kind. Raises NotInstalled."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        raise NotInstalled(f"unknown kind {name!r}; installed: {', '.join(sorted(points))}")
    try:
        found: type[Source] = points[name].load()
    except ModuleNotFoundError as error:
        advice = f"install slipway-monitor[{name}]"
        raise NotInstalled(f"kind {name} needs the package {error.name}, which is not installed: {advice}") from None
    return found


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
        except NotInstalled as error:
            found.append(((*path, "kind"), str(error)))
        except ValidationError as error:
            found += [_problem(path, each, kind.Settings) for each in error.errors(include_url=False)]


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
