"""What time alone changes in a worker pool: permits that are due, and the one that a closed pool is owed."""

from collections.abc import Collection, Mapping
from datetime import datetime

import msgspec

from slipway_weight_calculator.domain.gates import pull_forward
from slipway_weight_calculator.domain.health import Health, advance
from slipway_weight_calculator.domain.policy import Policy


def pass_time(
    pool: Mapping[str, Health], active: Collection[str], *, now: datetime, policy: Policy
) -> dict[str, Health]:
    """The configs of one pool that are different at `now`; only `active` ones count as open or closed for the pool."""
    after = {config_id: advance(health, now) for config_id, health in pool.items()}
    pulled = pull_forward({config_id: after[config_id].gate for config_id in active}, policy)
    if pulled is not None:
        config_id, due = pulled
        gate = msgspec.structs.replace(after[config_id].gate, next_probe_at=due)
        after[config_id] = advance(msgspec.structs.replace(after[config_id], gate=gate), now)
    return {config_id: health for config_id, health in after.items() if health != pool[config_id]}
