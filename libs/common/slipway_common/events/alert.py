"""Something a person should look at. Raised and resolved under one deduplication key. Values only."""

from typing import ClassVar

import msgspec

from slipway_common.events import Time


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """What, since when, effect, cause, what Slipway does already, and one command to try.

    `severity` is page or notice: of one account-wide cause only one alert is a page. `evidence` names what shows it:
    workers, instances, where their console logs are.
    """

    dedup_key: str
    subject_id: str
    kind: str
    summary: str
    effect: str = ""
    doing: str = ""
    command: str = ""
    since: Time | None = None
    cause: str = ""
    severity: str = "page"
    evidence: tuple[str, ...] = ()


class AlertRaised(Alert, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.alert.raised.v1"


class AlertResolved(Alert, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.alert.resolved.v1"
