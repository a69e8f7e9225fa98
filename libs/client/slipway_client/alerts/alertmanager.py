"""Alerts for Alertmanager, by version 2 of its API. Pure.

Alertmanager forgets an alert at its `endsAt`, and all of them when it restarts: clients send what is open again and
again. It notifies once, since an alert is known by its labels.
"""

from datetime import datetime, timedelta
from typing import Final

from slipway_api.events.alert import Alert, AlertRaised
from slipway_api.percent import decoded

PATH: Final = "/api/v2/alerts"
REFRESHES_MISSED: Final = 5
"""An open alert that is not sent again for so many times ends: its sender is gone, or the alert."""
ANNOTATIONS: Final = ("summary", "effect", "doing", "command", "cause")


def body(alert: Alert, now: datetime, *, refresh_seconds: float) -> list[dict[str, object]]:
    """`postableAlerts` of one alert, which ends now, or unless it is sent again every `refresh_seconds`."""
    lasts = timedelta(seconds=refresh_seconds * REFRESHES_MISSED if isinstance(alert, AlertRaised) else 0)
    return [
        {
            "labels": {
                "alertname": alert.kind,
                "severity": alert.severity,
                "service": decoded(alert.dedup_key)[0],
                "subject_kind": alert.subject_kind,
                "subject": alert.subject_id,
                "dedup_key": alert.dedup_key,
            },
            "annotations": {name: text for name in ANNOTATIONS if (text := getattr(alert, name))},
            "startsAt": min(alert.raised_at or now, now).isoformat(),  # it refuses a start after the end
            "endsAt": (now + lasts).isoformat(),
        }
    ]
