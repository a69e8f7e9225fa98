"""`make adaptive`: the adaptive limit with token-bucket clouds, compared with fixed limits and other adaptive ones.

A closed loop on a virtual clock: jobs call the cloud, are throttled, wait and try again; their reports on release move
the limit, through the lease-broker's own decisions. Arguments are read from the environment:

    (none)                three clouds, some fixed limits, 1 seed
    SEED=3                the same with another seed
    FULL=1                every cloud, a sweep of fixed limits, 3 seeds
    FULL=1 KEEP=1         the same; writes bench/results/leases-adaptive.*
    CELL=bucket-2ps/3     recompute one cloud and seed with every limiter; compare with the committed results

Prints tables, then for each cloud the adaptive limit compared with the fixed limit of the highest goodput. Exits with 1
if it has more than a tenth of the throttles or less than 90 % of the goodput.
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

from bench import committed
from bench.leases import plots
from bench.leases.clouds import CLOUDS
from bench.leases.limiters import limiters
from bench.leases.loop import Figures, Loop
from bench.leases.results import Results, differing, read, rows, table, verdict, write
from bench.leases.seeds import BadSeed, seeds

FILES: Final = ("leases-adaptive.json", "leases-adaptive.md", "leases-adaptive.png")
COMMITTED: Final = f"{committed.NAME}/{FILES[0]}"
PROCESSES: Final = 2
FULL_SEEDS: Final = 3
SHORT_CLOUDS: Final = ("bucket-5ps", "launch-2ps", "step")
SHORT_LIMITERS: Final = ("static-38", "static-42", "static-44", "static-48", "netflix", "plain-aimd", "slipway")

Run = tuple[str, str, int]  # cloud, limiter, seed


class BadArgument(Exception):
    """An invalid argument; the message names the allowed values."""


def main(environment: Mapping[str, str], folder: Path = committed.FOLDER) -> int:
    """Run by the arguments in `environment`; CELL is compared with the results in `folder`."""
    try:
        if name := environment.get("CELL"):
            return again(name, folder)
        if environment.get("FULL"):
            target = committed.folder_to_write(environment, *FILES, folder=folder)
            return compare(tuple(CLOUDS), tuple(limiters()), seeds(environment, FULL_SEEDS), target)
        return compare(SHORT_CLOUDS, SHORT_LIMITERS, seeds(environment, 1), None)
    except (BadArgument, BadSeed) as error:
        print(f"adaptive: {error}", file=sys.stderr)
        return 2


def compute(run: Run) -> Figures:
    """Figures of one run."""
    cloud, limiter, seed = run
    terms = CLOUDS[cloud]
    return Loop(terms, limiters()[limiter](terms), seed).run().figures()


def compare(clouds: Sequence[str], names: Sequence[str], wanted: Sequence[int], folder: Path | None) -> int:
    """Run all combinations, print tables and claims, write results to `folder`; return 1 if a claim is false."""
    cells: dict[str, dict[str, Figures]] = {}
    print(f"{len(clouds)} clouds × {len(names)} limiters × {len(wanted)} seeds", flush=True)
    for (cloud, limiter, seed), figures in _compute_all([(c, n, s) for c in clouds for s in wanted for n in names]):
        cells.setdefault(f"{cloud}/{seed}", {})[limiter] = figures
    found = {cloud: rows(cloud, cells) for cloud in clouds}
    text = []
    for cloud in clouds:
        text += ["", f"## {cloud}", "", f"{CLOUDS[cloud].about}.", "", *table(found[cloud])]
    judged = [verdict(CLOUDS[cloud], found[cloud]) for cloud in clouds if CLOUDS[cloud].claimed]
    unclaimed = [verdict(CLOUDS[cloud], found[cloud]).claim for cloud in clouds if not CLOUDS[cloud].claimed]
    text += ["", "## Claims", "", "At most 0.1 of the throttles at 90 % or more of the goodput:", ""]
    text += [*(f"- {one}" for one in judged), *(f"- not claimed: {one}" for one in unclaimed)]
    print("\n".join(text))
    if folder is not None:
        _write(cells, text, wanted, folder)
    wrong = sum(not one.holds for one in judged)
    print(f"\n{len(judged) - wrong} of {len(judged)} clouds: throttles ≤ 1/10, goodput ≥ 90 %")
    return 1 if wrong else 0


def again(name: str, folder: Path) -> int:
    """Recompute one cell and compare it with the committed results; return 1 if it differs."""
    cloud, _, seed = name.partition("/")
    if cloud not in CLOUDS or not seed.isdecimal():
        raise BadArgument(f"CELL={name}: must be cloud/seed, such as bucket-2ps/3; clouds: {', '.join(CLOUDS)}")
    try:
        saved = read(folder / "leases-adaptive.json")
    except (OSError, msgspec.DecodeError) as error:
        reason = getattr(error, "strerror", error)
        raise BadArgument(f"{COMMITTED}: {reason}; make adaptive FULL=1 KEEP=1 writes it") from error
    if name not in saved.cells:
        raise BadArgument(f"CELL={name}: {COMMITTED} has no such run; runs: {', '.join(saved.cells)}")
    runs = [(cloud, limiter, int(seed)) for limiter in limiters()]
    found = {limiter: figures for (_, limiter, _), figures in _compute_all(runs)}
    print("\n".join(table(rows(cloud, {name: found}))))
    different = differing(saved.cells[name], found)
    print(f"differs from {COMMITTED} in {', '.join(different)}" if different else f"equal to {COMMITTED}")
    return 1 if different else 0


def _compute_all(runs: Sequence[Run]) -> Iterator[tuple[Run, Figures]]:
    """Figures of each run, in the order given."""
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as executor:
        yield from zip(runs, executor.map(compute, runs), strict=True)


def _write(cells: dict[str, dict[str, Figures]], text: Sequence[str], wanted: Sequence[int], folder: Path) -> None:
    command = "make adaptive FULL=1 KEEP=1"
    folder.mkdir(exist_ok=True)
    write(
        folder / "leases-adaptive.json",
        Results(command=command, on={"python": platform.python_version(), "seeds": list(wanted)}, cells=cells),
    )
    head = [
        "# The adaptive limit",
        "",
        f"`{command}`: {len(wanted)} seeds, means. The figures of every run are in `leases-adaptive.json`;",
        "`make adaptive CELL=bucket-2ps/3` recomputes one cloud and seed. A star marks the fixed limit with the",
        "highest goodput. `converged`: minutes until the limit was first within a tenth of the cloud's capacity;",
        "`over`: minutes in which it was more than a tenth above.",
        "",
        "![limits](leases-adaptive.png)",
    ]
    (folder / "leases-adaptive.md").write_text("\n".join([*head, *text]) + "\n")
    plots.draw(folder / "leases-adaptive.png", cells, wanted[0])


if __name__ == "__main__":
    sys.exit(main(os.environ))
