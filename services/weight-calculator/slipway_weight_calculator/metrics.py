"""What the weight-calculator tells Prometheus; what each means stands in slipway_common/metrics.py.

Counted when folded; a transaction that is rolled back and repeated is counted twice.
"""

from typing import Final

from slipway_common.events.worker import WorkerEvent
from slipway_common.metrics import counter
from slipway_weight_calculator.domain.gates import Gate

OUTCOMES: Final = counter("slipway_outcomes_folded_total")
GATES: Final = counter("slipway_gates_total")
PERMITS: Final = counter("slipway_probe_permits_total")
RECORDS: Final = counter("slipway_weight_records_total")


def count_outcome(event: WorkerEvent) -> None:
    outcome = getattr(event, "outcome", None)
    if outcome is not None:
        OUTCOMES.labels(outcome.stage.value, outcome.result.value, outcome.scope.value).inc()


def count_gate(before: Gate, after: Gate) -> None:
    if before.closed is not after.closed:
        GATES.labels("closed" if after.closed else "open").inc()
