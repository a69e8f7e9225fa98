"""Handling of launch configs. An archived revision keeps its health until its tombstone: outcomes of its last workers
may still arrive, and it may be declared again."""

from slipway_api.percent import decoded
from slipway_common.base.errors import BadEvent
from slipway_common.base.signal_rules import Rules
from slipway_common.messaging.records import Received
from slipway_weight_calculator.domain import world
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.signals import Signal
from slipway_weight_calculator.handlers import names


def fold(draft: Draft, received: Received, now: float, rules: Rules) -> list[tuple[Signal, str]]:
    """Store the newest state of a config; a tombstone deletes it. Raises BadEvent for names that cannot be keys.

    Returns the signals that were dropped because their source would now trip more than its share, with the reasons.
    """
    state = received.event
    if state is None:
        config_id = config_in(received.subject)
        world.forget(draft, config_id, now)
        return world.enforce_shares(draft, config_id, now, rules)
    names.check(
        state.launch_config_id,
        state.name,
        state.pool_id,
        state.account_id,
        state.region,
        state.zone,
        state.instance_type,
        state.image_revision,
        state.capacity_key,
        state.quota_family,
        state.subnet,
    )
    world.declare(draft, state, now)
    return world.enforce_shares(draft, state.launch_config_id, now, rules)


def config_in(subject: str) -> str:
    """Id of the config in the subject of its event. Raises BadEvent."""
    parts = decoded(subject)
    if len(parts) != 1:
        raise BadEvent(f"{subject!r} is not the percent-encoded id of one launch config")
    return parts[0]
