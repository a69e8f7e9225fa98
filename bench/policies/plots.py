"""Three charts of the results, drawn without a display."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from bench.policies.claims import Summaries
from bench.policies.published import CALIBRATION, RECOMMENDED
from bench.policies.simulator import Run

SMOOTH_MINUTES: Final = 5
COLOURS: Final = {
    "uniform": "#999999",
    "rfc191": "#0072b2",
    "taskcluster": "#56b4e9",
    "ttl": "#e69f00",
    "autoscaler": "#f0e442",
    "thompson": "#cc79a7",
    "recommended": "#009e73",
    "slipway": "#d55e00",
    "oracle": "#000000",
}
PLAIN: Final[dict[str, Any]] = {"Software": None}  # the same bytes for the same figures


def shares(path: Path, runs: Mapping[str, Run]) -> None:
    """Draw the share of tries that the faulty config gets, by minute."""
    figure, axes = _axes("Share of launches to the config that is down from 60 to 120 min")
    for policy, run in runs.items():
        config = run.conditions.faulty[0]
        per_minute = run.conditions.scenario.ticks_per_minute
        own = _minutes(
            [yes + no for yes, no in zip(run.accepted[config], run.refused[config], strict=True)], per_minute
        )
        every = _minutes([sum(column) for column in zip(*run.accepted, *run.refused, strict=True)], per_minute)
        smooth = [
            sum(own[max(0, minute + 1 - SMOOTH_MINUTES) : minute + 1])
            / max(1, sum(every[max(0, minute + 1 - SMOOTH_MINUTES) : minute + 1]))
            for minute in range(len(own))
        ]
        axes.plot(range(len(own)), smooth, label=policy, color=COLOURS[policy], linewidth=_width(policy))
    axes.axvspan(60, 120, color="#dddddd")
    axes.set_xlim(40, 240)
    axes.set_ylabel(f"share, mean of {SMOOTH_MINUTES} min")
    _save(figure, axes, path)


def failures(path: Path, runs: Mapping[str, Run]) -> None:
    """Draw failed launches per minute while all configs are down."""
    figure, axes = _axes("Failed launches per minute; all configs down from 60 to 90 min")
    for policy, run in runs.items():
        axes.plot(
            range(len(run.failing) // run.conditions.scenario.ticks_per_minute),
            _minutes(run.failing, run.conditions.scenario.ticks_per_minute),
            label=policy,
            color=COLOURS[policy],
            linewidth=_width(policy),
        )
    axes.axvspan(60, 90, color="#dddddd")
    axes.set_xlim(50, 120)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("failures per minute")
    _save(figure, axes, path)


def ratios(path: Path, found: Summaries, policies: Sequence[str]) -> None:
    """Draw failed launches per success on the traces, with the published figures."""
    figure, axes = _axes("Failed launches per success, demand and zones of the traces")
    published = CALIBRATION | {"recommended": RECOMMENDED["real"].ratio}
    for place, policy in enumerate(policies):
        ratio = found["real", policy]["ratio"]
        if ratio is None or ratio.mean <= 0:
            continue
        axes.bar(place, ratio.mean, yerr=ratio.half, color=COLOURS[policy])
        axes.annotate(
            f"{ratio.mean:.3f}",
            (place, ratio.mean),
            ha="center",
            va="bottom",
            xytext=(0, 4),
            textcoords="offset points",
        )
        if (known := published.get(policy)) is not None:
            axes.plot([place - 0.4, place + 0.4], [known, known], color="#000000", linestyle=":", linewidth=2)
    axes.plot([], [], color="#000000", linestyle=":", linewidth=2, label="published")
    axes.set_yscale("log")
    axes.margins(y=0.1)
    axes.set_xlabel("")
    axes.set_xticks(range(len(policies)), policies)
    axes.set_ylabel("failed / ok")
    _save(figure, axes, path)


def _axes(title: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.set_xlabel("minutes")
    return figure, axes


def _width(policy: str) -> float:
    return 2.5 if policy == "slipway" else 1.2


def _minutes(ticks: Sequence[int], per_minute: int) -> list[int]:
    return [sum(ticks[place : place + per_minute]) for place in range(0, len(ticks), per_minute)]


def _save(figure: Figure, axes: Any, path: Path) -> None:
    axes.legend(ncols=3, fontsize="small")
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, dpi=110, metadata=PLAIN)
