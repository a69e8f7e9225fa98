"""Results of `make adaptive`: figures of every run, their means, and verdicts. Pure except for the file."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import msgspec

from bench.leases.claims import Verdict
from bench.leases.clouds import CLOUDS, CloudTerms
from bench.leases.loop import Figures

OURS: Final = "slipway"
THROTTLES_MAX, GOODPUT_MIN = 0.1, 0.9

Cells = Mapping[str, Mapping[str, Figures]]
"""Cloud/seed → limiter → figures."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Committed results; `command` reproduces them."""

    command: str
    on: dict[str, Any]
    cells: dict[str, dict[str, Figures]]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One limiter at one cloud: means over the seeds, per hour."""

    limiter: str
    goodput: float
    throttles: float
    failed: float
    limit: float
    converged_minutes: float | None  # None if not reached in every seed
    over_minutes: float


def write(file: Path, results: Results) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def read(file: Path) -> Results:
    return msgspec.json.decode(file.read_bytes(), type=Results)


def rows(cloud: str, cells: Cells) -> list[Row]:
    """Rows of one cloud, in the order in which its limiters ran."""
    runs = [figures for name, figures in cells.items() if name.startswith(f"{cloud}/")]
    return [_row(limiter, [run[limiter] for run in runs], CLOUDS[cloud].hours) for limiter in runs[0]]


def _row(limiter: str, runs: Sequence[Figures], hours: float) -> Row:
    reached = [run.converged_minutes for run in runs if run.converged_minutes is not None]
    return Row(
        limiter=limiter,
        goodput=fmean(run.done for run in runs) / hours,
        throttles=fmean(run.throttles for run in runs) / hours,
        failed=fmean(run.failed for run in runs) / hours,
        limit=fmean(run.limit_mean for run in runs),
        converged_minutes=fmean(reached) if len(reached) == len(runs) else None,
        over_minutes=fmean(run.over_minutes for run in runs),
    )


def best_static(found: Iterable[Row]) -> Row:
    """Row of the static limit with the highest goodput."""
    return max((row for row in found if row.limiter.startswith("static-")), key=lambda row: row.goodput)


def verdict(cloud: CloudTerms, found: Sequence[Row]) -> Verdict:
    """Compare the adaptive limit with the best static one."""
    ours, best = next(row for row in found if row.limiter == OURS), best_static(found)
    throttles, goodput = _part(ours.throttles, best.throttles), _part(ours.goodput, best.goodput)
    return Verdict(
        throttles <= THROTTLES_MAX and goodput >= GOODPUT_MIN,
        f"{cloud.name}: {throttles:.3f} of the throttles and {100 * goodput:.1f} % of the goodput of {best.limiter}",
    )


def table(found: Sequence[Row]) -> list[str]:
    """Markdown table, aligned as plain text; a star marks the best static limit."""
    best = best_static(found).limiter
    lines = [["limiter", "jobs/h", "throttles/h", "failed/h", "mean limit", "converged min", "over min"]]
    lines += [
        [
            f"{row.limiter} *" if row.limiter == best else row.limiter,
            f"{row.goodput:.1f}",
            f"{row.throttles:.1f}",
            f"{row.failed:.2f}",
            "–" if row.limit > 10_000 else f"{row.limit:.1f}",
            "–" if row.converged_minutes is None else f"{row.converged_minutes:.0f}",
            f"{row.over_minutes:.0f}",
        ]
        for row in found
    ]
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    text = [
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    return [text[0], "|-" + "-|-".join("-" * width for width in widths) + "-|", *text[1:]]


def differing(then: Mapping[str, Figures], now: Mapping[str, Figures]) -> list[str]:
    """Differences between two results of a cell: limiter.field, or a limiter that only one of them has."""
    return [
        *sorted(set(then) ^ set(now)),
        *(
            f"{limiter}.{field}"
            for limiter, figures in then.items()
            if limiter in now
            for field in Figures.__struct_fields__
            if getattr(figures, field) != getattr(now[limiter], field)
        ),
    ]


def _part(part: float, whole: float) -> float:
    return part / whole if whole else float(part > 0)
