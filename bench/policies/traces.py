"""Traces of real demand and real capacity, read from given files."""

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
    """An invalid trace; the message names the file and the reason."""


class Zone(msgspec.Struct, frozen=True):
    """One zone; `up` is 1 at each sample at which it had capacity."""

    name: str
    up: bytes

    @property
    def region(self) -> str:
        """Region of the zone: "us-east-1" for us-east-1a_v100; the name itself if it has no such form."""
        match = re.match(r"(.*\d)[a-z](?:_|$)", self.name)
        return match[1] if match else self.name


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    """Arrivals per tick, and zones sampled every `gap_seconds`. `of` describes the pair to readers."""

    arrivals: tuple[int, ...]
    zones: tuple[Zone, ...]
    gap_seconds: float
    of: str

    def offsets(self) -> list[float]:
        """Seconds into the availability trace at which runs start, such that it lasts for a whole run."""
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
        raise BadTrace(f"{path}: {len(data)} bytes are not a whole number of {RECORD.size}-byte records")
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
        raise BadTrace(f"{folder}: contains no *.json")
    zones, gaps = [], set()
    for path in paths:
        data, gap = _samples(path)
        zones.append(Zone(path.stem, bytes(value > 0 for value in data)))
        gaps.add(gap)
        if len(data) * gap < HOURS * 3600:
            raise BadTrace(f"{path}: {len(data) * gap / 3600:.1f} hours of samples; a run needs {HOURS:.0f}")
    if len(gaps) > 1:
        raise BadTrace(f"{folder}: files differ in gap_seconds: {', '.join(f'{gap:g}' for gap in sorted(gaps))}")
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
