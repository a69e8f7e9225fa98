"""Figures of the benchmark from its samples, its claims, and the lines that it prints. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from bench.ec2.side import Cell, Sample
from bench.spread import Spread, spread

CPU_CLAIM: Final = 2.0
CALLS_CLAIM: Final = 3.0


class Played(msgspec.Struct, frozen=True):
    """One round of a side, and its calls by operation as the stand-in counted them."""

    sample: Sample
    calls: Mapping[str, int]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Figures per launched machine: CPU milliseconds of each round, the mean number of calls, and the growth of the
    largest memory. `peak_mb` is that memory, of the whole process."""

    cpu_ms: Spread
    calls: float
    calls_by_operation: dict[str, float]
    memory_kb: float
    peak_mb: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides of one cell. `ratio`: CPU time of the provisioner over that of the bare loop in the same round."""

    cell: Cell
    bare: Side
    provisioner: Side
    ratio: Spread


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one run; `on` describes the machine and the versions measured."""

    command: str
    on: dict[str, Any]
    cells: dict[str, Comparison]


def compared(cell: Cell, bare: Sequence[Played], provisioner: Sequence[Played]) -> Comparison:
    """Figures of a cell. The first round of each side is a warm-up."""
    ratios = [ours.sample.cpu_ms / theirs.sample.cpu_ms for ours, theirs in zip(provisioner[1:], bare[1:], strict=True)]
    return Comparison(cell=cell, bare=_side(cell, bare), provisioner=_side(cell, provisioner), ratio=spread(ratios))


def _side(cell: Cell, rounds: Sequence[Played]) -> Side:
    first, *counted = rounds
    machines = cell.machines * len(counted)
    calls = sum((Counter(played.calls) for played in counted), Counter[str]())
    peak_kb = counted[-1].sample.peak_kb
    return Side(
        cpu_ms=spread([played.sample.cpu_ms / cell.machines for played in counted]),
        calls=round(calls.total() / machines, 3),
        calls_by_operation={operation: round(number / machines, 3) for operation, number in sorted(calls.items())},
        memory_kb=round((peak_kb - first.sample.peak_kb) / machines, 2),
        peak_mb=round(peak_kb / 1024, 1),
    )


def lines(results: Results) -> list[str]:
    """Figures as text."""
    found = [f"per launched machine, CPU as minimum / median / maximum of the rounds, on {results.on}"]
    for name, compared in results.cells.items():
        found.append(f"{compared.cell.calls} launch calls for {name} each")
        for side, figures in (("provisioner", compared.provisioner), ("bare loop", compared.bare)):
            operations = ", ".join(f"{each} {number:g}" for each, number in figures.calls_by_operation.items())
            found.append(
                f"  {side:<11} CPU {figures.cpu_ms} ms, {figures.calls:g} calls ({operations}), "
                f"memory {figures.memory_kb:g} kB of {figures.peak_mb:g} MB"
            )
        found.append(f"  CPU of the provisioner ÷ bare loop = {compared.ratio}")
    return found


def claims(results: Results) -> dict[str, bool]:
    """Claims with their figures, the medians and means of each cell."""
    found = {}
    for name, compared in results.cells.items():
        ratio, calls = compared.ratio.median, compared.provisioner.calls
        found[f"{name}: CPU {ratio:g} × the bare loop ≤ {CPU_CLAIM:g} ×"] = ratio <= CPU_CLAIM
        found[f"{name}: {calls:g} calls ≤ {CALLS_CLAIM:g}"] = calls <= CALLS_CLAIM
    return found
