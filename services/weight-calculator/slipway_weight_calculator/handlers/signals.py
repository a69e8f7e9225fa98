"""Opinions from outside."""

from slipway_common.records import Received
from slipway_common.signal_rules import Rules
from slipway_weight_calculator.domain.world import Draft
from slipway_weight_calculator.handlers import names


def fold(draft: Draft, received: Received, now: float, rules: Rules) -> str:
    """Take one into account; returns why it has no effect, empty if it has. Raises BadEvent for what can be no key."""
    event = received.event
    if event is None:
        return ""
    names.check(event.source, event.kind, event.target_kind, event.target_id)
    return draft.signal(event, now, rules)
