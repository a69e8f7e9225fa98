"""Declarations in files, read entry by entry and ready to be sent to the services that own their sections."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import typer

from slipway_api.http import lease_pools as answers
from slipway_api.http.provisioner import accounts as accounts_api
from slipway_api.http.provisioner.accounts import InstalledProvider
from slipway_api.http.provisioner.declaration import ExportedDeclaration
from slipway_client.cli import launch_pacing as pacing
from slipway_client.cli.invalid_file import InvalidFile
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Api
from slipway_common.declaration.fields import NAME_PATTERN
from slipway_common.declaration.identity import SECTIONS, Identities
from slipway_common.declaration.models import Account, LeasePool, WorkerPool
from slipway_common.declaration.parsing import Entry, Reading
from slipway_common.declaration.scaling import divided
from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid

STANDARD_INPUT: Final = Path("-")
SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
CHUNK_BYTES: Final = 1 << 18
KIND: Final = {LeasePool: "lease_pool", Account: "account", WorkerPool: "worker_pool"}


class Document(msgspec.Struct):
    """Declaration of one owner: its lease pools, and lines of JSON with its other entries."""

    sections: list[str] = msgspec.field(default_factory=list)
    launches: list[pacing.Launches] = msgspec.field(default_factory=list)
    lease_pools: list[pacing.Spec] = msgspec.field(default_factory=list)
    lines: list[bytes] = msgspec.field(default_factory=list)

    def add(self, entry: Entry, speed: float) -> None:
        """Add an entry, with its durations divided by `speed`."""
        value = entry.model_dump(mode="json")
        if speed != 1.0:
            value = divided(value, speed)
        if isinstance(entry, LeasePool):
            self.lease_pools.append(value)
        else:
            if isinstance(entry, Account):
                self.launches.append(pacing.Launches(entry.id, entry.lease_pool, entry.provider))
            self.lines.append(msgspec.json.encode({KIND[type(entry)]: value}, order="sorted") + b"\n")

    def join(self, other: "Document") -> None:
        """Add a further declaration of the same owner."""
        self.sections += [section for section in other.sections if section not in self.sections]
        self.launches += other.launches
        self.lease_pools += other.lease_pools
        self.lines += other.lines


class Declarations:
    """Valid declarations by owner."""

    def __init__(self) -> None:
        self.documents: dict[str, Document] = {}
        self._identities = Identities()
        self._readings: dict[Path, Reading] = {}

    @property
    def has_lease_pools(self) -> bool:
        return any("lease_pools" in document.sections for document in self.documents.values())

    @property
    def has_others(self) -> bool:
        """True unless only lease pools are declared."""
        return any(set(document.sections) - {"lease_pools"} for document in self.documents.values())

    def lease_pools(self) -> dict[str, object]:
        """Body for the lease-broker."""
        documents = [
            {"owner": owner, "lease_pools": document.lease_pools}
            for owner, document in self.documents.items()
            if "lease_pools" in document.sections
        ]
        return {"documents": documents}

    def pace_launches(self, api: Api, prune: bool) -> tuple[dict[str, str], list[str]]:
        """Pace launches by the APIs of their providers, in lease pools that declare no pacing. Returns a sentence for
        each of these pools, and hints on pools that are declared elsewhere. If the provisioner cannot be asked,
        launches stay paced as they are."""
        pools = pacing.unpaced(pool for document in self.documents.values() for pool in document.lease_pools)
        named = [each for document in self.documents.values() for each in document.launches]
        if not pools and not named:
            return {}, []
        try:
            rates = self._launch_rates(api, named, prune)
        except Failed:
            for id_, row in (self._lease_pools(api) or {}).items():
                if id_ in pools and (known := pacing.own_pacing(row)) is not None:
                    pacing.write_pacing(pools[id_], known)
            return {}, []
        elsewhere = {each.lease_pool for each in named if each.lease_pool in rates}.difference(
            pool["id"] for document in self.documents.values() for pool in document.lease_pools
        )
        there = (self._lease_pools(api) or {}) if elsewhere else {}
        rows = [row for id_, row in there.items() if id_ in elsewhere]
        return pacing.pace_launches(pools, rates), list(pacing.hints(rows, rates))

    def _launch_rates(self, api: Api, named: Sequence[pacing.Launches], prune: bool) -> dict[str, pacing.Rate]:
        """Launch rate of each lease pool, once this is applied. Raises Failed."""
        complete = {owner for owner, document in self.documents.items() if "accounts" in document.sections}
        ids = {each.account for each in named}
        others = [
            pacing.Launches(row.id, row.lease_pool_id, row.provider)
            for row in api.items(accounts_api.Account, "provisioner", "/accounts")
            if not row.removed and row.id not in ids
            if row.owner not in complete and not (prune and complete)
        ]
        items = api.items(InstalledProvider, "provisioner", "/providers")
        return pacing.slowest([*named, *others], {row.id: row.launches_per_second for row in items})

    def lines(self) -> Iterator[bytes]:
        """Yield the body for the provisioner, as newline-delimited JSON: a header for each owner, then its entries."""
        chunk = bytearray()
        for owner, document in self.documents.items():
            if sections := [section for section in document.sections if section != "lease_pools"]:
                header = {"version": 1, "metadata": {"owner": owner}, "sections": sections}
                chunk += msgspec.json.encode(header) + b"\n"
                for line in document.lines:
                    chunk += line
                    if len(chunk) >= CHUNK_BYTES:
                        yield bytes(chunk)
                        chunk.clear()
        yield bytes(chunk)

    def check_references(self, api: Api) -> None:
        """Check references to entries that other declarations may have declared. Raises InvalidFile."""
        if self._identities.missing("lease_pools") and (rows := self._lease_pools(api)) is not None:
            self._refuse("lease_pools", {id_ for id_, row in rows.items() if not row.archived})
        if self.has_others and self._identities.missing("accounts"):
            accounts = api.get(ExportedDeclaration, "provisioner", "/declaration", section="accounts").accounts or []
            self._refuse("accounts", {str(row.spec["id"]) for row in accounts})
        _check(self._readings, lambda file: self._readings[file].check())

    def _lease_pools(self, api: Api) -> dict[str, answers.LeasePool] | None:
        """Lease pools of the deployment by id; None if the lease-broker is unavailable and the declaration has none for
        it, since a declaration for the provisioner alone must not need it."""
        try:
            return {row.id: row for row in api.items(answers.LeasePool, "lease-broker", "/lease-pools")}
        except Failed:
            if self.has_lease_pools:
                raise
            return None

    def read(self, files: Sequence[Path], speed: float, default_owner: str | None = None) -> None:
        """Read declarations. Raises InvalidFile with the problems of all files."""
        owners: dict[str, Path] = {}  # owners that are the name of a file
        _check(files, lambda file: self._read(file, speed, default_owner, owners))

    def _read(self, file: Path, speed: float, default_owner: str | None, owners: dict[str, Path]) -> None:
        reading = self._readings[file] = Reading(text_of(file))
        document = Document()
        for path, entry in reading.entries():
            reading.refuse(self._identities.add(str(file), path, entry))
            document.add(entry, speed)
        reading.check()
        owner = _owner(file, reading.head.metadata.owner or default_owner, owners)
        document.sections = [name for name in SECTIONS if getattr(reading.head, name) is not None]
        self.documents.setdefault(owner, Document()).join(document)

    def _refuse(self, section: str, known: set[str]) -> None:
        for place, reason in self._identities.unknown(section, known):
            self._readings[Path(place.file)].refuse([(place.path, reason)])


def _check(files: Iterable[Path], check: Callable[[Path], None]) -> None:
    """Check files. Raises InvalidFile with the problems of all."""
    refused: list[tuple[Path, Invalid]] = []
    for file in files:
        try:
            check(file)
        except Invalid as error:
            refused.append((file, error))
    if refused:
        raise InvalidFile(*refused)


def files_of(given: Sequence[Path]) -> list[Path]:
    """Files, and the declarations in folders in the order of their names, without those in folders inside."""
    found: list[Path] = []
    for path in given:
        if not path.is_dir():
            found.append(path)
        elif inside := sorted(
            file
            for file in path.iterdir()
            if file.suffix in SUFFIXES and not file.name.startswith(".") and file.is_file()
        ):
            found += inside
        else:
            raise typer.BadParameter(f"{path}: no .yaml, .yml or .json file in this folder")
    if not found:
        raise typer.BadParameter("give a declaration, such as slipway.yaml")
    return list(dict.fromkeys(found))


def text_of(file: Path) -> str:
    """Text of a declaration. Raises Invalid."""
    try:
        return (sys.stdin.buffer.read() if file == STANDARD_INPUT else file.read_bytes()).decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        reason = f"is not UTF-8 text: byte 0x{error.object[error.start]:02x}; save it as UTF-8"
        raise Invalid([DocumentProblem("", reason, line)]) from error
    except OSError as error:
        raise Invalid([DocumentProblem("", f"cannot be read: {error.strerror}")]) from error


def _owner(file: Path, given: str | None, by_name: dict[str, Path]) -> str:
    """Owner of a declaration: the given one, else the file's name."""
    if given is not None:
        return given
    if file == STANDARD_INPUT:
        problem = "is missing: standard input has no file name that could be the owner; give --owner"
    elif not NAME_PATTERN.matches(file.name):
        problem = f"is missing, and the file's name, {file.name!r}, cannot be an owner: {NAME_PATTERN.mismatch}"
    elif file.name in by_name:
        problem = f"is missing: {by_name[file.name]} has the same name, and so the same owner; give each its own"
    else:
        by_name[file.name] = file
        return file.name
    raise Invalid([DocumentProblem("metadata.owner", problem)])
