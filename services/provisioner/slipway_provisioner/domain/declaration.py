"""Declarations as requests: how one is applied, its owners, its result, and the reasons to refuse it. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from slipway_api.http.declaration import Change
from slipway_common.declaration.changes import Danger, is_among
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.costs import Estimates
from slipway_provisioner.domain.roll_out import Replacement


class DeclarationRefused(Exception):
    """The declaration contradicts existing rows. Nothing was changed."""


class Grants(msgspec.Struct, frozen=True, kw_only=True):
    """A lease pool, and for how long its grants last."""

    id: str
    reserve_seconds: float
    hold_seconds: float


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts of an account's calls, None for those of this service, its provider, and the lease pool that admits
    them."""

    id: str
    provider: str
    lease_pool_id: str
    request_timeout_seconds: float | None
    accepted_timeout_seconds: float | None


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Time settings of this service that constrain a declaration."""

    call_timeout_seconds: float
    accepted_timeout_seconds: float
    clock_skew_seconds: float

    def problem(self, pool: Grants, calls: Iterable[Calls], accepting: Collection[str]) -> str:
        """Problem if no call could ever start under a grant of the lease pool, or if an accepted call of one of its
        accounts could outlive every lease; empty if there is none. `accepting`: providers that accept calls.

        A call needs its timeout plus the clock skew left of the grant, which may arrive that much late.
        """
        timeout, whose = self.call_timeout_seconds, "call_timeout_seconds {:g} of the provisioner"
        for account in calls:
            if (account.request_timeout_seconds or 0.0) > timeout:
                timeout = account.request_timeout_seconds or timeout
                whose = f"request_timeout_seconds {{:g}} of account {account.id}"
            accepted = account.accepted_timeout_seconds or self.accepted_timeout_seconds
            if account.provider in accepting and accepted > pool.hold_seconds:
                owner = f"account {account.id}" if account.accepted_timeout_seconds else "the provisioner"
                return (
                    f"lease pool {pool.id}: hold_seconds {pool.hold_seconds:g} must be at least {accepted:g}, the "
                    f"accepted_timeout_seconds of {owner}, or an accepted call of account {account.id} could outlive "
                    f"its lease; write hold_seconds: {accepted:g}, or a shorter accepted_timeout_seconds of the account"
                )
        needed = timeout + 2 * self.clock_skew_seconds
        if pool.reserve_seconds > needed:
            return ""
        return (
            f"lease pool {pool.id}: reserve_seconds {pool.reserve_seconds:g} must be above {needed:g}, which is "
            f"{whose.format(timeout)} + 2 × clock_skew_seconds {self.clock_skew_seconds:g} "
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
    owners: tuple[str, ...] | None = None
    """Owners whose things the caller may change, of which a trailing `*` matches the rest; None: any."""

    def may_change(self, owner: str) -> bool:
        """True if the caller may change what this owner declared."""
        return is_among(owner, self.owners)

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
    """All stored accounts and pools by their ids, the region and the provider of each account, and the timeouts of its
    calls."""

    accounts: Mapping[str, Known]
    pools: Mapping[str, Known]
    regions: Mapping[str, str]
    providers: Mapping[str, str] = {}
    calls: Sequence[Calls] = ()

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


class NewLaunch(msgspec.Struct, frozen=True):
    """Launch of a launch config that is new or whose account changes, as its provider is called for it."""

    account: Account
    config: Mapping[str, Any]


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a declaration: its changes without unchanged entries, the number of those, what needs a
    confirmation, estimates of what its launches cost, and of a dry run the launches that may be previewed."""

    changes: list[Change]
    unchanged: int
    digest: str
    dangers: list[Danger]
    estimates: Estimates
    applied: bool
    launches: list[NewLaunch] = []
