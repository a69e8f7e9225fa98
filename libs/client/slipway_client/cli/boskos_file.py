"""Reader for `_boskos.yaml`: slots by lease pool, and notes on settings that are not imported. Pure.

resources:
- {type: aws-account, state: free, names: [aws-1, aws-2]}
- {type: gce-project, state: dirty, min-count: 2, max-count: 5, lifespan: 12h}
"""

import re
from typing import Any, Final

import msgspec

from slipway_api.http.lease_pools import SlotsOfPool
from slipway_api.limits import NAME as NAME_LIMIT
from slipway_common.declaration.fields import ID_CHARACTERS_MAX, ID_PATTERN
from slipway_common.declaration.strict_yaml import Document, DocumentProblem, Invalid, Path, path_text, read

# Name rules of the lease-broker: types are IDs of lease pools, slots are named like Kubernetes objects.
NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
NAMES_MAX: Final = 10_000
IMPORTED: Final = {"type", "state", "names"}
COUNTS: Final = ("min-count", "max-count")


class Resources(msgspec.Struct, frozen=True):
    """Slots by lease pool, and notes for people."""

    slots: list[SlotsOfPool]
    notes: list[str]


def resources(text: str) -> Resources:
    """Read a `_boskos.yaml`. Raises Invalid with every problem found, each with its line."""
    document = read(text)
    reader = _Reader(document)
    root = document.value
    if not isinstance(root, dict) or not isinstance(root.get("resources"), list):
        reader.wrong(("resources",), "must be a list of resources with type, state and names")
    else:
        for place, entry in enumerate(root["resources"]):
            reader.entry(("resources", place), entry)
    if reader.problems:
        raise Invalid(sorted(reader.problems, key=lambda problem: problem.line or 0))
    return Resources(
        [SlotsOfPool(lease_pool=name, state=state, names=reader.names[name]) for name, state in reader.states.items()],
        reader.notes,
    )


class _Reader:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems = list(document.problems)
        self.notes: list[str] = []
        self.states: dict[str, str] = {}
        self.names: dict[str, list[str]] = {}
        self.first: dict[str, int | None] = {}  # slot → its line

    def wrong(self, path: Path, reason: str) -> None:
        self.problems.append(DocumentProblem(path_text(path), reason, self.document.line(path)))

    def entry(self, path: Path, entry: object) -> None:
        if not isinstance(entry, dict):
            self.wrong(path, "must have type, state and names")
            return
        type_, state = entry.get("type"), entry.get("state")
        if not isinstance(type_, str) or len(type_) > ID_CHARACTERS_MAX or not ID_PATTERN.matches(type_):
            self.wrong(
                (*path, "type"),
                f"is not a valid lease pool ID: letters, digits and inner . _ - /; at most {ID_CHARACTERS_MAX}",
            )
            return
        if not isinstance(state, str) or not state or NAME_LIMIT.problem(state):
            self.wrong((*path, "state"), "must be a state such as free or dirty")
            return
        if self.states.setdefault(type_, state) != state:
            self.wrong(
                (*path, "state"), f"conflicts with {self.states[type_]} above: {type_} has only one initial state"
            )
        names = self.listed(path, type_, entry)
        for place, name in enumerate(names):
            where = (*path, "names", place)
            if not isinstance(name, str) or not NAME.fullmatch(name):
                self.wrong(where, "is not a valid name: lower-case letters, digits, inner hyphens, dots; at most 253")
            elif name in self.first:
                self.wrong(where, f"{name} is listed twice, first on line {self.first[name]}")
            else:
                self.first[name] = self.document.line(where)
                self.names.setdefault(type_, []).append(name)
        if len(self.names.setdefault(type_, [])) > NAMES_MAX:
            self.wrong(path, f"{type_} has more than {NAMES_MAX} slots")
        self.note(type_, entry, len(names))

    def listed(self, path: Path, type_: str, entry: dict[str, Any]) -> list[object]:
        """Names of an entry; a dynamic one gets generated names up to its maximum count."""
        if (names := entry.get("names")) is not None:
            if isinstance(names, list):
                return names
            self.wrong((*path, "names"), "must be a list")
            return []
        counts = {name: entry[name] for name in COUNTS if entry.get(name) is not None}
        for name, number in counts.items():
            if type(number) is not int or not 0 <= number <= NAMES_MAX:
                self.wrong((*path, name), f"must be an integer from 0 to {NAMES_MAX}")
                return []
        if not counts:
            self.wrong(path, "has neither names nor min-count and max-count")
            return []
        return [f"{type_}-{number}" for number in range(max(counts.values()))]

    def note(self, type_: str, entry: dict[str, object], number: int) -> None:
        is_dynamic = entry.get("names") is None
        left_out = sorted(set(entry) - IMPORTED - ({"max-count"} if is_dynamic else set()))
        if is_dynamic and number:
            slots = f"1 static slot, {type_}-0" if number == 1 else f"{number} static slots, {type_}-0 to -{number - 1}"
            self.notes.append(f"{type_} is dynamic: imported as {slots}")
        if left_out:
            self.notes.append(f"{type_}: not imported: {', '.join(map(str, left_out))}")
