"""Provider accounts and instances."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A provider account that calls are made in. `settings` are specific to the provider. Every instance is tagged with
    `deployment`, the id of this deployment."""

    id: str
    deployment: str
    provider: str
    region: str
    identity: str
    lease_pool_id: str
    settings: Mapping[str, Any]


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance of our deployment in a listing. The ids of its batch and its revision of a launch config are from its
    tags, empty if it lacks them. `running` becomes true once the provider has started it."""

    id: str
    batch_id: str
    launch_config_id: str = ""
    created_at: datetime
    running: bool
