"""Handling of signals from external sources."""

from slipway_common.base.signal_rules import Rules
from slipway_common.messaging.records import Received
from slipway_weight_calculator.domain import world
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.handlers import names


def fold(draft: Draft, received: Received, now: float, rules: Rules) -> str:
    """Apply a signal; returns the reason if it has no effect. Raises BadEvent for names that cannot be keys."""
    event = received.event
    if event is None:
        return ""
    names.check(event.source, event.kind, event.target_kind, event.target_id)
    return world.apply_signal(draft, event, now, rules)
