"""Cells: one run each, given by scenario, policy and seed.

Cells are computed in worker processes in any order; their figures depend only on the three values and the traces.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from bench.policies import baselines, earlier
from bench.policies.conditions import Conditions, conditions
from bench.policies.families import RULES
from bench.policies.figures import Figures, figures
from bench.policies.policy import Policy
from bench.policies.recommended import Recommended
from bench.policies.scenario import Scenario
from bench.policies.simulator import Run, simulate
from bench.policies.slipway import UNLIMITED, Slipway
from bench.policies.traces import Traces
from slipway_weight_calculator.domain.policy import PROFILES

PROCESSES: Final = 2
NO_WINDOWS: Final = "no-windows"


def _by_rule(changes: Mapping[str, Any], conditions: Conditions, rng: Random) -> Policy:
    """Slipway with other coefficients, which an earlier commit may not have."""
    changed = {name: msgspec.structs.replace(policy, **changes) for name, policy in PROFILES.items()}
    return Slipway(conditions, rng, changed)


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
    NO_WINDOWS: partial(Slipway, policies=UNLIMITED),
    earlier.BEFORE: Slipway,
    **{name: partial(_by_rule, changes) for name, changes in RULES.items()},
}
OURS: Final = ("slipway", NO_WINDOWS, earlier.BEFORE, *RULES)
COMPARED: Final = tuple(name for name in POLICIES if name not in OURS[1:])
"""Policies of scenarios that do not select their own."""


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


def compute_all(
    cells: Sequence[Cell], traces: Traces | None, commit: str = earlier.COMMIT
) -> Iterator[tuple[Cell, Figures]]:
    """Figures of all cells, those of `before` first: they are computed with the packages of `commit`."""
    past = [cell for cell in cells if cell.policy == earlier.BEFORE]
    if past:
        with earlier.checked_out(commit) as tree:
            yield from computed(past, traces, tree)
    yield from computed([cell for cell in cells if cell.policy != earlier.BEFORE], traces, None)


def computed(cells: Sequence[Cell], traces: Traces | None, tree: Path | None) -> Iterator[tuple[Cell, Figures]]:
    """Figures of cells in the order given. Long runs start first, so that both processes end at the same time."""
    given = (tree, pickle.dumps(traces))
    context = get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context, initializer=earlier.begin, initargs=given) as executor:
        begun = {cell: executor.submit(_compute, cell) for cell in sorted(cells, key=_weight, reverse=True)}
        for cell in cells:
            yield cell, begun[cell].result()


def _weight(cell: Cell) -> tuple[float, bool, bool]:
    return cell.scenario.hours, cell.policy in OURS, cell.policy == "thompson"


@lru_cache(maxsize=1)
def _traces() -> Traces | None:
    """Traces of this process, for the cells that it computes."""
    traces: Traces | None = pickle.loads(earlier.given())
    return traces


def _compute(cell: Cell) -> Figures:
    return compute(cell, _traces())


def plan(
    scenarios: Iterable[Scenario],
    policies: Iterable[str],
    seeds: int,
    offsets: int,
    first: int = 1,
) -> list[Cell]:
    """Cells of `seeds` seeds from `first` on, rounded up to a multiple of the offsets where availability comes from a
    trace."""
    policies = list(policies)
    found = []
    for scenario in scenarios:
        rounded = -(-seeds // offsets) * offsets if scenario.availability == "trace" else seeds
        found += [Cell(scenario, policy, seed) for policy in policies for seed in range(first, first + rounded)]
    return found
