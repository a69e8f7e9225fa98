"""Declared launch configs. Archiving keeps what is known of one: outcomes of its last workers are still to come."""

from slipway_common.records import Received
from slipway_weight_calculator.domain.world import Draft
from slipway_weight_calculator.handlers import names


def fold(draft: Draft, received: Received, now: float) -> None:
    """Keep the newest state of a config; a tombstone archives. Raises BadEvent for what can be no key."""
    state = received.event
    if state is None:
        draft.archive(received.subject, now)
        return
    names.check(
        state.launch_config_id, state.pool_id, state.account_id, state.region, state.zone, state.instance_type,
        state.image_revision,
    )  # fmt: skip
    draft.declare(state, now)
