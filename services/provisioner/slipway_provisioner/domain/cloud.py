"""Accounts and instances as values."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Where calls go. `settings` are the provider's own."""

    id: str
    provider: str
    region: str
    identity: str
    lease_pool_id: str
    settings: Mapping[str, Any]


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance as a listing shows it. `batch_id` is empty when it has no tag of ours; `running` once the provider
    has nothing more to do for it."""

    id: str
    batch_id: str
    created_at: datetime
    running: bool
