"""All that is known of one launch config, as one value: evidence per stage and the gate.

`fold` and `advance` are the only ways in which it changes; both are deterministic. What follows from it for others is
said by weights.py and record.py.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import msgspec

from slipway_common.events.worker import Outcome, Stage, WorkerEvent
from slipway_weight_calculator.domain import evidence, gates
from slipway_weight_calculator.domain.evidence import Evidence
from slipway_weight_calculator.domain.gates import GIVE_BACK, Gate
from slipway_weight_calculator.domain.policy import Policy

STAGES: Final = (Stage.LAUNCH, Stage.BOOT, Stage.CLAIM)


class Health(msgspec.Struct, frozen=True, kw_only=True):
    launch: Evidence = Evidence()
    boot: Evidence = Evidence()
    claim: Evidence = Evidence()
    gate: Gate = Gate()

    def stages(self) -> Iterator[tuple[Stage, Evidence]]:
        yield from zip(STAGES, (self.launch, self.boot, self.claim), strict=True)


def concerns(event: WorkerEvent) -> bool:
    """Whether folding the event can change anything; most of a worker's life can not."""
    outcome: Outcome | None = getattr(event, "outcome", None)
    return outcome is not None or (event.probe_permit is not None and isinstance(event, GIVE_BACK))


def fold(health: Health, event: WorkerEvent, *, at: datetime, policy: Policy) -> Health:
    """The health of the event's config after it; `at` is the time of the fact, not of its arrival."""
    gate = gates.fold(health.gate, event, at=at, policy=policy)
    outcome: Outcome | None = getattr(event, "outcome", None)
    if outcome is None or outcome.stage not in STAGES:
        return msgspec.structs.replace(health, gate=gate)
    stage = dict(health.stages())[outcome.stage]
    stage = evidence.fold(stage, outcome, at=at, policy=policy)
    return msgspec.structs.replace(health, gate=gate, **{outcome.stage.value: stage})


def advance(health: Health, now: datetime) -> Health:
    """Time alone: a probe permit that is due at `now` is issued."""
    return msgspec.structs.replace(health, gate=gates.advance(health.gate, now))
