"""Alerts for people, raised and resolved under a deduplication key. Values only."""

from typing import ClassVar, Final, TypedDict

import msgspec

from slipway_api.limits import Key, Line, Name, Note
from slipway_api.percent import encoded
from slipway_api.time import Time

START_SECONDS: Final = 120.0
"""A service that has started may wait for others, and for its partitions, for this long: that is no page, unless work
waits for it."""


class AlertIdentity(TypedDict):
    """Fields of an alert that are the same when it is raised and when it is resolved."""

    dedup_key: str
    kind: str
    subject_kind: str
    subject_id: str


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of an alert: summary, effect, what Slipway does (`doing`), one command to run, start and cause.

    `subject_kind` is pool, config, image, quota, credential, capacity, account, lease-pool, service or partition.
    `dedup_key` is "service/kind/subject", each part percent-encoded.
    `severity` is page or notice; only one alert per account-wide cause is a page. `evidence` names workers, instances
    and the locations of their console logs. `console` are the last lines that a machine has printed, redacted.

    `raised_at` is when the alert was raised, and `revision` grows with each change of it. Open alerts are published
    again each day with `repeat`: nothing has changed.
    """

    dedup_key: Key
    subject_kind: Name
    subject_id: Key
    kind: Name
    summary: Note
    effect: Note = ""
    doing: Note = ""
    command: Note = ""
    since: Time | None = None
    cause: Note = ""
    severity: Name = "page"
    evidence: tuple[Note, ...] = ()
    console: tuple[Line, ...] = ()
    raised_at: Time | None = None
    revision: int = 1
    repeat: bool = False

    @property
    def identity(self) -> AlertIdentity:
        """Fields of its resolution."""
        return {
            "dedup_key": self.dedup_key,
            "kind": self.kind,
            "subject_kind": self.subject_kind,
            "subject_id": self.subject_id,
        }


def alert_key(service: str, kind: str, *subject: str) -> str:
    """Deduplication key of an alert of one kind on one subject."""
    return encoded(service, kind, *subject)


def alert_identity(service: str, kind: str, subject_kind: str, subject_id: str, *more: str) -> AlertIdentity:
    """Identity of an alert of one kind on one subject, or on one part of it that `more` names."""
    key = alert_key(service, kind, subject_id, *more)
    return {"dedup_key": key, "kind": kind, "subject_kind": subject_kind, "subject_id": subject_id}


class AlertRaised(Alert, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.alert.raised.v1"


class AlertResolved(Alert, frozen=True, kw_only=True):
    """End of an alert, with all of it but for the summary, which says why it has ended."""

    type: ClassVar[str] = "io.slipway.alert.resolved.v1"
