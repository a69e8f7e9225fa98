"""Provisioner and weight-calculator count the same failures, since a failure occupies a window between their counts."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.lifecycle import TRANSITIONS, State
from slipway_api.events.scopes import config_key
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_provisioner.domain import workers
from slipway_provisioner.domain.workers import Worker
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.world import World, commit, declare, fold
from tests.support.worlds import T0, A

NOW: Final = datetime.fromtimestamp(T0, UTC)
STAGES: Final = ("launch", "boot", "claim")
OUTCOMES: Final = [
    Outcome(stage, Result.FAILED, scope, "", "code", classified)
    for stage, scope, classified in product([Stage.LAUNCH, Stage.BOOT, Stage.CLAIM], Scope, [True, False])
]
Fact = Callable[[Worker, Outcome | None], Any]
FACTS: Final[dict[str, Fact]] = {
    "delayed": lambda w, _: workers.delayed(w, "throttled"),
    "launched": lambda w, _: workers.launched(w, "i", NOW, looked_up=False),
    "launch_failed": lambda w, outcome: outcome and workers.launch_failed(w, outcome, NOW),
    "registered": lambda w, _: workers.registered(w, "i", "hash", NOW),
    "claimed": lambda w, _: workers.claimed(w, "t", "q", NOW),
    "stopping": lambda w, outcome: workers.stopping(w, "r", NOW, outcome),
    "stopped": lambda w, _: workers.stopped(w, "r", NOW),
    "lost": lambda w, outcome: workers.lost(w, "r", NOW, outcome),
}


def events_of(name: str) -> Iterator[Any]:
    """Events of a transition in all states that have it, with every failed outcome and with none."""
    for state, outcome in product(State, [None, *OUTCOMES]):
        before = Worker(
            id="w",
            pool_id=A.pool_id,
            launch_config_id=A.launch_config_id,
            account_id=A.account_id,
            image_revision=A.image_revision,
            state=state,
            decision_id="d",
            requested_at=NOW - timedelta(seconds=9),
        )
        if (state, name) in TRANSITIONS and (change := FACTS[name](before, outcome)):
            yield change[1]


@pytest.mark.parametrize("claim", ["hook", "none"])
@pytest.mark.parametrize("name", FACTS)
def test_both_sides_count_the_same_failures(name: str, claim: str) -> None:
    """Outcomes of all scopes, including none and unknown ones, with and without evidence of claims."""
    world = World()
    draft = Draft(world)
    declare(draft, msgspec.structs.replace(A, claim_evidence=claim), T0)
    commit(draft)
    events = list(events_of(name))
    assert events
    for event in events:
        counted = dict.fromkeys(STAGES, 0)
        match workers.ended_stage(event):
            case (_, stage, True):
                counted[stage] += 1
        draft = Draft(world)
        fold(draft, event, T0)
        row = draft.row(config_key(A.launch_config_id))
        assert row is not None
        assert {stage: getattr(row, stage).folded for stage in STAGES} == counted
