"""Provider accounts and instances."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A provider account that calls are made in. `settings` are specific to the provider. Every instance is tagged with
    `deployment`, the id of this deployment.

    `credential` refers to a secret and holds none; empty if the account needs none. A call lasts at most
    `request_timeout_seconds`, and one that was accepted is polled for `accepted_timeout_seconds`; None: the setting of
    this service.
    """

    id: str
    deployment: str
    provider: str
    region: str
    identity: str
    lease_pool_id: str
    settings: Mapping[str, Any]
    credential: Mapping[str, Any] = {}
    request_timeout_seconds: float | None = None
    accepted_timeout_seconds: float | None = None


WITHOUT_ID: Final = "workspace-"
"""Beginning of the ids by which workspaces without an instance id are listed. None of them can become a worker."""


class InstanceState(StrEnum):
    """State of an instance. Listings leave terminated ones out."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    TERMINATED = "terminated"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance of our deployment in a listing. The ids of its batch and its revision of a launch config are from its
    tags, empty if it lacks them. `note` says what it consists of, where its id does not tell people."""

    id: str
    batch_id: str
    launch_config_id: str = ""
    created_at: datetime
    state: InstanceState
    note: str = ""

    @property
    def running(self) -> bool:
        """True once the provider has started it, until it stops."""
        return self.state is InstanceState.RUNNING


class Protected(msgspec.Struct, frozen=True):
    """Instance that the provider refuses to terminate: its reason, and a command that removes the obstacle."""

    reason: str
    remedy: str = ""
