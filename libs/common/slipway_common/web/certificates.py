"""Alert about certificates of a service that end soon, or whose files cannot be used."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from slipway_api.events.alert import AlertRaised, AlertResolved, alert_key
from slipway_common.base.clock import utc_now
from slipway_common.base.text import listed
from slipway_common.base.tls import UnusableFile, certificate_expires_at
from slipway_common.database import alerts
from slipway_common.database.postgres import Database
from slipway_common.messaging import outbox

EVERY_SECONDS: Final = 60.0
SOON: Final = timedelta(days=14)


class CertificateWatch:
    """Watch of the certificate files of one process: setting → file. `step` is a loop's."""

    def __init__(self, service: str, instance: str, files: Mapping[str, Path], publish: Callable[[], None]) -> None:
        self._service = service
        self._key = alert_key(service, "certificate", instance)
        self.files = files
        self._publish = publish

    async def step(self, database: Database) -> bool:
        """Raise the alert, change it, or resolve it."""
        problems = find_problems(self.files, utc_now())
        before = await alerts.open_summary(database, self._key)
        summary = f"{self._service}: {listed(problems)}" if problems else ""
        if before == summary:
            return False
        kind = AlertRaised if problems else AlertResolved
        event = kind(
            dedup_key=self._key,
            subject_kind="service",
            subject_id=self._service,
            kind="certificate",
            summary=summary,
            effect="when it has ended, clients and servers refuse the connections of this service",
            doing="reads the files again at each connection: no restart is needed",
            command=f"openssl x509 -noout -subject -enddate -in {next(iter(self.files.values()))}",
        )
        async with database.acquire() as db, db.transaction():
            await outbox.enqueue(db, [event])
        self._publish()
        return False


def find_problems(files: Mapping[str, Path], now: datetime) -> Sequence[str]:
    """Sentences about certificates that end within SOON, have ended, or cannot be read."""
    found = []
    for setting, path in files.items():
        try:
            ends_at = certificate_expires_at(path)
        except UnusableFile as error:
            found.append(f"{setting} cannot be used: {error}")
            continue
        if ends_at <= now:
            found.append(f"the certificate of {setting} ended at {ends_at:%Y-%m-%d %H:%M} UTC")
        elif ends_at - now <= SOON:
            found.append(f"the certificate of {setting} ends at {ends_at:%Y-%m-%d %H:%M} UTC")
    return found
