"""Changes by people and pipelines, as the audit records them. Values only."""

from enum import StrEnum
from typing import Any, NamedTuple


class AuditedKind(StrEnum):
    """Kinds of things that people change."""

    ACCOUNT = "account"
    CAPACITY = "capacity"
    POOL = "pool"
    CONFIG = "config"
    LEASE_POOL = "lease-pool"
    WORKER = "worker"
    ZONE = "zone"
    IMAGE = "image"
    DATABASE = "database"
    DEPLOYMENT = "deployment"
    PARTITION = "partition"
    DEAD_LETTER = "dead-letter"
    ALERT = "alert"
    TOKEN = "token"  # noqa: S105 # a kind, no token


class AuditedChange(NamedTuple):
    """Change of one thing: its fields before and after, as far as they changed. `before` is None for a new one."""

    kind: AuditedKind
    subject_id: str
    result: str = "updated"
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
