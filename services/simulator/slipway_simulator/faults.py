"""Faults of the simulated cloud: their kinds, their notation, and their effects at a given time. Pure.

A fault has `Effects`; cloud.py decides the answers to calls under them. A new fault is a row in FAULTS and, if needed,
a new field of Effects. Times are product seconds since the scenario began.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

ZONE_PREFIX: Final = "zone-"


class BadFault(ValueError):
    """A malformed or unknown fault; the message has the expected notation."""


class Fault(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One fault. Without a window it lasts until it is cleared."""

    name: str
    arg: str = ""
    from_seconds: float | None = None
    until_seconds: float | None = None

    def active(self, elapsed_seconds: float) -> bool:
        return (self.from_seconds or 0.0) <= elapsed_seconds and (
            self.until_seconds is None or elapsed_seconds < self.until_seconds
        )


class Effects(msgspec.Struct, frozen=True):
    """Combined effects of all active faults."""

    zones_out: frozenset[str] = frozenset()
    quota_used_up: frozenset[str] = frozenset()
    bad_images: frozenset[str] = frozenset()
    throttled: bool = False
    ignore_token: bool = False
    lost_reply_ratio: float = 0.0
    boot_factor: float = 1.0


def parse(text: str, *, duration_seconds: float | None = None) -> tuple[Fault, ...]:
    """Parse `name[:arg][:window],…`; a window is `4m-14m`, `90s-`, or `25%-50%` of the run. Raises BadFault."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    return tuple(
        parse_one(name, arg, duration_seconds=duration_seconds)
        for name, _, arg in (word.partition(":") for word in words)
        if name != "none"
    )


def parse_one(name: str, arg: str = "", *, duration_seconds: float | None = None) -> Fault:
    """Parse one fault from its name and the rest of its text. Raises BadFault."""
    kind = _kind(name)
    parts = [part for part in arg.split(":") if part]
    start, end = None, None
    if parts and WINDOW.fullmatch(parts[-1]):
        start, end = _window(parts.pop(), duration_seconds)
    value = ":".join(parts)
    if name.startswith(ZONE_PREFIX) and value:
        raise BadFault(f"{name}:{value}: expected a window such as 4m-14m or 25%-50%")
    try:
        kind.change(Effects(), name if name.startswith(ZONE_PREFIX) else value)
    except ValueError as error:
        raise BadFault(f"{name}:{arg}: {error}; expected {kind.usage}") from error
    return Fault(name, value, start, end)


def parsed(faults: str | Iterable[Fault], *, duration_seconds: float | None = None) -> tuple[Fault, ...]:
    """Faults from text or from values; a window in fields takes precedence over one in `arg`. Raises BadFault."""
    if isinstance(faults, str):
        return parse(faults, duration_seconds=duration_seconds)
    return tuple(_merged(fault, duration_seconds) for fault in faults if fault.name != "none")


def effects(faults: Iterable[Fault], elapsed_seconds: float) -> Effects:
    """Combined effects of the faults that are active at this time."""
    result = Effects()
    for fault in faults:
        if fault.active(elapsed_seconds):
            value = fault.name if fault.name.startswith(ZONE_PREFIX) else fault.arg
            result = _kind(fault.name).change(result, value)
    return result


class Kind(msgspec.Struct, frozen=True):
    """Notation and meaning of a fault, and the change it makes to the effects; ValueError for a bad argument."""

    usage: str
    meaning: str
    change: Callable[[Effects, str], Effects]


def _changed(effects: Effects, **fields: Any) -> Effects:
    return msgspec.structs.replace(effects, **fields)


def _named(value: str) -> frozenset[str]:
    if not value:
        raise ValueError("the name is missing")
    return frozenset({value})


def _ratio(value: str, default: float) -> float:
    ratio = float(value) if value else default
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"{value} is not between 0 and 1")
    return ratio


def _factor(value: str) -> float:
    factor = float(value)
    if not factor > 0.0:
        raise ValueError(f"{value} is not greater than 0")
    return factor


def _bare(value: str) -> bool:
    if value:
        raise ValueError(f"unexpected argument {value!r}")
    return True


ZONE: Final = Kind(
    "zone-NAME[:WINDOW] or zone:NAME[:WINDOW]",
    "the zone has no capacity: launches fail, existing instances keep running",
    lambda e, value: _changed(e, zones_out=e.zones_out | _named(value)),
)
FAULTS: Final[dict[str, Kind]] = {
    "zone": ZONE,
    "lost-reply": Kind(
        "lost-reply[:RATIO][:WINDOW]",
        "create calls take effect, but the connection is dropped without a reply (default ratio 0.3)",
        lambda e, value: _changed(e, lost_reply_ratio=_ratio(value, default=0.3)),
    ),
    "ignore-token": Kind(
        "ignore-token[:WINDOW]",
        "a repeated token creates new instances",
        lambda e, value: _changed(e, ignore_token=_bare(value)),
    ),
    "quota": Kind(
        "quota:ACCOUNT[:WINDOW]",
        "the account's quota is used up for every family",
        lambda e, value: _changed(e, quota_used_up=e.quota_used_up | _named(value)),
    ),
    "throttle": Kind(
        "throttle[:WINDOW]",
        "every account admits only a few create calls a minute",
        lambda e, value: _changed(e, throttled=_bare(value)),
    ),
    "bad-image": Kind(
        "bad-image:IMAGE[:WINDOW]",
        "machines started from the image never register",
        lambda e, value: _changed(e, bad_images=e.bad_images | _named(value)),
    ),
    "slow-boot": Kind(
        "slow-boot:FACTOR[:WINDOW]",
        "machines boot slower by this factor",
        lambda e, value: _changed(e, boot_factor=e.boot_factor * _factor(value)),
    ),
}
WINDOW: Final = re.compile(r"(\d+(?:\.\d+)?)([smh%])-(?:(\d+(?:\.\d+)?)([smh%]))?")
UNIT_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


def _kind(name: str) -> Kind:
    if name.startswith(ZONE_PREFIX):
        return ZONE
    if name not in FAULTS:
        known = ", ".join(["none", *(kind.usage for kind in FAULTS.values())])
        raise BadFault(f"unknown fault {name!r}; known: {known}")
    return FAULTS[name]


def _window(text: str, duration_seconds: float | None) -> tuple[float, float | None]:
    match = WINDOW.fullmatch(text)
    assert match is not None
    start = _seconds(match[1], match[2], text, duration_seconds)
    end = _seconds(match[3], match[4], text, duration_seconds) if match[3] else None
    if end is not None and end <= start:
        raise BadFault(f"window {text} ends before it begins")
    return start, end


def _seconds(number: str, unit: str, text: str, duration_seconds: float | None) -> float:
    if unit != "%":
        return float(number) * UNIT_SECONDS[unit]
    if duration_seconds is None:
        raise BadFault(f"window {text}: a percentage needs a run of known duration")
    return float(number) / 100.0 * duration_seconds


def _merged(fault: Fault, duration_seconds: float | None) -> Fault:
    read = parse_one(fault.name, fault.arg, duration_seconds=duration_seconds)
    start = read.from_seconds if fault.from_seconds is None else fault.from_seconds
    end = read.until_seconds if fault.until_seconds is None else fault.until_seconds
    return Fault(read.name, read.arg, start, end)
