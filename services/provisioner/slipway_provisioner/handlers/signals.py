"""Pause and resume requests from outside become states of launch configs; other signals are the calculator's."""

from collections.abc import Sequence
from datetime import timedelta

from slipway_common.consume import Received
from slipway_common.events.signal import SignalRaised
from slipway_common.postgres import Connection
from slipway_provisioner.store import configs


async def record_requests(tx: Connection, received: Sequence[Received]) -> None:
    """Pause requests hold until their ttl ends. A resume lifts only what the same source paused."""
    for record in received:
        signal: SignalRaised | None = record.event
        if signal is None or signal.target_kind != "config":
            continue
        until = signal.observed_at + timedelta(seconds=signal.ttl_seconds)
        by = f"signal:{signal.source}"
        if signal.kind == "pause_request":
            await configs.pause(tx, signal.target_id, reason=signal.reason, by=by, until=until)
        elif signal.kind == "resume_request":
            await configs.resume(tx, signal.target_id, reason=signal.reason, by=by, only_by=by)
