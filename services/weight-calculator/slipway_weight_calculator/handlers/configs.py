"""Declared launch configs become rows. Archiving keeps the row: outcomes of its last workers are still to come."""

from collections.abc import Sequence

from slipway_common.consume import Received
from slipway_common.events.launch_config import LaunchConfigState
from slipway_common.postgres import Connection
from slipway_weight_calculator.store import configs


async def record_configs(tx: Connection, records: Sequence[Received]) -> None:
    """Keep the newest state per config; a tombstone archives."""
    newest: dict[str, LaunchConfigState | None] = {record.subject: record.event for record in records}
    await configs.declare(tx, [state for state in newest.values() if state is not None])
    await configs.archive(tx, [config_id for config_id, state in newest.items() if state is None])
