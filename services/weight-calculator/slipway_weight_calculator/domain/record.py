"""What is published of a launch config, when a new record is worth it, and the reason in words. Pure."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from slipway_common.events.weight import BOUNDLESS, SharedWindow, StageHealth, WeightChanged
from slipway_weight_calculator.domain import signals
from slipway_weight_calculator.domain.evidence import Stage, masses
from slipway_weight_calculator.domain.gates import Failure, Gate
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.rows import STAGES, Config, Row, new_row
from slipway_weight_calculator.domain.signals import Signal
from slipway_weight_calculator.domain.weights import chances, weight
from slipway_weight_calculator.domain.world import Draft

HEALTHY: Final = 0.9  # stages below are named in the reason
GROWN: Final = 1.1  # a window that grew by less is not worth a record
WINDOWS: Final = frozenset({("image", "boot"), ("image", "claim"), ("quota", "launch")})
SHARED_STAGES: Final = (("image", ("launch", "boot", "claim")), ("quota", ("launch",)), ("credential", ("launch",)))


def record(known: Draft, config: Config, now: float, offsets: Mapping[str, int] | None = None) -> WeightChanged:
    """The whole state of a config as others may know it at `now`."""
    policy, row = known.policy(config), known.row(config.id) or new_row(known.policy(config))
    said = [signal for signal in known.said(config.id) if signal.until > now and signal.kind != "recovered"]
    likely = chances(known, config, now)
    health = math.prod(likely.values()) * signals.factor(said)
    room = signals.launch_room(said)
    stages = {name: _stage(getattr(row, name), likely[name], now, policy) for name in STAGES}
    if room is not None and room < stages["launch"].window:
        stages["launch"] = msgspec.structs.replace(stages["launch"], window=int(room))
    closing, down = known.closing(config), signals.is_down(said)
    key, stage, gate = closing[0] if closing else ("", None, None)
    due = [gate.next_probe_at for _, _, gate in closing]
    ready = bool(closing) and down is None and known.probe_is_ready(config, closing)
    closed = bool(closing) or down is not None
    return WeightChanged(
        launch_config_id=config.id,
        pool_id=config.declared.pool_id,
        config_revision=config.declared.revision,
        weight=weight(config.declared.base_weight, config.declared.price_factor, health, policy),
        health=health,
        stages=stages,
        state="closed" if closed else "open",
        closed_stage=stage,
        closed_by="signal" if down is not None else "" if key == config.id else key,
        closed_since=_time(down.since if down else min((g.closed_at for _, _, g in closing), default=0.0)),
        probe_permit=row.permit if row.permit_at else None,
        probe_ready=ready,
        next_probe_at=_time(max(due)) if due and all(due) and down is None else None,
        reason=f"{config.declared.zone or config.id}: {_reason(row, key, gate, down, stages, said, ready=ready)}",
        profile=config.declared.profile,
        shared=tuple(shared(known, config, policy)),
        signals=tuple(_words(signal) for signal in said),
        offsets=dict(offsets or {}),
    )


def shared(known: Draft, config: Config, policy: Policy) -> list[SharedWindow]:
    """What the config shares with others, as far as anything is known of it."""
    found = []
    for kind, names in SHARED_STAGES:
        key = config.shared[kind]
        row = known.row(key)
        if row is None:
            continue
        for name in names:
            stage: Stage = getattr(row, name)
            gate = stage.gate
            window = max(1, int(stage.window)) if (kind, name) in WINDOWS else BOUNDLESS
            found.append(
                SharedWindow(
                    key=key,
                    stage=name,
                    version=row.version,
                    window=window,
                    state="closed" if gate.closed else "open",
                    unconfirmed=gate.unconfirmed,
                    reason=_closed(gate) if gate.closed else "",
                )
            )
    return found


def worth_publishing(last: WeightChanged | None, new: WeightChanged, policy: Policy) -> bool:
    """A weight that moved beyond the threshold, or any step in what others count on: gate, permit, failures folded, a
    window that shrank or grew much."""
    if last is None or _steps(last) != _steps(new):
        return True
    if abs(new.weight - last.weight) > policy.publish_threshold * last.weight:
        return True
    return any(now < then or now > then * GROWN for then, now in zip(_windows(last), _windows(new), strict=True))


def _steps(record: WeightChanged) -> WeightChanged:
    """The record without what moves a little all the time."""
    stages = {
        name: msgspec.structs.replace(
            stage, probability=0.0, successes=0.0, failures=0.0, succeeded=0, failed=0, window=0
        )
        for name, stage in record.stages.items()
    }
    shared_ = tuple(msgspec.structs.replace(window, version=0, window=0) for window in record.shared)
    return msgspec.structs.replace(record, weight=0.0, health=0.0, stages=stages, shared=shared_, reason="", offsets={})


def _windows(record: WeightChanged) -> list[int]:
    return [*(stage.window for stage in record.stages.values()), *(window.window for window in record.shared)]


def _stage(stage: Stage, probability: float, now: float, policy: Policy) -> StageHealth:
    successes, failures, _ = masses(stage, now, policy)
    return StageHealth(
        probability=probability,
        successes=successes,
        failures=failures,
        window=max(1, int(stage.window)),
        failures_folded=stage.folded,
        late=stage.late,
        succeeded=stage.succeeded,
        failed=stage.failed,
    )


def _time(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def _reason(
    row: Row,
    key: str,
    gate: Gate | None,
    down: Signal | None,
    stages: dict[str, StageHealth],
    said: Sequence[Signal],
    *,
    ready: bool,
) -> str:
    """Needs no clock: whoever prints it knows `next_probe_at`."""
    if down is not None:
        return f"closed, {_words(down)}"
    if gate is not None:
        parts = [_closed(gate)]
        if "/" in key:
            parts.append(f"by {key}")
        if ready:
            parts.append(f"probe {row.permit} may launch")
        elif row.ready and row.spent:
            parts.append(f"probe {row.permit} is under way")
        return ", ".join(parts)
    weak = [f"{name} {stage.probability:.0%}" for name, stage in stages.items() if stage.probability < HEALTHY]
    return ", ".join(["open", *weak, *(_words(signal) for signal in said)])


def _words(signal: Signal) -> str:
    value = f" {signal.value:g}" if signal.kind != "down" else ""
    return f"{signal.kind}{value} by {signal.source} ({signal.reason})"


def _closed(gate: Gate) -> str:
    parts = ["closed", *failures(gate.run)]
    if gate.failed_probes:
        probes = f"{gate.failed_probes} failed {_plural('probe', gate.failed_probes)}"
        parts.append(f"{probes} ({gate.probe_code})" if gate.probe_code else probes)
    return ", ".join(parts)


def failures(run: Sequence[Failure]) -> list[str]:
    """A run in words, a phrase per scope."""
    texts = []
    for scope, count in Counter(failure.scope for failure in run).items():
        codes = ", ".join(sorted({failure.code for failure in run if failure.scope is scope and failure.code}))
        text = f"{count} {scope.value} {_plural('error', count)}"
        texts.append(f"{text} ({codes})" if codes else text)
    return texts


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
