"""Declared launch configs. Archiving keeps what is known of one: outcomes of its last workers are still to come."""

from slipway_common.records import Received
from slipway_common.signal_rules import Rules
from slipway_weight_calculator.domain.signals import Signal
from slipway_weight_calculator.domain.world import Draft
from slipway_weight_calculator.handlers import names


def fold(draft: Draft, received: Received, now: float, rules: Rules) -> list[tuple[Signal, str]]:
    """Keep the newest state of a config; a tombstone archives. Raises BadEvent for what can be no key.

    Returns the signals that count no more, since their source would close more than its share now, and why.
    """
    state = received.event
    if state is None:
        draft.archive(received.subject, now)
        return draft.recount(received.subject, now, rules)
    names.check(
        state.launch_config_id,
        state.pool_id,
        state.account_id,
        state.region,
        state.zone,
        state.instance_type,
        state.image_revision,
    )
    draft.declare(state, now)
    return draft.recount(state.launch_config_id, now, rules)
