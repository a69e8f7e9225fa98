"""Check 31, for the CLI: an interrupted run gets SIGINT, then SIGKILL, and its process serves no other run."""

import json

import psutil
import pytest

from slipway_local.terraform.ledger import Fault
from slipway_terraform.domain.results import Changes, Command, Scope
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.harness import until
from tests.support.terraform_runs import Place, driver, soon

TWO = """
terraform {
  required_providers {
    ledger = { source = "registry.terraform.io/slipway/ledger" }
  }
}
resource "ledger_machine" "one" { name = "one" }
resource "ledger_machine" "two" { name = ledger_machine.one.id }
"""


async def test_an_interrupted_run_taints_its_process(place: Place, shared: SharedScheduler) -> None:
    place.ledger.inject(Fault(kind="hang", at="create", call=1, seconds=1.0))
    async with driver(place, shared) as runs:
        first = runs.start(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
        await until(lambda: place.ledger.calls("configure"))
        await until(lambda: first.is_in_cli)
        first.interrupt("not needed")
        await first.settled()
        (tainted,) = {call.pid for call in place.ledger.calls("configure")}
        again = await runs.run(Command.APPLY, "w-2", place.job(), state=None, deadline=soon())
        assert again.failure is None
        assert tainted not in {call.pid for call in place.ledger.calls("create") if call.tags == {"worker": "w-2"}}
        await until(lambda: not psutil.pid_exists(tainted))


async def test_sigint_lets_the_cli_save_its_state(place: Place, shared: SharedScheduler) -> None:
    """The first resource is finished and in the state, the second is not begun."""
    place.ledger.inject(Fault(kind="hang", at="create", call=1, seconds=1.0, done=True))
    async with driver(place, shared) as runs:
        job = place.job(place.module(TWO), variables={})
        operation = runs.start(Command.APPLY, "w-1", job, state=None, deadline=soon())
        await until(lambda: place.ledger.calls("create"))
        operation.interrupt("not needed")
        run = await operation.wait()
        place.ledger.inject()
        assert run.failure is not None
        assert run.failure.message == "not needed"
        state = json.loads(run.state or b'{"resources": []}')
        known = [each["attributes"]["id"] for part in state["resources"] for each in part["instances"]]
        assert known == [machine["id"] for machine in place.ledger.machines()]
        again = await runs.run(Command.DESTROY, "w-1", job, state=run.state, deadline=soon())
        assert again.changes == Changes(0, 0, 1)


@pytest.mark.parametrize("by", ["deadline", "request"])
async def test_a_hanging_run_is_killed_and_its_outcome_is_unknown(
    place: Place, shared: SharedScheduler, by: str
) -> None:
    place.ledger.inject(Fault(kind="hang", at="create", seconds=3600.0, done=True))
    async with driver(place, shared, grace_seconds=0.5) as runs:
        await shared.acquire((place.spec(),), owner="warm", deadline=soon())  # so that the deadline is that of the run
        operation = runs.start(
            Command.APPLY, "w-1", place.job(), state=None, deadline=soon(2.0 if by == "deadline" else 60.0)
        )
        await until(lambda: place.ledger.calls("create"))
        if by == "request":
            operation.interrupt("the operator cancelled")
        run = await operation.wait()
        assert run.failure is not None
        assert run.failure.scope is Scope.OUTCOME_UNKNOWN
        assert run.failure.message == {"deadline": "the deadline passed", "request": "the operator cancelled"}[by]
        assert not run.failure.retryable
        assert len(place.ledger.machines()) == 1
    assert place.secrets_on_disk() == []
