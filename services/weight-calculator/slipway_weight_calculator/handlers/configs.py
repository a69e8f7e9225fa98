"""Handling of launch configs. Archiving keeps a config's state: outcomes of its last workers may still arrive."""

from slipway_common.events.signal_rules import Rules
from slipway_common.messaging.records import Received
from slipway_weight_calculator.domain import world
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.signals import Signal
from slipway_weight_calculator.handlers import names


def fold(draft: Draft, received: Received, now: float, rules: Rules) -> list[tuple[Signal, str]]:
    """Store the newest state of a config; a tombstone archives it. Raises BadEvent for names that cannot be keys.

    Returns the signals that were dropped because their source would now trip more than its share, with the reasons.
    """
    state = received.event
    if state is None:
        world.archive(draft, received.subject, now)
        return world.enforce_shares(draft, received.subject, now, rules)
    names.check(
        state.launch_config_id,
        state.pool_id,
        state.account_id,
        state.region,
        state.zone,
        state.instance_type,
        state.image_revision,
    )
    world.declare(draft, state, now)
    return world.enforce_shares(draft, state.launch_config_id, now, rules)
