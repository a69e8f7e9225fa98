"""Revisions of launch configs: their columns and their ids. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

HASH_DIGITS: Final = 6
"""Digits of the hash in an id. More are taken if another body of the same name already has these."""
BODY: Final = ("account_id", "region", "zone", "instance_type", "image_revision", "settings")
"""Columns of the body. It never changes, since the revision's history belongs to it."""
JUDGED: Final = ("profile", "boot_evidence", "claim_evidence", "on_bad_image", "freeze_after")
"""Columns of the health settings, which each revision copies from its launch config and its pool."""


class RevisionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Revision of a launch config in the columns of its row: its identity, its body and its health settings."""

    id: str
    name: str
    digest: str
    pool_id: str
    account_id: str
    region: str
    zone: str
    instance_type: str
    image_revision: str
    settings: dict[str, Any]
    profile: str
    boot_evidence: str
    claim_evidence: str
    on_bad_image: str
    freeze_after: int


class StoredRevision(RevisionRow, frozen=True, kw_only=True):
    """Revision with its state: active, draining or archived."""

    state: str
    replaced_by: str
    proven: bool
    drain_terminate: bool

    @property
    def ends(self) -> bool:
        """True if its workers end already, as after a replacement by `now`."""
        return self.state == "archived" or (
            self.state == "draining" and self.drain_terminate and self.replaced_by == "now"
        )


def split(id_: str) -> tuple[str, str]:
    """Name and hash of a revision's id; the hash of a mere name is empty."""
    name, _, hash_ = id_.partition("@")
    return name, hash_


def revision_id(name: str, body_digest: str, known: Mapping[str, str]) -> str:
    """Id of the revision of a launch config with this digest. `known`: digests of its revisions by their ids."""
    for id_, other in known.items():
        if other == body_digest:
            return id_
    return next(id_ for digits in range(HASH_DIGITS, 65) if (id_ := f"{name}@{body_digest[:digits]}") not in known)
