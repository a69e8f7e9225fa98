"""Real demand and real capacity, read from where the person says. Nothing of them is kept here."""

import re
import struct
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.policies.scenario import HOURS, TICK_SECONDS

OFFSET_DAYS: Final = (0.0, 15.0, 30.0)
GAP_SECONDS_MAX: Final = 86_400
RECORD: Final = struct.Struct(">II")  # arrival and duration in milliseconds, as the Firefox CI traces have them


class BadTrace(Exception):
    """A file that is no trace; the message names it and what is wrong."""


class Zone(msgspec.Struct, frozen=True):
    """One place to launch: whether it had capacity at each sample."""

    name: str
    up: bytes

    @property
    def region(self) -> str:
        """us-east-1a_v100" lies in "us-east-1"; a name without a number and a letter behind it is its own region."""
        match = re.match(r"(.*\d)[a-z](?:_|$)", self.name)
        return match[1] if match else self.name


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    """A pair: tasks that arrive in each tick, and zones sampled each `gap_seconds`. `of` tells people which."""

    arrivals: tuple[int, ...]
    zones: tuple[Zone, ...]
    gap_seconds: float
    of: str

    def offsets(self) -> list[float]:
        """Seconds into the availability trace at which runs begin: those from which it lasts for a whole run."""
        length = min(len(zone.up) for zone in self.zones) * self.gap_seconds
        fitting = [days * 86_400 for days in OFFSET_DAYS if days * 86_400 + HOURS * 3600 <= length]
        return fitting or [0.0]


def demand(path: Path) -> tuple[int, ...]:
    """Arrivals per tick over the first 96 hours; raises BadTrace."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadTrace(f"{path}: {error.strerror}") from error
    if not data or len(data) % RECORD.size:
        raise BadTrace(f"{path}: {len(data)} bytes are no records of {RECORD.size} bytes")
    counts = [0] * round(HOURS * 3600 / TICK_SECONDS)
    for arrival_ms, _ in RECORD.iter_unpack(data):
        place = int(arrival_ms / 1000 / TICK_SECONDS)
        if place < len(counts):
            counts[place] += 1
    if not any(counts):
        raise BadTrace(f"{path}: no task arrives in its first {HOURS:.0f} hours")
    return tuple(counts)


def availability(folder: Path) -> tuple[tuple[Zone, ...], float]:
    """Zones of every *.json in the folder and the seconds between samples; raises BadTrace."""
    if not folder.is_dir():
        raise BadTrace(f"{folder}: no such folder")
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise BadTrace(f"{folder}: holds no *.json")
    zones, gaps = [], set()
    for path in paths:
        data, gap = _samples(path)
        zones.append(Zone(path.stem, bytes(value > 0 for value in data)))
        gaps.add(gap)
        if len(data) * gap < HOURS * 3600:
            raise BadTrace(f"{path}: {len(data) * gap / 3600:.1f} hours of samples, and a run takes {HOURS:.0f}")
    if len(gaps) > 1:
        raise BadTrace(f"{folder}: its files differ in gap_seconds: {', '.join(f'{gap:g}' for gap in sorted(gaps))}")
    return tuple(zones), gaps.pop()


def _samples(path: Path) -> tuple[list[float], float]:
    try:
        text = path.read_bytes()
        if not text.strip():
            raise BadTrace(f"{path}: is empty")
        content: Any = msgspec.json.decode(text)
    except OSError as error:
        raise BadTrace(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadTrace(f"{path}: not JSON: {error}") from error
    metadata = content.get("metadata") if isinstance(content, dict) else None
    gap = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if not isinstance(gap, int | float) or isinstance(gap, bool) or not 0 < gap <= GAP_SECONDS_MAX:
        raise BadTrace(f"{path}: metadata.gap_seconds must be a number above 0 and at most 86400, not {gap!r}")
    data = content.get("data")
    if not isinstance(data, list) or not data:
        raise BadTrace(f"{path}: data must be a list of samples")
    for place, value in enumerate(data):
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise BadTrace(f"{path}: data[{place}] must be a number, not {value!r}")
    return data, float(gap)
