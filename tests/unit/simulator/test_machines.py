"""Next actions of a machine over its whole life."""

from typing import Any

import pytest

from slipway_simulator.facts import (
    Claimed,
    ClaimUnknown,
    DrainRequested,
    Fact,
    Idle,
    Refused,
    Registered,
    TaskEnded,
    TaskStarted,
    Unknown,
)
from slipway_simulator.machines import (
    Act,
    Contact,
    Machine,
    PendingReport,
    Poll,
    Register,
    SendReport,
    Take,
    Wait,
    next_act,
)
from slipway_simulator.scenario import Scenario

RULES = Scenario(poll_seconds=30.0, heartbeat_seconds=120.0)
WHO: dict[str, Any] = {"instance_id": "i-1", "worker_id": "w-1", "pool_id": "p"}
REGISTERED = Registered(at=10.0, token="x", **WHO)
STARTED = TaskStarted(at=11.0, task_id="t", pool_id="p", instance_id="i-1", ends_at=20.0)
CLAIMED = Claimed(at=11.5, task_id="t", status=200, **WHO)
DONE = TaskEnded(at=20.0, task_id="t", pool_id="p", instance_id="i-1", result="done")
IDLE = Idle(at=20.5, status=200, **WHO)
DRAIN = DrainRequested(at=12.0, instance_id="i-1", worker_id="w-1")
UNKNOWN = Unknown(at=15.0, instance_id="i-1", status=404)
CLAIM_UNKNOWN = ClaimUnknown(at=15.0, instance_id="i-1")
REFUSED = Refused(at=10.0, instance_id="i-1", status=409)

TELL_CLAIMED = SendReport(PendingReport("claimed", 11.0, "t"))
#        its past, tasks per worker, now, work waits, next
LIVES: list[tuple[list[Fact], int | None, float, bool, Act]] = [
    ([], None, 9.0, True, Wait(10.0)),
    ([], None, 10.0, True, Register()),
    ([REFUSED], None, 99.0, True, Wait(None)),
    ([REGISTERED], None, 10.0, True, Take()),
    ([REGISTERED], None, 10.0, False, Wait(40.0)),
    ([REGISTERED], None, 40.0, False, Poll(heartbeat=False)),
    ([REGISTERED], None, 130.0, False, Poll(heartbeat=True)),
    ([REGISTERED, STARTED], None, 11.0, True, TELL_CLAIMED),
    ([REGISTERED, STARTED, CLAIMED], None, 50.0, True, Wait(130.0)),
    ([REGISTERED, STARTED, CLAIMED], None, 130.0, True, Poll(heartbeat=True)),
    ([REGISTERED, STARTED, DONE], None, 20.0, True, TELL_CLAIMED),
    ([REGISTERED, STARTED, DONE, CLAIMED], None, 20.0, True, SendReport(PendingReport("idle", 20.0, "t", 11.0))),
    ([REGISTERED, STARTED, CLAIMED, DONE, IDLE], None, 20.5, True, Take()),
    ([REGISTERED, STARTED, CLAIMED, DONE], 1, 20.0, True, SendReport(PendingReport("stopped", 20.0))),
    ([REGISTERED, STARTED, CLAIMED, DONE], 2, 20.0, True, SendReport(PendingReport("idle", 20.0, "t", 11.0))),
    ([REGISTERED, DRAIN], None, 12.0, True, SendReport(PendingReport("stopped", 12.0))),
    ([REGISTERED, DRAIN, DRAIN], None, 12.0, True, SendReport(PendingReport("stopped", 12.0))),
    ([REGISTERED, STARTED, CLAIMED, DRAIN], None, 12.0, True, Wait(130.0)),
    ([REGISTERED, UNKNOWN], None, 15.0, True, Register()),
    ([REGISTERED, UNKNOWN, REGISTERED], None, 15.0, True, Take()),
    ([REGISTERED, STARTED, CLAIMED, UNKNOWN, REGISTERED], None, 15.0, True, TELL_CLAIMED),
    ([REGISTERED, STARTED, UNKNOWN, REGISTERED, CLAIMED], None, 15.0, True, Wait(130.0)),
    ([REGISTERED, STARTED, CLAIMED, UNKNOWN, REGISTERED, CLAIMED, UNKNOWN], None, 15.0, True, Register()),
    ([REGISTERED, STARTED, CLAIMED, CLAIM_UNKNOWN], None, 15.0, True, TELL_CLAIMED),
    ([REGISTERED, STARTED, CLAIMED, DRAIN, DONE], None, 20.0, True, SendReport(PendingReport("stopped", 20.0))),
]


@pytest.mark.parametrize(("past", "tasks_per_worker", "now", "work", "expected"), LIVES)
def test_next_act(past: list[Fact], tasks_per_worker: int | None, now: float, work: bool, expected: Act) -> None:
    """Pending reports come first and in order, then work, then polls. A busy machine finishes its task first. One that
    a restored provisioner does not know registers again, and reports its claim again."""
    machine = Machine("i-1", "acc", {"settings": {"tasks_per_worker": tasks_per_worker}}, boots_at=10.0, claims=True)
    for fact in past:
        machine.fold(fact)
    assert next_act(machine, Contact(10.0, 10.0), RULES, work=work, now=now) == expected


@pytest.mark.parametrize(("boots_at", "claims", "expected"), [(None, True, Wait(None)), (10.0, False, Wait(40.0))])
def test_bad_images_show(boots_at: float | None, claims: bool, expected: Act) -> None:
    """One machine never registers; another registers and stays idle although tasks are pending."""
    machine = Machine("i-1", "acc", {}, boots_at, claims)
    if boots_at is not None:
        machine.fold(REGISTERED)
    assert next_act(machine, Contact(10.0, 10.0), RULES, work=True, now=10.0) == expected
