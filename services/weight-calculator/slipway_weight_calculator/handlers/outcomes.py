"""Outcomes of workers become the health of their launch configs. What follows from it is published by a loop."""

from collections.abc import Sequence

from slipway_common.consume import Received
from slipway_common.postgres import Connection
from slipway_weight_calculator import metrics
from slipway_weight_calculator.domain.health import concerns, fold
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.store import configs
from slipway_weight_calculator.store.configs import Row


async def fold_outcomes(tx: Connection, records: Sequence[Received], *, policy: Policy) -> None:
    """Fold each event into its config, under the rows' locks, at the time of the fact.

    A config that was not declared to us yet gets a row with defaults: order is promised per topic and key only.
    """
    told = [record for record in records if record.event is not None and concerns(record.event)]
    if not told:
        return
    pool_of = {record.event.launch_config_id: record.event.pool_id for record in told}
    await configs.introduce(tx, pool_of)
    before = {row.config.id: row for row in await configs.lock(tx, sorted(pool_of))}
    now = await configs.clock(tx)
    health = {config_id: row.health for config_id, row in before.items()}
    trace = {record.event.launch_config_id: record.traceparent for record in told}
    for record in told:
        config_id = record.event.launch_config_id
        # A time in the future would make everything after it look late.
        at = min(record.time, now)
        health[config_id] = fold(health[config_id], record.event, at=at, policy=policy)
        metrics.count_outcome(record.event)
    changed = [
        Row(row.config, health[config_id], trace[config_id])
        for config_id, row in before.items()
        if health[config_id] != row.health
    ]
    await configs.write(tx, changed)
    for row in changed:
        metrics.count_gate(before[row.config.id].health.gate, row.health.gate)
