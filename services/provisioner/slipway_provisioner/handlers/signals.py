"""Consumer of signals for the provisioner: pause and resume requests, and spot interruptions. The weight-calculator
handles the others."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec

from slipway_api.events.lifecycle import ENDED, STOPPABLE, WAITING, State
from slipway_api.events.signal import SignalRaised
from slipway_api.events.signal_kinds import REQUESTS
from slipway_common.base.signal_rules import (
    DEFAULT_RULES,
    Rules,
    is_for_provisioner,
    redacted_signal,
    refusal,
    share_holder,
)
from slipway_common.database.postgres import Connection
from slipway_common.messaging.records import Received
from slipway_common.observability.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.domain.pauses import RefusedPause, by_signal, share_problem
from slipway_provisioner.domain.workers import stopping
from slipway_provisioner.store import configs, pools, refused_pauses, workers

LOG = logger(__name__)
REASON_CHARACTERS_MAX: Final = 500

Refused = tuple[SignalRaised, str]
"""A signal without effect and the reason: its kind, a colon, and text."""


async def record_requests(
    tx: Connection, received: Sequence[Received], *, rules: Rules = DEFAULT_RULES
) -> Callable[[], None] | None:
    """Apply pause requests until their TTL ends, resume requests to pauses of the same source, and spot interruptions.

    Signals that the rules refuse change nothing; the weight-calculator stores them for people. An alert is raised on
    pause requests beyond the share of their source, which only the provisioner knows. Returns a function that
    counts the refused signals, to be called after the commit.
    """
    received_signals: list[SignalRaised] = [
        redacted_signal(r.event) for r in received if r.event is not None and is_for_provisioner(r.event)
    ]
    if not received_signals:
        return None
    now = await pools.now(tx)
    checked = [(signal, refusal(signal, now.timestamp(), rules)) for signal in received_signals]
    signals = [signal for signal, refused in checked if not refused]
    without_effect = [(signal, refused) for signal, refused in checked if refused]
    without_effect += await _pause(tx, [signal for signal in signals if signal.kind in REQUESTS], now, rules)
    without_effect += await _drain(tx, [signal for signal in signals if signal.kind == "spot_interruption"], now)
    return partial(_count, without_effect)


def _count(refused: Sequence[Refused]) -> None:
    for signal, reason in refused:
        metrics.REQUESTS_REFUSED.labels(reason.partition(":")[0]).inc()
        LOG.info("signal refused", source=signal.source, kind=signal.kind, reason=reason)


async def _pause(tx: Connection, requests: Sequence[SignalRaised], now: datetime, rules: Rules) -> list[Refused]:
    """Apply requests in their order; returns those without effect.

    All launch configs of their pools are locked, so that requests of other replicas for them are decided before or
    after these.
    """
    named = await configs.found(tx, [signal.target_id for signal in requests])
    known = await configs.lock_pools(tx, list(named.values()))
    refused: list[Refused] = []
    over: list[RefusedPause] = []
    for signal in requests:
        config, by = known.get(named.get(signal.target_id, "")), by_signal(signal.source)
        until = signal.observed_at + timedelta(seconds=signal.ttl_seconds)
        if config is None or not config.declared:
            refused.append((signal, f"unreached: there is no launch config {signal.target_id!r}"))
        elif signal.kind == "resume_request":
            if await configs.resume(tx, config.name, reason=signal.reason, by=by, only_by=by):
                known[config.name] = msgspec.structs.replace(config, paused=False)
        elif problem := share_problem(signal.source, config.name, known, now, rules):
            refused.append((signal, f"share: {problem}"))
            over.append(
                RefusedPause(
                    pool_id=config.pool_id,
                    holder=share_holder(signal.source, rules),
                    name=config.name,
                    reason=problem,
                    until=until,
                )
            )
        elif await configs.pause(tx, config.name, reason=signal.reason, by=by, until=until, command=False):
            known[config.name] = msgspec.structs.replace(config, paused=True, paused_by=by, paused_until=until)
    await refused_pauses.record(tx, over)
    return refused


async def _drain(tx: Connection, interruptions: Sequence[SignalRaised], now: datetime) -> list[Refused]:
    """Stop the interrupted workers after their current task; returns the signals that name no worker with a machine.

    No stage ends by it, since a spot interruption is no evidence about the worker's start.
    """
    reasons = {
        signal.target_id: f"spot interruption reported by {signal.source}: {signal.reason}"[:REASON_CHARACTERS_MAX]
        for signal in interruptions
    }
    found = await workers.lock(tx, sorted(reasons))
    await workers.save(tx, [stopping(worker, reasons[worker.id], now) for worker in found if worker.state in STOPPABLE])
    states = {worker.id: worker.state for worker in found}
    checked = [(signal, _unreached(signal.target_id, states.get(signal.target_id))) for signal in interruptions]
    return [(signal, reason) for signal, reason in checked if reason]


def _unreached(worker_id: str, state: State | None) -> str:
    """Reason why an interruption reaches no machine; empty if the worker stops or is stopping already."""
    if state is None:
        return f"unreached: there is no worker {worker_id}"
    if state in WAITING | ENDED:
        return f"unreached: worker {worker_id} is {state} and has no machine"
    return ""
