"""Text line of an event: time, type, subject, and the important fields. Pure.

The fields of registered types are known from their schemas; data of other types are only known to be JSON.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from slipway_api.events.topics import EVENT_OF
from slipway_api.percent import decoded
from slipway_client.view import moments
from slipway_common.base.sanitize import printable

Data = Mapping[str, Any]
OURS: Final = "io.slipway."
# The noun in front of a type's last words, where these alone would be ambiguous.
NOUNS: Final = {"": "", "worker": "", "launch_config": "lc ", "pool": "pool ", "lease": "lease ", "alert": "alert "}
IDS: Final = frozenset({"worker_id", "lease_id", "request_id", "batch_id", "decision_id"})
SHORT: Final = frozenset({"worker", "lease", "request"})  # kinds of subjects whose ids are UUIDs


def line(type_: str, at: datetime, subject: str, data: Any, *, now: datetime, short: Callable[[str], str]) -> str:
    """The line of an event. `short` abbreviates ids. `data` is None for a tombstone; data of a known type fit its
    schema."""
    noun, word = "", type_
    if type_.startswith(OURS):
        noun, _, rest = type_.removeprefix(OURS).partition(".")
        word = rest.rpartition(".v")[0]
    what = NOUNS.get(noun, f"{noun} ") + word
    about = _about(noun, subject, short)
    parts = PARTS.get(noun, _values) if type_ in EVENT_OF else _values
    if parts is _alert and data is not None:
        about = str(data.get("subject_id", subject))
    details = "deleted" if data is None else "  ".join(part for part in parts(word, data, now) if part)
    return printable(f"{moments.clock(at, now)}  {what:<15}  {about:<8}  {details}".rstrip())


def _about(noun: str, subject: str, short: Callable[[str], str]) -> str:
    """The subject of an event for people: without its encoding, and without the kind in front of a lease's."""
    parts = decoded(subject)
    if noun == "lease" and len(parts) > 1:
        noun, *parts_left = parts
        parts = tuple(parts_left)
    about = "/".join(parts)
    return short(about) if noun in SHORT else about


def unreadable(type_: str, at: datetime, subject: str, where: str, error: str, *, now: datetime) -> str:
    """The line of a record that cannot be read. Its type and subject may be empty."""
    what = " of ".join(part for part in (type_, subject) if part)
    return printable(f"{moments.clock(at, now)}  {'unreadable':<15}  {f'{what}, ' if what else ''}{where}: {error}")


def _worker(word: str, data: Data, now: datetime) -> list[str]:
    boot = data.get("boot_seconds")
    return [
        _outcome(data.get("outcome")),
        f"booted in {moments.spelled(boot)}" if boot is not None else "",
        f"task {data['task_id']}" if data.get("task_id") else "",
        str(data.get("instance_id", "")) if word == "launched" else "",
        "found by its tag" if data.get("looked_up") else "",
        "cancelled:" if data.get("cancelled") else "",
        ": ".join(str(data[name]) for name in ("kind", "detail", "reason") if data.get(name)),
        f"capacity {data['capacity_key']}" if data.get("capacity_key") else "",
        f"probe {data['probe_permit']}" if data.get("probe_permit") is not None else "",
        str(data.get("launch_config_id", "")),
    ]


def _outcome(outcome: Data | None) -> str:
    """The scope of a failure and the provider's error code; empty for a success."""
    if not outcome or outcome.get("result") != "failed":
        return ""
    unclear = "" if outcome.get("classified", True) else " (unclassified)"
    return f"{outcome.get('scope', '')} {outcome.get('code', '')}".strip() + unclear


def _config(word: str, data: Data, now: datetime) -> list[str]:
    state = str(data.get("state", "?"))
    if word == "draining":
        state += f" until {moments.clock(moments.at(data['drain_until']), now)}" if data.get("drain_until") else ""
        state += ", then terminated" if data.get("terminate") else ""
    elif state == "active" and not data.get("current", True):
        state = "fallback"
    return [f"pool {data.get('pool_id', '?')}, {data.get('zone', '?')}, {state}", _operator(data, now)]


def _pool(word: str, data: Data, now: datetime) -> list[str]:
    capacity = f"{data.get('min_capacity', '?')}–{data.get('max_capacity', '?')} workers, {data.get('mode', '?')}"
    back = f"to entry {data['to_revision']} of its history" if "to_revision" in data else ""
    return [back, capacity if "min_capacity" in data else _values(word, data, now)[0], _operator(data, now)]


def _operator(data: Data, now: datetime) -> str:
    until = f" until {moments.clock(moments.at(data['until']), now)}" if data.get("until") else ""
    by = f" by {data['by']}" if data.get("by") else ""
    return f"{data['reason']}{by}{until}" if data.get("reason") else ""


def _lease(word: str, data: Data, now: datetime) -> list[str]:
    waited, position = data.get("waited_seconds"), data.get("position")
    units = data.get("units")
    before = f"{data['previous_limit']} → " if data.get("previous_limit") is not None else ""
    return [
        "" if "limit" in data else str(data.get("lease_pool_id", "")),
        f"limit {before}{data['limit']}" if "limit" in data else "",
        f"{units} unit{'' if units == 1 else 's'}" if units is not None else "",
        f"waited {moments.spelled(waited)}" if waited else "",
        f"position {position} in the queue" if position is not None else "",
        str(data.get("reason", "")),
    ]


def _alert(word: str, data: Data, now: datetime) -> list[str]:
    command = f"→ {data['command']}" if data.get("command") and word == "raised" else ""
    return [str(data.get("kind", "")), str(data.get("summary", "")), command]


def _weight(word: str, data: Data, now: datetime) -> list[str]:
    return [f"{data.get('weight', 0):.4g}", str(data.get("state", "")), str(data.get("reason", ""))]


def _values(word: str, data: Any, now: datetime) -> list[str]:
    """The plain values of an event without a format of its own."""
    if not isinstance(data, dict):
        return [json.dumps(data, ensure_ascii=False)]
    return [
        " ".join(
            f"{name}={value}"
            for name, value in data.items()
            if name not in IDS and isinstance(value, str | int | float) and value != ""
        )
    ]


PARTS: Final[dict[str, Callable[[str, Data, datetime], list[str]]]] = {
    "worker": _worker,
    "launch_config": _config,
    "pool": _pool,
    "lease": _lease,
    "alert": _alert,
    "weight": _weight,
}
