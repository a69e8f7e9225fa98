"""What a request declares, read entry by entry; entries that are stored alike are not looked at. Pure."""

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, Generic, TypeVar

import msgspec

from slipway_common.declaration.changes import Change
from slipway_common.declaration.models import Account, LeasePool, WorkerPool
from slipway_common.declaration.parsing import parse_entry
from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid
from slipway_provisioner.domain.roll_out import Strategy

Problems = Mapping[str, Callable[[Mapping[str, Any]], str]]
"""Provider → function that returns the problem with an account's settings."""
Entry = TypeVar("Entry")
SECTIONS: Final = {"account": "accounts", "worker_pool": "worker_pools", "lease_pool": "lease_pools"}
"""Section of slipway.yaml by the kind of its entries."""
KINDS: Final = {"accounts": "account", "worker_pools": "worker pool", "lease_pools": "lease pool"}
"""Kind of the entries of a section, for people."""
PROBLEMS_MAX: Final = 100


class DeclarationRefused(Exception):
    """The declaration contradicts existing rows. Nothing was changed."""


class OwnedByAnother(DeclarationRefused):
    """An object that the declaration names belongs to another owner."""

    def __init__(self, kind: str, id_: str, owner: str, declared_by: str) -> None:
        super().__init__(
            f"{kind} {id_} belongs to {owner} and is also declared by {declared_by}: remove it from one of them, or "
            f"apply {declared_by} with --adopt"
        )
        self.kind, self.id, self.owner, self.declared_by = kind, id_, owner, declared_by


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Time settings of this service that constrain a declaration."""

    call_timeout_seconds: float
    clock_skew_seconds: float

    def problem(self, lease_pool_id: str, reserve_seconds: float) -> str:
        """Problem if no call could ever start under a grant of the lease pool; empty if calls can start.

        A call needs its timeout plus the clock skew left of the grant, which may arrive that much late.
        """
        needed = self.call_timeout_seconds + 2 * self.clock_skew_seconds
        if reserve_seconds > needed:
            return ""
        return (
            f"lease pool {lease_pool_id}: reserve_seconds {reserve_seconds:g} must be above {needed:g}, which is "
            f"call_timeout_seconds {self.call_timeout_seconds:g} + 2 × clock_skew_seconds {self.clock_skew_seconds:g} "
            f"of the provisioner, or no call could start before a grant ends; write reserve_seconds: {needed * 2.5:g}"
        )


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Way in which a declaration is applied: by whom, how much it may remove, and how revisions are replaced.

    `drain_seconds` of None is the default of the pool. `terminate`: workers that are left at the end of that time are
    terminated. `if_match` is the digest that the stored pool must have, empty for one that must not exist.
    """

    by: str
    action: str = "apply"
    reason: str = ""
    dry_run: bool = False
    prune: bool = False
    adopt: bool = False
    confirm: str = ""
    strategy: Strategy = "natural"
    drain_seconds: float | None = None
    terminate: bool = True
    if_match: str | None = None
    to_revision: int | None = None


class Known(msgspec.Struct, frozen=True):
    """Stored account or pool: its owner, and the digest of what was declared, empty after its removal."""

    owner: str
    digest: str


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """All stored accounts and pools by their ids."""

    accounts: Mapping[str, Known]
    pools: Mapping[str, Known]

    def of(self, section: str) -> Mapping[str, Known]:
        return self.accounts if section == "accounts" else self.pools


class Document(msgspec.Struct, frozen=True):
    """Declaration of one owner. What it leaves out of one of its `sections` is removed."""

    owner: str
    sections: frozenset[str]


class Given(msgspec.Struct, Generic[Entry], frozen=True):
    """Declared entry: its owner, what was declared, as JSON and as a model, and the digest of it."""

    owner: str
    spec: dict[str, Any]
    digest: str
    entry: Entry


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a request declares. `unchanged`: section and id of entries that are stored alike, with owners."""

    documents: list[Document] = []
    accounts: dict[str, Given[Account]] = {}
    pools: dict[str, Given[WorkerPool]] = {}
    unchanged: dict[tuple[str, str], str] = {}

    def owners(self, section: str) -> dict[str, str]:
        """Owner of every declared entry of a section."""
        changed = self.accounts if section == "accounts" else self.pools
        found = {id_: given.owner for id_, given in changed.items()}
        return found | {id_: owner for (of, id_), owner in self.unchanged.items() if of == section}


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a declaration: its changes without unchanged entries, their number, and what needs a confirmation."""

    changes: list[Change]
    unchanged: int
    digest: str
    dangers: list[str]
    applied: bool


