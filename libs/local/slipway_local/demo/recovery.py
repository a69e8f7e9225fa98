"""Effect of an outage on a zone's share of launch attempts. Pure; times in product seconds since the scenario began."""

from collections.abc import Sequence
from typing import Final

import msgspec

# Limits that a run has to keep: the share during an outage, how soon it is reached, and the share afterwards.
SHARE_OUT_MAX: Final = 0.025
OUT_WITHIN_SECONDS: Final = 120.0
SHARE_BACK_MIN: Final = 0.20
BACK_WITHIN_SECONDS: Final = 900.0
WINDOW_SECONDS: Final = 120.0  # interval for a share once the zone is back: some 50 launches


class Outage(msgspec.Struct, frozen=True):
    """Outage of one zone from `start` to `end` in a run of `duration`."""

    zone: str
    start: float
    end: float
    duration: float


class Verdict(msgspec.Struct, frozen=True):
    """The zone's share before and during the outage (after OUT_WITHIN_SECONDS), and how soon it came back."""

    before: float
    out: float
    back_after_seconds: float | None
    problems: Sequence[str]


def share(attempts: Sequence[tuple[float, str]], zone: str, start: float, end: float) -> float:
    """The zone's share of the attempts in [start, end); NaN without attempts."""
    zones = [z for at, z in attempts if start <= at < end]
    return sum(z == zone for z in zones) / len(zones) if zones else float("nan")


def verdict(attempts: Sequence[tuple[float, str]], outage: Outage) -> Verdict:
    """Judge the attempts of one source. A run that is too short to show the recovery is not required to."""
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
        problems.append(f"{zone} kept a share of {out:.3f} during its outage; at most {SHARE_OUT_MAX} allowed")
    if back is None and outage.duration >= outage.end + BACK_WITHIN_SECONDS:
        problems.append(f"{zone} did not get {SHARE_BACK_MIN:.0%} of the launches in time after its outage")

    return Verdict(share(attempts, zone, 0.0, outage.start), out, back, problems)
