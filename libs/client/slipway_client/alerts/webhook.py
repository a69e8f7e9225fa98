"""Alerts for a webhook: the event as JSON, with the action that a pager takes. Pure."""

from datetime import datetime

import msgspec

from slipway_api.events.alert import Alert, AlertRaised


def body(alert: Alert, _: datetime) -> dict[str, object]:
    """Body of the request of one alert: `action` is trigger or resolve; `dedup_key` says what it belongs to."""
    fields: dict[str, object] = msgspec.to_builtins(alert)
    return {"action": "trigger" if isinstance(alert, AlertRaised) else "resolve", **fields}
