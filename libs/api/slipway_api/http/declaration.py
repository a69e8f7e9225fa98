"""Changes of declared objects."""

from typing import Any

import msgspec


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a declared object."""

    kind: str
    """account, worker pool, launch config or lease pool."""
    id: str
    result: str
    """created, updated, reactivated, archived or unchanged."""
    detail: str = ""
    """The fields that change."""


class OwnedSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Declaration of an account or a pool by its owner, which is empty if there is none."""

    owner: str
    spec: dict[str, Any]
