"""Alerts for an incoming webhook of Slack, or of a chat that takes the same JSON, such as Mattermost. Pure."""

from datetime import datetime
from typing import Final

from slipway_api.events.alert import Alert, AlertRaised
from slipway_common.base.sanitize import printable

ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
"""Characters that Slack gives a meaning, such as a mention of everybody."""


def body(alert: Alert, _: datetime) -> dict[str, object]:
    """Message of one alert: its summary, and for an open one its effect, Slipway's action and the remedy."""
    name = f"{alert.kind} {alert.subject_id}"
    if not isinstance(alert, AlertRaised):
        return {"text": f":white_check_mark: *resolved* {_text(name)}: {_text(alert.summary)}"}
    sign = ":rotating_light:" if alert.severity == "page" else ":information_source:"
    lines = [f"{sign} *{_text(alert.severity)}* {_text(name)}: {_text(alert.summary)}"]
    lines += [f"{label}: {_text(text)}" for label, text in (("Effect", alert.effect), ("Slipway", alert.doing)) if text]
    lines += [f"Remedy: `{_text(alert.command)}`"] if alert.command else []
    return {"text": "\n".join(lines)}


def _text(text: str) -> str:
    return printable(text).translate(ESCAPES)