class DeclaredReader:
    """Reader of declared entries. Raises Invalid with the problems of all entries when it has read them."""

    def __init__(self, index: Index, *, providers: Problems, times: Times) -> None:
        self._index = index
        self._providers, self._times = providers, times
        self._places: dict[str, int] = {}
        self._seen: dict[tuple[str, Any], tuple[str, str]] = {}
        self._problems: list[DocumentProblem] = []
        self.declared = Declared()

    def document(self, owner: str, sections: Iterable[str]) -> None:
        """Begin the document of an owner."""
        self.declared.documents.append(Document(owner, frozenset(sections)))
        self._places = {}

    def entry(self, section: str, text: bytes | msgspec.Raw) -> None:
        """Read the next entry of a section, as JSON. Raises msgspec.DecodeError if it is not."""
        place = self._places[section] = self._places.get(section, -1) + 1
        if section not in SECTIONS.values() or not self.declared.documents:
            raise Invalid([DocumentProblem(section, "is not a section, or is not in a document")])
        owner = self.declared.documents[-1].owner
        id_ = _id(text)
        # The texts of our own clients are canonical, so that most entries need not even be decoded.
        if not self._stored_alike(section, id_, owner, sha256(text).hexdigest()):
            body = msgspec.json.decode(text)
            try:
                entry = parse_entry(section, place, body)
            except Invalid as error:
                self._problems += error.problems
                self._check_number()
                return
            id_, spec = entry.id, entry.model_dump(mode="json")
            given = Given(owner, spec, spec_digest(spec), entry)
            self._checked(section, place, given)
        self._check_repeated(section, place, id_, owner)

    def finished(self) -> Declared:
        """All that was declared. Raises Invalid if there were problems."""
        if self._problems:
            raise Invalid(self._problems)
        return self.declared

    def _stored_alike(self, section: str, id_: Any, owner: str, given_digest: str) -> bool:
        if section == "lease_pools" or not isinstance(id_, str):
            return False
        if self._index.of(section).get(id_) != Known(owner, given_digest):
            return False
        self.declared.unchanged[section, id_] = owner
        return True

    def _checked(self, section: str, place: int, given: Given[Any]) -> None:
        entry = given.entry
        if isinstance(entry, LeasePool):
            if problem := self._times.problem(entry.id, entry.reserve_seconds):
                raise DeclarationRefused(problem)
        elif self._stored_alike(section, entry.id, given.owner, given.digest):
            pass
        elif isinstance(entry, Account):
            self._check_settings(place, entry)
            self.declared.accounts[entry.id] = given
        else:
            self.declared.pools[entry.id] = given

    def _check_settings(self, place: int, account: Account) -> None:
        if account.provider not in self._providers:
            raise DeclarationRefused(
                f"account {account.id}: unknown provider {account.provider}; "
                f"use one of {', '.join(sorted(self._providers))}"
            )
        if problem := self._providers[account.provider](account.settings):
            raise DeclarationRefused(f"accounts/{place}/settings: account {account.id}: {problem}")

    def _check_repeated(self, section: str, place: int, id_: Any, owner: str) -> None:
        here = f"{section}[{place}]"
        before, where = self._seen.setdefault((section, id_), (owner, here))
        if before != owner:
            raise OwnedByAnother(KINDS[section], id_, before, owner)
        if where != here:
            self._problems.append(DocumentProblem(f"{here}.id", f"{id_!r} is already used by {where}"))

    def _check_number(self) -> None:
        if len(self._problems) >= PROBLEMS_MAX:
            raise Invalid(self._problems)


class _Identified(msgspec.Struct):
    id: str


_IDENTIFIED: Final = msgspec.json.Decoder(_Identified)


def _id(text: bytes | msgspec.Raw) -> str | None:
    """Id of an entry; None if it has no valid one."""
    try:
        return _IDENTIFIED.decode(text).id
    except msgspec.ValidationError:
        return None


def spec_digest(spec: Any) -> str:
    """Digest of a declared entry, independent of the order of its fields."""
    return sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()
