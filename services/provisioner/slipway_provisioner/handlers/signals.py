"""Pause and resume requests from outside become states of launch configs, and a machine that its cloud is about to take
away leaves before; other signals are the calculator's."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
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
MAY_LEAVE: Final = frozenset({State.LAUNCHING, State.STARTING, State.RUNNING})
REASON_CHARACTERS_MAX: Final = 500

Refused = tuple[SignalRaised, str]
"""A signal without effect, and why: the kind of reason, a colon, and words."""


async def record_requests(
    tx: Connection, received: Sequence[Received], *, rules: Rules = DEFAULT_RULES
) -> Callable[[], None] | None:
    """Pause requests hold until their ttl ends. A resume lifts only what the same source paused. What its source may
    not say, or not for so long or at such a time, changes nothing; the calculator keeps it for people. Returns what
    counts those, once it is committed."""
    heard: list[SignalRaised] = [r.event for r in received if r.event is not None and is_provisioners(r.event)]
    if not heard:
        return None
    now = await pools.now(tx)
    why = [(signal, refusal(signal, now.timestamp(), rules)) for signal in heard]
    signals = [signal for signal, wrong in why if not wrong]
    requests = [signal for signal in signals if signal.kind in REQUESTS]
    known = await configs.lock(tx, [signal.target_id for signal in requests])
    unreached = [
        (signal, f"unreached: there is no launch config {signal.target_id!r}")
        for signal in requests
        if signal.target_id not in known
    ]
    for signal in requests:
        until = signal.observed_at + timedelta(seconds=signal.ttl_seconds)
        by = f"signal:{signal.source}"
        if signal.kind == "pause_request":
            await configs.pause(tx, signal.target_id, reason=signal.reason, by=by, until=until, command=False)
        else:
            await configs.resume(tx, signal.target_id, reason=signal.reason, by=by, only_by=by)
    unreached += await _drain(tx, [signal for signal in signals if signal.kind == "spot_interruption"], now)
    return partial(_count, [(signal, wrong) for signal, wrong in why if wrong] + unreached)


def _count(refused: Sequence[Refused]) -> None:
    for signal, why in refused:
        metrics.REQUESTS_REFUSED.labels(why.partition(":")[0]).inc()
        LOG.info("signal refused", source=signal.source, kind=signal.kind, why=why)


async def _drain(tx: Connection, interruptions: Sequence[SignalRaised], now: datetime) -> list[Refused]:
    """Tell the workers to leave after the task that they have; returns those that speak of no worker, or of one that
    has ended. No stage ends by it: that a cloud takes a machine away says nothing about its start."""
    told = {
        signal.target_id: f"spot interruption, says {signal.source}: {signal.reason}"[:REASON_CHARACTERS_MAX]
        for signal in interruptions
    }
    found = await workers.lock(tx, sorted(told))
    await workers.save(tx, [stopping(worker, told[worker.id], now) for worker in found if worker.state in MAY_LEAVE])
    states = {worker.id: worker.state for worker in found}
    why = [(signal, _missed(signal.target_id, states.get(signal.target_id))) for signal in interruptions]
    return [(signal, missed) for signal, missed in why if missed]


def _missed(worker_id: str, state: State | None) -> str:
    """Why nobody leaves by an interruption; empty if somebody does, or did before."""
    if state is None:
        return f"unreached: there is no worker {worker_id}"
    if state in (State.REQUESTED, State.STOPPED):
        return f"unreached: worker {worker_id} is {state}: it has no machine"
    return ""
