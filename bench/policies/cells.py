"""Cells: one run each, given by scenario, policy and seed.

Cells are computed in worker processes in any order; their figures depend only on the three values and the traces.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from random import Random
from typing import Final

import msgspec

from bench.policies import baselines
from bench.policies.conditions import Conditions, conditions
from bench.policies.figures import Figures, figures
from bench.policies.policy import Policy
from bench.policies.recommended import Recommended
from bench.policies.scenario import Scenario
from bench.policies.simulator import Run, simulate
from bench.policies.slipway import Slipway
from bench.policies.traces import Traces

PROCESSES: Final = 2
POLICIES: Final[dict[str, Callable[[Conditions, Random], Policy]]] = {
    "uniform": baselines.Uniform,
    "rfc191": baselines.ErrorRate,
    "taskcluster": baselines.Taskcluster,
    "ttl": baselines.Cache,
    "autoscaler": baselines.Backoff,
    "thompson": baselines.Thompson,
    "recommended": Recommended,
    "slipway": Slipway,
    "oracle": baselines.Oracle,
}


class Cell(msgspec.Struct, frozen=True):
    """One run of a policy in a scenario with a seed."""

    scenario: Scenario
    policy: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.scenario.name}/{self.policy}/{self.seed}"


def needs_traces(scenario: Scenario) -> bool:
    """True if demand or availability of the scenario comes from a trace."""
    return "trace" in (scenario.demand, scenario.availability)


def run(cell: Cell, traces: Traces | None) -> Run:
    """`traces` for a scenario that needs them. Seeds take the offsets into the availability trace in turn."""
    offset = 0.0
    if cell.scenario.availability == "trace":
        assert traces is not None
        offsets = traces.offsets()
        offset = offsets[(cell.seed - 1) % len(offsets)]
    faced = _conditions(cell.scenario, traces if needs_traces(cell.scenario) else None, offset)
    policy = POLICIES[cell.policy](faced, Random(f"policy/{cell.seed}"))
    return simulate(faced, policy, cell.seed)


def compute(cell: Cell, traces: Traces | None) -> Figures:
    return figures(run(cell, traces))


@lru_cache(maxsize=4)
def _conditions(scenario: Scenario, traces: Traces | None, offset_seconds: float) -> Conditions:
    return conditions(scenario, traces, offset_seconds)


def compute_all(cells: Sequence[Cell], traces: Traces | None) -> Iterator[tuple[Cell, Figures]]:
    """Figures of all cells, in the order given. Long runs start first, so that both processes end at the same time."""
    context = get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context, initializer=_set_traces, initargs=(traces,)) as executor:
        begun = {cell: executor.submit(_compute, cell) for cell in sorted(cells, key=_weight, reverse=True)}
        for cell in cells:
            yield cell, begun[cell].result()


def _weight(cell: Cell) -> tuple[float, bool, bool]:
    return cell.scenario.hours, cell.policy == "slipway", cell.policy == "thompson"


_traces: list[Traces | None] = []  # in a worker process, set at its start


def _set_traces(traces: Traces | None) -> None:
    _traces[:] = [traces]


def _compute(cell: Cell) -> Figures:
    return compute(cell, _traces[0])


def plan(scenarios: Iterable[Scenario], policies: Iterable[str], seeds: int, offsets: int) -> list[Cell]:
    """Cells of seeds 1 to `seeds`, rounded up to a multiple of the offsets where availability comes from a trace."""
    policies = list(policies)
    found = []
    for scenario in scenarios:
        rounded = -(-seeds // offsets) * offsets if scenario.availability == "trace" else seeds
        found += [Cell(scenario, policy, seed) for policy in policies for seed in range(1, rounded + 1)]
    return found
