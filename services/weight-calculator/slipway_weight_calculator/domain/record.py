"""What is published of a launch config, when a new record is worth it, and the reason in words."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_common.events.weight import StageHealth, WeightChanged
from slipway_weight_calculator.domain.evidence import decayed, probability
from slipway_weight_calculator.domain.gates import Failure, Gate
from slipway_weight_calculator.domain.health import Health
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.weights import success, weight

HEALTHY: Final = 0.9  # stages below are named in the reason


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What a weight needs to know of a declared launch config. Revision 0: not declared to us yet."""

    id: str
    pool_id: str
    zone: str = ""
    base_weight: float = 1.0
    price_factor: float = 1.0
    state: str = "active"
    revision: int = 0


def record(config: Config, health: Health, *, now: datetime, policy: Policy) -> WeightChanged:
    """The whole state of a config as others may know it at `now`."""
    likely = success(health, now=now, policy=policy)
    stages = {
        stage.value: StageHealth(
            probability=probability(evidence, policy),
            successes=evidence.successes,
            failures=evidence.failures,
            window=policy.window,
            failures_folded=evidence.failures_folded,
        )
        for stage, evidence in ((stage, decayed(evidence, now, policy)) for stage, evidence in health.stages())
    }
    gate = health.gate
    return WeightChanged(
        launch_config_id=config.id,
        pool_id=config.pool_id,
        config_revision=config.revision,
        weight=weight(config.base_weight, config.price_factor, likely, policy),
        health=likely,
        stages=stages,
        state="closed" if gate.closed else "open",
        closed_stage="launch" if gate.closed else None,
        probe_permit=gate.permit or None,
        probe_ready=gate.ready,
        next_probe_at=gate.next_probe_at,
        reason=f"{config.zone or config.id}: {_closed(gate) if gate.closed else _open(stages)}",
    )


def worth_publishing(last: WeightChanged | None, new: WeightChanged, policy: Policy) -> bool:
    """A weight that moved beyond the threshold, or any step in what others count on: gate, permit, failures folded."""
    if last is None or _steps(last) != _steps(new):
        return True
    return abs(new.weight - last.weight) > policy.publish_threshold * last.weight


def _steps(record: WeightChanged) -> WeightChanged:
    """The record without what moves a little all the time."""
    stages = {
        name: msgspec.structs.replace(stage, probability=0.0, successes=0.0, failures=0.0)
        for name, stage in record.stages.items()
    }
    return msgspec.structs.replace(record, weight=0.0, health=0.0, stages=stages, reason="")


def _open(stages: dict[str, StageHealth]) -> str:
    weak = [f"{name} {stage.probability:.0%}" for name, stage in stages.items() if stage.probability < HEALTHY]
    return ", ".join(["open", *weak])


def _closed(gate: Gate) -> str:
    """Needs no clock: whoever prints it knows `next_probe_at`."""
    parts = ["closed", *_failures(gate.run)]
    if gate.failed_probes:
        probes = f"{gate.failed_probes} failed {_plural('probe', gate.failed_probes)}"
        parts.append(f"{probes} ({gate.probe_code})" if gate.probe_code else probes)
    if gate.ready:
        parts.append(f"probe {gate.permit} may launch")
    return ", ".join(parts)


def _failures(run: Sequence[Failure]) -> list[str]:
    texts = []
    for scope, count in Counter(failure.scope for failure in run).items():
        codes = ", ".join(sorted({failure.code for failure in run if failure.scope is scope and failure.code}))
        text = f"{count} {scope.value} {_plural('error', count)}"
        texts.append(f"{text} ({codes})" if codes else text)
    return texts


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
