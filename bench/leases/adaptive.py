"""`make adaptive`: the adaptive limit against token-bucket clouds, beside fixed limits and others that follow.

A closed loop on a virtual clock: jobs call the cloud, are refused, wait and try again; what they say when they give
their lease back moves the limit, by the lease-broker's own decisions. Arguments stand in the environment:

    (none)                three clouds, some fixed limits, 1 seed
    SEED=3                the same with another seed
    FULL=1                every cloud, a sweep of fixed limits, 3 seeds; keeps bench/results/leases-adaptive.*
    CELL=bucket-2ps/3     one cloud and seed again, every limiter, compared with bench/results/leases-adaptive.json

Prints tables, then for each cloud what the adaptive limit comes to beside the fixed one with the highest goodput. Ends
with 1 when it has more than a tenth of its throttles or less than 90 % of its goodput.
"""

import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import msgspec

from bench.leases import plots
from bench.leases.clouds import CLOUDS
from bench.leases.limiters import limiters
from bench.leases.loop import Figures, Loop
from bench.leases.results import Results, differing, read, rows, table, verdict, write
from bench.leases.seeds import BadSeed, seeds

FOLDER: Final = Path(__file__).parent.parent / "results"
KEPT: Final = "bench/results/leases-adaptive.json"
PROCESSES: Final = 2
FULL_SEEDS: Final = 3
SHORT_CLOUDS: Final = ("bucket-5ps", "launch-2ps", "step")
SHORT_LIMITERS: Final = ("static-38", "static-42", "static-44", "static-48", "netflix", "plain-aimd", "slipway")

Run = tuple[str, str, int]  # cloud, limiter, seed


class BadArgument(Exception):
    """The message says what may be written."""


def main(environment: Mapping[str, str], folder: Path = FOLDER) -> int:
    """`folder` keeps results."""
    try:
        if name := environment.get("CELL"):
            return again(name, folder)
        if environment.get("FULL"):
            return compare(tuple(CLOUDS), tuple(limiters()), seeds(environment, FULL_SEEDS), folder)
        return compare(SHORT_CLOUDS, SHORT_LIMITERS, seeds(environment, 1), None)
    except (BadArgument, BadSeed) as error:
        print(f"adaptive: {error}", file=sys.stderr)
        return 2


def compute(run: Run) -> Figures:
    cloud, limiter, seed = run
    terms = CLOUDS[cloud]
    return Loop(terms, limiters()[limiter](terms), seed).run().figures()


def compare(clouds: Sequence[str], names: Sequence[str], wanted: Sequence[int], folder: Path | None) -> int:
    cells: dict[str, dict[str, Figures]] = {}
    print(f"{len(clouds)} clouds × {len(names)} limiters × {len(wanted)} seeds", flush=True)
    for (cloud, limiter, seed), figures in _compute_all([(c, n, s) for c in clouds for s in wanted for n in names]):
        cells.setdefault(f"{cloud}/{seed}", {})[limiter] = figures
    found = {cloud: rows(cloud, cells) for cloud in clouds}
    text = []
    for cloud in clouds:
        text += ["", f"## {cloud}", "", f"{CLOUDS[cloud].about}.", "", *table(found[cloud])]
    judged = [verdict(CLOUDS[cloud], found[cloud]) for cloud in clouds if CLOUDS[cloud].claimed]
    told = [verdict(CLOUDS[cloud], found[cloud]).claim for cloud in clouds if not CLOUDS[cloud].claimed]
    text += ["", "## Claims", "", "At most 0.1 of the throttles at 90 % or more of the goodput:", ""]
    text += [*(f"- {one}" for one in judged), *(f"- not claimed: {one}" for one in told)]
    print("\n".join(text))
    if folder is not None:
        _keep(cells, text, wanted, folder)
    wrong = sum(not one.holds for one in judged)
    print(f"\n{len(judged) - wrong} of {len(judged)} clouds: throttles ≤ 1/10, goodput ≥ 90 %")
    return 1 if wrong else 0


def again(name: str, folder: Path) -> int:
    """Compute one cell and compare it with the file; 1 if it differs."""
    cloud, _, seed = name.partition("/")
    if cloud not in CLOUDS or not seed.isdecimal():
        raise BadArgument(f"CELL={name}: write cloud/seed, such as bucket-2ps/3; there are {', '.join(CLOUDS)}")
    try:
        kept = read(folder / "leases-adaptive.json")
    except (OSError, msgspec.DecodeError) as error:
        raise BadArgument(f"{KEPT}: {getattr(error, 'strerror', error)}; make adaptive FULL=1 writes it") from error
    if name not in kept.cells:
        raise BadArgument(f"CELL={name}: {KEPT} has no such run; it has {', '.join(kept.cells)}")
    runs = [(cloud, limiter, int(seed)) for limiter in limiters()]
    found = {limiter: figures for (_, limiter, _), figures in _compute_all(runs)}
    print("\n".join(table(rows(cloud, {name: found}))))
    different = differing(kept.cells[name], found)
    print(f"differs from {KEPT} in {', '.join(different)}" if different else f"equal to {KEPT}")
    return 1 if different else 0


def _compute_all(runs: Sequence[Run]) -> Iterator[tuple[Run, Figures]]:
    """In the order given."""
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as executor:
        yield from zip(runs, executor.map(compute, runs), strict=True)


def _keep(cells: dict[str, dict[str, Figures]], text: Sequence[str], wanted: Sequence[int], folder: Path) -> None:
    command = "make adaptive FULL=1"
    folder.mkdir(exist_ok=True)
    write(
        folder / "leases-adaptive.json",
        Results(command=command, on={"python": platform.python_version(), "seeds": list(wanted)}, cells=cells),
    )
    head = [
        "# The adaptive limit",
        "",
        f"`{command}`: {len(wanted)} seeds, means. Every run's figures stand in `leases-adaptive.json`;",
        "`make adaptive CELL=bucket-2ps/3` computes one cloud and seed again. A star marks the fixed limit with the",
        "highest goodput. `converged`: minutes until the limit was first within a tenth of what the cloud bears;",
        "`over`: minutes in which it was more than a tenth above.",
        "",
        "![limits](leases-adaptive.png)",
    ]
    (folder / "leases-adaptive.md").write_text("\n".join([*head, *text]) + "\n")
    plots.draw(folder / "leases-adaptive.png", cells, wanted[0])


if __name__ == "__main__":
    sys.exit(main(os.environ))
