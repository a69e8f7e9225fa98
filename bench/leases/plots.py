"""Charts of `make adaptive`: goodput and throttles of each limiter at each cloud, and limits over time."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from bench.leases.clouds import CLOUDS
from bench.leases.limiters import limiters
from bench.leases.loop import Loop
from bench.leases.results import Cells, rows

ADAPTIVE = ("slipway", "plain-aimd", "netflix")


def draw(file: Path, cells: Cells, seed: int) -> None:
    """Draw goodput over throttles by limiter (top) and limits over time in one seed (bottom)."""
    clouds = [cloud for cloud in CLOUDS if f"{cloud}/{seed}" in cells]
    figure, axes = plt.subplots(2, len(clouds), figsize=(3.4 * len(clouds), 6.4), squeeze=False)
    for place, cloud in enumerate(clouds):
        _frontier(axes[0][place], cloud, cells)
        _limits(axes[1][place], cloud, seed)
    axes[0][0].set_ylabel("jobs/h")
    axes[1][0].set_ylabel("limit, units")
    axes[0][0].legend(fontsize=7)
    axes[1][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, dpi=90)
    plt.close(figure)


def _frontier(axis: Any, cloud: str, cells: Cells) -> None:
    found = rows(cloud, cells)
    fixed = [row for row in found if row.limiter.startswith("static-")]
    axis.plot(
        [row.throttles + 0.1 for row in fixed], [row.goodput for row in fixed], "o-", ms=3, lw=0.8, label="static"
    )
    for name in ADAPTIVE:
        row = next(row for row in found if row.limiter == name)
        axis.plot([row.throttles + 0.1], [row.goodput], "*" if name == "slipway" else "s", ms=9, label=name)
    axis.set_xscale("log")
    axis.set_title(cloud)
    axis.set_xlabel("throttles/h + 0.1")


def _limits(axis: Any, cloud: str, seed: int) -> None:
    terms = CLOUDS[cloud]
    for name in ADAPTIVE:
        loop = Loop(terms, limiters()[name](terms), seed).run()
        axis.plot([at / 3600 for at, _ in loop.samples], [limit for _, limit in loop.samples], lw=0.9, label=name)
    axis.plot(
        [at / 3600 for at, _ in loop.samples],
        [terms.fair(at / loop.until) for at, _ in loop.samples],
        "k:",
        lw=0.9,
        label="fair concurrency",
    )
    axis.set_xlabel("hours")
    axis.set_ylim(0, 80)
