"""Identity of declared entries: names and bodies of launch configs, duplicate ids, and references between entries."""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

import msgspec

from slipway_common.declaration.fields import ID_CHARACTERS_MAX, ID_PATTERN
from slipway_common.declaration.models import Account, Declaration, LaunchConfig, LeasePool, WorkerPool
from slipway_common.declaration.strict_yaml import Path, path_text

BODY: Final = {"account", "zone", "instance_type", "image", "settings"}
SECTIONS: Final = ("lease_pools", "accounts", "worker_pools")
_NOUNS: Final = {"lease_pools": "lease pool", "accounts": "account"}


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Ids that other declarations of the deployment have declared."""

    lease_pools: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()


def config_name(pool: WorkerPool, config: LaunchConfig) -> str:
    """Declared name of a launch config, or the one made of its place, which a change of the image keeps."""
    return config.name or "/".join((pool.id, config.account, config.zone, config.instance_type))


def canonical_body(config: LaunchConfig, region: str, user_data: str | None = None) -> bytes:
    """Immutable part of a launch config in the region of its account, with the template of its pool's user data, as
    sorted JSON. Its hash names the revision.

    Weights are excluded, so tuning them keeps the revision.
    """
    body = config.model_dump(mode="json", include=BODY) | {"region": region}
    if user_data is not None:
        body["user_data"] = user_data
    return msgspec.json.encode(body, order="sorted")


def inconsistencies(declared: Declaration, known: Known | None = None) -> Iterator[tuple[Path, str]]:
    """Errors across entries: duplicate ids and unknown references.

    References to entries that are not declared here are checked against the `known` ones. Without them, only
    references to a section that is declared here are checked.
    """
    identities = Identities()
    for section in SECTIONS:
        entries = getattr(declared, section)
        if entries is not None:
            identities.sections.add(section)
        for place, entry in enumerate(entries or ()):
            yield from identities.add("", (section, place), entry)
    checked = SECTIONS if known is not None else identities.sections
    for section in ("lease_pools", "accounts"):
        if section in checked:
            for found, reason in identities.unknown(section, getattr(known, section, frozenset())):
                yield found.path, reason


class Place(NamedTuple):
    """A path in a file; `file` is empty if there is only one."""

    file: str
    path: Path


class Identities:
    """Ids of entries and the references between them, collected entry by entry over one or more files."""

    def __init__(self) -> None:
        self.sections: set[str] = set()
        self._first: dict[tuple[str, str], Place] = {}
        self._references: dict[tuple[str, str], list[Place]] = {}

    def add(self, file: str, path: Path, entry: LeasePool | Account | WorkerPool) -> Iterator[tuple[Path, str]]:
        """Add an entry of a file; yields the problems of its ids."""
        yield from self.claim(str(path[0]), entry.id, Place(file, (*path, "id")))
        if isinstance(entry, Account):
            self._refer("lease_pools", entry.lease_pool, Place(file, (*path, "lease_pool")))
        if not isinstance(entry, WorkerPool):
            return
        for number, config in enumerate(entry.launch_configs):
            here = (*path, "launch_configs", number)
            if problem := name_problem(entry, config):
                yield (*here, "name"), problem
            yield from self.claim("launch_configs", config_name(entry, config), Place(file, (*here, "name")))
            self._refer("accounts", config.account, Place(file, (*here, "account")))

    def claim(self, kind: str, id_: str, place: Place) -> Iterator[tuple[Path, str]]:
        """Note that an id is used at a place; yields a problem if it is used elsewhere already. Another entry may have
        the same place in a further document of the same owner."""
        if (before := self._first.setdefault((kind, id_), place)) is not place:
            file = f" of {before.file}" if before.file != place.file else ""
            yield place.path, f"{id_!r} is already used by {path_text(before.path[:-1])}{file}"

    def missing(self, section: str) -> bool:
        """True if entries of this section are referred to that are not declared here."""
        return any(kind == section and (kind, id_) not in self._first for kind, id_ in self._references)

    def unknown(self, section: str, known: Collection[str]) -> Iterator[tuple[Place, str]]:
        """Yield the references to entries of this section that are neither declared here nor known."""
        for (kind, id_), places in self._references.items():
            if kind == section and id_ not in known and (kind, id_) not in self._first:
                ids = sorted({other for declared, other in self._first if declared == section}.union(known))
                names = ", ".join(ids[:10]) or "none"
                for place in places:
                    yield place, f"no {_NOUNS[section]} {id_!r} is declared; declared: {names}"

    def _refer(self, kind: str, id_: str, place: Place) -> None:
        self._references.setdefault((kind, id_), []).append(place)


def name_problem(pool: WorkerPool, config: LaunchConfig) -> str:
    """Problem of a name that is made of the config's place; empty if it is a valid id."""
    name = config_name(pool, config)
    if config.name is not None or (ID_PATTERN.matches(name) and len(name) <= ID_CHARACTERS_MAX):
        return ""
    return f"{name!r}, made of the config's place, is not a valid name; write one"
