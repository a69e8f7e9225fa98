"""Notation of faults: `name[:arg][:window]`, separated by commas, and their effects at a given time. Pure.

Each stand-in of a cloud has a table of kinds of its own. Times are product seconds since the scenario began.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

ZONE_PREFIX: Final = "zone-"
Effects = TypeVar("Effects", bound=msgspec.Struct)


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


class Kind(msgspec.Struct, Generic[Effects], frozen=True):
    """Notation and meaning of a fault, and the change it makes to the effects; ValueError for a bad argument."""

    usage: str
    meaning: str
    change: Callable[[Effects, str], Effects]


class Notation(Generic[Effects]):
    """Notation of the faults in one table of kinds; `none` are the effects without a fault. The kind of ZONE_PREFIX, if
    the table has it, is that of all names with this prefix, which are its arguments."""

    def __init__(self, kinds: Mapping[str, Kind[Effects]], none: Effects) -> None:
        self.kinds = kinds
        self.none = none

    def parse(self, text: str, *, duration_seconds: float | None = None) -> tuple[Fault, ...]:
        """Parse `name[:arg][:window],…`; a window is `4m-14m`, `90s-`, or `25%-50%` of the run. Raises BadFault."""
        words = [word.strip() for word in text.split(",") if word.strip()]
        return tuple(
            self.parse_one(name, arg, duration_seconds=duration_seconds)
            for name, _, arg in (word.partition(":") for word in words)
            if name != "none"
        )

    def parse_one(self, name: str, arg: str = "", *, duration_seconds: float | None = None) -> Fault:
        """Parse one fault from its name and the rest of its text. Raises BadFault."""
        kind = self._kind(name)
        parts = [part for part in arg.split(":") if part]
        start, end = None, None
        if parts and WINDOW.fullmatch(parts[-1]):
            start, end = _window(parts.pop(), duration_seconds)
        value = ":".join(parts)
        if name.startswith(ZONE_PREFIX) and value:
            raise BadFault(f"{name}:{value}: expected a window such as 4m-14m or 25%-50%")
        try:
            kind.change(self.none, name if name.startswith(ZONE_PREFIX) else value)
        except ValueError as error:
            raise BadFault(f"{name}:{arg}: {error}; expected {kind.usage}") from error
        return Fault(name, value, start, end)

    def parsed(self, faults: str | Iterable[Fault], *, duration_seconds: float | None = None) -> tuple[Fault, ...]:
        """Faults from text or from values; a window in fields takes precedence over one in `arg`. Raises BadFault."""
        if isinstance(faults, str):
            return self.parse(faults, duration_seconds=duration_seconds)
        return tuple(self._merged(fault, duration_seconds) for fault in faults if fault.name != "none")

    def effects(self, faults: Iterable[Fault], elapsed_seconds: float) -> Effects:
        """Combined effects of the faults that are active at this time."""
        result = self.none
        for fault in faults:
            if fault.active(elapsed_seconds):
                value = fault.name if fault.name.startswith(ZONE_PREFIX) else fault.arg
                result = self._kind(fault.name).change(result, value)
        return result

    def _kind(self, name: str) -> Kind[Effects]:
        if name.startswith(ZONE_PREFIX) and ZONE_PREFIX in self.kinds:
            return self.kinds[ZONE_PREFIX]
        if name not in self.kinds:
            known = ", ".join(["none", *(kind.usage for kind in dict.fromkeys(self.kinds.values()))])
            raise BadFault(f"unknown fault {name!r}; known: {known}")
        return self.kinds[name]

    def _merged(self, fault: Fault, duration_seconds: float | None) -> Fault:
        read = self.parse_one(fault.name, fault.arg, duration_seconds=duration_seconds)
        start = read.from_seconds if fault.from_seconds is None else fault.from_seconds
        end = read.until_seconds if fault.until_seconds is None else fault.until_seconds
        return Fault(read.name, read.arg, start, end)


def changed(effects: Effects, **fields: Any) -> Effects:
    return msgspec.structs.replace(effects, **fields)


def named(value: str) -> frozenset[str]:
    """Argument that is a name."""
    if not value:
        raise ValueError("the name is missing")
    return frozenset({value})


def ratio(value: str, default: float) -> float:
    """Argument between 0 and 1."""
    number = float(value) if value else default
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{value} is not between 0 and 1")
    return number


def factor(value: str) -> float:
    """Argument above 0."""
    number = float(value)
    if not number > 0.0:
        raise ValueError(f"{value} is not greater than 0")
    return number


def bare(value: str) -> bool:
    """True; raises ValueError for an argument."""
    if value:
        raise ValueError(f"unexpected argument {value!r}")
    return True


WINDOW: Final = re.compile(r"(\d+(?:\.\d+)?)([smh%])-(?:(\d+(?:\.\d+)?)([smh%]))?")
UNIT_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


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
