"""Workers and alerts of an account that does not answer."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.lifecycle import SERVING, State
from slipway_api.events.worker import Outcome, Result, Scope, Stage, WorkerLaunchFailed, WorkerLost, WorkerStopping
from slipway_provisioner.domain import reachability
from slipway_provisioner.domain.workers import Worker, ended_stage
from slipway_provisioner.store.pools import _stopped as stopped

NOW = datetime(2030, 1, 1, tzinfo=UTC)
WORKER = Worker(
    id="w",
    pool_id="p",
    launch_config_id="c",
    account_id="a",
    image_revision="i",
    state=State.LAUNCHING,
    decision_id="d",
    batch_id="b",
    requested_at=NOW,
)


def worker(**changes: Any) -> Worker:
    return msgspec.structs.replace(WORKER, **changes)


def test_a_machine_is_found_again_by_what_is_known_of_it() -> None:
    for instance_id, batch_id in ((None, "b"), ("i-1", None)):
        left = reachability.machine(worker(instance_id=instance_id, batch_id=batch_id))
        assert msgspec.to_builtins(left) == {
            "worker_id": "w",
            "account_id": "a",
            "pool_id": "p",
            "launch_config_id": "c",
            "batch_id": batch_id,
            "instance_id": instance_id,
        }


def test_a_call_that_is_given_up_is_no_evidence() -> None:
    """Its worker is replaced at once, and must leave if it appears."""
    after, event = reachability.given_up(WORKER, NOW)
    assert after.state not in SERVING
    assert after == worker(state=State.STOPPING, reason="account a does not answer", stopping_at=NOW)
    assert isinstance(event, WorkerStopping)
    assert (event.reason, event.outcome, ended_stage(event)) == (after.reason, None, None)


@pytest.mark.parametrize("state", [State.LAUNCHING, State.STOPPING])
def test_a_retired_account_ends_workers_without_blame(state: State) -> None:
    """One that may never have had a machine as a failed launch of nobody's fault, any other as lost."""
    after, event = reachability.settled(worker(state=state), NOW)
    assert isinstance(event, WorkerLaunchFailed)
    assert event.outcome == Outcome(Stage.LAUNCH, Result.FAILED, Scope.NOTHING, "", "unreachable")
    assert (after.state, after.ended_at, after.reason) == (State.STOPPED, NOW, "unreachable")
    after, event = reachability.settled(worker(state=state, instance_id="i-1", registered_at=NOW), NOW)
    assert isinstance(event, WorkerLost)
    assert (after.state, after.ended_at, event.instance_id) == (State.STOPPED, NOW, "i-1")
    assert after.reason == event.reason == "unreachable: account a is retired"


def test_only_a_call_in_flight_is_waited_for() -> None:
    assert [state for state in State if reachability.waits_for_its_call(worker(state=state))] == [State.LAUNCHING]


@pytest.mark.parametrize(("calls", "effect"), [(1, "1 call has"), (2, "2 calls have")])
def test_the_alert_is_resolved_under_its_key(calls: int, effect: str) -> None:
    raised = reachability.raised("ci/a", calls=calls, now=NOW)
    assert raised == AlertRaised(
        dedup_key="provisioner/account-unreachable/ci%2Fa",
        kind="account-unreachable",
        subject_kind="account",
        subject_id="ci/a",
        summary="account ci/a does not answer",
        effect=f"{effect} an unknown outcome; leaving workers still count",
        doing="launches in other accounts, and lists this one again until it answers",
        command="slipway account check ci/a  # says why; if it never answers again: slipway account retire",
        since=NOW,
    )
    resolved = reachability.resolved("ci/a", "it answers")
    assert resolved == AlertResolved(**raised.identity, summary="it answers")


STANDING = {"account_id": "a", "retired": False, "unreachable": False, "refuses_terminations": False, "launch_stop": ""}


@pytest.mark.parametrize(
    ("standing", "reason"),
    [
        ({}, ""),
        ({"launch_stop": "drill"}, "launching is stopped in a: drill"),
        ({"launch_stop": "drill", "refuses_terminations": True}, "account a refuses to terminate its instances"),
        ({"refuses_terminations": True, "unreachable": True}, "account a does not answer"),
        ({"unreachable": True, "retired": True}, "account a is retired"),
    ],
)
def test_why_nothing_starts_in_an_account(standing: dict[str, Any], reason: str) -> None:
    """Of several reasons, the one that a person has to end first."""
    assert stopped(STANDING | standing) == reason
