"""Revisions of launch configs: their columns and their ids. Pure."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from slipway_api.events.scopes import (
    Key,
    capacity_key,
    credential_key,
    image_key,
    key,
    lifecycle_of,
    quota_key,
    subnet_key,
)
from slipway_common.base.revisions import hash_of

HASH_DIGITS: Final = 6
"""Digits of the hash in an id. More are taken if another body of the same name already has these."""
BODY: Final = ("account_id", "region", "zone", "instance_type", "image_revision", "settings", "user_data")
"""Columns of the body. It never changes, since the revision's history belongs to it."""


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Health settings of a revision, which it copies from its launch config and its pool."""

    profile: str
    boot_evidence: str
    claim_evidence: str
    on_bad_image: str
    freeze_after: int


HEALTH_SETTINGS: Final = HealthSettings.__struct_fields__


class DeclaredRevision(HealthSettings, frozen=True, kw_only=True):
    """Revision of a launch config as declared: its name, the `digest` of its body, its body and its health settings."""

    name: str
    digest: str
    pool_id: str
    account_id: str
    region: str
    zone: str
    instance_type: str
    image_revision: str
    settings: dict[str, Any]
    user_data: str


PROVIDER_KEYS: Final = ("capacity", "quota_family", "subnet", "image")
"""Columns that the provider fills in. Unlike the body they may change: a provider may learn them later."""


class RevisionRow(DeclaredRevision, frozen=True, kw_only=True):
    """Revision with its id, in the columns of its row. `capacity` and `quota_family` are what its provider names
    otherwise than usual, `subnet` is the one that it uses, if its provider names it, `image` its image by the id that
    its provider gives it."""

    id: str
    capacity: str = ""
    quota_family: str = ""
    subnet: str = ""
    image: str = ""

    @property
    def capacity_key(self) -> Key:
        """Key of the capacity that it launches from."""
        if self.capacity:
            return key("capacity", self.capacity)
        return capacity_key(self.account_id, self.region, self.zone, self.instance_type, lifecycle_of(self.settings))


class StoredRevision(RevisionRow, frozen=True, kw_only=True):
    """Revision with its state: active, draining or archived. `drain_until` is the deadline of its drain; `withdrawn_at`
    is when it was replaced by `now`, as after a leak, by `state_by`."""

    state: str
    replaced_by: str
    proven: bool
    drain_terminate: bool
    drain_until: datetime | None
    withdrawn_at: datetime | None = None
    state_by: str = ""

    def ends_by(self, deadline: datetime | None) -> bool:
        """True if its workers end already, as after a replacement by `now`, and not later than at a given deadline."""
        ends = self.state == "draining" and self.drain_terminate and self.replaced_by == "now"
        in_time = deadline is None or self.drain_until is None or self.drain_until <= deadline
        return self.state == "archived" or (ends and in_time)


class RevisionKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a revision that its provider gives, empty where they are the usual ones."""

    id: str
    capacity: str
    quota_family: str
    subnet: str
    image: str


class StoredKeys(RevisionKeys, frozen=True, kw_only=True):
    """Keys of a stored revision, and what they are derived from."""

    name: str
    account_id: str
    region: str
    zone: str
    instance_type: str
    image_revision: str
    settings: dict[str, Any]


class StoredUser(msgspec.Struct, frozen=True, kw_only=True):
    """Current revision of a declared launch config, and the account that it launches in."""

    id: str
    name: str
    pool_id: str
    account_id: str
    zone: str
    instance_type: str
    image_revision: str
    settings: dict[str, Any]


def in_force(rows: Iterable[RevisionRow]) -> dict[str, dict[str, str]]:
    """Current revisions for people: hash and image by the name of the launch config."""
    return {row.name: {"revision": hash_of(row.id), "image": row.image_revision} for row in rows}


def shared_keys(revision: RevisionRow) -> list[str]:
    """Keys of what a revision shares with others: its image, quota, credential, capacity and subnet."""
    image, credential = image_key(revision.image or revision.image_revision), credential_key(revision.account_id)
    quota = quota_key(revision.account_id, revision.region, revision.instance_type, revision.quota_family)
    subnets = [subnet_key(revision.account_id, revision.region, revision.subnet)] if revision.subnet else []
    return [each.text for each in (image, quota, credential, revision.capacity_key, *subnets)]


def revision_id(name: str, body_digest: str, known: Mapping[str, str]) -> str:
    """Id of the revision of a launch config with this digest. `known`: digests of its revisions by their ids."""
    for id_, other in known.items():
        if other == body_digest:
            return id_
    return next(id_ for digits in range(HASH_DIGITS, 65) if (id_ := f"{name}@{body_digest[:digits]}") not in known)
