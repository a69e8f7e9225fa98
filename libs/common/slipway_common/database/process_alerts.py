"""Alerts of one service process: about its partitions, its tokens file, and how it was started."""

from collections.abc import Sequence
from typing import Final

import msgspec

from slipway_api.events.alert import AlertRaised, AlertResolved, alert_key
from slipway_common.base.clock import monotonic_seconds
from slipway_common.database import alerts
from slipway_common.database.postgres import Database

CONFIRM_SECONDS: Final = 60.0


class StartNotice(msgspec.Struct, frozen=True):
    """A notice of how a process was started, open for as long as it runs. Unless it `applies`, an open one of an
    earlier process of the same instance is resolved."""

    kind: str
    applies: bool
    summary: str
    effect: str
    doing: str
    command: str

    @property
    def texts(self) -> dict[str, str]:
        names = ("summary", "effect", "doing", "command")
        return {name: getattr(self, name) for name in names} | {"severity": "notice"}


class PartitionAlert:
    """Alert of one service process about partitions, raised while there are any, and confirmed meanwhile."""

    def __init__(self, kind: str, service: str, instance: str) -> None:
        self.kind = kind
        self.service = service
        self.dedup_key = alert_key(service, kind, instance)
        self.raised = False  # as committed last
        self._is_taken_over = False
        self._confirmed_at = -CONFIRM_SECONDS

    async def take_over(self, database: Database) -> None:
        """Take over, once, the open alert of a process of this instance that ended before it could resolve it."""
        if not self._is_taken_over:
            self.raised = self.raised or await alerts.is_open(database, self.dedup_key)
            self._is_taken_over = True

    async def confirm(self, database: Database) -> None:
        """Confirm the alert while it is raised, each minute. One that was resolved meanwhile, since this process could
        not confirm it, is raised again."""
        if self.raised and monotonic_seconds() - self._confirmed_at >= CONFIRM_SECONDS:
            self.raised = await alerts.confirm(database, self.dedup_key)
            self._confirmed_at = monotonic_seconds()

    def changes(
        self,
        names: Sequence[str],
        *,
        summary: str,
        effect: str,
        doing: str = "retries every few seconds",
        command: str = "slipway doctor  # then read the log of the service",
        severity: str = "page",
    ) -> list[AlertRaised | AlertResolved]:
        """The event to publish; empty if nothing has changed."""
        if bool(names) == self.raised:
            return []
        alert = AlertRaised if names else AlertResolved
        return [
            alert(
                dedup_key=self.dedup_key,
                subject_kind="service",
                subject_id=self.service,
                kind=self.kind,
                summary=summary if names else "",
                effect=effect,
                doing=doing,
                command=command,
                severity=severity,
            )
        ]
