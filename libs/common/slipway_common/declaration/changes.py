"""Changes that a declaration makes, in the same words in every service, and the guard against large removals. Pure."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from slipway_api.http.declaration import Change

Result = Literal["created", "updated", "reactivated", "archived", "unchanged"]
ARCHIVED_SHARE_MAX: Final = 0.25
"""Share of a pool's active launch configs that a declaration may archive without confirmation."""
FACTOR_MAX: Final = 2
"""Factor by which a declaration may raise or lower a maximum, or raise a minimum, without confirmation."""
MINIMUM_FREE: Final = 5
"""Minimum up to which a declaration may raise one without confirmation."""
DIGEST_CHARACTERS: Final = 12
DANGERS_MAX: Final = 100
CHANGES_MAX: Final = 10_000
"""Changes that an answer lists. It counts the others, and its digest covers them."""


class Danger(msgspec.Struct, frozen=True):
    """Change that needs a confirmation, which covers the `text`. The `consequence` is as of now: it may change."""

    text: str
    consequence: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.consequence}" if self.consequence else self.text


def difference(field: str, before: Any, after: Any) -> str:
    """Change of a field as text, for example `limit: 20 → 24`."""
    return f"{field}: {_text(before)} → {_text(after)}"


def setting(field: str, value: Any) -> str:
    """A field that was set to a value, for example `limit: 24`."""
    return f"{field}: {_text(value)}"


def _text(value: Any) -> str:
    if value is None or value == "":
        return "none"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class ForeignOwner(Exception):
    """The caller's token may not change what this owner declared."""

    def __init__(self, owner: str, what: str = "the declaration") -> None:
        super().__init__(f"{what} belongs to {owner or 'no owner'}")
        self.owner = owner


def is_among(owner: str, owners: Iterable[str] | None) -> bool:
    """True if an owner is one of those of a token, of which a trailing `*` matches the rest; None: any."""
    return owners is None or any(owner == one or (one.endswith("*") and owner.startswith(one[:-1])) for one in owners)


class OwnedByAnother(Exception):
    """A declared object belongs to another owner. Nothing was changed."""

    def __init__(self, kind: str, id_: str, owner: str, declared_by: str) -> None:
        super().__init__(f"{kind} {id_} belongs to {owner} and is also declared by {declared_by}")
        self.kind, self.id, self.owner, self.declared_by = kind, id_, owner, declared_by


class ConfirmationRequired(Exception):
    """The changes need a confirmation by their digest, which covers all of them. Nothing was changed."""

    def __init__(self, changes_digest: str, dangers: Sequence[Danger], changes: Sequence[Change]) -> None:
        self.digest = changes_digest
        self.changes = changes
        self.dangers = tuple(listed_dangers(dangers))
        super().__init__("; ".join(self.dangers))


def changes_digest(changes: Collection[Change], contents: Collection[str]) -> str:
    """Short digest of changes, which confirms exactly these; independent of their order.

    `contents`: texts that it covers beside what is shown of each change, such as the dangers and the digests of what is
    declared.
    """
    lines = sorted(
        msgspec.json.encode((made.kind, made.id, made.result, made.detail))
        for made in changes
        if made.result != "unchanged"
    )
    return _digest(b"\n".join([*lines, msgspec.json.encode(sorted(contents))]))


def combined_digest(digests: Sequence[str]) -> str:
    """Digest of the changes in several services, from the digest of each in a fixed order."""
    return _digest("\n".join(digests).encode())


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:DIGEST_CHARACTERS]


def check_confirmed(found: str, dangers: Sequence[Danger], confirmed: str, changes: Sequence[Change]) -> None:
    """Raise ConfirmationRequired for dangerous changes unless `confirmed` is their digest, `found`."""
    if dangers and confirmed != found:
        raise ConfirmationRequired(found, dangers, changes)


def listed_dangers(dangers: Sequence[Danger]) -> list[str]:
    """The first dangers, with the number of the others: an apply may remove every pool of a deployment."""
    more = len(dangers) - DANGERS_MAX
    return [*map(str, dangers[:DANGERS_MAX]), *([f"and {more:,} more dangers"] if more > 0 else [])]


def archived_danger(pool_id: str, *, active: int, archived: int, added: int, consequence: str = "") -> Danger | None:
    """Danger of archiving too many of a pool's active launch configs, or all of them while none is added."""
    if not archived or archived <= active * ARCHIVED_SHARE_MAX:
        return None
    if archived >= active and not added:
        return Danger(f"worker pool {pool_id}: no launch config stays active", consequence)
    return Danger(f"worker pool {pool_id}: archives {archived} of {active} active launch configs", consequence)


def maximum_danger(kind: str, id_: str, before: int, after: int, *, loss: str = "") -> Danger | None:
    """Danger of raising a maximum too much, also from 0, or of lowering it by more than half; that one only with a
    `loss`, its consequence for what uses the maximum."""
    if after > before * FACTOR_MAX:
        return Danger(f"{kind} {id_}: the maximum grows from {before} to {after}")
    if loss and after * FACTOR_MAX < before:
        return Danger(f"{kind} {id_}: the maximum falls from {before} to {after}", loss)
    return None


def minimum_danger(kind: str, id_: str, before: int, after: int) -> Danger | None:
    """Danger of raising a minimum too much: machines launch for it without demand."""
    if after <= max(MINIMUM_FREE, before * FACTOR_MAX):
        return None
    return Danger(f"{kind} {id_}: the minimum grows from {before} to {after}", "machines launch without demand")


def removed_danger(kind: str, id_: str, consequence: str = "") -> Danger:
    """Danger of removing a pool."""
    return Danger(f"{kind} {id_} is removed", consequence)
