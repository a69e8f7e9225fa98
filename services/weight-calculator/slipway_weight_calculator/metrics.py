"""What the weight-calculator tells Prometheus; what each means stands in slipway_common/metrics.py. Counted when it is
committed."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from slipway_common.events.signal import SignalRaised
from slipway_common.metrics import counter
from slipway_common.records import Received
from slipway_common.signal_rules import OPINIONS, REQUESTS
from slipway_weight_calculator.domain.gates import OPEN, Gate
from slipway_weight_calculator.domain.rows import Row
from slipway_weight_calculator.domain.world import Draft

OUTCOMES: Final = counter("slipway_outcomes_folded_total")
GATES: Final = counter("slipway_gates_total")
PERMITS: Final = counter("slipway_probe_permits_total")
RECORDS: Final = counter("slipway_weight_records_total")
CLAMPED: Final = counter("slipway_event_times_clamped_total")
SIGNALS: Final = counter("slipway_signals_total")
KINDS: Final = frozenset((*OPINIONS, *REQUESTS))  # outsiders may write any word
REFUSED: Final = counter("slipway_signals_refused_total")


def count_turn(draft: Draft, folded: Sequence[Received], *, records: int, clamped: int) -> None:
    """A draft that is about to become what is known, and the events that it was made of."""
    RECORDS.inc(records)
    CLAMPED.inc(clamped)
    outcomes = Counter(
        (outcome.stage._value_, outcome.result._value_, outcome.scope._value_)
        for received in folded
        if (outcome := getattr(received.event, "outcome", None)) is not None
    )
    for (stage, result, scope), count in outcomes.items():
        OUTCOMES.labels(stage, result, scope).inc(count)
    for received in folded:
        if type(received.event) is SignalRaised:
            SIGNALS.labels(received.event.kind if received.event.kind in KINDS else "unknown").inc()
    gates = Counter[str]()
    for key, row in draft.rows.items():
        before = draft.world.rows.get(key)
        for now, then in zip(_gates(row), _gates(before), strict=True):
            if now is not then and now.closed is not then.closed:
                gates["closed" if now.closed else "open"] += 1
        if row is not None and row.permit_at > (before.permit_at if before is not None else 0.0):
            PERMITS.inc()
    for state, count in gates.items():
        GATES.labels(state).inc(count)


def _gates(row: Row | None) -> tuple[Gate, Gate, Gate]:
    return (row.launch.gate, row.boot.gate, row.claim.gate) if row is not None else (OPEN, OPEN, OPEN)
