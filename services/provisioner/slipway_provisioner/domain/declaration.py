"""Declarations as requests: how one is applied, its owners, its result, and the reasons to refuse it. Pure."""

from collections.abc import Mapping

import msgspec

from slipway_common.declaration.changes import Change, Danger
from slipway_provisioner.domain.roll_out import Replacement


class DeclarationRefused(Exception):
    """The declaration contradicts existing rows. Nothing was changed."""


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
    strategy: Replacement = "natural"
    drain_seconds: float | None = None
    terminate: bool = False
    if_match: str | None = None
    to_revision: int | None = None

    @property
    def terms(self) -> str:
        """Terms of replacements, as text."""
        return f"{self.strategy}, drain {self.drain_seconds}, terminate {self.terminate}"

    @property
    def ends_others(self) -> bool:
        """True if every other revision shall end, also those that drain already: what they run must go."""
        return self.strategy == "now" and self.terminate


class Known(msgspec.Struct, frozen=True):
    """Stored account or pool: its owner, and the digest of what was declared, empty after its removal."""

    owner: str
    digest: str


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """All stored accounts and pools by their ids, and the region of each account."""

    accounts: Mapping[str, Known]
    pools: Mapping[str, Known]
    regions: Mapping[str, str]

    def of(self, section: str) -> Mapping[str, Known]:
        return self.accounts if section == "accounts" else self.pools


class Document(msgspec.Struct, frozen=True):
    """Declaration of one owner. What it leaves out of one of its `sections` is removed."""

    owner: str
    sections: frozenset[str]


class Owners(msgspec.Struct, frozen=True, kw_only=True):
    """Owners of a section in one request: those whose documents have it, and the owner of each declared entry."""

    documents: frozenset[str]
    entries: Mapping[str, str]


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a declaration: its changes without unchanged entries, their number, and what needs a confirmation."""

    changes: list[Change]
    unchanged: int
    digest: str
    dangers: list[Danger]
    applied: bool
