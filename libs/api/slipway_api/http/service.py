"""Bodies of the routes that every service has: status, audit, alerts, dead letters, positions."""

from typing import Annotated, Any, Literal

import msgspec

from slipway_api.limits import Name, RequiredName, RequiredReason
from slipway_api.time import Time

Partition = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
DedupKey = Annotated[str, msgspec.Meta(min_length=1, max_length=600)]


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Readiness of a process for requests, and the reasons why it is not ready."""

    ready: bool
    reasons: list[str]


class LeaderStatus(msgspec.Struct, frozen=True):
    """The leader among the replicas of a service, as this process last saw it."""

    role: str
    """Role of this process: leader or standby."""
    instance: str
    """Name of the leader."""
    epoch: int
    """Number of leaders so far."""
    since: Time | None


class StoppedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that only an operator can resume, with the reason."""

    topic: str
    partition: int
    reason: str


class PartitionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that is assigned to a process."""

    topic: str
    partition: int
    owned: bool
    """True once its position is claimed in the database."""
    next_offset: int | None
    """Offset of the next record to apply; null until the partition is owned."""
    end_offset: int | None
    """Offset after the last record of the log; null if the broker did not answer in time."""
    lag: int | None
    """Records between the two."""


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one process of a service. What a server did not deliver within a second is null."""

    service: str
    version: str
    instance: str
    """Name of the replica."""
    ready: bool
    reasons: list[str]
    """Reasons why it is not ready."""
    now: Time
    """Clock of the process."""
    database_now: Time | None = None
    """Clock of the database."""
    schema_revision: str | None = None
    dead_letters: int | None = None
    """Number of dead letters."""
    outbox_oldest_seconds: float | None = None
    """Age of the oldest event that is not published yet, in seconds."""
    database_tls: bool | None = None
    """True if the connections to the database are encrypted."""
    partitions: list[PartitionStatus]
    stopped_partitions: list[StoppedPartition]
    leadership: LeaderStatus | None
    """Null for a service of which all replicas work."""


class Restore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Report of a restored database, with the reason why a person wants a new incarnation of it."""

    reason: RequiredReason


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded restore."""

    restored: bool = True


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A write of a person or a pipeline: who changed what, by which action and why."""

    id: int
    at: Time
    by: str
    """Name of the token."""
    origin: str
    """Address that the request came from."""
    action: str
    reason: str
    kind: str
    """Kind of the subject."""
    subject_id: str
    result: str
    before: dict[str, Any] | None
    """Fields that changed, as they were; of settings their digests."""
    after: dict[str, Any] | None
    """The same fields afterwards."""


class ListedAlert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert as people see it: the fields of its newest event, when it was raised and closed, and its silence."""

    id: int
    dedup_key: str
    kind: str
    subject_kind: str
    subject_id: str
    severity: str
    """page or notice."""
    summary: str
    effect: str
    doing: str
    """Action of the service itself meanwhile."""
    command: str
    """A command to run."""
    cause: str
    since: Time
    evidence: tuple[str, ...]
    console: tuple[str, ...]
    """The last lines that a machine has printed, redacted."""
    raised_at: Time
    closed_at: Time | None
    """Null while it is open."""
    resolution: str
    """Why it has ended."""
    silenced_until: Time | None
    silenced_by: str
    silence_reason: str


class Silence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The alert to silence, until when, and why."""

    dedup_key: DedupKey
    until: Time
    reason: RequiredReason


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A record that was not applied; a `parked` one waits behind a `dead` one of its subject."""

    topic: str
    partition: int
    offset: int
    subject: str
    state: str
    """dead or parked."""
    reason: str
    record_at: Time
    """Time of the record."""
    at: Time
    """Time of its storage."""
    undecoded: bool = False
    """True for a whole record batch."""


class DeadLetterContent(DeadLetter, frozen=True, kw_only=True):
    """A dead letter with its bytes."""

    key: str | None
    """Bytes of the key, in hexadecimal."""
    value: str | None
    """Bytes of the value, in hexadecimal."""
    headers: list[list[str | None]]
    """Name of each header, its bytes in hexadecimal, and its name in hexadecimal if that is no text."""


class DeadLetterReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The dead letter to replay or to delete."""

    topic: RequiredName
    partition: Partition
    offset: Offset


class Replayed(msgspec.Struct, frozen=True):
    """Result of a replay."""

    applied: int
    """Number of records that were applied."""
    remaining: int
    """Number of records that still wait."""
    reason: str = ""
    """Why the first of those failed."""


class Adoption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stopped partition, and the end of the log to resume it from."""

    topic: RequiredName
    partition: Partition
    at: Literal["begin", "end"]


class AdoptionOfAll(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of the log to resume every stopped partition from."""

    at: Literal["begin", "end"]


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Position of a partition that has been resumed."""

    topic: Name
    partition: int
    next_offset: int
    """Offset of the next record to apply."""


class ListedToken(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a service's tokens file."""

    name: str
    scopes: list[str]
    expires_at: Time | None
    last_used_at: Time | None
    """Last use in this service in the last 90 days, as recorded twice a minute."""
    revoked: bool
    """True if it was revoked without the file, and is refused."""


class TokenRevocation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of the revocation of a token."""

    reason: RequiredReason


class RevokedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token that is refused from now on."""

    name: str
    was_revoked: bool
    """True if it was revoked before."""
