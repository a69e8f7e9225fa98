"""What the weight-calculator tells Prometheus. No label names a config or a pool: their number has no bound.

Counted when folded; a transaction that is rolled back and repeated is counted twice.
"""

from typing import Final

from prometheus_client import Counter

from slipway_common.events.worker import WorkerEvent
from slipway_weight_calculator.domain.gates import Gate

OUTCOMES: Final = Counter("slipway_outcomes_folded_total", "Outcomes folded", ["stage", "result", "scope"])
GATES: Final = Counter("slipway_gates_total", "Launch configs that closed or opened", ["to"])
PERMITS: Final = Counter("slipway_probe_permits_total", "Probe permits issued")
RECORDS: Final = Counter("slipway_weight_records_total", "Weight records and tombstones published")


def count_outcome(event: WorkerEvent) -> None:
    outcome = getattr(event, "outcome", None)
    if outcome is not None:
        OUTCOMES.labels(outcome.stage.value, outcome.result.value, outcome.scope.value).inc()


def count_gate(before: Gate, after: Gate) -> None:
    if before.closed is not after.closed:
        GATES.labels("closed" if after.closed else "open").inc()
