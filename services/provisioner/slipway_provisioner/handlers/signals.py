"""Pause and resume requests from outside become states of launch configs; other signals are the calculator's."""

from collections.abc import Sequence
from datetime import timedelta

from slipway_common.consume import Received
from slipway_common.events.signal import SignalRaised
from slipway_common.postgres import Connection
from slipway_provisioner.store import configs


async def record_requests(tx: Connection, received: Sequence[Received]) -> None:
    """Pause requests hold until their ttl ends. A resume lifts only what the same source paused."""
    signals: list[SignalRaised] = [r.event for r in received if r.event is not None and r.event.target_kind == "config"]
    await configs.lock(tx, [signal.target_id for signal in signals])
    for signal in signals:
        until = signal.observed_at + timedelta(seconds=signal.ttl_seconds)
        by = f"signal:{signal.source}"
        if signal.kind == "pause_request":
            await configs.pause(tx, signal.target_id, reason=signal.reason, by=by, until=until, command=False)
        elif signal.kind == "resume_request":
            await configs.resume(tx, signal.target_id, reason=signal.reason, by=by, only_by=by)
