"""Pause and resume requests from outside become states of launch configs, and a machine that its cloud is about to take
away leaves before; other signals are the calculator's."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from slipway_common.events.signal import SignalRaised
from slipway_common.lifecycle import State
from slipway_common.postgres import Connection
from slipway_common.records import Received
from slipway_common.signal_rules import DEFAULT_RULES, REQUESTS, Rules, is_provisioners, refusal
from slipway_common.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.domain.workers import stopping
from slipway_provisioner.store import configs, pools, workers

LOG = logger(__name__)
WORKER_ID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MAY_LEAVE: Final = frozenset({State.LAUNCHING, State.STARTING, State.RUNNING})
REASON_CHARACTERS_MAX: Final = 500


async def record_requests(tx: Connection, received: Sequence[Received], *, rules: Rules = DEFAULT_RULES) -> None:
    """Pause requests hold until their ttl ends. A resume lifts only what the same source paused. What its source may
    not say, or not for so long or at such a time, changes nothing; the calculator keeps it for people."""
    heard: list[SignalRaised] = [r.event for r in received if r.event is not None and is_provisioners(r.event)]
    if not heard:
        return
    now = await pools.now(tx)
    signals = [signal for signal in heard if not _refused(signal, now.timestamp(), rules)]
    requests = [signal for signal in signals if signal.kind in REQUESTS]
    await configs.lock(tx, [signal.target_id for signal in requests])
    for signal in requests:
        until = signal.observed_at + timedelta(seconds=signal.ttl_seconds)
        by = f"signal:{signal.source}"
        if signal.kind == "pause_request":
            await configs.pause(tx, signal.target_id, reason=signal.reason, by=by, until=until, command=False)
        else:
            await configs.resume(tx, signal.target_id, reason=signal.reason, by=by, only_by=by)
    await _drain(tx, [signal for signal in signals if signal.kind == "spot_interruption"], now)


def _refused(signal: SignalRaised, now: float, rules: Rules) -> bool:
    why = refusal(signal, now, rules)
    if why:
        metrics.REQUESTS_REFUSED.labels(why.partition(":")[0]).inc()
        LOG.info("signal refused", source=signal.source, kind=signal.kind, why=why)
    return bool(why)


async def _drain(tx: Connection, interruptions: Sequence[SignalRaised], now: datetime) -> None:
    """Tell the workers to leave after the task that they have. No stage ends by it: that a cloud takes a machine away
    says nothing about its start."""
    told = {
        signal.target_id: f"spot interruption, says {signal.source}: {signal.reason}"[:REASON_CHARACTERS_MAX]
        for signal in interruptions
        if WORKER_ID.fullmatch(signal.target_id)
    }
    leaving = [worker for worker in await workers.lock(tx, sorted(told)) if worker.state in MAY_LEAVE]
    await workers.save(tx, [stopping(worker, told[worker.id], now) for worker in leaving])
