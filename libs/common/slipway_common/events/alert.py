"""Something a person should look at. Raised and resolved under one deduplication key. Values only."""

from typing import ClassVar

import msgspec


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """What, effect, what Slipway does already, and one command to try."""

    dedup_key: str
    subject_id: str
    kind: str
    summary: str
    effect: str = ""
    doing: str = ""
    command: str = ""


class AlertRaised(Alert, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.alert.raised.v1"


class AlertResolved(Alert, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.alert.resolved.v1"
