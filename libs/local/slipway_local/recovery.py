"""What an outage did to a zone's share of launch attempts. Pure; times in product seconds since the scenario began."""

from collections.abc import Sequence
from typing import Final

import msgspec

SHARE_OUT_MAX: Final = 0.025
OUT_WITHIN_SECONDS: Final = 120.0
SHARE_BACK_MIN: Final = 0.20
BACK_WITHIN_SECONDS: Final = 900.0
WINDOW_SECONDS: Final = 120.0  # over which a share is taken once the zone is back: some 50 launches


class Outage(msgspec.Struct, frozen=True):
    """One zone, out from `start` to `end`, in a run of `duration`."""

    zone: str
    start: float
    end: float
    duration: float


class Verdict(msgspec.Struct, frozen=True):
    """The zone's share before, while it was out (after the time allowed to notice), and when it was back."""

    before: float
    out: float
    back_after_seconds: float | None
    problems: Sequence[str]


def share(attempts: Sequence[tuple[float, str]], zone: str, start: float, end: float) -> float:
    """The zone's share of the attempts in [start, end); nan without attempts."""
    zones = [z for at, z in attempts if start <= at < end]
    return sum(z == zone for z in zones) / len(zones) if zones else float("nan")


def verdict(attempts: Sequence[tuple[float, str]], outage: Outage) -> Verdict:
    """Judge one source's attempts. A run too short to show the recovery is not blamed for it."""
    zone = outage.zone
    out = share(attempts, zone, outage.start + OUT_WITHIN_SECONDS, outage.end)
    step = 15.0
    back = None
    at = outage.end
    while at + WINDOW_SECONDS <= min(outage.duration, outage.end + BACK_WITHIN_SECONDS):
        if share(attempts, zone, at, at + WINDOW_SECONDS) >= SHARE_BACK_MIN:
            back = at + WINDOW_SECONDS - outage.end
            break
        at += step
    problems = []
    if outage.end - outage.start > 2 * OUT_WITHIN_SECONDS and not out <= SHARE_OUT_MAX:
        problems.append(f"{zone} kept a share of {out:.3f} while it was out; at most {SHARE_OUT_MAX}")
    if back is None and outage.duration >= outage.end + BACK_WITHIN_SECONDS:
        problems.append(f"{zone} did not get {SHARE_BACK_MIN:.0%} of the launches within 15 minutes of its return")
    return Verdict(share(attempts, zone, 0.0, outage.start), out, back, problems)
