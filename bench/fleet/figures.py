"""Figures of the benchmark from its windows, its claims, and the lines that it prints. Pure."""

from collections.abc import Sequence
from statistics import median
from typing import Any, Final

import msgspec

from bench.fleet.parts import Listed, Played
from bench.spread import Spread, percentile, spread

ROUND_SECONDS_MAX: Final = 20.0
MEMORY_MB_MAX: Final = 100.0
FLAT_SHARE: Final = 0.05
"""Largest growth of the peak from the first to the last round of a process whose memory is flat: a process that kept
the listings would grow by all of them each time."""
BESIDE_MAX: Final = 1.2
LAUNCHES_MIN: Final = 100
"""Launches on each side, below which the 99th percentile would be the slowest launch."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one run; `on` describes the machine and the versions measured. Times in seconds, memory in MB."""

    command: str
    on: dict[str, Any]
    instances: int
    accounts: int
    rounds: Sequence[float]
    bare: float
    ratio: Spread
    cpu_ratio: Spread
    memory_before: float
    memory_peaks: Sequence[float]
    launches: dict[str, int]
    p50: dict[str, float]
    p99: dict[str, float]
    throttled: int


def results(
    command: str,
    on: dict[str, Any],
    *,
    instances: int,
    accounts: int,
    beside: Sequence[Played],
    apart: Sequence[Played],
    bare: Sequence[Listed],
    memory_before: float,
    throttled: int,
) -> Results:
    """Figures of rounds with launches `beside`, of windows of launches `apart`, and of the `bare` client beside
    these. `memory_before` is that before the first round, which is not among them."""
    sides = {"beside": beside, "apart": apart}
    listing, listing_cpu = (median(getattr(each, name) for each in bare) for name in ("seconds", "cpu_seconds"))
    times = {name: [each for played in windows for each in played.launches] for name, windows in sides.items()}
    return Results(
        command=command,
        on=on,
        instances=instances,
        accounts=accounts,
        rounds=[round(played.seconds, 2) for played in beside],
        bare=round(listing, 2),
        ratio=spread([played.seconds / listing for played in beside]),
        cpu_ratio=spread([played.cpu_seconds / listing_cpu for played in beside]),
        memory_before=round(memory_before, 1),
        memory_peaks=[round(played.peak_mb, 1) for played in beside],
        launches={name: len(found) for name, found in times.items()},
        p50={name: percentile(found, 50) for name, found in times.items()},
        p99={name: percentile(found, 99) for name, found in times.items()},
        throttled=throttled,
    )


def lines(found: Results) -> list[str]:
    """Figures as text."""
    rounds = ", ".join(f"{seconds:g}" for seconds in found.rounds)
    peaks = ", ".join(f"{peak:g}" for peak in found.memory_peaks)
    return [
        f"{found.instances:,} instances in {found.accounts} accounts, on {found.on}",
        f"rounds of the instance reaper with launches beside: {rounds} s",
        f"a bare client of the SDK lists the same accounts in {found.bare:g} s",
        f"  round ÷ bare client = {found.ratio}; CPU, with that of the launches, {found.cpu_ratio}",
        f"memory of the provisioner's process: {found.memory_before:g} MB before, peaks {peaks} MB",
        *(
            f"{found.launches[side]} launches beside {listing}: p50 {found.p50[side]:g} s, p99 {found.p99[side]:g} s"
            for side, listing in (("apart", "the bare client"), ("beside", "a round"))
        ),
        f"calls that EC2 throttled: {found.throttled}",
    ]


def claims(found: Results) -> dict[str, bool]:
    """Claims with their figures."""
    slowest, growth = max(found.rounds), max(found.memory_peaks) - found.memory_before
    later = found.memory_peaks[-1] / found.memory_peaks[0] - 1
    ratio = found.p99["beside"] / found.p99["apart"]
    fewest = min(found.launches.values())
    return {
        f"round {slowest:g} s ≤ {ROUND_SECONDS_MAX:g} s": slowest <= ROUND_SECONDS_MAX,
        f"memory +{growth:.1f} MB ≤ +{MEMORY_MB_MAX:g} MB": growth <= MEMORY_MB_MAX,
        f"flat over {len(found.rounds)} rounds: {later:+.1%} ≤ {FLAT_SHARE:.0%}": later <= FLAT_SHARE,
        f"p99 of launches beside {ratio:.3g} × that beside the bare client ≤ {BESIDE_MAX:g} ×": ratio <= BESIDE_MAX,
        f"{fewest} launches a side ≥ {LAUNCHES_MIN}": fewest >= LAUNCHES_MIN,
        f"{found.throttled} throttled calls": not found.throttled,
    }
