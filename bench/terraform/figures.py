"""Figures and claims of `make bench-terraform`."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

SHARED_RATIO_MAX: Final = 0.5
YARDSTICK: Final = "noop"


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One cell. CPU seconds are per apply; `own_cpu_seconds` are those of scheduler and driver, a part of them."""

    mode: str
    applies: int
    concurrency: int
    cpu_seconds: float
    own_cpu_seconds: float
    p50_seconds: float
    p95_seconds: float
    wall_seconds: float
    memory_mib: int
    processes: int
    plugins: int
    failures: list[str]
    wrong_region: int
    missing: int
    left: int
    """Processes that are left after the end."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one run; `on` describes the machine and the versions measured."""

    command: str
    on: dict[str, Any]
    cells: list[Figures]

    def ratio(self, cell: Figures) -> float | None:
        """CPU time of a cell as a part of the yardstick's with as many at once, and as many applies if there is one."""
        same = [each for each in self.cells if each.mode == YARDSTICK and each.concurrency == cell.concurrency]
        best = min(same, key=lambda each: abs(each.applies - cell.applies), default=None)
        return None if best is None else cell.cpu_seconds / best.cpu_seconds


def percentile(seconds: Sequence[float], part: float) -> float:
    """Nearest rank."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


HEADING: Final = (
    f"{'mode':<12}{'applies':>8}{'at once':>8}{'CPU s':>8}{'own':>7}{'p50 s':>8}{'p95 s':>8}{'MiB':>7}{'processes':>11}"
    f"{'plugins':>9}{'/ noop':>8}"
)


def line(cell: Figures, ratio: float | None = None) -> str:
    """A row of the table."""
    return (
        f"{cell.mode:<12}{cell.applies:>8}{cell.concurrency:>8}{cell.cpu_seconds:>8.2f}{cell.own_cpu_seconds:>7.2f}"
        f"{cell.p50_seconds:>8.2f}{cell.p95_seconds:>8.2f}{cell.memory_mib:>7}{cell.processes:>11}{cell.plugins:>9}"
        f"{'' if ratio is None else f'{ratio:.2f}':>8}"
    ).rstrip()


def lines(results: Results) -> list[str]:
    """A table with a row per cell."""
    return [HEADING, *(line(cell, results.ratio(cell)) for cell in results.cells)]


def claims(results: Results, max_processes: int) -> dict[str, bool]:
    """Claims of the cells that were run."""
    failures = [failure for cell in results.cells for failure in cell.failures]
    leased = [cell for cell in results.cells if not cell.mode.startswith(YARDSTICK)]
    found: dict[str, bool] = {
        "every apply succeeds": not failures,
        "0 resources in the wrong region, 0 missing": not any(c.wrong_region or c.missing for c in results.cells),
        f"at most {max_processes} plugins of a scheduler": all(cell.plugins <= max_processes for cell in leased),
        "no process is left": not any(cell.left for cell in results.cells),
    }
    for cell in results.cells:
        ratio = results.ratio(cell)
        if cell.mode == "shared" and cell.concurrency in (1, 4) and ratio is not None:
            size = f"{cell.applies} by {cell.concurrency}: {ratio:.2f}"
            found[f"shared takes at most {SHARED_RATIO_MAX:.2f} of the CPU time of noop ({size})"] = (
                ratio <= SHARED_RATIO_MAX
            )
    return found
