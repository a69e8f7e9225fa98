"""Revisions of launch configs: their immutable body, its hash and their ids. Pure."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec

from slipway_common.declaration.identity import canonical_body
from slipway_common.declaration.models import LaunchConfig, WorkerPool

HASH_DIGITS: Final = 6
"""Digits of the hash in an id. More are taken if another body of the same name already has these."""
BODY: Final = ("account_id", "region", "zone", "instance_type", "image_revision", "settings")
"""Columns of the body. It never changes, since the revision's history belongs to it."""
JUDGED: Final = ("profile", "boot_evidence", "claim_evidence", "on_bad_image", "freeze_after")
"""Columns of the health settings, which each revision copies from its launch config and its pool."""


class Revision(msgspec.Struct, frozen=True, kw_only=True):
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


class StoredRevision(Revision, frozen=True, kw_only=True):
    """Revision with its state: active, draining or archived."""

    state: str
    replaced_by: str
    proven: bool


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


def revision(pool: WorkerPool, config: LaunchConfig, *, name: str, region: str, known: Mapping[str, str]) -> Revision:
    """Revision that a declaration makes of a launch config, whose account is in `region`."""
    body_digest = sha256(canonical_body(config, region)).hexdigest()
    return Revision(
        id=revision_id(name, body_digest, known),
        name=name,
        digest=body_digest,
        pool_id=pool.id,
        account_id=config.account,
        region=region,
        zone=config.zone,
        instance_type=config.instance_type,
        image_revision=config.image,
        settings=dict(config.settings),
        **health_settings(pool, config.profile),
    )


def health_settings(pool: WorkerPool, profile: str | None = None) -> dict[str, Any]:
    """Health settings of a launch config: its own profile if it has one, the rest from its pool."""
    return {
        "profile": profile or pool.profile,
        "boot_evidence": pool.evidence.boot,
        "claim_evidence": pool.evidence.claim,
        "on_bad_image": pool.on_bad_image,
        "freeze_after": pool.freeze_after,
    }
