"""Differences between the declared rows and the stored ones, and the reasons to refuse a declaration. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

Row = Mapping[str, Any]
"""Column → value, as declared or as stored."""

# Immutable under a config's id, since its history belongs to these values.
BODY: Final = ("account_id", "region", "zone", "instance_type", "image_revision", "settings", "pool_id")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between the declaration and the rows. `action` is create, update or remove."""

    kind: str
    id: str
    action: str
    detail: str = ""


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


class DeclarationRefused(Exception):
    """The declaration contradicts existing rows. The transaction must be rolled back."""


def different(stored: Row | None, wanted: Row) -> list[str]:
    """Columns whose declared value is not the stored one; none for a row that does not exist."""
    return [] if stored is None else [name for name, value in wanted.items() if stored[name] != value]


def check_body(config_id: str, changed: Sequence[str]) -> None:
    """Raise DeclarationRefused if the body of a config would change under the same id."""
    if fixed := [name for name in changed if name in BODY]:
        raise DeclarationRefused(
            f"launch config {config_id}: {', '.join(fixed)} cannot change under the same id, since its history "
            "belongs to the old values; give the new config a new id"
        )


def change(kind: str, id_: str, stored: Row | None, wanted: Row, *, inherited: Collection[str] = ()) -> Change:
    """Change of a row to its declared values, listing the columns that differ except `inherited` ones."""
    if stored is None:
        return Change(kind=kind, id=id_, action="create")
    listed = [name for name in different(stored, wanted) if name not in inherited]
    detail = ", ".join(f"{name}: {stored[name]} → {wanted[name]}" for name in listed)
    return Change(kind=kind, id=id_, action="update", detail=detail)
