"""Changes of declared objects."""

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
