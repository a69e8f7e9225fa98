"""Figures of many cells: stored in a file, summarized per scenario and policy."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import msgspec

from bench.policies.cells import Cell
from bench.policies.figures import Figures
from bench.policies.intervals import Interval, interval
from bench.policies.traces import Traces

FIELDS: Final = Figures.__struct_fields__
PAIRED: Final = ("detect_minutes", "recover_minutes")


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Committed results. `cells` maps "scenario/policy/seed" to the values of `fields`.

    `traces` describes the traces to readers; `digest` identifies them for comparison with a later run.
    """

    command: str
    on: dict[str, Any]
    traces: str
    digest: str
    offsets: int
    fields: Sequence[str]
    cells: dict[str, list[Any]]

    def figures(self, cell: str) -> Figures:
        return msgspec.convert(dict(zip(self.fields, self.cells[cell], strict=True)), Figures)


def write(path: Path, results: Results) -> None:
    """Write one line per cell, so that a diff shows the changed cells."""
    head = msgspec.to_builtins(results)
    cells = head.pop("cells")
    lines = [f"  {_json(name)}: {_json(values)}" for name, values in cells.items()]
    start = ",\n".join(f"{_json(name)}: {_json(value)}" for name, value in head.items())
    path.write_text("{" + start + ',\n"cells": {\n' + ",\n".join(lines) + "\n}}\n")


def read(path: Path) -> Results:
    return msgspec.json.decode(path.read_bytes(), type=Results)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def row(figures: Figures) -> list[Any]:
    return [getattr(figures, name) for name in FIELDS]


def digest(traces: Traces) -> str:
    """Digest of arrivals and zones, independent of their files."""
    sha = hashlib.sha256(repr((traces.arrivals, traces.gap_seconds)).encode())
    for zone in traces.zones:
        sha.update(zone.name.encode() + zone.up)
    return sha.hexdigest()[:16]


Summary = dict[str, Interval | None]
"""Intervals by metric: the fields of Figures, `ratio`, `regret`, and `…_more`: PAIRED minus the recommended rule's."""


def summaries(figures: Mapping[Cell, Figures], offsets: int) -> dict[tuple[str, str], Summary]:
    """Summaries by (scenario, policy). Runs at different offsets into a trace are pooled as one sample."""
    groups: dict[tuple[str, str], list[tuple[Cell, Figures]]] = {}
    for cell, found in figures.items():
        groups.setdefault((cell.scenario.name, cell.policy), []).append((cell, found))
    by_name = {cell.name: found for cell, found in figures.items()}
    return {
        key: _summary(sorted(group, key=lambda item: item[0].seed), offsets, by_name) for key, group in groups.items()
    }


def _summary(group: Sequence[tuple[Cell, Figures]], offsets: int, by_name: Mapping[str, Figures]) -> Summary:
    size = offsets if group[0][0].scenario.availability == "trace" else 1
    units = [[found for _, found in group[place : place + size]] for place in range(0, len(group), size)]
    summary: Summary = {name: interval([_of(unit, name) for unit in units]) for name in FIELDS}
    pooled = [(sum(f.failed for f in unit), sum(f.registered for f in unit)) for unit in units]
    summary["ratio"] = interval([failed / registered if registered else None for failed, registered in pooled])
    # Runs without a registered worker have no wait until registration.
    served = [[found for found in unit if found.registered] for unit in units]
    summary["wait_p95"] = interval([_of(unit, "wait_p95") for unit in served])
    oracles = [by_name.get(f"{cell.scenario.name}/oracle/{cell.seed}") for cell, _ in group]
    lost = [None if o is None else float(o.registered - f.registered) for o, (_, f) in zip(oracles, group, strict=True)]
    summary["regret"] = interval(lost)
    # Pairs of runs with the same seed differ by the rule alone.
    rules = [by_name.get(f"{cell.scenario.name}/recommended/{cell.seed}") for cell, _ in group]
    for name in PAIRED:
        pairs = [(getattr(f, name), getattr(rule, name, None)) for (_, f), rule in zip(group, rules, strict=True)]
        summary[f"{name}_more"] = interval([None if None in pair else pair[0] - pair[1] for pair in pairs])
    return summary


_together: Final[dict[str, Callable[[Sequence[float]], float]]] = {"peak": max}


def _of(unit: Sequence[Figures], name: str) -> float | None:
    values = [float(value) for figures in unit if (value := getattr(figures, name)) is not None]
    return _together.get(name, fmean)(values) if values else None
