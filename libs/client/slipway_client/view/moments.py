"""Durations and times as text. Pure: `now` is an argument, and its zone is the reader's."""

import re
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

UNIT_SECONDS: Final = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
DURATION: Final = re.compile(r"(\d+d)?(\d+h)?(\d+m)?(\d+(?:\.\d+)?s)?")
TIME_OF_DAY: Final = re.compile(r"\d{1,2}:\d\d(:\d\d)?")
SPELLED: Final = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def seconds(text: str) -> float:
    """A duration such as 90s, 30m, 2h or 1d12h, in seconds; ValueError for anything else, and for none at all."""
    match = DURATION.fullmatch(text.strip())
    total = sum(float(part[:-1]) * UNIT_SECONDS[part[-1]] for part in match.groups() if part) if match else 0.0
    if not total:
        raise ValueError(f"{text!r} is not a duration such as 90s, 30m, 2h or 1d12h")
    return total


def moment(text: str, now: datetime) -> datetime:
    """A time: ISO 8601, without a zone in the reader's, or the next 17:30; ValueError for anything else."""
    text = text.strip()
    try:
        if TIME_OF_DAY.fullmatch(text):
            hour, minute, *second = map(int, text.split(":"))
            today = now.replace(hour=hour, minute=minute, second=second[0] if second else 0, microsecond=0)
            return today if today > now else today + timedelta(days=1)
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time such as 17:30, 2026-08-01T17:30 or 2026-08-01T15:30Z") from error
    return at if at.tzinfo else at.replace(tzinfo=now.tzinfo)


def at(text: str) -> datetime:
    """A time from an API: RFC 3339, which allows lower case."""
    return datetime.fromisoformat(text.upper())


def spelled(duration_seconds: float) -> str:
    """A duration in its two largest units: 0.4 s, 12 s, 3 min 5 s, 2 h 10 min, 4 d 2 h."""
    total = abs(duration_seconds)
    if total < 10:
        return f"{total:.1f} s".replace(".0 s", " s")
    total = round(total)
    for (name, unit), (smaller_name, smaller) in pairwise(SPELLED):
        if total >= unit:
            rest = int(total % unit // smaller)
            return f"{total // unit:.0f} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{total} s"


def about(duration_seconds: float) -> str:
    """A duration in its largest unit: 0.4 s, 3 min."""
    return " ".join(spelled(duration_seconds).split()[:2])


def clock(at: datetime, now: datetime) -> str:
    """A time in the reader's zone: 17:30:05, with its date when that is not today."""
    try:
        local = at.astimezone(now.tzinfo)
    except OverflowError:  # the first or the last day of the calendar
        return at.isoformat()
    return f"{local:%H:%M:%S}" if local.date() == now.date() else f"{local:%Y-%m-%d %H:%M}"
