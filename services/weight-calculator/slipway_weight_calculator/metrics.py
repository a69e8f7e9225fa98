"""Prometheus metrics of the weight-calculator, defined in slipway_common.observability. Counted after each commit."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from slipway_api.events.signal import SignalRaised
from slipway_api.events.signal_kinds import KINDS
from slipway_common.messaging.records import Received
from slipway_common.observability.metrics import counter
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.rows import Row
from slipway_weight_calculator.domain.trips import HEALTHY, Trip

OUTCOMES: Final = counter("slipway_outcomes_folded_total")
TRANSITIONS: Final = counter("slipway_health_transitions_total")
PERMITS: Final = counter("slipway_probe_permits_total")
RECORDS: Final = counter("slipway_weight_records_total")
CLAMPED: Final = counter("slipway_event_timestamps_clamped_total")
SIGNALS: Final = counter("slipway_signals_total")
REFUSED: Final = counter("slipway_signals_refused_total")


def count_turn(draft: Draft, folded: Sequence[Received], *, records: int, clamped: int) -> None:
    """Count a draft that is about to be applied, and the events that it was computed from."""
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
    transitions = Counter[str]()
    for key, row in draft.rows.items():
        before = draft.world.rows.get(key)
        for now, then in zip(_trips(row), _trips(before), strict=True):
            if now is not then and now.tripped is not then.tripped:
                transitions["tripped" if now.tripped else "healthy"] += 1
        if row is not None and row.permit_at > (before.permit_at if before is not None else 0.0):
            PERMITS.inc()
    for state, count in transitions.items():
        TRANSITIONS.labels(state).inc(count)


def _trips(row: Row | None) -> tuple[Trip, Trip, Trip]:
    return (row.launch.trip, row.boot.trip, row.claim.trip) if row is not None else (HEALTHY, HEALTHY, HEALTHY)
